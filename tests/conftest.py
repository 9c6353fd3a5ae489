"""Settings that must be in place before TensorFlow is imported; nothing here imports it."""

import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(scope="session")
def four_cpus():
    """CPU:0 to CPU:3, which a process can be given only once."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    return [device.name for device in tf.config.list_logical_devices("CPU")]
