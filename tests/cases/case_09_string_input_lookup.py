"""Float and string inputs together."""

import keras
import numpy as np
import tensorflow as tf
from common import *

virtual_cpus(2)
F = np.arange(16, dtype="float32").reshape(8, 2) / 16
S = np.array([["foo", "bar"], ["baz", "qux"]] * 4)
Y = col(*([1, 0] * 4))


def model_fn():
    f = keras.Input((2,), name="f")
    s = keras.Input((2,), dtype="string", name="s")
    i = keras.layers.StringLookup(vocabulary=["foo", "bar", "baz", "qux"])(s)
    e = keras.layers.Flatten()(
        keras.layers.Embedding(
            5, 3, embeddings_initializer=keras.initializers.RandomNormal(seed=1)
        )(i)
    )
    o = keras.layers.Dense(
        1, "sigmoid", kernel_initializer=keras.initializers.RandomNormal(seed=2)
    )(keras.layers.Concatenate()([f, e]))
    m = keras.Model([f, s], o)
    m.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    return m


def ds(b):
    return tf.data.Dataset.from_tensor_slices(((F, S), Y)).batch(b)


for b in (2, 4, 3):
    one = run(model_fn, ds(b), 1, epochs=2)
    two = run(model_fn, ds(b), 2, epochs=2)
    for u, v in zip(one.model.get_weights(), two.model.get_weights(), strict=False):
        np.testing.assert_allclose(u, v, rtol=1e-4, atol=1e-5)
assert two.model.predict(ds(3), verbose=0).shape == (8, 1)
