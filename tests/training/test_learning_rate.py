"""Batch and rate are scaled once, in force while training runs, and nowhere else."""

import math

import keras
import numpy as np
import pytest
from keras.optimizers import schedules
from runs import assert_equal, dense, fit, random, train_stock, trained

X, Y = random(64, 3), random(64, 1, seed=1)
RUN = {"batch_size": 8, "shuffle": False}


def net(optimizer):
    def model_fn():
        model = keras.Sequential([keras.Input((3,)), dense(1, 1)])
        model.compile(optimizer(), "mse")
        return model

    return model_fn


def sgd():
    return keras.optimizers.SGD(0.01)


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.steps, self.epochs = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.steps.append(float(self.model.optimizer.learning_rate))

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append(float(self.model.optimizer.learning_rate))


def run(optimizer, replicas=4, **arguments):
    rates = Rates()
    arguments = {"batch_scaling": "auto", "warmup_steps": 0, **RUN, **arguments}
    callbacks = [rates, *arguments.pop("callbacks", [])]
    result = fit(net(optimizer), X, Y, replicas=replicas, callbacks=callbacks, **arguments)
    return result, rates


@pytest.mark.parametrize(
    ("optimizer", "scaling", "rate"),
    [
        (sgd, "auto", 0.04),
        (sgd, "sqrt", 0.02),
        (lambda: keras.optimizers.Adam(0.01), "auto", 0.02),
        (lambda: keras.optimizers.Adam(0.01), "linear", 0.04),
        (sgd, "off", 0.01),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01)), "auto", 0.04),
    ],
)
def test_each_rule_scales_batch_and_rate_and_gives_the_rate_back(optimizer, scaling, rate):
    result, rates = run(optimizer, batch_scaling=scaling, epochs=2)

    grown = 1 if scaling == "off" else 4
    assert result.plan.global_batch == 8 * grown
    assert rates.steps == pytest.approx([rate] * (16 // grown))
    inner = getattr(result.model.optimizer, "inner_optimizer", result.model.optimizer)
    assert float(inner.learning_rate) == float(np.float32(0.01))


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="Keras 3.12 has no MultiOptimizer"
)
def test_every_rate_of_several_optimizers_is_scaled():
    def several(factor=1.0, stretch=1):
        decay = schedules.PiecewiseConstantDecay([4 // stretch], [0.01 * factor, 0.002 * factor])
        one = keras.optimizers.Adam(0.02 * factor)
        other = keras.optimizers.SGD(decay)
        return keras.optimizers.MultiOptimizer(lambda each: one if len(each.shape) > 1 else other)

    def trained_on(optimizer, **arguments):
        result = fit(net(optimizer), X, Y, epochs=2, warmup_steps=0, **{**RUN, **arguments})
        return trained(result.model, result, result)

    ours = trained_on(several, replicas=4, batch_scaling="auto")
    stock = train_stock(net(lambda: several(2.0, 4)), lambda: (X, Y), epochs=2, batch_size=32)

    assert_equal(ours, stock, slots=False)
    assert ours.result.plan.scaling.rule == "sqrt"
    assert any("The learning rate is a schedule" in each for each in ours.result.plan.warnings)
    adam = ours.model.optimizer.optimizers[0]
    assert float(adam.learning_rate) == float(np.float32(0.02))


def test_scaled_training_is_one_device_with_that_batch_and_rate():
    result, _ = run(sgd, epochs=3)

    stock = train_stock(
        net(lambda: keras.optimizers.SGD(0.04)), lambda: (X, Y), epochs=3, batch_size=32
    )
    ours = trained(result.model, result)
    ours.optimizer, stock.optimizer = ours.optimizer[2:], stock.optimizer[2:]
    assert_equal(ours, stock)


def test_the_rate_warms_up_step_by_step_and_epochs_see_it_whole():
    result, rates = run(sgd, warmup_steps=3, epochs=3, steps_per_loop=2)

    assert rates.steps[:4] == pytest.approx([0.01, 0.02, 0.03, 0.04])
    assert rates.epochs == pytest.approx([0.04] * 3)
    assert float(result.model.optimizer.learning_rate) == float(np.float32(0.01))


def test_a_second_fit_scales_from_the_users_rate_again():
    result, _ = run(sgd)
    rates = Rates()

    fit(
        result.model,
        X,
        Y,
        replicas=4,
        batch_scaling="auto",
        warmup_steps=0,
        callbacks=[rates],
        **RUN,
    )

    assert rates.steps == pytest.approx([0.04, 0.04])


@pytest.mark.parametrize("save", ["weights", "model"])
def test_a_file_holds_the_users_rate(save, tmp_path):
    path = tmp_path / ("m.weights.h5" if save == "weights" else "m.keras")
    checkpoint = keras.callbacks.ModelCheckpoint(
        path, save_weights_only=save == "weights", save_freq=1
    )
    run(sgd, callbacks=[checkpoint], warmup_steps=2, epochs=2)
    model = net(sgd)()
    model.optimizer.build(model.trainable_variables)
    if save == "weights":
        model.load_weights(path)
    else:
        model = keras.saving.load_model(path)

    assert float(model.optimizer.learning_rate) == pytest.approx(0.01, rel=1e-6)


def test_a_schedule_is_multiplied_and_runs_through_in_fewer_steps():
    made = []

    def optimizer():
        made.append(schedules.PolynomialDecay(0.01, 32, 0.001))
        return keras.optimizers.SGD(made[-1])

    result, rates = run(optimizer, epochs=4)

    expected = [4 * float(made[-1](4 * step)) for step in range(8)]
    assert rates.steps == pytest.approx(expected)
    assert any("schedule" in text for text in result.plan.warnings)
    assert result.model.optimizer._learning_rate is made[-1]


def test_a_schedule_warms_up():
    _, rates = run(
        lambda: keras.optimizers.SGD(schedules.PiecewiseConstantDecay([10**6], [0.01, 0.0])),
        warmup_steps=4,
        epochs=3,
    )

    assert rates.steps == pytest.approx([0.01, 0.0175, 0.025, 0.0325, 0.04, 0.04])


def test_what_a_callback_does_to_the_rate_stays_in_proportion():
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=100.0, factor=0.5)

    result, rates = run(sgd, callbacks=[plateau], epochs=4)

    # The first epoch is the best so far; each of the others halves.
    assert rates.epochs == pytest.approx([0.04, 0.04, 0.02, 0.01])
    assert float(result.model.optimizer.learning_rate) == pytest.approx(0.01 / 8)


@pytest.mark.parametrize("where", ["callback", "first step"])
def test_the_rate_is_given_back_after_an_error(where):
    model = net(sgd)()

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError("mine")

    y = Y * np.nan if where == "first step" else Y
    with pytest.raises((KeyError, ValueError)):
        fit(
            model,
            X,
            y,
            replicas=4,
            batch_scaling="linear",
            warmup_steps=3,
            callbacks=[Fail()] if where == "callback" else [],
            **RUN,
        )

    assert float(model.optimizer.learning_rate) == float(np.float32(0.01))


def test_steps_per_epoch_counts_the_users_batches():
    result, rates = run(sgd, steps_per_epoch=6, epochs=1)

    assert result.report.steps == len(rates.steps) == math.ceil(6 / 4)


def test_nothing_grows_beyond_the_rows():
    result, rates = run(sgd, batch_size=40)

    assert result.plan.global_batch == 40
    assert rates.steps == pytest.approx([0.01, 0.01])


def test_the_scaling_is_printed_before_training(capsys):
    run(sgd, verbose=2)

    text = capsys.readouterr().out
    assert text.index("0.04 = 0.01 x 4 (linear)") < text.index("loss")
