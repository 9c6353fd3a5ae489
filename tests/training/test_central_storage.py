"""Central storage: one copy of the weights on the CPU, the numbers of one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from nets import X, Y
from runs import assert_equal, dataset, dense, fit, random, train
from same_numbers import CASES, on_one_device

from autostrategy import TrainingError

# The rest of the cases meet central storage in tests/support.
CHOSEN = (
    "reductions with sample weights",
    "masks and a scalar loss",
    "add_loss",
    "global_clipnorm",
    "accumulation and ema",
    "loss scale",
    "binary metrics",
    "own train_step with more logs",
    "gan",
    "synchronised batch normalisation",
    "spectral normalisation",
    "a layer that counts its steps",
    "embedding",
)


@pytest.mark.parametrize("name", CHOSEN)
def test_central_storage_trains_as_one_device_does(name):
    case = CASES[name]

    ours = train(case.model, case.data, 3, strategy="central_storage", **case.arguments)

    assert_equal(ours, on_one_device(name), rtol=case.rtol, atol=case.atol)


def normalising_net():
    model = keras.Sequential(
        [
            keras.Input((3,)),
            dense(8, 1),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.25, seed=3),
            dense(1, 2, "tanh"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.3), "mse", metrics=["mae"])
    return model


def test_central_storage_equals_mirrored_after_50_steps():
    """Unsynchronised statistics and different masks on each replica: no one device has these."""
    data = (random(65, 3), random(65, 1, seed=1))  # batches of 7, the last of 2
    runs = [
        train(normalising_net, lambda: data, 2, strategy=strategy, batch_size=7, epochs=5)
        for strategy in ("mirrored", "central_storage")
    ]

    assert runs[0].result.report.steps == 50
    assert_equal(runs[1], runs[0], rtol=1e-6, atol=1e-7)


def test_the_model_stays_a_plain_one():
    history = fit(normalising_net, X, Y, replicas=2, strategy="central_storage", batch_size=8)

    for variable in history.model.variables:
        assert isinstance(variable.value, tf.Variable)
        assert not hasattr(variable.value, "distribute_strategy") or (
            variable.value.distribute_strategy is None
        )
        assert variable.value.device.endswith("CPU:0")
    history.model.fit(X, Y, verbose=0)
    assert np.isfinite(history.model.predict(X, verbose=0)).all()


def test_what_callbacks_change_between_loops_is_seen():
    class Forget(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            layer = self.model.layers[1]
            layer.moving_mean.assign(ops.zeros_like(layer.moving_mean))

    def data():
        return (dataset(X, Y),)

    runs = [
        train(normalising_net, data, 2, strategy=strategy, callbacks=[Forget()])
        for strategy in ("mirrored", "central_storage")
    ]

    assert_equal(runs[1], runs[0], rtol=1e-6, atol=1e-7)


class Shrinking(keras.layers.Layer):
    """Writes to its own trained weight, as no stored one can allow."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        self.scale.assign(self.scale * 0.5)
        return x * self.scale


def test_a_layer_that_writes_its_trained_weight_is_refused():
    def model_fn():
        model = keras.Sequential([keras.Input((3,)), Shrinking(), dense(1, 1)])
        model.compile("sgd", "mse")
        return model

    with pytest.raises(TrainingError, match=r"must not write to one\. .* assigns to .*scale"):
        fit(model_fn, X, Y, replicas=2, strategy="central_storage")
