"""sample_weight and class_weight."""

import keras
import numpy as np
from common import *

virtual_cpus(2)
x, one = col(1, 2, 3, 4), col(1, 1, 1, 1)
sw = np.array([1, 1, 0, 0], "f4")
yb = col(0, 1, 1, 1)


class P(keras.utils.PyDataset):
    def __len__(self):
        return 1

    def __getitem__(self, i):
        return x, one, sw


for n in (1, 2):
    for data, kw in (
        (ordered(x, one, 4, sw), {}),
        (P(), {}),
        ((x, one), {"sample_weight": sw, "batch_size": 4, "shuffle": False}),
    ):
        r = run(one_weight(), data, n, epochs=1, **kw)
        assert abs(w_of(r) - 0.15) < 1e-5 and abs(r.history["loss"][0] - 0.5) < 1e-5, (n, w_of(r))
    r = run(one_weight(), ordered(x, yb, 4), n, epochs=1, class_weight={0: 1.0, 1: 3.0})
    assert abs(w_of(r) - 1.35) < 1e-5, (n, w_of(r))


# all weights zero on one replica with a weighted metric: finite and equal to one device
def fn():
    m = one_weight()()
    m.compile("sgd", "mse", weighted_metrics=["mae"])
    return m


a = run(fn, ordered(x, one, 4, sw), 1, epochs=1).history
b = run(fn, ordered(x, one, 4, sw), 2, epochs=1).history
np.testing.assert_allclose(a["mae"], b["mae"], rtol=1e-5)
