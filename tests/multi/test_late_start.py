"""Layers, optimizers, metrics and models made before `fit` are carried into the cluster."""

import pytest
import workers

BODY = """
import keras, autostrategy
import tensorflow as tf
rows = np.ones((64, 4), "float32")
marks = np.ones((64, 1), "float32")
optimizer, metric = keras.optimizers.Adam(0.01), keras.metrics.MeanAbsoluteError()
normalise = keras.layers.Normalization()
normalise.adapt(np.random.default_rng(0).normal(2, 3, (1000, 4)))
look_up = keras.layers.StringLookup(output_mode="one_hot")
look_up.adapt(np.array(["a", "b", "b"]))
vectorise = keras.layers.TextVectorization(output_mode="tf_idf")
vectorise.adapt(["a b", "b c"])
letters = tf.constant([["a"], ["b"]] * 32)
table = tf.constant([[1, 2], [3, 0]] * 32)
mean = normalise.mean.numpy().tolist()
vector = np.array(vectorise(["a b c"])).tolist()

def net(*first):
    def model_fn():
        model = keras.Sequential([*first, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model
    return model_fn

ready = net(keras.Input((4,)))()
ready.compile("adam", "mse")
ready.fit(rows, marks, verbose=0)

def fit(model, x, **arguments):
    return autostrategy.fit(model, x, marks, verbose=0, batch_scaling="off", **arguments)

given = fit(net(keras.Input((4,))), rows, optimizer=optimizer, loss="mse", metrics=[metric])
fit(net(keras.Input((4,)), normalise), rows)
looked = fit(net(keras.Input((1,), dtype="string"), look_up), letters)
fit(ready, rows)
def embedding():
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(
        keras.layers.Embedding(4, 2)(ids))))
    model.compile("sgd", "mse")
    return model
early = fit(embedding, table)
tell({
    "early": early.report.steps,
    "history": sorted(given.history),
    "steps": int(optimizer.iterations.numpy()),
    "mean": normalise.mean.numpy().tolist() == mean,
    "letters": np.array(look_up([["a"], ["zz"]])).tolist(),
    "vector": np.array(vectorise(["a b c"])).tolist() == vector,
    "looked": looked.report.steps,
    "ready": int(ready.optimizer.iterations.numpy()),
})
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [{"worker": 2}, {"chief": 1, "worker": 1, "ps": 1}])
def test_what_was_made_before_is_carried_over(jobs, tmp_path):
    ended = workers.run(BODY, jobs, tmp_path=tmp_path)

    assert {each.status for each in ended} == {0}, "\n".join(x.output[-2000:] for x in ended)
    assert ended[0].value == {
        "early": 2,
        "history": ["loss", "mean_absolute_error"],
        "steps": 2,
        "mean": True,
        "letters": [[0, 0, 1], [1, 0, 0]],
        "vector": True,
        "looked": 2,
        "ready": 4,
    }
