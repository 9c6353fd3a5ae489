"""How steps are run changes nothing: loops of any length, eagerly, compiled, traced once."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from runs import ROWS, assert_equal, counts, dataset, dense, fit, random, train, train_stock

X, Y = random(ROWS, 3), random(ROWS, 1, seed=1)


def net(**compiled):
    def model_fn():
        model = keras.Sequential([keras.Input((3,)), dense(4, 1, "tanh"), dense(1, 2)])
        model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"], **compiled)
        return model

    return model_fn


def data():
    return (dataset(X, Y),)


def of_unknown_size():
    return (dataset(X, Y).filter(lambda x, y: True),)


@pytest.mark.parametrize("source", [data, of_unknown_size])
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_steps_of_a_loop_change_nothing(replicas, source):
    expected = train(net(), source, replicas, steps_per_loop=1)

    for steps in (7, "auto") if source is of_unknown_size else (3, 64):
        ours = train(net(), source, replicas, steps_per_loop=steps, validation_data=(X[:9], Y[:9]))

        ours.history.pop("val_loss"), ours.history.pop("val_mae")
        assert_equal(ours, expected)


def test_steps_per_execution_of_compile_is_obeyed():
    calls = []

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            calls.append(batch)

    fit(net(steps_per_execution=3), dataset(X, Y), replicas=2, callbacks=[Count()])

    assert calls == [2, 3]


@pytest.mark.parametrize("replicas", [1, 2])
def test_run_eagerly_gives_the_same(replicas):
    expected = train(net(), data, 1, epochs=2)

    ours = train(net(run_eagerly=True), data, replicas, epochs=2)

    assert_equal(ours, expected)


def test_jit_compile_gives_the_same_on_one_device():
    expected = train(net(jit_compile=False), data, 1, epochs=2)

    assert_equal(train(net(jit_compile=True), data, 1, epochs=2), expected)
    assert_equal(train(net(), data, 1, epochs=2, jit_compile=True), expected)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("source", [data, lambda: (X, Y)])
def test_a_step_is_traced_once_for_all_epochs(source, replicas):
    traced = []

    class Traced(keras.layers.Layer):
        def call(self, x, training=False):
            traced.append(training)
            return x

    def model_fn():
        model = keras.Sequential([keras.Input((3,)), Traced(), dense(1, 1)])
        model.compile("sgd", "mse")
        traced.clear()
        return model

    fit(model_fn, *source(), replicas=replicas, epochs=2)
    two = len(traced)
    fit(model_fn, *source(), replicas=replicas, epochs=6)

    assert len(traced) == two


def random_net():
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dropout(0.5, seed=3), dense(4, 1), dense(1, 2)]
    )
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("replicas", [1, 2])
def test_random_masks_repeat_with_the_seed_and_differ_between_replicas(replicas):
    runs = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        runs.append(train(random_net, lambda: (X, Y), replicas).weights)

    for one, two in zip(runs[0], runs[1], strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("seed", [3, None])
def test_each_replica_has_its_own_masks(seed):
    masks = []

    class Spy(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.drop = keras.layers.Dropout(0.5, seed=seed)

        def call(self, x, training=False):
            dropped = self.drop(ops.ones_like(x), training=training)
            if training:
                tf.py_function(lambda mask: masks.append(mask.numpy().tobytes()), [dropped], [])
            return x

    def model_fn():
        model = keras.Sequential([keras.Input((64,)), Spy(), dense(1, 1)])
        model.compile("sgd", "mse")
        return model

    x = np.ones((8, 64), "float32")
    fit(model_fn, dataset(x, x[:, :1], batch=4), replicas=4, epochs=2)

    assert len(masks) == len(set(masks)) == 4 * 2 * 2


def test_one_device_draws_the_numbers_that_keras_draws():
    keras.utils.set_random_seed(5)
    stock = train_stock(random_net, data)
    keras.utils.set_random_seed(5)

    assert_equal(train(random_net, data, 1), stock)


def test_unsynchronised_batch_normalisation_moves_the_mean_of_one_device():
    def model_fn():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        model = keras.Sequential([keras.Input((3,)), layer, dense(1, 1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        return model

    one = train(model_fn, data, 1)
    for replicas in counts(2, 3):
        ours = train(model_fn, data, replicas, steps_per_loop=7)

        np.testing.assert_allclose(ours.weights[2], one.weights[2], rtol=1e-5, atol=1e-6)
        assert any("BatchNormalization" in text for text in ours.result.plan.warnings)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains_about_alike(policy):
    """Loosely: half precision rounds differently for each share of rows."""

    def model_fn():
        keras.config.set_dtype_policy(policy)
        try:
            model = keras.Sequential([keras.Input((3,)), dense(4, 1, "tanh"), dense(1, 2)])
            # A scale that never overflows: with more replicas sums are shorter, and
            # a sum that overflows on one device need not overflow on two.
            model.compile(
                keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=64.0),
                "mse",
            )
        finally:
            keras.config.set_dtype_policy("float32")
        return model

    one = train(model_fn, data, 1)
    for replicas in counts(2):
        assert_equal(train(model_fn, data, replicas), one, rtol=0.05, atol=0.02)


def test_infinity_on_one_replica_skips_the_step_on_all_and_halves_the_scale():
    scales = []

    def model_fn():
        model = keras.Sequential([keras.Input((3,)), dense(1, 1)])
        model.compile(
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64.0),
            lambda y_true, y_pred: ops.square(y_true - y_pred),
        )
        return model

    class Scale(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            optimizer = self.model.optimizer
            scales.append((float(optimizer.dynamic_scale), self.model.get_weights()[0].copy()))

    class Watching(keras.callbacks.TerminateOnNaN):
        """Takes infinite losses upon itself, and goes on."""

        def on_batch_end(self, batch, logs=None):
            pass

    x, y = random(12, 3), random(12, 1, seed=1)
    y[5] = np.inf  # the second batch of four, its first replica of two
    results = {}
    for replicas in (1, 2):
        scales.clear()
        fit(
            model_fn,
            dataset(x, y, batch=4),
            replicas=replicas,
            callbacks=[Scale(), Watching()],
        )
        results[replicas] = list(scales)

    for steps in results.values():
        assert [scale for scale, _ in steps] == [64.0, 32.0, 32.0]
        np.testing.assert_array_equal(steps[0][1], steps[1][1])
        assert np.isfinite(steps[2][1]).all()
        np.testing.assert_allclose(steps[2][1], results[1][2][1], rtol=1e-5)


class Largest(keras.metrics.Metric):
    """A user's metric that is no sum over rows."""

    def __init__(self):
        super().__init__(name="largest")
        self.kept = self.add_variable((), "zeros", name="kept")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.kept.assign(ops.maximum(self.kept, ops.max(y_true)))

    def result(self):
        return self.kept * 1.0


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = dense(1, 1)

    def call(self, x):
        return self.out(x)

    def train_step(self, data):
        return super().train_step(data)


def own_step():
    model = OwnStep()
    model.compile("sgd", "mse")
    return model


WARNINGS = {
    "a metric that is no sum": (lambda: net_with(Largest()), "'largest'"),
    "a train_step": (own_step, "OwnStep has its own train_step"),
}


def net_with(metric):
    model = keras.Sequential([keras.Input((3,)), dense(1, 1)])
    model.compile("sgd", "mse", metrics=[metric])
    return model


@pytest.mark.parametrize("name", WARNINGS)
def test_what_differs_by_nature_is_said_where_there_is_more_than_one_replica(name):
    make, text = WARNINGS[name]

    assert any(text in warning for warning in fit(make, X, Y, replicas=2).plan.warnings)
    assert not any(text in warning for warning in fit(make, X, Y).plan.warnings)
