"""steps_per_execution chosen by the layer never changes how much is trained."""

import pathlib
import tempfile

import keras
import numpy as np
from common import *

virtual_cpus(2)
X = np.random.default_rng(0).normal(size=(200, 3)).astype("f4")
V = X[:28]


def model_fn():
    m = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    m.compile(
        keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([60], [0.1, 0.01])),
        "mse",
    )
    return m


ref = None
for spe in (1, 8, 10, 64, "auto"):
    d = pathlib.Path(tempfile.mkdtemp())
    cb = keras.callbacks.ModelCheckpoint(
        str(d / "b{batch}.weights.h5"), save_freq=20, save_weights_only=True
    )
    res = run(
        model_fn,
        ordered(X, X[:, :1], 4),
        2,
        epochs=2,
        validation_data=ordered(V, V[:, :1], 4),
        steps_per_execution=spe,
        callbacks=[cb],
    )
    assert int(res.model.optimizer.iterations) == 100, (spe, int(res.model.optimizer.iterations))
    assert len(res.history["val_loss"]) == 2
    assert np.isfinite(res.history["val_loss"]).all()
    w = res.model.get_weights()
    if ref is None:
        ref = w, res.history["val_loss"]
    for a, b in zip(ref[0], w, strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(ref[1], res.history["val_loss"], rtol=1e-5)
    assert list(d.iterdir()) or not writes_files()
