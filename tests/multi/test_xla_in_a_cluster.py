"""jit_compile=True in a cluster: collectives stay outside of what XLA compiles."""

import numpy as np
import pytest
import workers

BODY = """
    import keras, autostrategy
    keras.utils.set_random_seed(7)
    r = np.random.default_rng(0)
    X = r.normal(size=(47, 3)).astype("float32")
    Y = X @ np.array([[1.0], [2.0], [3.0]], "float32")

    def model_fn(synchronized=False):
        k = keras.initializers.RandomNormal(seed=1)
        layers = [keras.Input((3,)), keras.layers.Dense(4, "tanh", kernel_initializer=k)]
        if synchronized:
            layers.append(keras.layers.BatchNormalization(synchronized=True))
        m = keras.Sequential([*layers, keras.layers.Dense(1, kernel_initializer=k)])
        m.compile(keras.optimizers.SGD(0.05, global_clipnorm=1.0), "mse", metrics=["mae"])
        return m

    results = []
    for synchronized in (False, True):
        history = autostrategy.fit(
            lambda: model_fn(synchronized), X, Y, batch_size=8, epochs=3, shuffle=False,
            batch_scaling="off", jit_compile=True, verbose=0,
        )
        results.append({
            "history": history.history,
            "uncompiled": sum("XLA" in text for text in history.plan.warnings),
        })
    tell(results)
"""


@pytest.mark.slow
def test_compiled_workers_give_the_numbers_of_one_process(tmp_path):
    (one,) = workers.told(workers.run(BODY, 1, tmp_path=tmp_path))

    for told in workers.told(workers.run(BODY, 2, tmp_path=tmp_path)):
        for ours, expected in zip(told, one, strict=True):
            for name, values in expected["history"].items():
                np.testing.assert_allclose(ours["history"][name], values, rtol=1e-5, err_msg=name)
        assert [each["uncompiled"] for each in told] == [0, 1]
