"""What workers of parameter servers train on: read by themselves, or sent by the chief.

datasets without Python functions   each worker reads every n-th batch
a function of InputContext          each worker reads what it returns for it
arrays                              on each worker; the chief sends row numbers
generators, PyDataset, and the rest the chief reads and sends the rows
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from autostrategy import parameter_servers, tensorflow_internals
from autostrategy.errors import TrainingError
from autostrategy.training import data, dataset_graph, server_steps
from autostrategy.training.batches import Batches
from autostrategy.training.feed import Feed
from autostrategy.training.layouts import Layout
from autostrategy.training.sharing_out import for_workers


class ServedFeed(Feed):
    """What the workers read or are sent, and what they make of it.

    Attributes:
        workers_read: whether workers read batches by themselves.
        spec: `tf.TypeSpec` structure of an element.
        grab: from an element and the arrays of the worker to a batch.
    """

    def __init__(
        self,
        given: Batches,
        layout: Layout,
        *,
        coordinator: Any,
        steps_per_epoch: int | None,
        restarts: bool = False,
    ) -> None:
        self.workers_read = given.shards is not None
        self._resident: Any = None
        dataset, self.grab, arrays = for_workers(given)
        self.spec = dataset.element_spec
        self._passes = 0
        self._remake: Callable[[int], Any] | None = None
        if given.shards is not None:
            packed = [dataset_graph.pack(each) for each in given.shards]
            self._remake = functools.partial(_on_workers, packed, coordinator)
            dataset = self._remake(0)
        super().__init__(
            given, layout, steps_per_epoch=steps_per_epoch, restarts=restarts, dataset=dataset
        )
        if arrays is not None:
            # Each element is the same tensors, without a copy.
            self._resident = iter(
                coordinator.create_per_worker_dataset(
                    lambda: tf.data.Dataset.from_tensors(arrays).repeat()
                )
            )

    @contextlib.contextmanager
    def epoch(self) -> Iterator[tuple[Iterator[Any], int | None]]:
        """As in `Feed`; workers that begin a new pass draw a new order."""
        if self._remake is not None and self._restarts and self._passes:
            self._dataset = self._remake(self._passes)
        self._passes += 1
        with super().epoch() as drawn:
            yield drawn

    def draw(self, iterator: Any, most: int) -> tuple[int, tuple[Any, ...]]:
        """Up to `most` steps: how many, and the arguments of a loop for them."""
        if self.workers_read:
            return most, (iterator, tf.constant(most))
        elements = [element for _, element in zip(range(most), iterator, strict=False)]
        if not elements:
            return 0, ()
        return len(elements), (*server_steps.pack(elements), self._resident)


def shards(x: Any, workers: int, *, seed: int) -> Any:
    """`x` as `data.Shards` where workers can read it by themselves, else `x`.

    Args:
        x: what was given to `fit`.
        workers: how many read.
        seed: for shuffles without one: each worker takes its batches out of
            the same order.

    Raises:
        TrainingError: a function of `InputContext` returned no dataset.
    """
    if data.is_input_function(x):
        made = tuple(
            data.from_input_function(
                x, tf.distribute.InputContext(workers, index, num_replicas_in_sync=1)
            )
            for index in range(workers)
        )
        specs = {str(each.element_spec) for each in made}
        if len(specs) > 1:
            raise TrainingError(
                "All workers must read elements of one form. Received: a function of InputContext "
                f"whose datasets have {' and '.join(sorted(specs))}. Use drop_remainder and batch "
                "sizes alike on all workers."
            )
        for each in made:
            if dataset_graph.calls_python(dataset_graph.pack(each)):
                raise TrainingError(
                    "A dataset that workers read by themselves must not call Python functions. "
                    "Received: a function of InputContext whose dataset calls some "
                    "(from_generator, py_function, numpy_function). Use TensorFlow operations, "
                    "or give the dataset itself: then the chief reads it."
                )
        return data.Shards(made)
    if not isinstance(x, tf.data.Dataset):
        return x
    try:
        packed = dataset_graph.pack(x)
    except TrainingError:
        return x  # no graph holds it: the chief reads
    if dataset_graph.calls_python(packed) or dataset_graph.writes_files(packed):
        return x
    whole = dataset_graph.unpack(packed, seed=seed)
    return data.Shards(tuple(whole.shard(workers, index) for index in range(workers)))


def _on_workers(packed: list[dataset_graph.Packed], coordinator: Any, passes: int) -> Any:
    """The n-th dataset on the n-th worker after so many passes; iterating makes iterators.

    `create_per_worker_dataset` runs one function on all workers, so the
    function asks the worker for its number.
    """
    graphs = tf.stack([tf.constant(dataset_graph.of_epoch(each, passes)) for each in packed])
    spec = packed[0].spec

    def dataset_fn() -> tf.data.Dataset:
        number = tensorflow_internals.ask_here(parameter_servers.NUMBER)
        variant = tf.raw_ops.DatasetFromGraph(graph_def=tf.gather(graphs, number))
        return tf.data.experimental.from_variant(variant, spec).prefetch(tf.data.AUTOTUNE)

    return coordinator.create_per_worker_dataset(dataset_fn)
