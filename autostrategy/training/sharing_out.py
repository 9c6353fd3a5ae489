"""From global batches to what each replica, or each worker of parameter servers, gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from autostrategy import tensorflow_internals
from autostrategy.training import keras_data, static_shapes
from autostrategy.training.batches import Batches, rows_of
from autostrategy.training.layouts import Layout

# Arrays up to this size are sent to each worker of parameter servers: a message
# of TensorFlow's servers ends at 2 GiB.
_RESIDENT_BYTES = 1 << 30


def for_replicas(given: Batches, layout: Layout) -> tf.data.Dataset:
    """What the replicas of this process get at each step.

    With one replica an element is a global batch. Else it is a tuple with one
    (batch, extent) for each local replica, where `extent` has the scalars of
    `share.Share`: rows, start, weight, fraction, counted.
    """
    grab = given.grab or (lambda element: element)
    unpacked = isinstance(given.dataset.element_spec, tuple)
    shapes = layout.shapes

    @tf.autograph.experimental.do_not_convert
    def share_out(*arguments: Any) -> Any:
        element = arguments if unpacked else arguments[0]
        if layout.single:
            return grab(element)
        rows = rows_of(element)
        if shapes is not None and shapes.filled:
            return tuple(
                static_shapes.filled_part(
                    element, grab, rows, replica, layout.replicas, shapes.rows
                )
                for replica in range(layout.first, layout.first + layout.local)
            )
        full = None if shapes is None else shapes.rows * layout.replicas
        return tuple(
            _part(element, grab, rows, replica, layout.replicas, full)
            for replica in range(layout.first, layout.first + layout.local)
        )

    dataset = given.dataset
    if not layout.single or given.grab is not None:
        dataset = dataset.map(share_out)
    return dataset.prefetch(tf.data.AUTOTUNE)


def for_workers(given: Batches) -> tuple[tf.data.Dataset, Callable[[Any, Any], Any], Any]:
    """What the chief of parameter servers draws, and what each worker makes of it.

    Arrays that fit are sent to each worker once, and the chief sends it row
    numbers only; of all else it sends the rows.

    Returns:
        Elements for the chief to send; a function from such an element and the
        arrays of the worker to a batch; the arrays, None without.
    """
    if given.arrays is not None and keras_data.are_dense(given.arrays):
        leaves = [leaf for leaf in tf.nest.flatten(given.arrays) if leaf is not None]
        if sum(leaf.dtype.size * leaf.shape.num_elements() for leaf in leaves) <= _RESIDENT_BYTES:
            return given.dataset.prefetch(tf.data.AUTOTUNE), keras_data.rows_at, given.arrays
    dataset = given.dataset
    if given.grab is not None:
        dataset = dataset.map(tf.autograph.experimental.do_not_convert(given.grab))
    return dataset.prefetch(tf.data.AUTOTUNE), lambda element, arrays: element, None


def part(spec: Any, packed: Any, start: Any, size: Any, index: Any) -> Any:
    """One element of several that were joined: rows `start` to `start + size` of each leaf.

    Args:
        spec: `tf.TypeSpec` structure of an element.
        packed: elements one after another; scalars are stacked.
        start, size: scalar int32 tensors.
        index: number of the element among those joined.
    """

    def one(leaf_spec: Any, leaf: Any) -> Any:
        if isinstance(leaf_spec, (tf.OptionalSpec, tensorflow_internals.NoneTensorSpec)):
            return leaf
        if leaf_spec.shape.rank == 0:
            return leaf[index]
        rows = _slice(leaf, start, size)
        if isinstance(rows, tf.Tensor):
            rows.set_shape(leaf_spec.shape)
        return rows

    return tf.nest.map_structure(one, spec, packed)


def _part(
    element: Any,
    grab: Callable[[Any], Any],
    rows: Any,
    replica: int,
    replicas: int,
    full: int | None,
) -> tuple[Any, dict[str, tf.Tensor]]:
    """Rows of one replica: equal shares, the first ones a row larger where it does not divide.

    With `full` a batch of another size than that is given whole to every replica.
    """
    if isinstance(rows, int):
        least, more = divmod(rows, replicas)
        start = replica * least + min(replica, more)
        size = least + (replica < more)
        scarce: Any = rows < replicas if full is None else rows != full
        if scarce:
            start, size = 0, rows
    else:
        least, more = rows // replicas, rows % replicas
        scarce = rows < replicas if full is None else tf.not_equal(rows, full)
        start = tf.where(scarce, 0, replica * least + tf.minimum(replica, more))
        size = tf.where(scarce, rows, least + tf.cast(replica < more, rows.dtype))
    batch = grab(tf.nest.map_structure(lambda leaf: _slice(leaf, start, size), element))
    fraction = tf.cast(size, tf.float64) / tf.cast(rows, tf.float64)
    return batch, {
        "rows": tf.cast(rows, tf.int32),
        "start": tf.cast(start, tf.int32),
        "weight": tf.where(scarce, tf.constant(float(replica == 0), tf.float64), fraction),
        "fraction": fraction,
        "counted": tf.logical_or(replica == 0, tf.logical_not(scarce)),
    }


def _slice(leaf: Any, start: Any, size: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        shape = leaf.shape
        zeros = tf.zeros([len(shape) - 1], tf.int64)
        begin = tf.concat([[tf.cast(start, tf.int64)], zeros], 0)
        extent = tf.concat([[tf.cast(size, tf.int64)], leaf.dense_shape[1:]], 0)
        part = tf.sparse.slice(leaf, begin, extent)
        part.set_shape([size if isinstance(size, int) else None, *shape[1:]])
        return part
    if isinstance(leaf, tf.RaggedTensor) or (tf.is_tensor(leaf) and leaf.shape.rank != 0):
        return leaf[start : start + size]
    return leaf
