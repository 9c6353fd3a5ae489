"""From whatever `fit` takes to what each replica of this process gets at each step.

Every worker draws the same global batches in the same order and keeps its own
rows, so that a global batch holds the rows that one device would see, and no
worker can run out of data before another. Nothing of the user's is written to:
TensorFlow may reuse the memory of an array that a Python function hands it, so
such arrays are copied.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from autostrategy.errors import TrainingError
from autostrategy.training import copying, dataset_graph, keras_data
from autostrategy.training.batches import Batches, rows_of, static_rows
from autostrategy.training.layouts import Layout


@dataclass(frozen=True, kw_only=True)
class Source:
    """The user's data as given, before batches are grouped and shared out.

    `batch_size` is rows of one of the user's batches, None when the data does
    not tell; `rows` and `steps` count one pass, None when unknown. `shards` has
    an adapter for each worker that reads by itself, `adapter` is the first.
    """

    adapter: Any
    batch_size: int | None
    rows: int | None
    steps: int | None
    shards: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Shards:
    """Datasets that workers of parameter servers read by themselves, one for each."""

    datasets: tuple[tf.data.Dataset, ...]


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
            "x must be data: arrays, a dataset, a keras.utils.PyDataset, a generator or a function "
            "of one argument, a tf.distribute.InputContext, that returns a dataset. Received a "
            f"function: {getattr(x, '__name__', x)!r}. Call it, and pass what it returns."
        )

    def adapt(each: Any) -> Any:
        return keras_data.adapt(
            copying.copying(each),
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            class_weight=class_weight,
        )

    if isinstance(x, Shards):
        adapters = tuple(map(adapt, x.datasets))
        counts = [each.num_batches for each in adapters]
        return Source(
            adapter=adapters[0],
            batch_size=_batch_size_of(
                next((each for each in adapters if each.num_batches != 0), adapters[0])
            ),
            rows=None,
            steps=None if None in counts else sum(map(int, counts)),
            shards=adapters,
        )
    adapter = adapt(x)
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


def is_input_function(x: Any) -> bool:
    """Whether `x` is a function of one argument, a `tf.distribute.InputContext`."""
    if not (inspect.isroutine(x) or isinstance(x, functools.partial)):
        return False
    try:
        inspect.signature(x).bind(None)
    except (TypeError, ValueError):
        return False
    return True


def from_input_function(x: Any, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """What a function of `InputContext` returns.

    Raises:
        TrainingError: something else than a dataset.
    """
    made = x(context)
    if isinstance(made, tf.data.Dataset):
        return made
    raise TrainingError(
        "A function of InputContext must return a tf.data.Dataset of batches. Received: "
        f"{type(made).__module__}.{type(made).__qualname__} from {getattr(x, '__name__', x)!r}. "
        "Give other data itself, not a function."
    )


def read(x: Any, layout: Layout, *, seed: int) -> Any:
    """What all replicas share out of `x`: functions called, orders agreed on.

    Args:
        x: what was given to `fit`.
        layout: the replicas.
        seed: for shuffles of a dataset without one, so that all workers draw
            the same order.
    """
    if is_input_function(x):
        x = from_input_function(x, tf.distribute.InputContext(1, 0, layout.replicas))
    if not layout.has_peers or not isinstance(x, tf.data.Dataset):
        return x
    return dataset_graph.unpack(dataset_graph.pack(x), seed=seed)


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

    arrays = keras_data.arrays_of(given.adapter)

    def grab(indices: tf.Tensor) -> Any:
        return keras_data.rows_at(indices, arrays)

    indices = tf.data.Dataset.counter(first_epoch).flat_map(one_epoch)
    return Batches(
        dataset=indices,
        grab=grab,
        arrays=arrays,
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
    size = static_rows(dataset.element_spec)
    if growth > 1:
        assert given.batch_size is not None
        size = given.batch_size * growth
        dataset = dataset.rebatch(size)

    def steps() -> int | None:
        count = given.steps if given.shards else adapter.num_batches
        return None if count is None else -(-int(count) // growth)

    return Batches(
        dataset=dataset,
        grab=None,
        arrays=None,
        spec=dataset.element_spec,
        batch_size=size,
        first=None if given.batch_size is None else given.batch_size * growth,
        rows=None,
        passes="once" if keras_data.is_generator(adapter) else "again",
        shards=None
        if given.shards is None
        else tuple(each.get_tf_dataset() for each in given.shards),
        steps=steps,
        on_epoch_begin=adapter.on_epoch_begin,
        on_epoch_end=adapter.on_epoch_end,
    )


def _batch_size_of(adapter: Any) -> int | None:
    """Rows of the first batch, without drawing one from data that cannot start again."""
    first = keras_data.first_batch(adapter)
    if first is not None:
        leaf = next(leaf for leaf in keras.tree.flatten(first) if leaf is not None)
        return int(leaf.shape[0]) if getattr(leaf, "shape", ()) else None
    dataset = adapter.get_tf_dataset()
    static = static_rows(dataset.element_spec)
    if static is not None:
        return static
    for element in dataset.take(1):
        return int(rows_of(element))
    raise TrainingError("The dataset must have at least 1 batch. Received: an empty dataset.")
