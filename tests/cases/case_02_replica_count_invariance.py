"""evaluate and one training step do not depend on the replica count."""

import keras
import numpy as np
from common import *

virtual_cpus(4)
r = np.random.default_rng(1)
x = r.uniform(-1, 1, (12, 1)).astype("float32")
y = r.uniform(-1, 1, (12, 10)).astype("float32")
K0 = r.normal(size=(1, 10)).astype("float32")


def model_fn():
    m = keras.Sequential([keras.Input((1,)), keras.layers.Dense(10)])
    m.layers[0].set_weights([K0, np.zeros(10)])
    m.compile(keras.optimizers.SGD(0.01), "mse")
    return m


def by_hand(batch):
    k, b = K0.astype("f8"), np.zeros(10)
    for i in range(0, 12, batch):
        e = x[i : i + batch] @ k + b - y[i : i + batch]
        g = 2 * e / e.size
        k, b = k - 0.01 * x[i : i + batch].T @ g, b - 0.01 * g.sum(0)
    return k, b


for batch in (12, 6):
    k, b = by_hand(batch)
    for n in (1, 2, 3, 4):
        res = run(model_fn, ordered(x, y, batch), n, epochs=1)
        gk, gb = res.model.get_weights()
        np.testing.assert_allclose(gk, k, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(gb, b, rtol=1e-4, atol=1e-6)
        ev = res.model.evaluate(ordered(x, y, batch), verbose=0)
        ev = ev[0] if isinstance(ev, (list, tuple)) else ev
        np.testing.assert_allclose(ev, np.mean((x @ k + b - y) ** 2), rtol=1e-5)
