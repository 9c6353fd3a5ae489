"""Which TensorFlow variable a replica reads and writes for a Keras variable.

Private to Keras; tested with Keras 3.12 and 3.15, and
tests/training/test_keras_internals.py fails loudly when a part changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.backend.common import KerasVariable
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.tensorflow import numpy as tensorflow_numpy
from keras.src.backend.tensorflow.core import Variable as TensorFlowVariable

from autostrategy.errors import TrainingError
from autostrategy.training import share as shares
from autostrategy.training.partitioned import PartitionedVariable

_value_of = KerasVariable.value.fget
_assign = TensorFlowVariable._direct_assign
_assign_add = KerasVariable.assign_add
_assign_sub = KerasVariable.assign_sub
_take = tensorflow_numpy.take
_gradient = tf.GradientTape.gradient


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
    if share is None or (share.reduced and not share.asynchronous):
        return None
    own = share.local.get(id(variable))
    if own is None and share.part is not None and isinstance(variable._value, PartitionedVariable):
        return variable._value.parts[share.part]
    return own


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
    if share.asynchronous and id(variable) not in share.local:
        write_difference(target, value)
        return
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


def write_difference(target: Any, value: tf.Tensor) -> None:
    """Write to a variable that other workers write to as well: only the change is this step's.

    The change is from what the step has read, where the graph tells which read
    went into `value`; what others wrote meanwhile stays. Numbers that stand
    alone (the factor of a loss scale) and whole numbers are written as they are.
    """
    if not value.dtype.is_floating or target.shape.rank == 0:
        target.assign(value)
        return
    target.assign_add(value - _read_for(value, target))


# A new value is a few operations away from the old one; its gradient is a whole net away.
_MOST_OPERATIONS = 64


def _read_for(value: tf.Tensor, target: Any) -> tf.Tensor:
    """What was read of `target` on the way to `value`; else what it holds now."""
    if isinstance(target, PartitionedVariable):
        last = target.last_read
        here = last is not None and hasattr(last, "graph") and last.graph is value.graph
        return last if here else target.read_value()
    waiting, seen = [value.op], 0
    while waiting and seen < _MOST_OPERATIONS:
        operation = waiting.pop(0)
        seen += 1
        if _reads(operation, target):
            return operation.outputs[0]
        waiting.extend(each.op for each in operation.inputs)
    return target.read_value()


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


def _replica_add(original: Callable[..., Any], sign: int) -> Callable[..., Any]:
    """`assign_add` and `assign_sub`: Keras reads, adds and writes, which loses other's additions.

    TensorFlow's own add is one operation where the variable is.
    """

    def add(variable: Any, value: Any) -> Any:
        share = shares.current()
        if share is None or not share.asynchronous:
            return original(variable, value)
        target = part_of(variable)
        if id(variable) in share.local:
            share.assigned[id(variable)] = variable
        value = tf.cast(value, target.dtype)
        target.assign_add(value) if sign > 0 else target.assign_sub(value)
        return variable

    return add


def _replica_take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """`keras.ops.take` from a variable on a parameter server: only the rows cross the network."""
    share = shares.current()
    plain = not isinstance(indices, (tf.SparseTensor, tf.RaggedTensor))
    if share is None or not share.asynchronous or not isinstance(x, KerasVariable):
        return _take(x, indices, axis)
    if axis != 0 or not plain or id(x) in share.local:
        return _take(x, indices, axis)
    indices = tf.convert_to_tensor(indices)
    indices = tf.where(indices < 0, indices + tf.cast(x.shape[0], indices.dtype), indices)
    value = x._value
    if isinstance(value, PartitionedVariable):
        rows = tf.nn.embedding_lookup(list(value.parts), indices)  # in "div" order
    else:
        rows = tf.gather(value, indices)
    return x._maybe_autocast(rows)


def _replica_gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
    """`GradientTape.gradient` with partitioned variables among the sources."""
    share = shares.current()
    if share is None or not share.asynchronous:
        return _gradient(tape, target, sources, *args, **kwargs)
    values = [getattr(each, "_value", each) for each in tf.nest.flatten(sources)]
    parts = [
        list(value.parts) if isinstance(value, PartitionedVariable) else source
        for value, source in zip(values, tf.nest.flatten(sources), strict=True)
    ]
    found = [
        value.joined(gradient) if isinstance(value, PartitionedVariable) else gradient
        for value, gradient in zip(
            values, _gradient(tape, target, parts, *args, **kwargs), strict=True
        )
    ]
    return tf.nest.pack_sequence_as(sources, found)


REPLACEMENTS: tuple[tuple[Any, str, Any], ...] = (
    (KerasVariable, "value", property(_replica_value)),
    (KerasVariable, "assign_add", _replica_add(_assign_add, 1)),
    (KerasVariable, "assign_sub", _replica_add(_assign_sub, -1)),
    (tensorflow_numpy, "take", _replica_take),
    (tf.GradientTape, "gradient", _replica_gradient),
    (TensorFlowVariable, "_direct_assign", _replica_assign),
)
