"""A model trained again, recompiled, moved, saved, made elsewhere; evaluated and asked."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from runs import (
    BATCH,
    ROWS,
    assert_equal,
    cpus,
    dataset,
    dense,
    fit,
    random,
    trained,
)

import autostrategy

X, Y = random(ROWS, 3), random(ROWS, 1, seed=1)
COUNTS = [1, 2]


def data():
    return (dataset(X, Y),)


def model_fn():
    model = keras.Sequential([keras.Input((3,)), dense(4, 1, "tanh"), dense(1, 2)])
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    return model


def trainer_for(model, replicas):
    plan = autostrategy.plan(autostrategy.probe(), devices=tuple(cpus(replicas)))
    return autostrategy.Trainer(model, plan, batch_scaling="off")


def after(epochs):
    model = model_fn()
    history = model.fit(*data(), epochs=epochs, shuffle=False, verbose=0)
    return trained(model, history)


@pytest.mark.parametrize("counts", [(2, 2), (2, 1), (1, 2), (4, 2)])
def test_a_model_goes_on_where_it_was_on_any_number_of_replicas(counts):
    model = model_fn()
    for replicas in counts:
        result = fit(model, *data(), replicas=replicas, epochs=2)

    assert result.model is model
    ours, stock = trained(model, result), after(4)
    ours.history = stock.history = {}
    assert_equal(ours, stock)


@pytest.mark.parametrize("replicas", COUNTS)
def test_keras_itself_trains_evaluates_and_asks_the_model_afterwards(replicas):
    model = fit(model_fn, *data(), replicas=replicas, epochs=2).model

    history = model.fit(*data(), epochs=2, shuffle=False, verbose=0)

    ours, stock = trained(model, history), after(4)
    ours.history = stock.history = {}
    assert_equal(ours, stock)
    np.testing.assert_allclose(
        model.evaluate(X, Y, verbose=0), stock.model.evaluate(X, Y, verbose=0), rtol=1e-4
    )
    np.testing.assert_allclose(
        model.predict(X, verbose=0), stock.model.predict(X, verbose=0), rtol=1e-4
    )


@pytest.mark.parametrize("replicas", COUNTS)
def test_frozen_layers_stay_until_they_are_unfrozen_and_the_model_recompiled(replicas):
    model = model_fn()
    model.layers[0].trainable = False
    model.compile(keras.optimizers.Adam(0.02), "mse")
    start = model.get_weights()
    trainer = trainer_for(model, replicas)

    trainer.fit(*data(), epochs=2, verbose=0)

    frozen = model.get_weights()
    np.testing.assert_array_equal(frozen[0], start[0])
    assert abs(frozen[2] - start[2]).max() > 0
    model.layers[0].trainable = True
    model.compile(keras.optimizers.SGD(0.05), "mae")
    trainer.fit(*data(), epochs=2, verbose=0)
    stock = model_fn()
    stock.layers[0].trainable = False
    stock.compile(keras.optimizers.Adam(0.02), "mse")
    stock.fit(*data(), epochs=2, verbose=0, shuffle=False)
    stock.layers[0].trainable = True
    stock.compile(keras.optimizers.SGD(0.05), "mae")
    stock.fit(*data(), epochs=2, verbose=0, shuffle=False)
    for got, wanted in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_each_compile_is_told_from_the_one_before():
    """A step traced for an earlier loss must not be used again, even by chance of an id."""
    trainer = trainer_for(model_fn, 2)
    trainer.fit(*data(), verbose=0)
    for turn in range(4):
        rate = 0.0 if turn % 2 else 0.1
        trainer.model.compile(keras.optimizers.SGD(rate), "mse" if turn < 2 else "mae")
        before = trainer.model.get_weights()

        trainer.fit(*data(), verbose=0)

        moved = max(
            abs(new - old).max()
            for new, old in zip(trainer.model.get_weights(), before, strict=True)
        )
        assert (moved > 0) == (rate > 0)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_model_made_in_another_scope_is_taken_over(replicas):
    with tf.distribute.MirroredStrategy(["CPU:2", "CPU:3"]).scope():
        model = model_fn()

    ours = trained(model, fit(model, *data(), replicas=replicas, epochs=4))

    assert_equal(ours, after(4))


class Lazy(keras.Model):
    """Has no variables before it sees data."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = dense(4, 1, "tanh"), dense(1, 2)

    def call(self, x, training=False):
        return self.out(self.hidden(x))


def lazy():
    model = Lazy()
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("replicas", COUNTS)
def test_a_model_without_variables_gets_them(replicas):
    model = lazy()

    ours = trained(model, fit(model, *data(), replicas=replicas, epochs=4))

    assert_equal(ours, after(4))


@pytest.mark.parametrize("replicas", COUNTS)
def test_a_model_is_compiled_by_fit_where_it_is_not(replicas):
    def uncompiled():
        return keras.Sequential([keras.Input((3,)), dense(4, 1, "tanh"), dense(1, 2)])

    result = fit(
        uncompiled,
        *data(),
        replicas=replicas,
        epochs=4,
        optimizer=keras.optimizers.Adam(0.02),
        loss="mse",
        metrics=["mae"],
    )

    assert_equal(trained(result.model, result), after(4))


@pytest.mark.parametrize("counts", [(2, 1), (1, 2)])
def test_a_saved_model_goes_on(counts, tmp_path):
    first, second = counts
    fit(model_fn, *data(), replicas=first, epochs=2).model.save(tmp_path / "model.keras")

    result = fit(
        lambda: keras.saving.load_model(tmp_path / "model.keras"),
        *data(),
        replicas=second,
        epochs=4,
        initial_epoch=2,
    )

    ours, stock = trained(result.model, result), after(4)
    ours.history = stock.history = {}
    assert_equal(ours, stock)


@pytest.mark.parametrize("replicas", COUNTS)
def test_a_trained_model_is_an_ordinary_model(replicas, tmp_path):
    model = fit(model_fn, *data(), replicas=replicas).model
    outputs = model.predict(X, verbose=0)

    model.save_weights(tmp_path / "w.weights.h5")
    model.export(tmp_path / "export", verbose=False)
    other = keras.models.clone_model(model)
    other.load_weights(tmp_path / "w.weights.h5")
    exported = tf.saved_model.load(str(tmp_path / "export"))

    np.testing.assert_allclose(other.predict(X, verbose=0), outputs, rtol=1e-5)
    np.testing.assert_allclose(exported.serve(X), outputs, rtol=1e-5)
    np.testing.assert_allclose(model(X), outputs, rtol=1e-5)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.02)
    assert int(model.optimizer.iterations) == 4
    keras.random.uniform((2,))  # the global generator is an ordinary one too


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_evaluation_is_that_of_one_device(replicas):
    model = model_fn()
    expected = model.evaluate(X, Y, batch_size=BATCH, verbose=0, return_dict=True)
    trainer = trainer_for(model_fn, replicas)

    for arguments in (
        {"x": X, "y": Y, "batch_size": BATCH},
        {"x": dataset(X, Y)},
        {"x": dataset(X, Y).filter(lambda x, y: True)},
        {"x": dataset(X, Y).repeat(), "steps": 4},
    ):
        values = trainer.evaluate(**arguments, verbose=0, return_dict=True)

        assert values == pytest.approx(expected, rel=1e-5)
    assert trainer.evaluate(X, Y, verbose=0) == pytest.approx(list(expected.values()), rel=1e-5)
    weighted = trainer.evaluate(X, Y, sample_weight=np.arange(ROWS), verbose=0)
    assert weighted == pytest.approx(
        model.evaluate(X, Y, sample_weight=np.arange(ROWS), verbose=0), rel=1e-5
    )


class Outputs(keras.Model):
    """A dictionary of outputs: numbers, texts, and rows of different lengths."""

    def call(self, x):
        words = tf.where(x[:, 0] > 0, "yes", "no")
        counts = tf.cast(tf.abs(x[:, 0]) * 3, "int32")
        return {
            "numbers": ops.sum(x, axis=1),
            "words": words,
            "ragged": tf.RaggedTensor.from_row_lengths(tf.range(tf.reduce_sum(counts)), counts),
            "nested": [x, (x * 2,)],
        }


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_predictions_are_those_of_one_device_in_input_order(replicas):
    trainer = trainer_for(model_fn, replicas)
    expected = model_fn().predict(X, batch_size=BATCH, verbose=0)

    for arguments in (
        {"x": X, "batch_size": BATCH},
        {"x": dataset(X)},
        {"x": dataset(X, Y)},
        {"x": X[:1]},
        {"x": dataset(X).repeat(), "steps": 4},
    ):
        outputs = trainer.predict(**arguments, verbose=0)

        np.testing.assert_allclose(outputs, expected[: len(outputs)], rtol=1e-5)
        assert len(outputs) in (1, ROWS)


@pytest.mark.parametrize("replicas", [3])
def test_outputs_of_any_structure_are_put_together(replicas):
    model = Outputs()
    model.compile(loss=None)
    one = trainer_for(model, 1).predict(X, batch_size=BATCH, verbose=0)
    other = Outputs()
    other.compile(loss=None)

    ours = trainer_for(other, replicas).predict(X, batch_size=BATCH, verbose=0)

    np.testing.assert_allclose(ours["numbers"], one["numbers"], rtol=1e-5)
    np.testing.assert_allclose(ours["nested"][1][0], X * 2, rtol=1e-5)
    assert ours["words"].tolist() == one["words"].tolist()
    assert int(ours["ragged"].nrows()) == ROWS
    np.testing.assert_array_equal(ours["ragged"].row_lengths(), one["ragged"].row_lengths())
