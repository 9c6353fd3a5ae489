"""Move a model's state into a strategy, and back.

A Keras 3 variable is a wrapper round a `tf.Variable`. Putting another one
behind the wrapper moves the variable without touching layers, optimizer or
metrics, so a model may be made in a scope, outside any, or lazily: all end up
in the same place.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from autostrategy import tensorflow_internals
from autostrategy.training import keras_internals, placement

# Odd, and far from any power of two: seeds of different replicas share no
# pattern, and replica 0 keeps the user's seed (Knuth, TAOCP 3, section 6.4).
_SEED_STRIDE = 2654435761
_SEED_MASK = 0x7FFFFFFF

# Attribute of a plain variable that belongs to a strategy all the same.
_HOME = "_autostrategy_home"


def relocate(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    *,
    first_replica: int = 0,
) -> None:
    """Put every variable of a built model into `strategy`, with the value it has.

    In a multi-worker strategy all workers get the chief's values. Variables
    that are there already stay as they are. Under central storage they become
    plain variables on its parameter device: TensorFlow's own
    (`AggregatingVariable`) turn every write of a replica into an exchange.
    Under parameter servers they become plain variables on the servers, large
    embedding tables and what optimizers keep for them in parts; see `placement`.

    Args:
        model: a built model; its optimizers and metrics move too.
        strategy: where to; the default strategy brings plain variables back.
        first_replica: number, over all workers, of this process's first replica.
    """
    tensorflow_internals.let_distributed_variables_be_numbers()
    partitions = placement.partitions(model, strategy)
    beside = placement.beside(model, strategy)
    for variable in keras_internals.state_of(model):
        if _lives_in(variable.value, strategy):
            continue
        value = variable.value.numpy()
        if placement.is_served(strategy):
            parts = partitions.get(id(variable), 1)
            new = placement.on_servers(
                variable.value, value, strategy, parts=parts, beside=beside.get(id(variable))
            )
            setattr(new, _HOME, strategy)
        else:
            new = _new(variable, value, strategy, first_replica)
        keras_internals.set_value(variable, new)
    for optimizer in keras_internals.optimizers_of(model):
        keras_internals.reindex(
            optimizer, tf.distribute.get_strategy() if _keeps_plain(strategy) else strategy
        )
    keras_internals.forget_strategy(model)


def _keeps_plain(strategy: tf.distribute.Strategy) -> bool:
    """Whether variables of this strategy are plain ones, made and updated outside its scope."""
    return _is_central(strategy) or placement.is_served(strategy)


def _is_central(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)


def _lives_in(value: tf.Variable, strategy: tf.distribute.Strategy) -> bool:
    if _keeps_plain(strategy) or hasattr(value, _HOME):
        return getattr(value, _HOME, None) is strategy
    lives_in = getattr(value, "distribute_strategy", None)
    return lives_in is strategy or (
        lives_in is None
        and not isinstance(value, tf.distribute.DistributedValues)
        and strategy is tf.distribute.get_strategy()
    )


def _new(
    variable: Any, value: Any, strategy: tf.distribute.Strategy, first_replica: int
) -> tf.Variable:
    old = variable.value
    if _is_central(strategy):
        with tf.device(strategy.extended.parameter_devices[0]):
            new = tf.Variable(value, dtype=old.dtype, shape=old.shape, trainable=old.trainable)
        setattr(new, _HOME, strategy)
        return new
    seed = keras_internals.is_seed(variable)
    with strategy.scope():
        new = tf.Variable(
            value,
            dtype=old.dtype,
            shape=old.shape,
            # Not the wrapper's: a frozen layer's variable is watched again once unfrozen.
            trainable=old.trainable,
            name=variable.name,
            synchronization=(
                tf.VariableSynchronization.ON_READ if seed else tf.VariableSynchronization.AUTO
            ),
            aggregation=_aggregation(old, strategy),
        )
    if seed:
        components = strategy.experimental_local_results(new)
        state = components[0].read_value()  # the chief's, where `value` is this worker's
        for index, component in enumerate(components):
            component.assign(seed_of(state, first_replica + index))
    return new


def _aggregation(old: tf.Variable, strategy: tf.distribute.Strategy) -> tf.VariableAggregation:
    if isinstance(strategy, tf.distribute.TPUStrategy):
        # A write in a replica is then one to its own part, where it else exchanges values.
        return tf.VariableAggregation.NONE
    if old.dtype.is_floating:
        return tf.VariableAggregation.MEAN
    return tf.VariableAggregation.ONLY_FIRST_REPLICA


def seed_of(state: tf.Tensor, replica: Any) -> tf.Tensor:
    """A seed generator's state for one replica, shape [2]: its own key, the same position.

    `replica` is a number, or a scalar int64 tensor; 0 keeps the state.
    """
    if isinstance(replica, int) and replica == 0:
        return state
    moved = tf.cast(replica, tf.int64) * _SEED_STRIDE
    key = tf.bitwise.bitwise_and(
        tf.cast(state[0], tf.int64) + moved, tf.constant(_SEED_MASK, tf.int64)
    )
    return tf.stack([tf.cast(key, state.dtype), state[1]])
