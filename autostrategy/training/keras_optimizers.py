"""Optimizers of a replica: gradients cross replicas once, before anything is done to them.

Private to Keras; tested with Keras 3.12 and 3.15, and
tests/training/test_keras_internals.py fails loudly when a part changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from autostrategy import tensorflow_internals
from autostrategy.training import keras_internals
from autostrategy.training import share as shares
from autostrategy.training.drafts import Draft
from autostrategy.training.keras_variables import local_component, part_of, write_difference
from autostrategy.training.partitioned import PartitionedVariable

_apply = BaseOptimizer.apply
_apply_scaled = LossScaleOptimizer.apply
_Several = getattr(keras.optimizers, "MultiOptimizer", None)  # not in Keras 3.12
_tf_apply = LossScaleOptimizer._tf_apply
_scale_loss = BaseOptimizer.scale_loss
_scale_loss_scaled = LossScaleOptimizer.scale_loss
_all_reduce = TFOptimizer._all_reduce_sum_gradients
_assign_slot = TFOptimizer.assign
_merge_call = tf.__internal__.distribute.interim.maybe_merge_call


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
            if isinstance(variable, PartitionedVariable):
                return _update_parts(variable, function, args)
            share = shares.current()
            if share is not None and share.asynchronous:
                return _update_from_snapshot(share, variable, function, args)
            return function(local_component(variable), *args, **(kwargs or {}))


def _update_parts(
    variable: PartitionedVariable, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Update each part of a partitioned variable by itself, slots and all."""
    share = shares.current()
    assert share is not None
    for index, part in enumerate(variable.parts):
        share.part = index
        try:
            _update_from_snapshot(
                share, part, function, tuple(variable.part_of(each, index) for each in args)
            )
        finally:
            share.part = None


def _update_from_snapshot(
    share: shares.Share, variable: tf.Variable, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Update a variable on the server that holds it, from slots as they were at one moment.

    Only the gradient crosses the network: slots live beside their variable
    (`placement.beside`), and the update runs there.

    Other workers update them too. Adam divides a mean of gradients by their
    variance; one that saw another's mean, and the variance before it, might
    divide by nothing but epsilon. So slots are read in their order and written
    in the reverse: who sees a mean also sees the variance that came before it.
    """
    held = keras_internals.slots_at(share.optimizer, variable)
    # Gradients of a round of accumulation are this worker's own anyway.
    slots = [slot for slot in held if id(slot) not in share.local]
    targets = [part_of(slot) for slot in slots]
    with tf.device(variable.device):
        reads: list[tf.Tensor] = []
        for target in targets:
            with tf.control_dependencies(reads[-1:]):
                reads.append(target.read_value())
        drafts = [
            _draft(share.optimizer, read, target)
            for read, target in zip(reads, targets, strict=True)
        ]
        share.local.update((id(slot), draft) for slot, draft in zip(slots, drafts, strict=True))
        try:
            function(variable, *args)
        finally:
            for slot in slots:
                del share.local[id(slot)]
        written: list[tf.Operation] = []
        for target, draft, read in reversed(list(zip(targets, drafts, reads, strict=True))):
            known = isinstance(draft, Draft)
            change = draft.change if known else draft.read_value() - read
            if change is not None:
                with tf.control_dependencies(written):
                    written = [target.assign_add(change, read_value=False)]


def _draft(optimizer: Any, read: tf.Tensor, target: tf.Variable) -> Any:
    """What an optimizer takes for a slot: a variable only where it may need a real one."""
    if type(optimizer).update_step.__module__.startswith("keras."):
        return Draft(read, like=target)
    return tensorflow_internals.temporary_variable(read, like=target)


def _replica_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        share = shares.current()
        if share is not None:
            share.optimizer = optimizer
        if share is None or share.reduced:
            return original(optimizer, grads, trainable_variables)
        if share.taken is not None:
            share.taken.append((optimizer, list(grads), trainable_variables))
            return None
        update = _compiled(original) if share.compiled else original
        if share.central:
            return _apply_once(share, update, optimizer, list(grads), trainable_variables)
        grads = list(grads) if share.asynchronous else _exchanged(share, list(grads))
        with _updating(share, optimizer):
            return update(optimizer, grads, trainable_variables)

    return apply


def _compiled(original: Callable[..., Any]) -> Callable[..., Any]:
    """An optimizer's update, compiled with XLA."""

    def update(optimizer: Any, grads: Any, variables: Any) -> None:
        def body(gradients: Any) -> None:
            original(optimizer, gradients, variables)

        tf.function(body, jit_compile=True, autograph=False)(list(grads))

    return update


@contextlib.contextmanager
def _updating(share: shares.Share, optimizer: Any) -> Iterator[None]:
    """Let the optimizer work on gradients that have crossed replicas."""
    before = [(each, each._distribution_strategy) for each in _with_inner(optimizer)]
    for each, _ in before:
        each._distribution_strategy = _InReplica
    share.reduced = True
    try:
        yield
    finally:
        share.reduced = False
        for each, strategy in before:
            each._distribution_strategy = strategy


def _with_inner(optimizer: Any) -> list[Any]:
    inner = keras_internals.inner_optimizers(optimizer)
    return [optimizer, *(found for each in inner for found in _with_inner(each))]


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
    for gradient in present:
        if isinstance(gradient, tf.IndexedSlices):
            shares.note_varying(share, gradient.indices, "the rows of a sparse gradient")
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
        share = shares.crossing()
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


def _replica_assign_slot(optimizer: Any, variable: Any, value: Any) -> Any:
    """An optimizer's `assign` on a server, where other workers update the slot as well."""
    share = shares.current()
    if share is None or not share.asynchronous or isinstance(value, tf.IndexedSlices):
        return _assign_slot(optimizer, variable, value)
    target = variable.value if hasattr(variable, "_value") else variable
    value = tf.cast(value, target.dtype)
    if isinstance(target, Draft):
        target.assign(value)
    else:
        write_difference(target, value)
    return None


def _replica_merge_call(
    function: Callable[..., Any], strategy: Any, *args: Any, **kwargs: Any
) -> Any:
    if shares.current() is None:
        return _merge_call(function, strategy, *args, **kwargs)
    return function(_InReplica, *args, **kwargs)


REPLACEMENTS: tuple[tuple[Any, str, Any], ...] = (
    (BaseOptimizer, "apply", _replica_apply(_apply)),
    (LossScaleOptimizer, "apply", _replica_apply(_apply_scaled)),
    (LossScaleOptimizer, "_tf_apply", _replica_tf_apply),
    (BaseOptimizer, "scale_loss", _replica_scale_loss(_scale_loss)),
    (LossScaleOptimizer, "scale_loss", _replica_scale_loss(_scale_loss_scaled)),
    (TFOptimizer, "_all_reduce_sum_gradients", _replica_all_reduce),
    (TFOptimizer, "assign", _replica_assign_slot),
    (tf.__internal__.distribute.interim, "maybe_merge_call", _replica_merge_call),
    *([(_Several, "apply", _replica_apply(_Several.apply))] if _Several else []),
)
