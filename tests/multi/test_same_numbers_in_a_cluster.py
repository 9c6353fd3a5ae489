"""Two and three worker processes give the numbers of one.

In float64, where rounding cannot hide a wrong weight: Adam turns a rounding of
1e-7 in a small gradient into steps of 1e-5.
"""

import re
import socket
from pathlib import Path

import numpy as np
import pytest
import workers

HEAD = """
    import keras, autostrategy
    import tensorflow as tf
    keras.utils.set_random_seed(7)
    keras.config.set_floatx("float64")
    r = np.random.default_rng(0)
    X = r.normal(size=(47, 3))
    Y = X @ [[1.0], [2.0], [3.0]]

    def model_fn():
        k = keras.initializers.RandomNormal(seed=1)
        m = keras.Sequential([
            keras.Input((3,)),
            keras.layers.Dense(4, use_bias=False, kernel_initializer=k),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Activation("tanh"),
            keras.layers.Dense(1, kernel_initializer=k),
        ])
        m.compile(
            keras.optimizers.Adam(0.05, global_clipnorm=1.0),
            "mse",
            metrics=["mae", keras.metrics.R2Score()],
        )
        return m

    def report(history, **more):
        tell({
            "weights": [w.tolist() for w in history.model.get_weights()],
            "history": history.history,
            "replicas": history.plan.replicas,
            **more,
        })
"""

FIT = (
    HEAD
    + """
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    kinds = {
        "arrays": lambda: dict(x=X, y=Y, batch_size=8),
        "ordered": lambda: dict(x=dataset.batch(8)),
        "shuffled": lambda: dict(x=dataset.shuffle(47).batch(8)),
        "generator": lambda: dict(
            x=((X[i : i + 8], Y[i : i + 8]) for _ in range(3) for i in range(0, 47, 8)),
            steps_per_epoch=6,
        ),
        "unknown length": lambda: dict(x=dataset.batch(8).filter(lambda x, y: True)),
        "fewer rows than workers": lambda: dict(x=dataset.take(17).batch(8)),
    }
    results = {}
    for kind in os.environ["KINDS"].split(","):
        history = autostrategy.fit(
            model_fn,
            **kinds[kind](),
            epochs=3,
            validation_data=(X[:13], Y[:13]),
            batch_scaling="off",
            verbose=0,
        )
        results[kind] = {
            "weights": [w.tolist() for w in history.model.get_weights()],
            "history": history.history,
            "replicas": history.plan.replicas,
        }
    tell(results)
"""
)
KINDS = ("arrays", "ordered", "generator", "unknown length", "fewer rows than workers")


def same(one, other, rtol):
    for name, values in one["history"].items():
        np.testing.assert_allclose(other["history"][name], values, rtol=rtol, err_msg=name)
    for ours, theirs in zip(one["weights"], other["weights"], strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=rtol, atol=1e-12)


def test_workers_give_the_numbers_of_one_process(tmp_path):
    """For each kind of data, in one launch for each number of workers: starting costs most."""
    env = {"KINDS": ",".join(KINDS)}
    (one,) = workers.told(workers.run(FIT, 1, tmp_path=tmp_path, env=env))

    for count in (2, 3):
        all_told = workers.told(workers.run(FIT, count, tmp_path=tmp_path, env=env))
        for kind in KINDS:
            for told in all_told:
                assert told[kind]["replicas"] == count, kind
                same(all_told[0][kind], told[kind], rtol=0)
                same(one[kind], told[kind], rtol=1e-9)


def test_workers_agree_on_the_order_of_an_unseeded_shuffle(tmp_path):
    """With other seeds of their own they would train on some rows twice and on others never."""
    body = FIT.replace("set_random_seed(7)", "set_random_seed(os.getpid())")

    one, two = workers.told(workers.run(body, 2, tmp_path=tmp_path, env={"KINDS": "shuffled"}))

    same(one["shuffled"], two["shuffled"], rtol=0)


SEEN = (
    HEAD
    + """
    class Rows(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="rows")
            self.seen = self.add_variable((47,), "zeros", name="seen")
        def update_state(self, y_true, y_pred, sample_weight=None):
            ids = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
            self.seen.assign_add(tf.reduce_sum(tf.one_hot(ids, 47, dtype="float64"), axis=0))
        def result(self):
            return keras.ops.max(keras.ops.abs(self.seen - 1.0))

    def model_fn():
        m = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        m.compile("sgd", "mse", metrics=[Rows()])
        return m

    ids = np.arange(47, dtype="f8").reshape(-1, 1)
    dataset = tf.data.Dataset.from_tensor_slices((X, ids)).shuffle(47).batch(8)
    history = autostrategy.fit(model_fn, dataset, epochs=2, batch_scaling="off", verbose=0)
    report(history)
"""
)


def test_an_epoch_sees_each_row_once_over_all_workers(tmp_path):
    one, _ = workers.told(workers.run(SEEN, 2, tmp_path=tmp_path))

    assert one["history"]["rows"] == [0.0, 0.0]


EVALUATE = (
    HEAD
    + """
    plan = autostrategy.plan(autostrategy.probe())
    trainer = autostrategy.Trainer(model_fn, plan, batch_scaling="off")
    history = trainer.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    trainer.save("model.keras")
    report(
        history,
        evaluated=trainer.evaluate(X[:13], Y[:13], batch_size=5, verbose=0),
        predicted=trainer.predict(X[:13], batch_size=5, verbose=0).tolist(),
        alone=history.model.predict(X[:13], batch_size=5, verbose=0).tolist(),
    )
"""
)


def test_evaluate_and_predict_give_every_worker_all_rows_in_order(tmp_path):
    (one,) = workers.told(workers.run(EVALUATE, 1, tmp_path=tmp_path))

    for told in workers.told(workers.run(EVALUATE, 3, tmp_path=tmp_path)):
        np.testing.assert_allclose(told["evaluated"], one["evaluated"], rtol=1e-9)
        np.testing.assert_allclose(told["predicted"], one["predicted"], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(told["alone"], told["predicted"], rtol=1e-9, atol=1e-12)
    assert (tmp_path / "model.keras").exists()


RUN = (
    HEAD
    + """
    def go():
        history = autostrategy.fit(
            MODEL, X, Y, batch_size=8, shuffle=False, epochs=2, batch_scaling="off", verbose=0
        )
        report(history)
"""
)


def test_a_model_made_before_the_strategy_trains_too(tmp_path):
    body = RUN + "\n    MODEL = model_fn()\n    MODEL.predict(X, verbose=0)\n    go()\n"

    (one,) = workers.told(workers.run(body, 1, tmp_path=tmp_path))

    for told in workers.told(workers.run(body, 2, tmp_path=tmp_path)):
        same(one, told, rtol=1e-9)


def test_a_worker_that_never_starts_is_named(tmp_path):
    body = RUN + "\n    MODEL = model_fn\n    go()\n"

    (ended,) = workers.run(
        body, 2, tmp_path=tmp_path, only=[0], timeout=60, env={"AUTOSTRATEGY_START_TIMEOUT": "3"}
    )

    assert ended.status == 1
    text = ended.output.splitlines()[-1]
    assert "LaunchError: All 2 workers of the cluster must start within 3 s" in text
    assert re.search(r"Missing .*: 127\.0\.0\.1:\d+ \(connection refused\)", text)


def test_workers_that_plan_differently_stop_and_say_in_what(tmp_path):
    body = RUN.replace(
        "batch_size=8", 'batch_size=8 + json.loads(os.environ["TF_CONFIG"])["task"]["index"]'
    )
    body += "\n    MODEL = model_fn\n    go()\n"

    for ended in workers.run(body, 2, tmp_path=tmp_path, timeout=60):
        assert ended.status == 1
        assert "PlanError: All workers must make the same plan" in ended.output
        assert "global_batch_size: 8 (worker 0), 9 (worker 1)" in ended.output


def test_a_taken_port_is_named(tmp_path):
    body = RUN + "\n    MODEL = model_fn\n    go()\n"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = (
            f'{{"cluster": {{"worker": ["{address}", "127.0.0.1:1"]}},'
            ' "task": {"type": "worker", "index": 0}}'
        )

        (ended,) = workers.run(
            body, 2, tmp_path=tmp_path, only=[0], timeout=60, env={"TF_CONFIG": config}
        )

    assert ended.status == 1
    assert f"own address must be free to listen on. Received: {address}" in ended.output


THREE_WAYS = f"""
sys.path.insert(0, {str(Path(__file__).parent.parent / "training")!r})
import autostrategy
from test_central_storage import normalising_net
from runs import random
import keras
keras.utils.set_random_seed(0)
history = autostrategy.fit(normalising_net, random(65, 3), random(65, 1, seed=1), batch_size=7,
                           epochs=5, batch_scaling="off", verbose=0, **ARGUMENTS)
tell({{"strategy": history.report.strategy.value, "steps": history.report.steps,
      "weights": [each.tolist() for each in history.model.get_weights()],
      "slots": [keras.ops.convert_to_numpy(each).tolist()
                for each in history.model.optimizer.variables],
      "history": history.history}})
"""


@pytest.mark.slow
def test_mirrored_multi_worker_and_central_storage_are_equal_after_50_steps(tmp_path):
    """BatchNormalization, Dropout, Adam, clipping, uneven batches; float32."""
    cpus = "ARGUMENTS = {'devices': ['CPU:0', 'CPU:1'], 'strategy': %r}\n"
    told = {}
    for strategy in ("mirrored", "central_storage"):
        (alone,) = workers.told(
            workers.run("import sys\n" + cpus % strategy + THREE_WAYS, 1, tmp_path=tmp_path)
        )
        told[strategy] = alone
    two = workers.told(
        workers.run("import sys\nARGUMENTS = {}\n" + THREE_WAYS, 2, tmp_path=tmp_path)
    )
    told["multi_worker_mirrored"] = two[0]

    expected = told["mirrored"]
    for strategy, each in told.items():
        assert (each["strategy"], each["steps"]) == (strategy, 50)
        for part in ("weights", "slots"):
            for got, wanted in zip(each[part], expected[part], strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7, err_msg=strategy)
        for name, values in expected["history"].items():
            np.testing.assert_allclose(each["history"][name], values, rtol=1e-6)
    assert two[0]["weights"] == two[1]["weights"]


UNEQUAL = """
    import keras, autostrategy
    import tensorflow as tf
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    rows = np.ones((50, 3), "float32")
    mine = rows[: 50 if index == 0 else 30]

    def model_fn():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    def dataset():
        return tf.data.Dataset.from_tensor_slices((mine, mine[:, :1])).batch(10)

    def text(act):
        try:
            act()
        except autostrategy.AutoStrategyError as error:
            return str(error)

    def fit(*data, **arguments):
        return autostrategy.fit(model_fn, *data, verbose=0, batch_scaling="off", **arguments)

    history = fit(rows, rows[:, :1], batch_size=10)
    trainer = autostrategy.Trainer(history.model, history.plan)
    unknown = dataset().filter(lambda x, y: True)
    tell({
        "arrays": text(lambda: fit(mine, mine[:, :1], batch_size=25)),
        "dataset": text(lambda: fit(dataset())),
        "unknown length": text(lambda: fit(unknown)),
        "steps_per_epoch": text(lambda: fit(unknown, steps_per_epoch=4)),
        "validation": text(lambda: fit(rows, rows[:, :1], validation_data=unknown)),
        "predict": text(lambda: trainer.predict(mine, batch_size=10)),
        "predict unknown": text(lambda: trainer.predict(unknown.map(lambda x, y: x), verbose=0)),
        "promise": text(lambda: fit(
            dataset().apply(tf.data.experimental.assert_cardinality(5)))),
    })
"""


@pytest.mark.slow
def test_data_that_is_not_the_same_on_all_workers_is_refused_and_never_hangs(tmp_path):
    told = workers.told(workers.run(UNEQUAL, 2, tmp_path=tmp_path, timeout=120))

    for each in told:
        assert "differ in rows: 50 (worker 0), 30 (worker 1)" in each["arrays"]
        assert "batches: 5 (worker 0), 3 (worker 1)" in each["dataset"]
        assert "batches: 5 (worker 0), 3 (worker 1)" in each["predict"]
        for kind in ("unknown length", "steps_per_epoch", "validation", "predict unknown"):
            assert "data that ended on some workers while others had more" in each[kind], kind
    # The last: worker 1 raises within a step, which the other hears of.
    assert "must hold as many batches as it says" in told[1]["promise"]
    assert re.search(
        "Every worker must stay alive until all are done|must hold as many", told[0]["promise"]
    )


VARYING = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent.parent / "training")!r})
import autostrategy
from same_numbers import CASES
from runs import EPOCHS, train_stock
import keras
wrong = {{}}
for name in ("scalar losses", "a metric over the batch", "embedding"):
    case = CASES[name]
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    data = case.data()
    history = autostrategy.fit(case.model, *data, batch_scaling="off", verbose=0,
                               **{{"epochs": EPOCHS, **case.arguments}})
    wrong[name] = [history.history, [each.tolist() for each in history.model.get_weights()]]
tell(wrong)
"""


@pytest.mark.slow
def test_what_workers_exchange_may_differ_in_size_from_step_to_step(tmp_path):
    one = workers.told(workers.run(VARYING, 1, tmp_path=tmp_path))[0]
    two = workers.told(workers.run(VARYING, 2, tmp_path=tmp_path))

    for each in two:
        for name, (history, weights) in one.items():
            for key, values in history.items():
                np.testing.assert_allclose(each[name][0][key], values, rtol=1e-5, err_msg=name)
            for got, wanted in zip(each[name][1], weights, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6, err_msg=name)
