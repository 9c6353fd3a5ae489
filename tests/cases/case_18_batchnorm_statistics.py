"""BatchNormalization statistics over replicas."""

import os

import keras
from common import *

virtual_cpus(2)


def fn(sync):
    def model_fn():
        m = keras.Sequential(
            [keras.Input((1,)), keras.layers.BatchNormalization(momentum=0.0, synchronized=sync)]
        )
        m.compile(keras.optimizers.SGD(0.0), "mse")
        return m

    return model_fn


def ds():
    return ordered(col(0, 0, 2, 2), col(0, 0, 0, 0), 4)


def stats(r):
    _g, _b, mean, var = r.model.get_weights()
    return float(mean[0]), float(var[0])


assert stats(run(fn(False), ds(), 1, epochs=1)) == (1.0, 1.0)
m, v = stats(run(fn(True), ds(), 2, epochs=1))
assert abs(m - 1) < 1e-6
assert abs(v - 1) < 1e-5
r = run(fn(False), ds(), 2, epochs=1)
m, v = stats(r)
assert abs(m - 1) < 1e-6
assert abs(v) < 1e-5
assert any("BatchNorm" in s for s in r.plan.warnings)  # 2 rows per replica: must be pointed out
# empty replica in the tail may not pull the moving values to 0
r = run(fn(False), ordered(col(5, 5, 5), col(0, 0, 0), 2), 2, epochs=1)
m, v = stats(r)
assert abs(m - 5) < 1e-5, m
# saved file holds one value per statistic and loads without a strategy
path = f"bn{os.getpid()}.keras"
r.model.save(path)
assert abs(keras.saving.load_model(path).get_weights()[2][0] - m) < 1e-6
