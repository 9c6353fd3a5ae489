"""A batch that does not divide by the replicas gives the exact one-device gradient."""

from common import *

virtual_cpus(3)


def ds():
    return ordered(col(1, 2, 4), col(1, 1, 1), 3)


for n in (1, 2, 3):
    res = run(one_weight(), ds(), n, epochs=1)
    assert abs(w_of(res) - 0.4666667) < 1e-5, (n, w_of(res))


# 7 rows, batch 4, two replicas: batches 4 and 3; three epochs, compared with one device
def d2():
    return ordered(col(1, 2, 3, 4, 5, 6, 7) / 7, col(1, 0, 1, 0, 1, 0, 1), 4)


a = run(one_weight(), d2(), 1, epochs=3)
b = run(one_weight(), d2(), 2, epochs=3)
assert abs(w_of(a) - w_of(b)) < 1e-5
assert abs(a.history["loss"][-1] - b.history["loss"][-1]) < 1e-5
