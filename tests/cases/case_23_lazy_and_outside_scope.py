"""Lazy models, and models or optimizers made outside the scope."""

import keras
import numpy as np
import tensorflow as tf
from common import *

import autostrategy

virtual_cpus(2)
X = np.random.default_rng(0).normal(size=(8, 3)).astype("f4")


def ds():
    return ordered(X, X[:, :1], 4)


class Lazy(keras.Model):
    def __init__(self):
        super().__init__()
        self.a, self.b = keras.layers.Dense(4), keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.b(self.a(x))


def a():
    m = Lazy()
    m.compile("adam", "mse")
    return m


OPT = keras.optimizers.Adam(0.01)


def b():
    m = Lazy()
    m.compile(OPT, "mse")
    return m


GLOBAL = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
GLOBAL.compile("adam", "mse")
SHARED = keras.layers.Dense(4)
SHARED.build((None, 3))


def d():
    m = keras.Sequential([keras.Input((3,)), SHARED, keras.layers.Dense(1)])
    m.compile("adam", "mse")
    return m


def mirrored(res):
    """A part of every variable on each replica of this process; one where replicas share them."""
    served = res.plan.kind is autostrategy.StrategyKind.PARAMETER_SERVER  # with one worker
    shared = served or res.plan.kind is autostrategy.StrategyKind.CENTRAL_STORAGE
    parts = 1 if shared else len(res.strategy.extended.worker_devices)
    return res.report.replicas == (1 if served else 2) and all(
        len(res.strategy.experimental_local_results(v.value)) == parts
        for v in res.model.variables + res.model.optimizer.variables
    )


assert mirrored(run(a, ds(), 2, epochs=1))
for f in (b, lambda: GLOBAL, d):  # rebuilt inside the scope, or refused with a useful text
    try:
        assert mirrored(run(f, ds(), 2, epochs=1))
    except ValueError as e:
        assert any(t in str(e) for t in ("model_fn", "outside", "optimizer", "layer")), e


def boom():
    raise RuntimeError("user bug")


try:
    run(boom, ds(), 2, epochs=1)
except RuntimeError as e:
    assert "user bug" in str(e)
assert not tf.distribute.has_strategy()  # scope stack clean afterwards
assert mirrored(run(a, ds(), 2, epochs=1))  # and usable again
