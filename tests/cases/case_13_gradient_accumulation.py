"""gradient_accumulation_steps works under several replicas."""

import keras
import numpy as np
from common import *

virtual_cpus(2)


def ds():
    return ordered(col(1, 2, 3, 4, 5, 6, 7, 8), col(*[1] * 8), 4)


def opt():
    return keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)


for n in (1, 2):
    assert abs(w_of(run(one_weight(optimizer=opt), ds(), n, epochs=1)) - 0.9) < 1e-5
# momentum and slots must not move on the non-update steps
X = np.random.default_rng(0).normal(size=(24, 3)).astype("f4")


def model_fn():
    m = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    m.compile(
        keras.optimizers.Adam(0.05, gradient_accumulation_steps=3, global_clipnorm=0.5), "mse"
    )
    return m


a = run(model_fn, ordered(X, X[:, :1], 4), 1, epochs=2)
b = run(model_fn, ordered(X, X[:, :1], 4), 2, epochs=2)
for u, v in zip(a.model.get_weights(), b.model.get_weights(), strict=False):
    np.testing.assert_allclose(u, v, rtol=1e-4, atol=1e-6)
# when the plan itself proposes accumulation (batch does not fit), the same must hold
