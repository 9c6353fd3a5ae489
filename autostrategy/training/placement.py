"""Which parameter server holds what."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from autostrategy.planner import SMALLEST_PART_BYTES
from autostrategy.training import keras_internals
from autostrategy.training.partitioned import PartitionedVariable

# They update each row by itself, so a table may be updated part by part.
# Adafactor, Lamb and Muon look at whole variables.
_ROW_BY_ROW = (
    keras.optimizers.SGD,
    keras.optimizers.Adam,  # and AdamW, which derives from it
    keras.optimizers.Adamax,
    keras.optimizers.Nadam,
    keras.optimizers.RMSprop,
    keras.optimizers.Adagrad,
    keras.optimizers.Adadelta,
    keras.optimizers.Ftrl,
    keras.optimizers.Lion,
)
_LOAD = "_autostrategy_bytes_on_servers"


def is_served(strategy: tf.distribute.Strategy) -> bool:
    """Whether the strategy keeps variables on parameter servers."""
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def servers() -> int:
    """Number of parameter servers that this process is connected to."""
    names = {device.name for device in tf.config.list_logical_devices("CPU")}
    return sum("/job:ps/" in name for name in names)


def partitions(model: keras.Model, strategy: tf.distribute.Strategy) -> dict[int, int]:
    """Into how many parts to split a variable, by id of the Keras variable; the rest stays whole.

    Embedding tables large enough for `MinSizePartitioner` of TensorFlow to
    split them, with whatever an optimizer keeps for each of their rows.
    """
    if not is_served(strategy):
        return {}
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=SMALLEST_PART_BYTES, max_shards=servers()
    )
    found = {}
    for layer in keras_internals.layers_of(model):
        if isinstance(layer, keras.layers.Embedding) and layer.built:
            table = layer._embeddings
            parts = partitioner(tf.TensorShape(table.shape), tf.as_dtype(table.dtype))[0]
            if parts > 1:
                found[id(table)] = int(parts)
    for optimizer in keras_internals.optimizers_of(model):
        if not optimizer.built:
            continue
        for table, slots in keras_internals.slots_of(optimizer):
            if id(table) not in found:
                continue
            whole = getattr(optimizer, "gradient_accumulation_steps", None)
            if isinstance(optimizer, _ROW_BY_ROW) and not whole:
                found.update({id(slot): found[id(table)] for slot in slots})
            elif getattr(optimizer, "inner_optimizer", None) is None:
                del found[id(table)]
    return found


def on_servers(
    old: Any, value: Any, strategy: tf.distribute.Strategy, *, parts: int
) -> tf.Variable | PartitionedVariable:
    """A variable like `old` with `value`, on the servers that hold least so far."""
    if parts == 1:
        return _on_least_loaded(old, tf.convert_to_tensor(value, old.dtype), strategy)
    rows, more = divmod(int(old.shape[0]), parts)
    sizes = [rows + (index < more) for index in range(parts)]
    return PartitionedVariable(
        [
            _on_least_loaded(old, part, strategy)
            for part in tf.split(tf.convert_to_tensor(value, old.dtype), sizes)
        ]
    )


def _on_least_loaded(old: Any, value: tf.Tensor, strategy: tf.distribute.Strategy) -> tf.Variable:
    load = getattr(strategy, _LOAD, None) or [0] * servers()
    server = load.index(min(load))
    load[server] += value.dtype.size * max(1, value.shape.num_elements() or 1)
    setattr(strategy, _LOAD, load)
    with tf.device(f"/job:ps/replica:0/task:{server}/device:CPU:0"):
        return tf.Variable(value, dtype=old.dtype, trainable=old.trainable)
