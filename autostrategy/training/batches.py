"""Global batches, before they are shared out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Global batches, before they are shared out.

    Attributes:
        dataset: of whatever `grab` takes; for arrays these are row numbers
            and the dataset runs on over all epochs, in a new order each.
        grab: from (a part of) an element to the rows themselves; None when
            elements are the rows.
        arrays: what `grab` takes rows from, None when elements are the rows.
        spec: `tf.TypeSpec` structure of one global batch.
        batch_size: rows of a full batch, None when the data does not tell.
        first: rows of the first batch, None when it cannot be seen.
        rows: examples in one pass, None when unknown.
        passes: "endless" when `dataset` runs on over epochs, "again" when
            each pass makes a new iterator, "once" for a Python generator.
        shards: for parameter servers, what each worker reads by itself; None
            when the chief draws.
        steps: function that gives the batches in one pass, None when unknown.
        on_epoch_begin, on_epoch_end: hooks of the user's data.
    """

    dataset: tf.data.Dataset
    grab: Callable[[Any], Any] | None
    arrays: Any
    spec: Any
    batch_size: int | None
    first: int | None
    rows: int | None
    passes: str
    shards: tuple[tf.data.Dataset, ...] | None = None
    steps: Callable[[], int | None]
    on_epoch_begin: Callable[[], None]
    on_epoch_end: Callable[[], None]


def may_be_scarce(given: Batches, replicas: int) -> bool:
    """Whether a batch may have fewer rows than there are replicas."""
    if given.rows is not None and given.batch_size is not None:
        last = given.rows % given.batch_size or given.batch_size
        return min(last, given.batch_size) < replicas
    static = static_rows(given.spec)
    return static is None or static < replicas


def may_be_short(given: Batches, full: int) -> bool:
    """Whether a batch may have fewer rows than `full`."""
    if given.rows is not None:
        return given.batch_size != full or given.rows % full != 0
    return static_rows(given.spec) != full


def rows_of(element: Any) -> Any:
    """Rows of a batch: an int where the shape says it, else a scalar int32 tensor."""
    leaf = next(leaf for leaf in tf.nest.flatten(element) if _has_rows(leaf))
    if leaf.shape[0] is not None:
        return int(leaf.shape[0])
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int32)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return tf.shape(leaf)[0]


def _has_rows(leaf: Any) -> bool:
    return not isinstance(leaf, tf.experimental.Optional) and leaf.shape.rank != 0


def static_rows(spec: Any) -> int | None:
    for leaf in tf.nest.flatten(spec):
        shape = getattr(leaf, "shape", None)
        if shape is not None and shape.rank:
            return None if shape[0] is None else int(shape[0])
    return None
