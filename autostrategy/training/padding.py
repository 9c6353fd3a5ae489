"""Rows that only fill up a batch: Keras's reductions, metrics and moments leave them out.

A part of a short batch is filled up to a static shape (`static_shapes`), and
`Share.real` says which rows are real. What is reduced over rows here is
reduced over the real ones, so a replica still computes what one device would
compute for the replica's own rows, and everything in `share` holds.

Where that cannot be done, `share.CannotFill` is raised while the step is
tried; the batch is then given whole to every replica instead.

Private to Keras; tested with Keras 3.12 and 3.15, and
tests/training/test_keras_internals.py fails loudly when a part changes.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers import compile_utils

from autostrategy.training import share as shares
from autostrategy.training.share import CannotFill, Share

_update_list = compile_utils.MetricsList.update_state
_moments = keras.layers.BatchNormalization._moments


def real_like(share: Share, values: Any) -> tf.Tensor:
    """Which rows of `values` are real, shape [rows, 1, ...], to be broadcast over them.

    Raises:
        CannotFill: `values` has no rows.
    """
    rows = _rows(share)
    if values.shape.rank == 0 or values.shape[0] != rows:
        raise CannotFill(f"values of shape {values.shape} do not have one part for each row")
    return tf.reshape(share.real, [rows, *[1] * (values.shape.rank - 1)])


def _rows(share: Share) -> int:
    assert share.real is not None
    return int(share.real.shape[0])


def real_rows(share: Share, dtype: Any) -> tf.Tensor:
    """How many rows are real, scalar."""
    return tf.reduce_sum(tf.cast(share.real, dtype))


def growth(share: Share, dtype: Any) -> tf.Tensor:
    """From a mean over all rows, where those that fill up are zero, to one over the real rows."""
    return tf.cast(_rows(share), dtype) / tf.maximum(real_rows(share, dtype), 1)


def only_real(
    share: Share, values: tf.Tensor, sample_weight: Any, mask: Any, reduction: str | None
) -> tuple[tf.Tensor, Any, Any]:
    """Losses, their weights and mask, such that Keras's reduction is one over the real rows."""
    values = tf.where(real_like(share, values), values, tf.zeros_like(values))
    by_weights = reduction == "mean_with_sample_weight" and sample_weight is not None
    if mask is None and not by_weights and reduction not in ("sum", "none", None):
        values *= growth(share, values.dtype)  # the divisor is the size of `values`
    if sample_weight is not None:
        sample_weight = _weights(share, sample_weight)
    if mask is not None:
        mask = tf.logical_and(tf.cast(mask, tf.bool), real_like(share, mask))
    return values, sample_weight, mask


def _weights(share: Share, sample_weight: Any, dtype: Any = tf.float32) -> tf.Tensor:
    if sample_weight is None:
        return tf.cast(share.real, dtype)
    weights = keras.ops.convert_to_tensor(sample_weight)
    return weights * tf.cast(real_like(share, weights), weights.dtype)


def _replica_update_list(metrics: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
    share = shares.current()
    if share is None or share.real is None:
        return _update_list(metrics, y_true, y_pred, sample_weight)
    for metric in metrics.metrics:
        if not type(metric).__module__.startswith("keras."):
            raise CannotFill(f"the metric {metric.name!r} may count every row it is given")
        if isinstance(metric, (keras.metrics.Mean, keras.metrics.Sum)):
            metric.update_state(y_true, y_pred, sample_weight)  # ends in `entry`
        else:
            weights = _weights(share, sample_weight, dtype=metric.dtype)
            metric.update_state(y_true, y_pred, weights)
    return None


def entry(share: Share, values: Any, sample_weight: Any) -> tuple[Any, Any]:
    """What one replica made of its rows, and the weight with which `Mean` and `Sum` take it.

    Keras's steps give a loss with the rows of the batch: as a tensor where it
    counts them, as an int where it asks for a static shape. The batch of one
    device has no static shape when the last is short, so one number for it is
    one entry, and a replica's number is its part of that.
    """
    values = keras.ops.convert_to_tensor(values)
    is_number = values.shape.rank == 0
    if sample_weight is None or isinstance(sample_weight, int):
        return values, share.weight if is_number else _weights(share, None)
    if tf.convert_to_tensor(sample_weight).shape.rank == 0:
        if not is_number:
            values *= growth(share, values.dtype)  # a mean over all rows will be taken
        return values, real_rows(share, tf.float32)
    return values, _weights(share, sample_weight)


def _replica_moments(layer: Any, inputs: tf.Tensor, mask: Any) -> Any:
    share = shares.current()
    if share is None or share.real is None:
        return _moments(layer, inputs, mask)
    if mask is not None:
        return _moments(
            layer, inputs, tf.logical_and(tf.cast(mask, tf.bool), real_like(share, mask))
        )
    axes = layer._reduction_axes
    values = tf.cast(inputs, tf.float32) if inputs.dtype == tf.float16 else inputs
    real = tf.cast(real_like(share, values), values.dtype) * tf.ones_like(values)
    counted, summed = tf.reduce_sum(real, axes), tf.reduce_sum(values * real, axes)
    if layer.synchronized:
        squares = tf.reduce_sum(tf.square(values) * real, axes)
        counted, summed, squares = shares.all_reduce_sum([counted, summed, squares])
        mean = tf.math.divide_no_nan(summed, counted)
        # As Keras computes it: var = E(x^2) - E(x)^2.
        spread = tf.math.divide_no_nan(squares, counted) - tf.square(mean)
        variance = tf.maximum(spread, 0)
    else:
        counted = tf.maximum(counted, 1)
        mean = summed / counted
        shape = [1 if axis in axes else size for axis, size in enumerate(values.shape)]
        distance = tf.square(values - tf.reshape(mean, shape)) * real
        variance = tf.reduce_sum(distance, axes) / counted
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


REPLACEMENTS: tuple[tuple[Any, str, Any], ...] = (
    (compile_utils.MetricsList, "update_state", _replica_update_list),
    (keras.layers.BatchNormalization, "_moments", _replica_moments),
)
