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
            elif not keras_internals.inner_optimizers(optimizer):
                del found[id(table)]
    return found


def beside(model: keras.Model, strategy: tf.distribute.Strategy) -> dict[int, Any]:
    """The trained Keras variable that each slot of an optimizer belongs to, by id of the slot.

    An update reads and writes both, so on one server nothing of it crosses the network.
    """
    if not is_served(strategy):
        return {}
    return {
        id(slot): trained
        for optimizer in keras_internals.optimizers_of(model)
        if optimizer.built
        for trained, slots in keras_internals.slots_of(optimizer)
        for slot in slots
    }


def on_servers(
    old: Any,
    value: Any,
    strategy: tf.distribute.Strategy,
    *,
    parts: int,
    beside: Any = None,
) -> tf.Variable | PartitionedVariable:
    """A variable like `old` with `value`, on the servers that hold least so far.

    Args:
        old: the variable as it was.
        value: its value.
        strategy: of the servers.
        parts: into how many parts to split the rows.
        beside: the Keras variable whose servers to take instead.
    """
    homes = _homes_of(beside, parts)
    if parts == 1:
        return _placed(old, tf.convert_to_tensor(value, old.dtype), strategy, homes[0])
    rows, more = divmod(int(old.shape[0]), parts)
    sizes = [rows + (index < more) for index in range(parts)]
    split = tf.split(tf.convert_to_tensor(value, old.dtype), sizes)
    return PartitionedVariable(
        [_placed(old, part, strategy, home) for part, home in zip(split, homes, strict=True)]
    )


def _homes_of(beside: Any, parts: int) -> list[int | None]:
    """Numbers of the servers that hold a Keras variable's parts; None for wherever it is."""
    value = None if beside is None else beside._value
    held: Any = getattr(value, "parts", (value,))
    if value is None or len(held) != parts:
        return [None] * parts
    return [tf.DeviceSpec.from_string(part.device).task for part in held]


def _placed(
    old: Any, value: tf.Tensor, strategy: tf.distribute.Strategy, server: int | None
) -> tf.Variable:
    load = getattr(strategy, _LOAD, None) or [0] * servers()
    if server is None:
        server = load.index(min(load))
    load[server] += value.dtype.size * max(1, value.shape.num_elements() or 1)
    setattr(strategy, _LOAD, load)
    with tf.device(f"/job:ps/replica:0/task:{server}/device:CPU:0"):
        return tf.Variable(value, dtype=old.dtype, trainable=old.trainable)
