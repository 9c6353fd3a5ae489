"""Which TensorFlow variable a replica reads and writes for a Keras variable.

Private to Keras; tested with Keras 3.12 and 3.15, and
tests/training/test_keras_internals.py fails loudly when a part changes.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras.src.backend.common import KerasVariable
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.tensorflow.core import Variable as TensorFlowVariable

from autostrategy.errors import TrainingError
from autostrategy.training import share as shares

_value_of = KerasVariable.value.fget
_assign = TensorFlowVariable._direct_assign


def local_component(variable: Any) -> tf.Variable:
    """The part of a distributed variable that lives in the current replica.

    Plain variables, and any variable outside a replica, are returned as they are.
    """
    if not isinstance(variable, tf.distribute.DistributedValues):
        return variable
    context = tf.distribute.get_replica_context()
    if context is None or not tf.distribute.has_strategy():
        return variable
    components = context.strategy.experimental_local_results(variable)
    replica = tf.get_static_value(context.replica_id_in_sync_group)
    if replica is None:  # on a TPU, where all replicas are traced as one
        return variable
    return components[replica % len(components)]


def part_of(variable: Any) -> Any:
    """The TensorFlow variable that this replica reads and writes for a Keras variable.

    While an optimizer updates, that is never a local stand-in: the update is
    of the variable itself.
    """
    own = _own_part(variable)
    return local_component(variable._value) if own is None else own


def _own_part(variable: Any) -> Any:
    share = shares.current()
    return None if share is None or share.reduced else share.local.get(id(variable))


def _replica_value(variable: Any) -> Any:
    own = _own_part(variable)
    if own is not None and not in_stateless_scope():
        return variable._maybe_autocast(own)
    value = _value_of(variable)
    return value if shares.current() is None else local_component(value)


def _replica_assign(variable: Any, value: Any) -> None:
    share = shares.current()
    if share is None:
        _assign(variable, value)
        return
    target = part_of(variable)
    value = tf.cast(value, target.dtype)
    if share.central and not share.reduced and id(variable) not in share.local:
        raise TrainingError(
            "Under central storage all replicas share the trained variables, so a layer must not "
            f"write to one. Received: a step that assigns to {variable.path}. Use "
            "strategy='mirrored', or keep what the layer writes in a variable of its own, made "
            "with trainable=False."
        )
    if not share.reduced:
        share.assigned[id(variable)] = variable
        if id(variable) in share.metric_ids and not _is_sum(value, target):
            share.not_sums[id(variable)] = variable
        if id(variable) in share.momenta:
            # The layer wrote old * momentum + new * (1 - momentum). With `new`
            # weighted by rows, the plain mean over replicas is the mean over
            # rows, and can wait for the end of a loop: nothing reads it before.
            kept = target.read_value() * tf.cast(share.momenta[id(variable)], target.dtype)
            value = kept + (value - kept) * tf.cast(share.weight * share.replicas, target.dtype)
    target.assign(value)


def _is_sum(value: tf.Tensor, target: tf.Variable) -> bool:
    """Whether `value` is `target` plus or minus something, as far as the graph tells."""
    if tf.executing_eagerly() or not hasattr(value, "op"):
        return True
    operation = _origin(value).op
    return operation.type in ("AddV2", "Add", "Sub") and any(
        _reads(_origin(each).op, target) for each in operation.inputs
    )


def _reads(operation: Any, target: tf.Variable) -> bool:
    if operation.type != "ReadVariableOp":
        return False
    graph = operation.graph
    captured = graph.capture(target.handle) if hasattr(graph, "capture") else target.handle
    return operation.inputs[0] is captured


def _origin(value: tf.Tensor) -> tf.Tensor:
    while value.op.type in ("Identity", "Cast", "Reshape"):
        value = value.op.inputs[0]
    return value


REPLACEMENTS: tuple[tuple[Any, str, Any], ...] = (
    (KerasVariable, "value", property(_replica_value)),
    (TensorFlowVariable, "_direct_assign", _replica_assign),
)
