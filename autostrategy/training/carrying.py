"""Carry what was made before a late start over it: data, variables and lookup tables.

Starting the strategy of a cluster gives TensorFlow's devices new names, and
what lives on the old ones cannot be read any more. Scripts make layers,
optimizers and datasets first: `Normalization.adapt` alone needs a variable.

Private to Keras; tested with Keras 3.12 and 3.15, and
tests/multi/test_callbacks_in_a_cluster.py fails when a part changes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.backend.common import KerasVariable
from keras.src.layers.preprocessing.index_lookup import IndexLookup

from autostrategy.training import dataset_graph, keras_internals


def take_out() -> Callable[[], None]:
    """Read every Keras variable and lookup table of this process.

    Returns:
        A function that makes each anew with what it held, plain, on the
        devices that there are then.
    """
    variables = [
        (each, np.array(each._value.numpy()))
        for each in _living(KerasVariable)
        if getattr(each, "_value", None) is not None and hasattr(each._value, "numpy")
    ]
    tables = [
        (layer, layer.get_vocabulary(), _weights(layer))
        for layer in _living(IndexLookup)
        if layer.vocabulary_size() > layer._token_start_index()
    ]

    def put_back() -> None:
        for variable, value in variables:
            old = variable._value
            keras_internals.set_value(
                variable,
                tf.Variable(value, dtype=old.dtype, shape=old.shape, trainable=old.trainable),
            )
        for layer, vocabulary, weights in tables:
            layer.set_vocabulary(vocabulary, weights)

    return put_back


def _living(kind: type) -> list[Any]:
    return [each for each in gc.get_objects() if isinstance(each, kind)]


def _weights(layer: Any) -> Any:
    """The document weights of a "tf_idf" layer, None of others."""
    weights = getattr(layer, "idf_weights", None)
    return None if layer.output_mode != "tf_idf" or weights is None else np.array(weights)


@dataclass(frozen=True)
class _Tensors:
    """A tensor, or one made of several (ragged, sparse), outside TensorFlow's devices."""

    like: Any
    arrays: list[tuple[np.ndarray, tf.DType]]


def packed(value: Any) -> Any:
    """A dataset or tensor outside TensorFlow's devices; anything else as it is."""
    if isinstance(value, tf.data.Dataset):
        return dataset_graph.pack(value)
    if isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
        parts = tf.nest.flatten(value, expand_composites=True)
        return _Tensors(value, [(part.numpy(), part.dtype) for part in parts])
    return value


def unpacked(value: Any) -> Any:
    """What `packed` was given, on the devices that there are now."""
    if isinstance(value, dataset_graph.Packed):
        return dataset_graph.unpack(value)
    if isinstance(value, _Tensors):
        parts = [tf.constant(array, dtype) for array, dtype in value.arrays]
        return tf.nest.pack_sequence_as(value.like, parts, expand_composites=True)
    return value
