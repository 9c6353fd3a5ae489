"""Keras's functions as a replica needs them; they are private, and touched here alone.

Tested with Keras 3.12 and 3.15; tests/training/test_keras_internals.py fails
loudly when one of these parts changes.

Keras 3's own `train_step` and `test_step` are right for one device. In a
replica they would be wrong (clipping before the exchange, one device's seed on
all, reductions that ignore unequal shares), so while a replica's step is being
traced the functions below stand in for Keras's. They look at the share of the
current thread and do nothing outside a step, so a user's own threads, and
models that train elsewhere in the process, see Keras as it is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import KerasVariable
from keras.src.backend.common.stateless_scope import StatelessScope, in_stateless_scope
from keras.src.backend.tensorflow.core import Variable as TensorFlowVariable
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.losses import loss as loss_module
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.trainers.trainer import Trainer as KerasTrainer

from autostrategy.errors import TrainingError
from autostrategy.training import share as shares

_value_of = KerasVariable.value.fget
_assign = TensorFlowVariable._direct_assign
_call_loss = loss_module.Loss.__call__
_scale = loss_module.scale_loss_for_distribution
_unscale = loss_module.unscale_loss_for_distribution
_reduce = loss_module.reduce_weighted_values
_apply = BaseOptimizer.apply
_apply_scaled = LossScaleOptimizer.apply
_tf_apply = LossScaleOptimizer._tf_apply
_scale_loss = BaseOptimizer.scale_loss
_scale_loss_scaled = LossScaleOptimizer.scale_loss
_all_reduce = TFOptimizer._all_reduce_sum_gradients
_update_mean = keras.metrics.Mean.update_state
_update_sum = keras.metrics.Sum.update_state
_update_wrapped = keras.metrics.MeanMetricWrapper.update_state
_results = KerasTrainer.get_metrics_result
_merge_call = tf.__internal__.distribute.interim.maybe_merge_call


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


def _replica_loss_call(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
    share = shares.current()
    if share is None:
        return _call_loss(loss, y_true, y_pred, sample_weight)
    share.loss_arguments = (
        loss,
        keras.tree.map_structure(lambda y: keras.ops.convert_to_tensor(y, loss.dtype), y_true),
        keras.tree.map_structure(lambda y: keras.ops.convert_to_tensor(y, loss.dtype), y_pred),
    )
    try:
        return _call_loss(loss, y_true, y_pred, sample_weight)
    finally:
        share.loss_arguments = None


def _replica_scale(value: tf.Tensor) -> tf.Tensor:
    return _scale(value) if shares.current() is None else value


def _replica_unscale(value: tf.Tensor) -> tf.Tensor:
    share = shares.current()
    if share is None:
        return _unscale(value)
    if value.shape.rank == 0:
        return value
    # Per-row losses were divided by the fraction for the gradient's sake; the
    # loss tracker averages them itself.
    return value * tf.cast(share.fraction, value.dtype)


def _replica_reduce(
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> tf.Tensor:
    share = shares.current()
    if share is None:
        return _reduce(values, sample_weight, mask, reduction, dtype)
    values = keras.ops.convert_to_tensor(values, dtype=dtype)
    if values.shape.rank == 0 and share.loss_arguments is not None:
        return shares.scalar_loss(share, values, sample_weight, reduction)
    loss = _reduce(values, sample_weight, mask, reduction, dtype)
    if reduction in ("sum", "none", None):
        return shares.divide_by_fraction(share, loss)
    if reduction == "mean_with_sample_weight" and not (sample_weight is None and mask is None):
        weight = loss_module.apply_mask(sample_weight, mask, values.dtype, reduction)
        return shares.masked_mean(share, loss, keras.ops.sum(weight))
    if mask is not None:
        return shares.masked_mean(share, loss, keras.ops.sum(keras.ops.cast(mask, loss.dtype)))
    return loss


class _InReplica:
    """Stands where an optimizer keeps its strategy: an update is a call on the local part."""

    class extended:  # the name that optimizers ask for
        @staticmethod
        def update(
            variable: Any,
            function: Callable[..., Any],
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
            group: bool = True,
        ) -> Any:
            return function(local_component(variable), *args, **(kwargs or {}))


def _replica_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        share = shares.current()
        if share is None or share.reduced:
            return original(optimizer, grads, trainable_variables)
        if share.central:
            return _apply_once(share, original, optimizer, list(grads), trainable_variables)
        grads = _exchanged(share, list(grads))
        with _updating(share, optimizer):
            return original(optimizer, grads, trainable_variables)

    return apply


@contextlib.contextmanager
def _updating(share: shares.Share, optimizer: Any) -> Iterator[None]:
    """Let the optimizer work on gradients that have crossed replicas."""
    before = optimizer._distribution_strategy
    chain = [optimizer, getattr(optimizer, "inner_optimizer", None)]
    for each in filter(None, chain):
        each._distribution_strategy = _InReplica
    share.reduced = True
    try:
        yield
    finally:
        share.reduced = False
        for each in filter(None, chain):
            each._distribution_strategy = before


def _apply_once(
    share: shares.Share, original: Any, optimizer: Any, grads: list[Any], variables: Any
) -> Any:
    """Sum gradients where the variables are, and update them once for all replicas."""
    variables = optimizer._trainable_variables if variables is None else list(variables)
    written = [each for each in variables if id(each) in share.local]
    present = [gradient for gradient in grads if gradient is not None]
    if not share.weighted:
        present = [_times(gradient, share.weight) for gradient in present]

    def once(strategy: tf.distribute.Strategy, *gradients: Any) -> None:
        device = strategy.extended.parameter_devices[0]
        # `once` is the first replica's, and so is `share`.
        for variable in written:
            variable._value.assign(share.local[id(variable)].read_value())
        summed = iter(
            strategy.extended.batch_reduce_to(
                tf.distribute.ReduceOp.SUM, [(each, device) for each in gradients]
            )
        )
        everything = [None if gradient is None else next(summed) for gradient in grads]
        with tf.device(device), shares.of_replica(share), _updating(share, optimizer):
            original(optimizer, everything, variables)

    tf.distribute.get_replica_context().merge_call(once, args=tuple(present))
    for variable in written:
        share.local[id(variable)].assign(variable._value.read_value())
    return None


def _exchanged(share: shares.Share, grads: list[Any]) -> list[Any]:
    """Gradients of the global batch from those of this replica; None stays None."""
    present = [gradient for gradient in grads if gradient is not None]
    if not share.weighted:
        present = [_times(gradient, share.weight) for gradient in present]
    summed = iter(shares.all_reduce_sum(present) if present else [])
    return [None if gradient is None else next(summed) for gradient in grads]


def _times(gradient: Any, weight: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(weight, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(weight, gradient.dtype)


def _replica_tf_apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    if shares.current() is None:
        return _tf_apply(optimizer, grads, trainable_variables)
    return optimizer._common_apply(grads, trainable_variables)


def _replica_scale_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def scale_loss(optimizer: Any, loss: tf.Tensor) -> tf.Tensor:
        share = shares.current()
        loss = original(optimizer, loss)
        if share is None or not share.weighs_loss:
            return loss
        # One multiplication here instead of one for each gradient, and right
        # also where a layer exchanges values in its backward pass.
        share.weighted = True
        return loss * tf.cast(share.weight, loss.dtype)

    return scale_loss


def _replica_all_reduce(optimizer: Any, grads_and_vars: Any) -> Any:
    if shares.current() is None:
        return _all_reduce(optimizer, grads_and_vars)
    return list(grads_and_vars)


def _replica_update_entry(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Mean` and `Sum`, for which one number for the batch counts as one entry.

    A replica's number counts as its part of that entry.
    """

    def update_state(metric: Any, values: Any, sample_weight: Any = None) -> Any:
        share = shares.current()
        if share is not None and sample_weight is None:
            values = keras.ops.convert_to_tensor(values)
            if values.shape.rank == 0:
                sample_weight = share.fraction
        return original(metric, values, sample_weight)

    return update_state


_replica_update_mean = _replica_update_entry(_update_mean)


def _replica_update_wrapped(
    metric: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    share = shares.current()
    if share is None or sample_weight is not None:
        return _update_wrapped(metric, y_true, y_pred, sample_weight)
    value = metric._fn(y_true, y_pred, **metric._fn_kwargs)
    if tf.convert_to_tensor(value).shape.rank != 0:
        return _update_wrapped(metric, y_true, y_pred)
    # One number for the batch may be any function of it: as with losses, take
    # the global batch.
    y_true, y_pred = shares.gathered(share, y_true, y_pred)
    return _replica_update_mean(metric, metric._fn(y_true, y_pred, **metric._fn_kwargs))


def _replica_results(model: Any) -> Any:
    return {} if shares.results_are_unread() else _results(model)


def _replica_merge_call(
    function: Callable[..., Any], strategy: Any, *args: Any, **kwargs: Any
) -> Any:
    if shares.current() is None:
        return _merge_call(function, strategy, *args, **kwargs)
    return function(_InReplica, *args, **kwargs)


_REPLACEMENTS: tuple[tuple[Any, str, Any], ...] = (
    (KerasVariable, "value", property(_replica_value)),
    (TensorFlowVariable, "_direct_assign", _replica_assign),
    (loss_module.Loss, "__call__", _replica_loss_call),
    (loss_module, "scale_loss_for_distribution", _replica_scale),
    (loss_module, "unscale_loss_for_distribution", _replica_unscale),
    (loss_module, "reduce_weighted_values", _replica_reduce),
    (BaseOptimizer, "apply", _replica_apply(_apply)),
    (LossScaleOptimizer, "apply", _replica_apply(_apply_scaled)),
    (LossScaleOptimizer, "_tf_apply", _replica_tf_apply),
    (BaseOptimizer, "scale_loss", _replica_scale_loss(_scale_loss)),
    (LossScaleOptimizer, "scale_loss", _replica_scale_loss(_scale_loss_scaled)),
    (TFOptimizer, "_all_reduce_sum_gradients", _replica_all_reduce),
    (keras.metrics.Mean, "update_state", _replica_update_mean),
    (keras.metrics.Sum, "update_state", _replica_update_entry(_update_sum)),
    (keras.metrics.MeanMetricWrapper, "update_state", _replica_update_wrapped),
    (KerasTrainer, "get_metrics_result", _replica_results),
    (tf.__internal__.distribute.interim, "maybe_merge_call", _replica_merge_call),
)
_ORIGINALS = tuple(vars(owner)[name] for owner, name, _ in _REPLACEMENTS)

_lock = threading.Lock()
_depth = 0


@contextlib.contextmanager
def replica_semantics() -> Iterator[None]:
    """Keras's functions as a replica needs them, while the block traces its step.

    May be nested, and entered by several threads: the last to leave puts
    Keras's own back.
    """
    global _depth
    with _lock:
        if _depth == 0:
            for owner, name, replacement in _REPLACEMENTS:
                setattr(owner, name, replacement)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                for (owner, name, _), original in zip(_REPLACEMENTS, _ORIGINALS, strict=True):
                    setattr(owner, name, original)


@contextlib.contextmanager
def global_results(metrics: list[Any]) -> Iterator[None]:
    """Let `result()` of these metrics, called in a step, be that of all replicas.

    A step of the user's own may put `metric.result()` into its logs under any
    name; what this replica counted would be no answer.
    """
    for metric in metrics:
        metric.result = _global_result(metric, metric.result)
    try:
        yield
    finally:
        for metric in metrics:
            del metric.result


def _global_result(metric: Any, result: Callable[..., Any]) -> Callable[..., Any]:
    def of_all_replicas(*args: Any, **kwargs: Any) -> Any:
        share = shares.current()
        if share is None:
            return result(*args, **kwargs)
        counted = [
            tf.where(share.counted, variable.value, share.before.get(id(variable), variable.value))
            for variable in metric.variables
        ]
        mapping = [
            (variable, share.totals[id(variable)] + value)
            for variable, value in zip(
                metric.variables, shares.all_reduce_sum(counted), strict=True
            )
        ]
        with StatelessScope(state_mapping=mapping):
            return result(*args, **kwargs)

    return of_all_replicas
