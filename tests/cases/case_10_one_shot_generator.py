"""A one-shot generator loses no rows and repeats none."""

import keras
import numpy as np
from common import *

virtual_cpus(2)
made = []


def gen():
    for b in range(6):
        made.append(b)
        ids = np.arange(4 * b, 4 * b + 4, dtype="float32").reshape(4, 1)
        yield ids, ids


class Total(keras.metrics.Metric):
    def __init__(self, name="total"):
        super().__init__(name=name)
        self.s = self.add_variable((), "zeros", name="s")

    def update_state(self, t, p, sample_weight=None):
        self.s.assign_add(keras.ops.sum(t))

    def result(self):
        return self.s * 1.0

    def reset_state(self):
        self.s.assign(0.0)


class Rows(Total):
    def update_state(self, t, p, sample_weight=None):
        self.s.assign_add(keras.ops.cast(keras.ops.shape(t)[0], "float32"))


def fresh():
    return one_weight(
        optimizer=lambda: keras.optimizers.SGD(0.0), metrics=[Total("total"), Rows("rows")]
    )


for n in (1, 2):
    made.clear()
    h = run(fresh(), gen(), n, epochs=1).history
    assert h["rows"] == [24.0] and h["total"] == [276.0], (n, h)
    made.clear()
    h = run(fresh(), gen(), n, epochs=2, steps_per_epoch=3).history
    assert h["rows"] == [12.0, 12.0] and h["total"] == [66.0, 210.0], (n, h)
