"""Callbacks see the calls that they see in `keras.Model.fit` on one device."""

import csv

import keras
import numpy as np
import pytest
from runs import BATCH, ROWS, cpus, dataset, dense, fit, random, train, train_stock

import autostrategy

X, Y = random(ROWS, 3), random(ROWS, 1, seed=1)


def model_fn():
    model = keras.Sequential([keras.Input((3,)), dense(4, 1, "tanh"), dense(1, 2)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    return model


HOOKS = [name for name in vars(keras.callbacks.Callback) if name.startswith("on_")]
BATCH_HOOKS = [name for name in HOOKS if "batch" in name]


def recorder(hooks):
    """A callback that overrides `hooks`, and the list that it fills."""
    calls = []

    def record(name):
        def hook(self, *arguments, **keywords):
            *first, logs = [*arguments, *keywords.values()]
            rounded = {key: round(float(value), 4) for key, value in (logs or {}).items()}
            steps = {key: self.params[key] for key in ("steps", "epochs", "verbose")}
            calls.append((name, *first, rounded, steps, round(float(self.rate()), 6)))

        return hook

    body = {name: record(name) for name in hooks}
    body["rate"] = lambda self: self.model.optimizer.learning_rate
    return type("Recorder", (keras.callbacks.Callback,), body)(), calls


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("hooks", ["all", "no batches"])
def test_every_hook_is_called_as_in_keras(hooks, replicas):
    names = HOOKS if hooks == "all" else [name for name in HOOKS if name not in BATCH_HOOKS]
    names = [name for name in names if "predict" not in name]
    arguments = {
        "epochs": 3,
        "validation_data": (X[:7], Y[:7]),
        "validation_batch_size": 3,
        "validation_freq": 2,
    }
    callback, expected = recorder(names)
    train_stock(model_fn, lambda: (dataset(X, Y),), callbacks=[callback], **arguments)
    callback, calls = recorder(names)

    train(model_fn, lambda: (dataset(X, Y),), replicas, callbacks=[callback], **arguments)

    assert calls == expected


@pytest.mark.parametrize("replicas", [1, 2])
def test_evaluate_and_predict_hooks_are_called_as_in_keras(replicas):
    names = [name for name in HOOKS if "test" in name or "predict" in name]
    model = model_fn()
    calls = []

    class Count(keras.callbacks.Callback):
        pass

    for name in names:
        setattr(
            Count,
            name,
            lambda self, *rest, _name=name, logs=None: (
                calls.append((_name, *rest[:1])) if "batch" in _name else calls.append((_name,))
            ),
        )
    model.evaluate(X, Y, batch_size=BATCH, callbacks=[Count()], verbose=0)
    model.predict(X, batch_size=BATCH, callbacks=[Count()], verbose=0)
    expected, calls[:] = list(calls), []
    trainer = make_trainer(replicas)

    trainer.evaluate(X, Y, batch_size=BATCH, callbacks=[Count()], verbose=0)
    trainer.predict(X, batch_size=BATCH, callbacks=[Count()], verbose=0)

    assert calls == expected


def make_trainer(replicas):
    plan = autostrategy.plan(autostrategy.probe(), devices=tuple(cpus(replicas)))
    return autostrategy.Trainer(model_fn, plan, batch_scaling="off")


class StopInBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.model.stop_training = True


def rates(schedule):
    return lambda: [keras.callbacks.LearningRateScheduler(schedule)]


CALLBACKS = {
    "LearningRateScheduler": rates(lambda epoch, rate: 0.1 / (epoch + 1)),
    "LearningRateScheduler on the rate": rates(lambda epoch, rate: rate * 0.9),
    "ReduceLROnPlateau": lambda: [
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, factor=0.5)
    ],
    "EarlyStopping": lambda: [
        keras.callbacks.EarlyStopping("loss", patience=1, min_delta=0.3, restore_best_weights=True)
    ],
    "stop in a batch": lambda: [StopInBatch()],
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_of_keras_acts_as_in_keras(name, replicas):
    data = {"epochs": 6}
    stock = train_stock(model_fn, lambda: (dataset(X, Y),), callbacks=CALLBACKS[name](), **data)

    ours = train(model_fn, lambda: (dataset(X, Y),), replicas, callbacks=CALLBACKS[name](), **data)

    assert ours.history.keys() == stock.history.keys()
    for key, values in stock.history.items():
        np.testing.assert_allclose(ours.history[key], values, rtol=1e-5)
    for got, wanted in zip(ours.weights, stock.weights, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert float(ours.model.optimizer.learning_rate) == pytest.approx(
        float(stock.model.optimizer.learning_rate)
    )


@pytest.mark.parametrize("replicas", [1, 2])
def test_files_are_those_of_keras(replicas, tmp_path):
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "loss", save_best_only=True),
        keras.callbacks.ModelCheckpoint(
            tmp_path / "at{batch}.weights.h5", save_freq=4, save_weights_only=True
        ),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.BackupAndRestore(tmp_path / "backup"),
        keras.callbacks.TerminateOnNaN(),
    ]

    ours = train(model_fn, lambda: (dataset(X, Y),), replicas, callbacks=callbacks)

    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [float(row["loss"]) for row in rows] == pytest.approx(ours.history["loss"])
    assert {path.name for path in tmp_path.glob("at*.h5")} == {"at4.weights.h5"}
    best = keras.saving.load_model(tmp_path / "best.keras")
    assert best.evaluate(X, Y, verbose=0)[0] > 0
    assert int(best.optimizer.iterations) in (4, 8, 12, 16, 20)


@pytest.mark.parametrize("replicas", [1, 2])
def test_one_callback_a_list_of_lists_or_a_callback_list_will_do(replicas):
    for wrap in (
        lambda each: each,
        lambda each: [[each]],
        lambda each: keras.callbacks.CallbackList([each]),
    ):
        callback, calls = recorder(["on_epoch_end"])

        fit(model_fn, dataset(X, Y), replicas=replicas, epochs=2, callbacks=wrap(callback))

        assert [call[1] for call in calls] == [0, 1]


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_history_has_model_plan_report_and_strategy(replicas):
    result = fit(model_fn, X, Y, replicas=replicas, batch_size=BATCH, epochs=2)

    assert isinstance(result, keras.callbacks.History)
    assert result.epoch == [0, 1]
    assert result.model.history is result
    assert result.plan.replicas == result.report.replicas == replicas
    assert (result.report.epochs, result.report.steps, result.report.examples) == (2, 8, 2 * ROWS)
