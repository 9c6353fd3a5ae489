"""Slots of an optimizer while an update of a variable on a parameter server is worked out."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Draft:
    """Stands where a slot's variable stands, and holds a tensor.

    An update reads the slot, works, and writes once: what is a variable to the
    optimizer can be the tensor read, without a variable made and dropped in
    each step. It must not be written inside a `tf.cond` or a loop of the
    update, whose tensors the graph outside cannot use; Keras's own optimizers
    do not.

    Attributes:
        shape, dtype, device, trainable, name: of the slot's variable.
        change: what to add to the slot, None where the update left it alone. Of
            a slot that is only added to, what was added, so that not even the
            rounding of a difference comes between.
    """

    def __init__(self, read: tf.Tensor, *, like: tf.Variable) -> None:
        self._read = self._now = read
        self.change: tf.Tensor | None = None
        self.shape = like.shape
        self.dtype = like.dtype
        self.device = like.device
        self.trainable = like.trainable
        self.name = like.name

    def read_value(self) -> tf.Tensor:
        """The value as the update has left it so far."""
        return self._now

    value = read_value

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> tf.Tensor:
        return self._now if dtype is None else tf.cast(self._now, dtype)

    def __getitem__(self, item: Any) -> tf.Tensor:
        return self._now[item]

    def assign(self, value: Any) -> Draft:
        """Take another value."""
        self._now = tf.convert_to_tensor(value, self.dtype)
        self.change = self._now - self._read
        return self

    def assign_add(self, value: Any) -> Draft:
        """Add to the value."""
        value = tf.convert_to_tensor(value, self.dtype)
        self._now += value
        self.change = value if self.change is None else self.change + value
        return self

    def assign_sub(self, value: Any) -> Draft:
        """Subtract from the value."""
        return self.assign_add(-tf.convert_to_tensor(value, self.dtype))

    def scatter_add(self, rows: tf.IndexedSlices) -> Draft:
        """Add to some rows; to a row named twice, twice."""
        return self.assign_add(tf.scatter_nd(rows.indices[:, None], rows.values, self._shape(rows)))

    def scatter_sub(self, rows: tf.IndexedSlices) -> Draft:
        """Subtract from some rows."""
        return self.scatter_add(tf.IndexedSlices(-rows.values, rows.indices, rows.dense_shape))

    def scatter_update(self, rows: tf.IndexedSlices) -> Draft:
        """Replace some rows."""
        return self.assign(
            tf.tensor_scatter_nd_update(self._now, rows.indices[:, None], rows.values)
        )

    def _shape(self, rows: tf.IndexedSlices) -> tf.Tensor:
        return tf.constant(self.shape.as_list(), rows.indices.dtype)
