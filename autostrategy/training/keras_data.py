"""Keras's data adapters, which are private: they know every input that `fit` takes.

Tested with Keras 3.12 and 3.15; tests/training/test_keras_internals.py fails
loudly when one of these parts changes.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing, get_data_adapter
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

Adapter = Any


def adapt(
    x: Any,
    y: Any,
    *,
    sample_weight: Any,
    batch_size: int | None,
    steps_per_epoch: int | None,
    class_weight: dict[int, float] | None,
) -> Adapter:
    """Keras's adapter for this input, unshuffled; errors are Keras's own ValueErrors."""
    return get_data_adapter(
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        shuffle=False,
        class_weight=class_weight,
    )


def is_arrays(adapter: Adapter) -> bool:
    """Whether the adapter holds whole arrays, whose rows can be drawn in any order."""
    return isinstance(adapter, ArrayDataAdapter)


def is_generator(adapter: Adapter) -> bool:
    """Whether the adapter reads a Python generator, which cannot start again."""
    return isinstance(adapter, GeneratorDataAdapter)


def is_py_dataset(adapter: Adapter) -> bool:
    """Whether the adapter reads a `keras.utils.PyDataset`."""
    return isinstance(adapter, PyDatasetAdapter)


def first_batch(adapter: Adapter) -> Any:
    """The first batch where it can be seen without drawing it, else None."""
    if is_generator(adapter):
        return adapter._first_batches[0]
    if is_py_dataset(adapter) and adapter.num_batches != 0:
        return adapter.py_dataset[0]
    return None


def rows_of(adapter: Adapter) -> int:
    """Examples in an adapter of arrays."""
    return int(adapter._num_samples)


def arrays_of(adapter: Adapter) -> Any:
    """The adapter's arrays as tensors; sparse ones in Keras's form for slicing."""
    sliceable = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    return tree.traverse(_as_tensor, tree.lists_to_tuples(sliceable))


def are_dense(arrays: Any) -> bool:
    """Whether all of `arrays_of` are plain tensors, which can be sent to other processes."""
    return all(leaf is None or isinstance(leaf, tf.Tensor) for leaf in tree.flatten(arrays))


def rows_at(indices: tf.Tensor, arrays: Any) -> Any:
    """The rows of `arrays_of` at row numbers, shape [n]."""

    def grab_one(leaf: Any) -> Any:
        if isinstance(leaf, array_slicing.TensorflowSparseWrapper):
            return array_slicing.slice_tensorflow_sparse_wrapper(leaf, indices)
        if tf.is_tensor(leaf):
            return tf.gather(leaf, indices, axis=0)
        return _DESCEND

    return tree.traverse(grab_one, arrays)


_DESCEND = None  # what `tree.traverse` takes for "not a leaf: go on inside"


def _as_tensor(leaf: Any) -> Any:
    if isinstance(leaf, array_slicing.TensorflowSparseWrapper) or tf.is_tensor(leaf):
        return leaf
    return _DESCEND if isinstance(leaf, (list, tuple, dict)) else tf.convert_to_tensor(leaf)


def split_for_validation(arrays: Any, fraction: float) -> tuple[Any, Any]:
    """(x, y, sample_weight) as a training and a validation part, the last rows for the latter."""
    return array_slicing.train_validation_split(arrays, validation_split=fraction)
