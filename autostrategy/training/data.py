"""From whatever `fit` takes to what each replica of this process gets at each step.

Every worker draws the same global batches in the same order and keeps its own
rows, so that a global batch holds the rows that one device would see, and no
worker can run out of data before another. Nothing of the user's is written to:
TensorFlow may reuse the memory of an array that a Python function hands it, so
such arrays are copied.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from autostrategy.errors import TrainingError
from autostrategy.training import copying, keras_data, static_shapes
from autostrategy.training.steps import Layout


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Global batches, before they are shared out.

    Attributes:
        dataset: of whatever `grab` takes; for arrays these are row numbers
            and the dataset runs on over all epochs, in a new order each.
        grab: from (a part of) an element to the rows themselves; None when
            elements are the rows.
        spec: `tf.TypeSpec` structure of one global batch.
        batch_size: rows of a full batch, None when the data does not tell.
        first: rows of the first batch, None when it cannot be seen.
        rows: examples in one pass, None when unknown.
        passes: "endless" when `dataset` runs on over epochs, "again" when
            each pass makes a new iterator, "once" for a Python generator.
        steps: function that gives the batches in one pass, None when unknown.
        on_epoch_begin, on_epoch_end: hooks of the user's data.
    """

    dataset: tf.data.Dataset
    grab: Callable[[Any], Any] | None
    spec: Any
    batch_size: int | None
    first: int | None
    rows: int | None
    passes: str
    steps: Callable[[], int | None]
    on_epoch_begin: Callable[[], None]
    on_epoch_end: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Source:
    """The user's data as given, before batches are grouped and shared out.

    `batch_size` is rows of one of the user's batches, None when the data does
    not tell; `rows` and `steps` count one pass, None when unknown.
    """

    adapter: Any
    batch_size: int | None
    rows: int | None
    steps: int | None


def source(
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    class_weight: dict[int, float] | None = None,
) -> Source:
    """Anything that `keras.Model.fit` takes as `x` and `y`; arguments as there.

    Raises:
        TrainingError: data that holds nothing.
        ValueError: from Keras, for data that it does not take.
    """
    if x is None:
        raise TrainingError(
            "x must be arrays, a dataset, a keras.utils.PyDataset or a generator. Received: None."
        )
    if inspect.isroutine(x):
        raise TrainingError(
            "x must be data: arrays, a dataset, a keras.utils.PyDataset or a generator. Received a "
            f"function: {getattr(x, '__name__', x)!r}. Call it, and pass what it returns."
        )
    adapter = keras_data.adapt(
        copying.copying(x),
        y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        class_weight=class_weight,
    )
    if not keras_data.is_arrays(adapter):
        return Source(
            adapter=adapter,
            batch_size=_batch_size_of(adapter),
            rows=None,
            steps=adapter.num_batches,
        )
    rows = keras_data.rows_of(adapter)
    if rows == 0:
        raise TrainingError("x must have at least 1 row. Received: 0 rows.")
    size = int(adapter.batch_size)
    return Source(adapter=adapter, batch_size=size, rows=rows, steps=-(-rows // size))


def batches(
    given: Source, *, growth: int = 1, shuffle: Any = False, seed: int = 0, first_epoch: int = 0
) -> Batches:
    """Global batches of `growth` of the user's batches each.

    Args:
        given: the user's data.
        growth: how many batches of the user's make one global batch.
        shuffle: as in `keras.Model.fit`.
        seed: of the order in which rows (of a PyDataset: batches) are drawn;
            the same on all workers.
        first_epoch: number of the first epoch; each has its own order.
    """
    if keras_data.is_arrays(given.adapter):
        return _of_arrays(given, growth=growth, shuffle=shuffle, seed=seed, first_epoch=first_epoch)
    if keras_data.is_py_dataset(given.adapter):
        given.adapter.py_dataset.reorder(seed if shuffle else None, first_epoch)
    return _of_dataset(given, growth=growth)


def _of_arrays(given: Source, *, growth: int, shuffle: Any, seed: int, first_epoch: int) -> Batches:
    assert given.rows is not None
    assert given.batch_size is not None
    rows, size = given.rows, given.batch_size * growth
    steps = -(-rows // size)
    static = [size] if rows % size == 0 else [None]

    @tf.autograph.experimental.do_not_convert
    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        order = tf.range(rows, dtype=tf.int64)
        if shuffle and shuffle != "batch":
            order = tf.random.experimental.stateless_shuffle(order, [seed, epoch])

        @tf.autograph.experimental.do_not_convert
        def one_batch(step: tf.Tensor) -> tf.Tensor:
            indices = order[step * size : tf.minimum((step + 1) * size, rows)]
            if shuffle == "batch":
                indices = tf.random.experimental.stateless_shuffle(
                    indices, [seed, epoch * steps + step]
                )
            indices.set_shape(static)
            return indices

        return tf.data.Dataset.range(steps).map(one_batch)

    grab = keras_data.grabber(given.adapter)
    indices = tf.data.Dataset.counter(first_epoch).flat_map(one_epoch)
    return Batches(
        dataset=indices,
        grab=grab,
        spec=indices.map(tf.autograph.experimental.do_not_convert(grab)).element_spec,
        batch_size=size,
        first=min(size, rows),
        rows=rows,
        passes="endless",
        steps=lambda: steps,
        on_epoch_begin=given.adapter.on_epoch_begin,
        on_epoch_end=given.adapter.on_epoch_end,
    )


def _of_dataset(given: Source, *, growth: int) -> Batches:
    adapter = given.adapter
    dataset = adapter.get_tf_dataset()
    size = _static_rows(dataset.element_spec)
    if growth > 1:
        assert given.batch_size is not None
        size = given.batch_size * growth
        dataset = dataset.rebatch(size)

    def steps() -> int | None:
        count = adapter.num_batches
        return None if count is None else -(-int(count) // growth)

    return Batches(
        dataset=dataset,
        grab=None,
        spec=dataset.element_spec,
        batch_size=size,
        first=None if given.batch_size is None else given.batch_size * growth,
        rows=None,
        passes="once" if keras_data.is_generator(adapter) else "again",
        steps=steps,
        on_epoch_begin=adapter.on_epoch_begin,
        on_epoch_end=adapter.on_epoch_end,
    )


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
        rows = _rows(element)
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


def may_be_scarce(given: Batches, replicas: int) -> bool:
    """Whether a batch may have fewer rows than there are replicas."""
    if given.rows is not None and given.batch_size is not None:
        last = given.rows % given.batch_size or given.batch_size
        return min(last, given.batch_size) < replicas
    static = _static_rows(given.spec)
    return static is None or static < replicas


def may_be_short(given: Batches, full: int) -> bool:
    """Whether a batch may have fewer rows than `full`."""
    if given.rows is not None:
        return given.batch_size != full or given.rows % full != 0
    return _static_rows(given.spec) != full


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


def _rows(element: Any) -> Any:
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


def _static_rows(spec: Any) -> int | None:
    for leaf in tf.nest.flatten(spec):
        shape = getattr(leaf, "shape", None)
        if shape is not None and shape.rank:
            return None if shape[0] is None else int(shape[0])
    return None


def _batch_size_of(adapter: Any) -> int | None:
    """Rows of the first batch, without drawing one from data that cannot start again."""
    first = keras_data.first_batch(adapter)
    if first is not None:
        leaf = next(leaf for leaf in keras.tree.flatten(first) if leaf is not None)
        return int(leaf.shape[0]) if getattr(leaf, "shape", ()) else None
    dataset = adapter.get_tf_dataset()
    static = _static_rows(dataset.element_spec)
    if static is not None:
        return static
    for element in dataset.take(1):
        return int(_rows(element))
    raise TrainingError("The dataset must have at least 1 batch. Received: an empty dataset.")
