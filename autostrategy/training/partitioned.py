"""A variable whose rows are spread over parameter servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from autostrategy.errors import TrainingError


class PartitionedVariable:
    """Stands behind one Keras variable and holds its rows in parts, one on each server.

    TensorFlow's `ShardedVariable` is no variable to Keras 3: optimizers could
    neither find their slots by it nor update it. To everybody but a step this
    is one variable of the full shape; a step looks rows up in the parts and
    updates part by part, so that no whole table crosses the network.

    Attributes:
        parts: `tf.Variable`s of shape [rows of the part, ...]; the first parts
            have a row more where the rows do not divide (the "div" order of
            `tf.nn.embedding_lookup`).
    """

    def __init__(self, parts: list[tf.Variable]) -> None:
        self.parts = tuple(parts)
        rows = [int(part.shape[0]) for part in parts]
        self._starts = [sum(rows[:index]) for index in range(len(rows) + 1)]
        self.shape = tf.TensorShape([self._starts[-1], *parts[0].shape[1:]])
        self.dtype = parts[0].dtype
        self.trainable = parts[0].trainable
        self.name = parts[0].name
        self._unique_id = parts[0]._unique_id
        self.last_read: tf.Tensor | None = None

    @property
    def device(self) -> str:
        """The device of the first part."""
        return str(self.parts[0].device)

    def read_value(self) -> tf.Tensor:
        """All rows, shape `self.shape`; `last_read` keeps the tensor."""
        self.last_read = tf.concat([part.read_value() for part in self.parts], axis=0)
        return self.last_read

    value = read_value

    def numpy(self) -> np.ndarray:
        """All rows as an array."""
        return np.concatenate([part.numpy() for part in self.parts], axis=0)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype)

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> tf.Tensor:
        value = self.read_value()
        return value if dtype is None else tf.cast(value, dtype)

    def __getitem__(self, item: Any) -> tf.Tensor:
        return self.read_value()[item]

    @property
    def handle(self) -> Any:
        """There is none.

        Raises:
            TrainingError: always, with what to do instead.
        """
        raise TrainingError(
            "A variable whose rows are split over parameter servers can only be trained by "
            "autostrategy. Received: another training of a model that holds one. Save the model "
            "and load it to have a plain one."
        )

    def assign(self, value: Any) -> PartitionedVariable:
        """Write all rows."""
        for index, part in enumerate(self.parts):
            part.assign(self.part_of(tf.convert_to_tensor(value), index))
        return self

    def assign_add(self, value: Any) -> PartitionedVariable:
        """Add to all rows, each part in one operation."""
        for index, part in enumerate(self.parts):
            part.assign_add(self.part_of(tf.convert_to_tensor(value), index))
        return self

    def assign_sub(self, value: Any) -> PartitionedVariable:
        """Subtract from all rows, each part in one operation."""
        return self.assign_add(-tf.convert_to_tensor(value))

    def part_of(self, value: Any, index: int) -> Any:
        """What belongs to one part, of anything that has a row for each row of this variable.

        Other values, such as a learning rate, are returned as they are.
        """
        start, end = self._starts[index], self._starts[index + 1]
        value = getattr(value, "_value", value)  # of a Keras variable
        if isinstance(value, PartitionedVariable):
            return value.parts[index]
        if isinstance(value, tf.IndexedSlices):
            chosen = tf.logical_and(value.indices >= start, value.indices < end)
            return tf.IndexedSlices(
                tf.boolean_mask(value.values, chosen),
                tf.boolean_mask(value.indices, chosen) - start,
                tf.constant([end - start, *self.shape[1:]], value.indices.dtype),
            )
        shape = getattr(value, "shape", None)
        if shape is None or len(shape) == 0 or shape[0] != self.shape[0]:
            return value
        return value[start:end]

    def joined(self, gradients: list[Any]) -> Any:
        """One gradient from those of all parts; None where no part has one."""
        if all(gradient is None for gradient in gradients):
            return None
        if all(isinstance(each, tf.IndexedSlices) for each in gradients):
            return tf.IndexedSlices(
                tf.concat([each.values for each in gradients], axis=0),
                tf.concat(
                    [
                        each.indices + tf.cast(start, each.indices.dtype)
                        for each, start in zip(gradients, self._starts, strict=False)
                    ],
                    axis=0,
                ),
                tf.constant(self.shape.as_list(), gradients[0].indices.dtype),
            )
        return tf.concat(
            [
                tf.zeros_like(part) if gradient is None else tf.convert_to_tensor(gradient)
                for part, gradient in zip(self.parts, gradients, strict=True)
            ],
            axis=0,
        )
