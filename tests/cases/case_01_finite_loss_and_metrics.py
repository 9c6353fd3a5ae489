"""Logged loss and metrics stay finite and right on any replica count."""

import math

import keras
import numpy as np
from common import *

virtual_cpus(4)
r = np.random.default_rng(0)
X = r.normal(size=(3200, 8)).astype("float32")
W = r.normal(size=(8, 4))
Y = np.eye(4, dtype="float32")[(X @ W).argmax(1)]


def model_fn():
    def k(s):
        return keras.initializers.RandomNormal(seed=s)

    m = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "relu", kernel_initializer=k(1)),
            keras.layers.Dense(4, "softmax", kernel_initializer=k(2)),
        ]
    )
    m.compile(
        keras.optimizers.SGD(0.05),
        "categorical_crossentropy",
        metrics=[
            "accuracy",
            keras.metrics.TopKCategoricalAccuracy(2, name="top2"),
            keras.metrics.AUC(name="auc"),
        ],
    )
    return m


seen = []


class Spy(keras.callbacks.Callback):
    def on_train_batch_end(self, b, logs):
        seen.append({k: float(v) for k, v in logs.items()})


base = run(
    model_fn, ordered(X, Y, 8), 1, epochs=2, validation_data=ordered(X[:100], Y[:100], 8)
).history
for n in (2, 4):
    seen.clear()
    h = run(
        model_fn,
        ordered(X, Y, 8),
        n,
        epochs=2,
        validation_data=ordered(X[:100], Y[:100], 8),
        callbacks=[Spy()],
    ).history
    assert len(seen) == 800
    for d in seen:
        assert all(math.isfinite(v) for v in d.values())
        assert 0 <= d["accuracy"] <= 1
        assert 0 <= d["auc"] <= 1
        assert 0 <= d["top2"] <= 1
    for k in base:
        np.testing.assert_allclose(h[k], base[k], rtol=2e-3)
