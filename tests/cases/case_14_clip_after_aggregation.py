"""Clipping acts on the global gradient."""

import keras
from common import *

virtual_cpus(2)


def ds():
    return ordered(col(10, 10), col(1, 1), 2)


for kw in ({"global_clipnorm": 1.0}, {"clipnorm": 1.0}, {"clipvalue": 1.0}):
    for n in (1, 2):
        w = w_of(
            run(one_weight(optimizer=lambda: keras.optimizers.SGD(0.1, **kw)), ds(), n, epochs=1)
        )
        assert abs(w - 0.1) < 1e-5, (kw, n, w)


# opposite gradients: global gradient is 0, weight must not move
def opp():
    return ordered(col(10, 10), col(1, -1), 2)


for kw in ({"global_clipnorm": 1.0}, {"clipnorm": 1.0}):
    w = w_of(run(one_weight(optimizer=lambda: keras.optimizers.SGD(0.1, **kw)), opp(), 2, epochs=1))
    assert abs(w) < 1e-6
