"""Save, load under a strategy, resume: same as never stopping."""

import contextlib
import os
import tempfile

import keras
import numpy as np
from common import *

virtual_cpus(2)
X = np.random.default_rng(0).normal(size=(24, 3)).astype("f4")


def ds():
    return ordered(X, X[:, :1], 4)


# No bias before BatchNormalization: its gradient is zero but for rounding, and Adam turns rounding
# into steps, so even two runs of one device that add in another order differ there.
def fn():
    k = keras.initializers.RandomNormal(seed=1)
    m = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, use_bias=False, kernel_initializer=k),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(1, kernel_initializer=k),
        ]
    )
    m.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.05, 10, 0.9)), "mse"
    )
    return m


straight = run(fn, ds(), 2, epochs=6).model.get_weights()
d = tempfile.mkdtemp()
for first, second in ((2, 2), (2, 1), (1, 2)):
    p = os.path.join(d, f"{first}{second}.keras")
    r = run(fn, ds(), first, epochs=3)
    r.model.save(p)
    r2 = run(lambda: keras.saving.load_model(p), ds(), second, epochs=6, initial_epoch=3)
    assert int(r2.model.optimizer.iterations) == 36
    for a, b in zip(straight, r2.model.get_weights(), strict=False):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4)


class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, e, logs=None):
        if e == 3:
            raise RuntimeError("stop")


bk = os.path.abspath("backup")  # the same on all workers
with contextlib.suppress(RuntimeError):
    run(fn, ds(), 2, epochs=6, callbacks=[keras.callbacks.BackupAndRestore(bk), Stop()])
r3 = run(
    fn, ds(), 2, epochs=6, callbacks=[keras.callbacks.BackupAndRestore(bk)]
)  # second half also as a new process
assert len(r3.history["loss"]) == 3
for a, b in zip(straight, r3.model.get_weights(), strict=False):
    np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4)
