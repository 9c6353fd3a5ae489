"""A loss function that returns one number trains the same on N replicas."""

import keras
from common import *
from keras import ops

virtual_cpus(2)


def f(t, p):
    return ops.mean(ops.square(t - p))


class L(keras.losses.Loss):
    def call(self, t, p):
        return ops.mean(ops.square(t - p))


def ds():
    return ordered(col(1, 2, 3, 4), col(1, 1, 1, 1), 4)


for loss in (f, L()):
    for n in (1, 2):
        res = run(one_weight(loss=loss), ds(), n, epochs=1)
        assert abs(w_of(res) - 0.5) < 1e-5, (n, w_of(res))
        assert abs(res.history["loss"][0] - 1.0) < 1e-5, (n, res.history["loss"])
# sum reduction stays a sum: gradient -2*10, w = 2.0, shown loss 4.0
for n in (1, 2):
    res = run(one_weight(loss=keras.losses.MeanSquaredError(reduction="sum")), ds(), n, epochs=1)
    assert abs(w_of(res) - 2.0) < 1e-5
    assert abs(res.history["loss"][0] - 4.0) < 1e-4
