"""Losses and metrics of a replica: reductions that know its share of the global batch.

Private to Keras; tested with Keras 3.12 and 3.15, and
tests/training/test_keras_internals.py fails loudly when a part changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as loss_module

from autostrategy.training import padding
from autostrategy.training import share as shares

_call_loss = loss_module.Loss.__call__
_scale = loss_module.scale_loss_for_distribution
_unscale = loss_module.unscale_loss_for_distribution
_reduce = loss_module.reduce_weighted_values
_update_mean = keras.metrics.Mean.update_state
_update_sum = keras.metrics.Sum.update_state
_update_wrapped = keras.metrics.MeanMetricWrapper.update_state


def _replica_loss_call(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
    share = shares.crossing()
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
    return _scale(value) if shares.crossing() is None else value


def _replica_unscale(value: tf.Tensor) -> tf.Tensor:
    share = shares.crossing()
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
    share = shares.crossing()
    if share is None:
        return _reduce(values, sample_weight, mask, reduction, dtype)
    values = keras.ops.convert_to_tensor(values, dtype=dtype)
    if values.shape.rank == 0 and share.loss_arguments is not None:
        return shares.scalar_loss(share, values, sample_weight, reduction)
    if share.real is not None:
        values, sample_weight, mask = padding.only_real(
            share, values, sample_weight, mask, reduction
        )
    loss = _reduce(values, sample_weight, mask, reduction, dtype)
    if reduction in ("sum", "none", None):
        return shares.divide_by_fraction(share, loss)
    if reduction == "mean_with_sample_weight" and not (sample_weight is None and mask is None):
        weight = loss_module.apply_mask(sample_weight, mask, values.dtype, reduction)
        return shares.masked_mean(share, loss, keras.ops.sum(weight))
    if mask is not None:
        return shares.masked_mean(share, loss, keras.ops.sum(keras.ops.cast(mask, loss.dtype)))
    return loss


def _replica_update_entry(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Mean` and `Sum`, for which one number for the batch counts as one entry.

    A replica's number counts as its part of that entry.
    """

    def update_state(metric: Any, values: Any, sample_weight: Any = None) -> Any:
        share = shares.crossing()
        if share is not None and share.real is not None:
            values, sample_weight = padding.entry(share, values, sample_weight)
        elif share is not None and sample_weight is None:
            values = keras.ops.convert_to_tensor(values)
            if values.shape.rank == 0:
                sample_weight = share.fraction
        return original(metric, values, sample_weight)

    return update_state


_replica_update_mean = _replica_update_entry(_update_mean)


def _replica_update_wrapped(
    metric: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    share = shares.crossing()
    if share is None or (sample_weight is not None and share.real is None):
        return _update_wrapped(metric, y_true, y_pred, sample_weight)
    value = metric._fn(y_true, y_pred, **metric._fn_kwargs)
    if tf.convert_to_tensor(value).shape.rank != 0:
        return _update_wrapped(metric, y_true, y_pred, sample_weight)
    # One number for the batch may be any function of it: as with losses, take
    # the global batch.
    y_true, y_pred = shares.gathered(share, y_true, y_pred)
    return _replica_update_mean(metric, metric._fn(y_true, y_pred, **metric._fn_kwargs))


REPLACEMENTS: tuple[tuple[Any, str, Any], ...] = (
    (loss_module.Loss, "__call__", _replica_loss_call),
    (loss_module, "scale_loss_for_distribution", _replica_scale),
    (loss_module, "unscale_loss_for_distribution", _replica_unscale),
    (loss_module, "reduce_weighted_values", _replica_reduce),
    (keras.metrics.Mean, "update_state", _replica_update_mean),
    (keras.metrics.Sum, "update_state", _replica_update_entry(_update_sum)),
    (keras.metrics.MeanMetricWrapper, "update_state", _replica_update_wrapped),
)
