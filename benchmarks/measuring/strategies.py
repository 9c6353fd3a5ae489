"""TensorFlow's strategies as a user makes them by hand, on two replicas of this machine."""

from __future__ import annotations

import os
from typing import Any

ONE_DEVICE = "one_device"
MIRRORED = "mirrored"
MULTI_WORKER = "multi_worker_mirrored"
CENTRAL = "central_storage"
PARAMETER_SERVER = "parameter_server"
STRATEGIES = (ONE_DEVICE, MIRRORED, MULTI_WORKER, CENTRAL, PARAMETER_SERVER)
# Two virtual CPUs of one process.
IN_ONE_PROCESS = (MIRRORED, CENTRAL)
# The tasks of those that need processes, the leading one first.
TASKS = {
    MULTI_WORKER: {"worker": 2},
    PARAMETER_SERVER: {"chief": 1, "worker": 2, "ps": 1},
}


def make(name: str) -> Any:
    """The strategy, None for one device; must come before any other use of TensorFlow.

    On workers and servers of parameter servers this never comes back.
    """
    import tensorflow as tf

    if name == ONE_DEVICE:
        return None
    if name == MULTI_WORKER:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == PARAMETER_SERVER:
        return _parameter_server()
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    devices = ["CPU:0", "CPU:1"]
    if name == MIRRORED:
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.experimental.CentralStorageStrategy(devices, "CPU:0")


def _parameter_server() -> Any:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type == "chief":
        return tf.distribute.ParameterServerStrategy(resolver)
    # With fewer threads TensorFlow's own guide says that workers can stop for ever.
    configuration = tf.compat.v1.ConfigProto()
    if (os.cpu_count() or 1) < 4:
        configuration.inter_op_parallelism_threads = 4
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=configuration,
    )
    return server.join()


def dataset(x: Any, y: Any, batch: int) -> Any:
    """Shuffled global batches for ever, of which each worker takes its share."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    made = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).repeat()
    made = made.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    return made.with_options(options)
