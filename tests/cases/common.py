"""What the case scripts share: a fresh interpreter each, so virtual devices can be set.

`run` trains through autostrategy on n virtual CPU replicas, with batch and
learning-rate scaling off unless a case asks for it. With STRATEGY set it does
so under that strategy. In a cluster, several replicas are its workers.
"""

import dataclasses
import json
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def virtual_cpus(n):
    import tensorflow as tf

    if "TF_CONFIG" in os.environ:
        return

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * n)


def run(model_fn, data, n, **kw):
    import autostrategy

    kw.setdefault("batch_scaling", "off")
    kw.setdefault("verbose", 0)
    if "steps_per_execution" in kw:
        kw["steps_per_loop"] = kw.pop("steps_per_execution")
    if "TF_CONFIG" in os.environ:
        if n > 1:
            return autostrategy.fit(model_fn, data, **kw)
        kw["facts"] = dataclasses.replace(autostrategy.probe(), cluster=None)
    if n > 1:
        kw.setdefault("strategy", os.environ.get("STRATEGY", "auto"))
    return autostrategy.fit(model_fn, data, devices=[f"CPU:{i}" for i in range(n)], **kw)


def writes_files():
    """Whether callbacks of this process write files: of a cluster's workers only the first's do."""
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    return task.get("index", 0) == 0


def one_weight(loss="mse", optimizer=None, w0=0.0, metrics=(), **dense):
    """y = w * x; the smallest net whose steps can be done by hand."""
    import keras

    def model_fn():
        model = keras.Sequential(
            [
                keras.Input((1,)),
                keras.layers.Dense(
                    1,
                    use_bias=False,
                    kernel_initializer=keras.initializers.Constant(w0),
                    **dense,
                ),
            ]
        )
        model.compile(
            optimizer=optimizer() if optimizer else keras.optimizers.SGD(0.1),
            loss=loss,
            metrics=list(metrics),
        )
        return model

    return model_fn


def col(*v):
    import numpy as np

    return np.asarray(v, "float32").reshape(-1, 1)


def ordered(x, y, batch, *rest):
    """A dataset in the given order, never shuffled."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y, *rest)).batch(batch)


def w_of(res):
    return float(res.model.get_weights()[0].ravel()[0])
