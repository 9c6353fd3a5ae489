"""jit_compile="auto": XLA is tried once in a long run, and kept where it is faster."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from runs import assert_equal, dense, random, train

from autostrategy.training import compiled_steps, keras_internals, xla_trial


def usual(trial, loops=xla_trial._SETTLED_LOOPS, seconds=1.0, steps=10):
    for _ in range(loops):
        assert trial.steps(100) == 100
        trial.took(steps, seconds)


def trial(*, now=False, can=True, steps=100_000):
    return xla_trial.XlaTrial(now=now, can=lambda: can, steps=steps)


@pytest.mark.parametrize(("seconds", "kept"), [(0.05, True), (0.79, False), (8.0, False)])
@pytest.mark.parametrize("now", [False, True])
def test_the_faster_way_is_kept(now, seconds, kept):
    ours = trial(now=now)

    usual(ours)
    assert ours.compiled is not now
    assert ours.steps(100) == 8
    ours.took(8, 60.0)  # compiles
    assert ours.compiled is not now
    ours.took(8, seconds)

    assert ours.over
    assert ours.compiled is (now != kept)
    assert ours.steps(100) == 100


@pytest.mark.parametrize(
    "given", [{"steps": None}, {"steps": 1000}, {"can": False}], ids=["unknown", "short", "cannot"]
)
def test_nothing_is_tried_where_it_cannot_pay_or_be(given):
    ours = trial(**given)

    usual(ours)

    assert ours.over
    assert not ours.compiled


def net(first=(3,), *layers):
    def model_fn():
        model = keras.Sequential([keras.Input(first), *layers, dense(4, 1, "tanh"), dense(1, 2)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
        return model

    return model_fn


def test_a_run_that_tries_both_ways_has_the_same_numbers(monkeypatch):
    ways = []
    took = xla_trial.XlaTrial.took
    monkeypatch.setattr(xla_trial, "_LEAST_SECONDS_LEFT", 0.0)
    monkeypatch.setattr(
        xla_trial.XlaTrial,
        "took",
        lambda self, steps, seconds: (ways.append(self.compiled), took(self, steps, seconds)),
    )
    data = (random(64, 3), random(64, 1, seed=1))
    arguments = {"batch_size": 8, "epochs": 6, "shuffle": False}

    tried = train(net(), lambda: data, 1, **arguments)
    assert set(ways) == {True, False}
    never = train(net(), lambda: data, 1, jit_compile=False, **arguments)

    assert_equal(tried, never)


def test_what_xla_cannot_take_is_known_without_a_step():
    words = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    lookup = keras.Sequential([keras.Input((1,), dtype="string"), words, dense(1, 1)])
    lookup.compile("sgd", "mse")
    numbers = net()()
    numbers_spec = (tf.TensorSpec([8, 3]), tf.TensorSpec([8, 1]))
    words_spec = (tf.TensorSpec([8, 1], tf.string), tf.TensorSpec([8, 1]))
    keras_internals.build(numbers, numbers_spec)
    keras_internals.build(lookup, words_spec)
    before = numbers.get_weights()

    assert compiled_steps.can_compile(numbers, numbers_spec)
    assert not compiled_steps.can_compile(lookup, words_spec)
    assert not compiled_steps.can_compile(numbers, (tf.RaggedTensorSpec([8, None]),))
    for was, now in zip(before, numbers.get_weights(), strict=True):
        np.testing.assert_array_equal(was, now)
