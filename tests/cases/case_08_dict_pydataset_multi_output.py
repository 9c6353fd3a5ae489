"""Dict inputs, two outputs, PyDataset, short last batch."""

import keras
import numpy as np
from common import *

virtual_cpus(4)
r = np.random.default_rng(0)
A, B = r.normal(size=(10, 4)).astype("f4"), r.normal(size=(10, 2)).astype("f4")
O1, O2 = A[:, :1] * 2, np.eye(3, dtype="f4")[r.integers(0, 3, 10)]


class P(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        s = slice(4 * i, 4 * i + 4)
        return {"a": A[s], "b": B[s]}, {"o1": O1[s], "o2": O2[s]}


def model_fn():
    a, b = keras.Input((4,), name="a"), keras.Input((2,), name="b")

    def k(s):
        return keras.initializers.RandomNormal(seed=s)

    h = keras.layers.Concatenate()([a, b])
    m = keras.Model(
        {"a": a, "b": b},
        {
            "o1": keras.layers.Dense(1, name="o1", kernel_initializer=k(1))(h),
            "o2": keras.layers.Dense(3, "softmax", name="o2", kernel_initializer=k(2))(h),
        },
    )
    m.compile(
        keras.optimizers.SGD(0.05),
        {"o1": "mse", "o2": "categorical_crossentropy"},
        loss_weights={"o1": 1.0, "o2": 0.5},
        metrics={"o2": ["accuracy"]},
    )
    return m


base = run(
    model_fn, P(), 1, epochs=3, shuffle=False
)  # fit shuffles the batches of a PyDataset by default
for n in (2, 4):
    for kw in ({}, {"workers": 2, "use_multiprocessing": False, "max_queue_size": 4}):
        res = run(model_fn, P(**kw), n, epochs=3, shuffle=False)
        assert int(res.model.optimizer.iterations) == 9
        for u, v in zip(base.model.get_weights(), res.model.get_weights(), strict=False):
            np.testing.assert_allclose(u, v, rtol=1e-4, atol=1e-5)
        p = res.model.predict(P(), verbose=0)
        assert p["o1"].shape == (10, 1)
        assert p["o2"].shape == (10, 3)
