"""Batch and rate scaling happens once, is visible, and survives resume."""

import keras
import numpy as np
from common import *

virtual_cpus(4)
X = np.random.default_rng(0).normal(size=(512, 2)).astype("f4")


def fn(opt):
    def model_fn():
        m = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        m.compile(opt(), "mse")
        return m

    return model_fn


sgd = fn(lambda: keras.optimizers.SGD(0.01))
rates = []


class Spy(keras.callbacks.Callback):
    def on_train_batch_begin(self, b, logs=None):
        rates.append(float(self.model.optimizer.learning_rate))


r = run(sgd, (X, X[:, :1]), 4, batch_size=32, epochs=1, batch_scaling="off", callbacks=[Spy()])
assert set(np.round(rates, 6)) == {0.01}
assert r.plan.global_batch == 32
rates.clear()
r = run(
    sgd,
    (X, X[:, :1]),
    4,
    batch_size=32,
    epochs=4,
    batch_scaling="linear",
    warmup_steps=10,
    callbacks=[Spy()],
)
assert r.plan.global_batch == 128
assert len(rates) == 16
assert abs(rates[0] - 0.01) < 0.004
assert abs(rates[-1] - 0.04) < 1e-6
assert rates == sorted(rates)
rates.clear()  # second call: no second scaling
r2 = run(
    sgd,
    (X, X[:, :1]),
    4,
    batch_size=32,
    epochs=1,
    batch_scaling="linear",
    warmup_steps=0,
    callbacks=[Spy()],
)
assert abs(rates[-1] - 0.04) < 1e-6
sch = fn(
    lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.01, 64))
)  # 64 steps = 4 epochs at batch 32
r3 = run(sch, (X, X[:, :1]), 4, batch_size=32, epochs=4, batch_scaling="linear")
end = float(r3.model.optimizer.learning_rate)
assert end < 0.004 or any(
    "schedule" in s for s in r3.plan.warnings
)  # 16 steps now: stretched or pointed out
