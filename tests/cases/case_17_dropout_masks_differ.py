"""Random layers draw different numbers on each replica."""

import keras
import numpy as np
import tensorflow as tf
from common import *

virtual_cpus(2)


def model_fn():
    m = keras.Sequential(
        [
            keras.Input((256,)),
            keras.layers.Dropout(0.5, seed=7),
            keras.layers.GaussianNoise(0.1),
            keras.layers.Dense(1, kernel_initializer="zeros"),
        ]
    )
    m.compile("sgd", "mse")
    return m


X = np.ones((8, 256), "float32")
res = run(model_fn, ordered(X, X[:, :1], 4), 2, epochs=1)
drop = res.model.layers[0]


@tf.function
def draw():
    return res.strategy.run(lambda: drop(tf.ones((1, 256)), training=True))


prev = None
for _ in range(5):
    a, b = [v.numpy() > 0 for v in res.strategy.experimental_local_results(draw())]
    assert 0.3 < a.mean() < 0.7
    assert (a != b).mean() > 0.3, "same mask on both replicas"
    if prev is not None:
        assert (a != prev).mean() > 0.3, "mask does not advance"
    prev = a
# same seed, same replica count -> repeatable
keras.utils.set_random_seed(1)
u = run(model_fn, ordered(X, X[:, :1], 4), 2, epochs=2).model.get_weights()
keras.utils.set_random_seed(1)
v = run(model_fn, ordered(X, X[:, :1], 4), 2, epochs=2).model.get_weights()
for p, q in zip(u, v, strict=False):
    np.testing.assert_array_equal(p, q)
