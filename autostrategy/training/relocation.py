"""Move a model's state into a strategy, and back.

A Keras 3 variable is a wrapper round a `tf.Variable`. Putting another one
behind the wrapper moves the variable without touching layers, optimizer or
metrics, so a model may be made in a scope, outside any, or lazily: all end up
in the same place.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autostrategy import tensorflow_internals
from autostrategy.training import keras_internals

# Odd, and far from any power of two: seeds of different replicas share no
# pattern, and replica 0 keeps the user's seed (Knuth, TAOCP 3, section 6.4).
_SEED_STRIDE = 2654435761
_SEED_MASK = 0x7FFFFFFF


def relocate(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    *,
    first_replica: int = 0,
    values: dict[int, Any] | None = None,
) -> None:
    """Put every variable of a built model into `strategy`, with the value it has.

    In a multi-worker strategy all workers get the chief's values. Variables
    that are there already stay as they are.

    Args:
        model: a built model; its optimizers and metrics move too.
        strategy: where to; the default strategy brings plain variables back.
        first_replica: number, over all workers, of this process's first replica.
        values: values by id of the Keras variable, for variables that can no
            longer be read; see `detach`.
    """
    tensorflow_internals.let_distributed_variables_be_numbers()
    for variable in keras_internals.state_of(model):
        if values is None and _lives_in(variable.value, strategy):
            continue
        value = values[id(variable)] if values is not None else variable.value.numpy()
        keras_internals.set_value(variable, _new(variable, value, strategy, first_replica))
    for optimizer in keras_internals.optimizers_of(model):
        keras_internals.reindex(optimizer, strategy)
    keras_internals.forget_strategy(model)


def detach(model: keras.Model) -> dict[int, Any]:
    """The values of all variables by id, as arrays that outlive TensorFlow's devices."""
    return {
        id(variable): np.array(variable.value.numpy())
        for variable in keras_internals.state_of(model)
    }


def _lives_in(value: tf.Variable, strategy: tf.distribute.Strategy) -> bool:
    return getattr(value, "distribute_strategy", None) is strategy or (
        not isinstance(value, tf.distribute.DistributedValues)
        and strategy is tf.distribute.get_strategy()
    )


def _new(
    variable: Any, value: Any, strategy: tf.distribute.Strategy, first_replica: int
) -> tf.Variable:
    old = variable.value
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
            aggregation=(
                tf.VariableAggregation.MEAN
                if old.dtype.is_floating
                else tf.VariableAggregation.ONLY_FIRST_REPLICA
            ),
        )
    if seed:
        components = strategy.experimental_local_results(new)
        state = components[0].numpy()  # the chief's, where `value` is this worker's
        for index, component in enumerate(components):
            component.assign(_seed_of(state, first_replica + index))
    return new


def _seed_of(state: np.ndarray, replica: int) -> np.ndarray:
    """A seed generator's state for one replica: its own key, the same position."""
    if replica == 0:
        return state
    key = (int(state[0]) + replica * _SEED_STRIDE) & _SEED_MASK
    return np.array([key, state[1]], state.dtype)
