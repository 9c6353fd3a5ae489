"""The rules of a TPU on virtual CPUs: XLA, static shapes, the numbers of one device.

22 rows: two replicas get batches of 8, the last of 6 rows; four get batches of 20,
the last of 2 rows, fewer than replicas.
"""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from nets import TOKENS, X, Y, net, of
from runs import assert_equal, dataset, dense, fit, random, train
from same_numbers import CASES

import autostrategy
from autostrategy import TrainingError
from autostrategy.training import compiled_steps, keras_internals, static_shapes, tpu_rules

SIZES = {2: 8, 4: 20}


def rules(model_fn, data, replicas, **arguments):
    """Trained under TPU rules."""
    return train(model_fn, data, replicas, strategy="tpu", **arguments)


def batched(data, size):
    """The case's rows in batches of another size."""

    def made():
        given = data()
        return (given[0].unbatch().batch(size),) if len(given) == 1 else given

    return made


# What keeps a short batch from being filled up, and a step from being compiled.
WHOLE, UNCOMPILED = "whole", "uncompiled"


def slow_but(names, *quick):
    """Names as parameters, of which all but the quick ones are left to .ci/run."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


CHOSEN = {
    "reductions": (4,),
    "reductions with sample weights": (2, UNCOMPILED),
    "several outputs without reduction": (2,),
    "masks with sample weights": (4, UNCOMPILED),
    "scalar losses with sample weights": (2, WHOLE, UNCOMPILED),
    "add_loss": (2, WHOLE),
    "regularizers": (4,),
    "class weights": (4,),
    "several outputs": (2,),
    "accumulation and ema": (4,),
    "loss scale": (2,),
    "binary metrics": (2, WHOLE),
    "class metrics": (4,),
    "number metrics": (2,),
    "own train_step with more logs": (4, WHOLE, UNCOMPILED),
    "synchronised batch normalisation": (4, UNCOMPILED),
    "a layer that counts its steps": (2, WHOLE),
    "embedding": (2,),
}


@pytest.mark.parametrize("name", slow_but(CHOSEN, "reductions", "class metrics", "add_loss"))
def test_a_short_batch_trains_as_on_one_device(name, monkeypatch):
    case = CASES[name]
    replicas, *apart = CHOSEN[name]
    reasons = []

    def noting(*arguments, **keywords):
        reasons.append(against(*arguments, **keywords))
        return reasons[-1]

    against = tpu_rules.reason_against_filling
    monkeypatch.setattr(tpu_rules, "reason_against_filling", noting)
    data = batched(case.data, SIZES[replicas])
    arguments = dict(case.arguments)
    if "batch_size" in arguments:
        arguments["batch_size"] = SIZES[replicas]

    ours = rules(case.model, data, replicas, **arguments)

    assert_equal(ours, train(case.model, data, 1, **arguments), rtol=case.rtol, atol=case.atol)
    assert (WHOLE in apart) == bool(reasons[0])
    assert (UNCOMPILED in apart) == any("XLA (" in text for text in ours.result.plan.warnings)


def normalising_net():
    model = keras.Sequential(
        [
            keras.Input((3,)),
            dense(8, 1, use_bias=False),
            keras.layers.BatchNormalization(),
            dense(1, 2, "tanh"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.01, global_clipnorm=0.3), "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("replicas", [2, 4])
def test_batch_normalisation_takes_the_statistics_of_the_real_rows(replicas):
    """Of its own replica: no one device has these, but mirrored does."""

    def data():
        return (dataset(X, Y, batch=SIZES[replicas]),)

    runs = [
        train(normalising_net, data, replicas, strategy=strategy)
        for strategy in ("mirrored", "tpu")
    ]

    assert_equal(runs[1], runs[0], rtol=1e-5, atol=1e-6)


def test_masked_batch_normalisation_leaves_out_both():
    model_fn = of(
        lambda: [
            keras.Input((5,), dtype="int64"),
            keras.layers.Embedding(6, 3, mask_zero=True),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling1D(),
            dense(1, 2),
        ]
    )

    def data():
        return (dataset(TOKENS, Y, batch=8),)

    runs = [train(model_fn, data, 2, strategy=strategy) for strategy in ("mirrored", "tpu")]

    assert_equal(runs[1], runs[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
@pytest.mark.parametrize(
    "name",
    slow_but(
        ["clipnorm", "sample weights", "accumulation and ema", "loss scale", "embedding"],
        "accumulation and ema",
    ),
)
def test_xla_on_several_replicas_gives_the_same_numbers(name, strategy, monkeypatch):
    case, compiled = CASES[name], []
    function = tf.function

    def noting(*arguments, **keywords):
        compiled.append(keywords.get("jit_compile", False))
        return function(*arguments, **keywords)

    monkeypatch.setattr(compiled_steps.tf, "function", noting)

    ours = train(case.model, case.data, 2, strategy=strategy, jit_compile=True, **case.arguments)

    monkeypatch.undo()
    assert sum(compiled) >= 3  # two first parts, and one update or two
    assert not any("XLA (" in text for text in ours.result.plan.warnings)
    assert_equal(ours, train(case.model, case.data, 1, **case.arguments), rtol=case.rtol)


def test_xla_is_used_on_several_replicas_only_when_asked_for(monkeypatch):
    model = net()()
    assert not keras_internals.asks_for_xla(model)

    model.compile("sgd", "mse", jit_compile=True)
    assert keras_internals.asks_for_xla(model)

    # With a GPU Keras's "auto" comes to it too.
    monkeypatch.setattr(keras.Model, "_resolve_auto_jit_compile", lambda model: True)
    model.compile("sgd", "mse")
    assert model.jit_compile
    assert not keras_internals.asks_for_xla(model)

    keras_internals.set_jit_compile(model, True)
    assert keras_internals.asks_for_xla(model)

    model.compile("sgd", "mse")
    assert not keras_internals.asks_for_xla(model)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("own train_step", r"OwnTrainStep has its own train_step\."),
        ("masks and a scalar loss", "cross replicas inside the step, not only at its end"),
        ("synchronised batch normalisation", "synchronises its statistics inside the step"),
        ("own compute_metrics", "OwnComputeMetrics makes its own logs"),
    ],
)
def test_what_xla_cannot_compile_runs_without_and_is_said(name, reason):
    case = CASES[name]

    ours = train(case.model, case.data, 2, jit_compile=True, **case.arguments)

    assert_equal(ours, train(case.model, case.data, 1, **case.arguments), rtol=case.rtol)
    (text,) = [text for text in ours.result.plan.warnings if "XLA (" in text]
    assert text.startswith("XLA (jit_compile=True) is not used: ")
    assert re.search(reason, text)


def test_one_replica_takes_a_short_batch_in_its_own_shape():
    def data():
        return (dataset(X, Y, batch=8),)

    assert_equal(rules(net(), data, 1), train(net(), data, 1), rtol=1e-5)


def test_every_part_has_one_shape():
    shapes = set()

    class Looking(keras.layers.Layer):
        def call(self, x):
            shapes.add(tuple(x.shape))
            return x

    model_fn = of(lambda: [Looking(), dense(1, 1)])

    rules(model_fn, lambda: (X, Y), 4, batch_size=8, epochs=1)

    assert {shape for shape in shapes if shape[0] is not None} >= {(2, 3)}


def test_validation_and_prediction_need_no_multiple_of_the_replicas():
    history = fit(
        net(metrics=["mae"]),
        X,
        Y,
        replicas=4,
        strategy="tpu",
        batch_size=8,
        validation_data=(X, Y),
        validation_batch_size=7,
    )
    trainer = autostrategy.Trainer(history.model, history.plan)

    evaluated = trainer.evaluate(X, Y, batch_size=5, verbose=0, return_dict=True)

    expected = history.model.evaluate(X, Y, batch_size=5, verbose=0, return_dict=True)
    assert evaluated == pytest.approx(expected, rel=1e-5)
    assert history.history["val_mae"][-1] == pytest.approx(expected["mae"], rel=1e-5)
    np.testing.assert_allclose(
        trainer.predict(X, batch_size=5, verbose=0),
        history.model.predict(X, verbose=0),
        rtol=1e-5,
        atol=1e-6,
    )


def test_batches_of_an_evaluation_that_fill_no_part_are_still_counted_once():
    """24 rows in batches of 6, on 4 replicas that hold 2 each."""
    x, y = random(24, 3), random(24, 1, seed=1)
    history = fit(net(metrics=["mae"]), x, y, replicas=4, strategy="tpu", batch_size=8)
    trainer = autostrategy.Trainer(history.model, history.plan)

    evaluated = trainer.evaluate(x, y, batch_size=6, verbose=0)

    assert evaluated == pytest.approx(history.model.evaluate(x, y, verbose=0), rel=1e-5)
    assert trainer.predict(x, batch_size=6, verbose=0).shape == (24, 1)


def test_the_plan_says_that_it_is_a_rehearsal():
    history = fit(net(), X, Y, replicas=2, strategy="tpu", batch_size=8)

    assert history.plan.kind.value == "tpu"
    assert "a rehearsal of the TPU rules" in history.plan.reasons[0].text
    assert any("no TPU computes" in text for text in history.plan.warnings)


def test_a_size_that_is_no_multiple_of_the_replicas_is_refused():
    with pytest.raises(TrainingError) as caught:
        static_shapes.require_multiple(250, 8)

    assert str(caught.value) == (
        "global_batch_size must be a multiple of the 8 replicas. Received: 250. "
        "Nearest that work: 248, 256."
    )
    with pytest.raises(TrainingError, match=r"Received: 3\. Nearest that work: 4\."):
        fit(net(), X, Y, replicas=4, strategy="tpu", batch_size=3)


def growing():
    return tf.data.Dataset.from_generator(
        lambda: ((X[:n], Y[:n]) for n in (4, 6)),
        output_signature=(
            tf.TensorSpec((None, 3), tf.float32),
            tf.TensorSpec((None, 1), tf.float32),
        ),
    )


def ragged():
    return tf.data.Dataset.from_tensor_slices(
        (tf.ragged.constant([[1.0], [1.0, 2.0]] * 4), np.zeros((8, 1), "float32"))
    ).batch(4)


def sparse():
    return tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(np.eye(8)), Y[:8])).batch(4)


def strings():
    return tf.data.Dataset.from_tensor_slices((np.array(["a"] * 8), Y[:8])).batch(4)


class CallsPython(keras.layers.Layer):
    def call(self, x):
        out = tf.numpy_function(lambda value: value, [x], tf.float32)
        return ops.reshape(out, (-1, 3))

    def compute_output_shape(self, shape):
        return shape


class NotForXla(keras.layers.Layer):
    def call(self, x):
        square = tf.matmul(x, x, transpose_a=True)
        return x + tf.stop_gradient(tf.linalg.sqrtm(square)[0])


REFUSED = {
    "larger batches": (net(), growing, r"at most 4 rows .*as the first has\. Received: 6\."),
    "ragged rows": (net(), ragged, r"dense numbers under TPU rules\. Received: ragged rows\. Pad"),
    "sparse rows": (net(), sparse, r"Received: a sparse tensor\. Make it dense in the dataset"),
    "strings": (net(), strings, r"Received: strings\. Look them up before the model"),
    "Python in the step": (
        of(lambda: [keras.Input((3,)), CallsPython(), dense(1, 1)]),
        lambda: dataset(X, Y, batch=8),
        r"must not call Python under TPU rules\. Received: a tf\.py_function",
    ),
    "an operation that XLA does not know": (
        of(lambda: [keras.Input((3,)), NotForXla(), dense(1, 1)]),
        lambda: dataset(X, Y, batch=8),
        r"operations that XLA compiles\. Received: MatrixSquareRoot\. Move them",
    ),
    "run_eagerly": (
        net(run_eagerly=True),
        lambda: dataset(X, Y, batch=8),
        r"must not run as Python under TPU rules\. Received: run_eagerly=True",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_rules_do_not_allow_is_refused_with_a_way_out(name):
    model_fn, data, text = REFUSED[name]

    with pytest.raises(TrainingError, match=text):
        fit(model_fn, data(), replicas=2, strategy="tpu")


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_one_replica_of_a_strategy_that_exchanges_runs_without_xla(strategy):
    def data():
        return (dataset(X, Y),)

    ours = train(net(), data, 1, strategy=strategy, jit_compile=True)

    assert_equal(ours, train(net(), data, 1), rtol=1e-5)
    assert any("is not used: " in text for text in ours.result.plan.warnings)
