"""What cannot be trained ends in a clear error, at or before the first step, and in no hang.

`conftest` checks after each of these that Keras is as it was.
"""

import dataclasses
import json
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from runs import cpus, dataset, dense, fit, random

import autostrategy
from autostrategy import TrainingError
from autostrategy.training import (
    agreement,
    dataset_graph,
    model_checks,
    outer_loop,
    prediction,
)

X, Y = random(26, 3), random(26, 1, seed=1)
COUNTS = [1, 2]


@pytest.fixture(autouse=True)
def _no_hang():
    """A test that waits for ever ends after a minute."""

    def give_up(*_):
        raise TimeoutError("still waiting after 60 s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def model_fn():
    model = keras.Sequential([keras.Input((3,)), dense(1, 1)])
    model.compile("sgd", "mse")
    return model


def uncompiled():
    return keras.Sequential([keras.Input((3,)), dense(1, 1)])


def without_loss():
    model = uncompiled()
    model.compile("sgd")
    return model


def empty_generator():
    yield from ()


class NoBatches(keras.utils.PyDataset):
    def __len__(self):
        return 0

    def __getitem__(self, index):
        raise IndexError(index)


def fits(*data, model=model_fn, **arguments):
    return lambda replicas: fit(model, *data, replicas=replicas, **arguments)


def with_data(make, **arguments):
    """Data that must not exist before TensorFlow has its devices."""
    return lambda replicas: fit(model_fn, *make(), replicas=replicas, **arguments)


CASES = {
    # name: (what is done with a number of replicas, what the error says)
    "no rows": (fits(X[:0], Y[:0]), r"x must have at least 1 row\. Received: 0 rows"),
    "empty dataset": (with_data(lambda: (dataset(X, Y).take(0),)), "empty dataset"),
    "empty dataset of unknown size": (
        with_data(lambda: (dataset(X, Y).filter(lambda x, y: False),)),
        "empty dataset",
    ),
    "empty generator": (
        with_data(lambda: (empty_generator(),)),
        "x must yield at least 1 batch. Received: a generator",
    ),
    "empty PyDataset": (with_data(lambda: (NoBatches(),)), "length 0|at least 1 batch"),
    "NaN in the data": (fits(X * np.nan, Y), r"The loss must be finite\. Received: nan in epoch 1"),
    "infinite loss": (fits(X, Y * np.inf), r"The loss must be finite\. Received: inf in epoch 1"),
    "model_fn without return": (
        fits(X, Y, model=lambda: None),
        "a function that returned builtins.NoneType",
    ),
    "model_fn that returns a layer": (
        fits(X, Y, model=lambda: keras.layers.Dense(1)),
        r"model must be a keras\.Model .* returned .*Dense\. Does the function end with",
    ),
    "no model": (fits(X, Y, model="resnet"), r"Received: builtins\.str"),
    "uncompiled": (fits(X, Y, model=uncompiled), "The model must be compiled"),
    "no loss": (fits(X, Y, model=without_loss), "The model must have a loss"),
    "different lengths": (fits(X, Y[:20]), "same.*cardinality|ambiguous|same number"),
    "sample weights of another length": (
        fits(X, Y, sample_weight=np.ones(20)),
        "same.*cardinality|ambiguous|same number",
    ),
    "batch_size 0": (fits(X, Y, batch_size=0), r"batch_size must be .* Received: 0"),
    "batch_size -1": (fits(X, Y, batch_size=-1), r"batch_size must be .* Received: -1"),
    "batch_size True": (fits(X, Y, batch_size=True), r"batch_size must be .* Received: True"),
    "batch_size 2.5": (fits(X, Y, batch_size=2.5), r"batch_size must be .* Received: 2\.5"),
    "epochs 0": (fits(X, Y, epochs=0), r"epochs must be .* Received: 0"),
    "epochs -1": (fits(X, Y, epochs=-1), r"epochs must be .* Received: -1"),
    "steps_per_epoch 0": (fits(X, Y, steps_per_epoch=0), r"steps_per_epoch must be .* Received: 0"),
    "steps_per_loop 0": (fits(X, Y, steps_per_loop=0), r"steps_per_loop must be .* Received: 0"),
    "steps_per_loop a word": (
        fits(X, Y, steps_per_loop="fast"),
        r"steps_per_loop must be .* Received: 'fast'",
    ),
    "unknown optimizer": (
        fits(X, Y, optimizer="sdg", loss="mse"),
        "Could not interpret optimizer identifier",
    ),
    "unknown loss": (fits(X, Y, loss="msee"), "Could not interpret loss"),
    "dataset without end": (
        with_data(lambda: (dataset(X, Y).repeat(),)),
        r"A dataset without end needs steps_per_epoch\. Received: steps_per_epoch=None",
    ),
    "validation data without end": (
        lambda replicas: fit(
            model_fn, X, Y, replicas=replicas, validation_data=dataset(X, Y).repeat()
        ),
        "A dataset without end needs",
    ),
    "no data": (fits(None, None), "data|x must"),
    "x of the wrong width": (fits(random(26, 5), Y), "incompatible|shape"),
    "y of the wrong shape": (fits(X, random(26, 2, 2)), r"(?s)Incompatible shapes|rank"),
    "validation_split of everything": (fits(X, Y, validation_split=1.0), "validation_split|split"),
    "validation_split of a dataset": (
        with_data(lambda: (dataset(X, Y),), validation_split=0.5),
        "validation_split|only supported|tensors or NumPy",
    ),
    "class weights with two outputs": (fits(X, {"a": Y, "b": Y}, class_weight={0: 1.0}), ".+"),
}


@pytest.mark.parametrize("replicas", COUNTS)
@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_said_clearly(name, replicas):
    act, text = CASES[name]

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=text):
        act(replicas)

    assert not tf.distribute.has_strategy()


def test_an_unknown_argument_is_no_argument():
    with pytest.raises(TypeError, match="epoch_count"):
        fit(model_fn, X, Y, epoch_count=3)


class Mine(Exception):
    """An error of the user's."""


def failing_loss(y_true, y_pred):
    raise Mine


def failing_generator():
    yield X[:8], Y[:8]
    yield X[8:16], Y[8:16]
    raise Mine


class Failing(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            raise Mine
        return X[:8], Y[:8]


class FailingLayer(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            raise Mine
        return x


class FailingCallback(keras.callbacks.Callback):
    def __init__(self, hook, error=Mine):
        super().__init__()
        setattr(self, hook, self.fail)
        self.error = error

    def fail(self, *_, **__):
        raise self.error


def compiled_with(loss, *layers):
    def make():
        model = keras.Sequential([keras.Input((3,)), *(layer() for layer in layers), dense(1, 1)])
        model.compile("sgd", loss)
        return model

    return make


FAILURES = {
    "loss": fits(X, Y, model=compiled_with(failing_loss)),
    "layer": fits(X, Y, model=compiled_with("mse", FailingLayer)),
    "PyDataset": lambda replicas: fit(model_fn, Failing(), replicas=replicas),
    "PyDataset in threads": lambda replicas: fit(model_fn, Failing(workers=2), replicas=replicas),
    **{
        f"callback's {hook}": (
            lambda replicas, hook=hook: fit(
                model_fn,
                X,
                Y,
                replicas=replicas,
                validation_data=(X, Y),
                callbacks=[FailingCallback(hook)],
            )
        )
        for hook in ("on_train_begin", "on_train_batch_end", "on_test_begin", "on_epoch_end")
    },
}


@pytest.mark.parametrize("replicas", COUNTS)
@pytest.mark.parametrize("name", FAILURES)
def test_an_error_of_the_users_comes_out_and_training_works_again(name, replicas):
    with pytest.raises((Mine, tf.errors.OpError)) as caught:
        FAILURES[name](replicas)

    assert "Mine" in f"{caught.type.__name__} {caught.value}"
    assert not tf.distribute.has_strategy()
    if name == "layer":
        fit(model_fn, X, Y, replicas=replicas)


@pytest.mark.parametrize("replicas", COUNTS)
def test_an_error_in_a_generator_comes_out(replicas):
    with pytest.raises((Mine, tf.errors.OpError)):
        fit(model_fn, failing_generator(), replicas=replicas, steps_per_epoch=4)


@pytest.mark.parametrize("replicas", COUNTS)
def test_an_interrupt_comes_out_and_the_model_goes_on(replicas):
    model = model_fn()
    interrupt = FailingCallback("on_train_batch_end", KeyboardInterrupt)

    with pytest.raises(KeyboardInterrupt):
        fit(model, X, Y, replicas=replicas, batch_size=8, callbacks=[interrupt])

    assert int(model.optimizer.iterations) == 1
    fit(model, X, Y, replicas=replicas, batch_size=8)
    assert int(model.optimizer.iterations) == 5


@pytest.mark.parametrize("replicas", COUNTS)
def test_data_that_ends_before_it_said_is_an_error(replicas):
    short = dataset(X, Y).apply(tf.data.experimental.assert_cardinality(9))

    with pytest.raises(
        (TrainingError, tf.errors.OpError), match=r"ended early|expected to contain 9 elements"
    ):
        fit(model_fn, short, replicas=replicas)


def test_data_that_ends_in_a_loop_is_an_error():
    def run(iterator, size):
        raise tf.errors.OutOfRangeError(None, None, "end of sequence")

    with pytest.raises(TrainingError, match="Received: data that ended early"):
        outer_loop._run(run, None, 4)


def test_terminate_on_nan_ends_without_an_error():
    result = fit(model_fn, X * np.nan, Y, callbacks=[keras.callbacks.TerminateOnNaN()], epochs=3)

    assert len(result.epoch) == 1


@pytest.mark.parametrize(
    ("package", "version", "told"),
    [
        ("keras", "3.11.2", r"keras must be at least 3\.12 and below 3\.16\. Received: 3\.11\.2"),
        ("keras", "3.16.0", "keras must be at least"),
        ("keras", "2.15.0", "pip install 'keras>=3.12,<3.16'"),
        ("tensorflow", "2.19.1", r"tensorflow must be at least 2\.20 and below 2\.22"),
        ("tensorflow", "2.22.0rc0", "tensorflow must be at least"),
    ],
)
def test_another_version_is_refused(package, version, told, monkeypatch):
    monkeypatch.setattr({"keras": keras, "tensorflow": tf}[package], "__version__", version)

    with pytest.raises(TrainingError, match=told):
        model_checks.require_supported()


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")

    with pytest.raises(TrainingError, match=r"Received: backend 'jax'\. Set KERAS_BACKEND"):
        fit(model_fn, X, Y)


def trainer(replicas=1, **arguments):
    plan = autostrategy.plan(autostrategy.probe(), devices=tuple(cpus(replicas)))
    return autostrategy.Trainer(model_fn, plan, **arguments)


@pytest.mark.parametrize("replicas", COUNTS)
def test_evaluate_and_predict_refuse_what_fit_refuses(replicas):
    ready = trainer(replicas)

    with pytest.raises(TrainingError, match="at least 1 row"):
        ready.evaluate(X[:0], Y[:0])
    with pytest.raises(TrainingError, match="at least 1 row"):
        ready.predict(X[:0])
    with pytest.raises(TrainingError, match="empty dataset"):
        ready.predict(dataset(X).filter(lambda x: False), verbose=0)
    with pytest.raises(TrainingError, match=r"batch_size must be .* Received: 0"):
        ready.evaluate(X, Y, batch_size=0)
    with pytest.raises(TrainingError, match=r"steps must be .* Received: -2"):
        ready.predict(X, steps=-2)
    with pytest.raises(TrainingError, match="without end"):
        ready.predict(dataset(X).repeat())


def test_workers_with_other_plans_name_what_differs(monkeypatch):
    plan = autostrategy.plan(autostrategy.probe(), devices=("CPU:0",))
    other = dataclasses.replace(plan, replicas=8)
    answers = [json.dumps(each.digest) for each in (plan, other)]
    monkeypatch.setattr(agreement, "exchange", lambda layout, message: answers)

    with pytest.raises(autostrategy.PlanError, match=r"replicas: 1 \(worker 0\), 8 \(worker 1\)"):
        agreement.require_same_plan(None, plan)


def test_a_dataset_that_is_no_graph_is_refused_for_several_workers(monkeypatch):
    def too_large(**_):
        raise tf.errors.InvalidArgumentError(None, None, "graph is larger than 2GB\nmore")

    monkeypatch.setattr(tf.raw_ops, "DatasetToGraphV2", too_large)

    with pytest.raises(TrainingError, match=r"Received: graph is larger than 2GB\. Give arrays"):
        dataset_graph.pack(dataset(X))


def test_outputs_of_several_workers_must_be_dense_numbers():
    gather = prediction._gathering(lambda batch, extent: tf.constant(["text"]))

    with pytest.raises(TrainingError, match="dense numbers"):
        gather(None, None)
