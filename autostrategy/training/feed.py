"""What each epoch reads, and from where in the data."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from autostrategy.errors import TrainingError
from autostrategy.training.batches import Batches
from autostrategy.training.layouts import Layout
from autostrategy.training.sharing_out import for_replicas


class Feed:
    """Iterators of one run: what the next epoch reads, and from where.

    With `restarts` each epoch begins at the first batch, as each evaluation
    does. Follows keras/src/trainers/epoch_iterator.py, with two differences: a
    generator is never started again (Keras would repeat its first batches),
    and arrays run on from epoch to epoch without a pause. `dataset` stands in
    for `sharing_out.for_replicas`.
    """

    def __init__(
        self,
        given: Batches,
        layout: Layout,
        *,
        steps_per_epoch: int | None,
        restarts: bool = False,
        dataset: tf.data.Dataset | None = None,
    ) -> None:
        self.layout = layout
        self._restarts = restarts or (given.passes == "again" and steps_per_epoch is None)
        self._source = given
        self._dataset = for_replicas(given, layout) if dataset is None else dataset
        self._steps_per_epoch = steps_per_epoch
        self._iterator: Iterator[Any] | None = None
        self._position = 0
        self.exhausted = False
        self.spec = self._dataset.element_spec
        self._traced = False
        self._is_ragged = any(
            isinstance(leaf, (tf.RaggedTensorSpec, tf.SparseTensorSpec))
            for leaf in tf.nest.flatten(given.spec)
        )
        self._endless = bool(given.dataset.cardinality() == tf.data.INFINITE_CARDINALITY)
        if steps_per_epoch is None and self._endless and given.passes != "endless":
            raise TrainingError(
                "A dataset without end needs steps_per_epoch. Received: steps_per_epoch=None."
            )

    @property
    def steps(self) -> int | None:
        """Steps in the next epoch as far as known, for the progress bar."""
        return self._steps_per_epoch or self._source.steps()

    @property
    def sure(self) -> bool:
        """Whether an epoch surely holds its steps, so that no step must look for the end."""
        return self._endless or self._source.steps() is not None

    def rows(self, steps: int) -> int | None:
        """Examples in `steps` steps of an epoch, None when the data does not tell."""
        size, rows = self._source.batch_size, self._source.rows
        if size is None:
            return None
        return steps * size if rows is None else min(steps * size, rows)

    def alike(self, step: int, most: int) -> int:
        """Up to `most` steps from `step` of this epoch that can go into one loop.

        A collective of TensorFlow keeps its shape for the length of a call
        ("Shape mismatch in the collective instance"). So where workers
        exchange rows, a call must not hold batches of different sizes.
        """
        if not self.layout.has_peers:
            return most
        if not self._traced:
            self._traced = True
            return 1  # what is exchanged is known once a step has been traced
        if not self.layout.varying:
            return most
        rows, size = self._source.rows, self._source.batch_size
        if rows is None or size is None or self._is_ragged:
            return 1
        position = (self._position + step) % -(-rows // size)
        return max(1, min(most, rows // size - position))

    @contextlib.contextmanager
    def epoch(self) -> Iterator[tuple[Iterator[Any], int | None]]:
        """The iterator of the next epoch, and how many steps it holds (None: to the end)."""
        self._source.on_epoch_begin()
        total = self._source.steps()
        passes = self._source.passes
        at_start = passes == "endless" and self._position == 0
        keep = passes == "once" or not self._restarts or at_start
        if self._iterator is None or not keep:
            self._iterator = iter(self._dataset)
            self._position = 0
        wanted = self._steps_per_epoch or total
        if total is not None and wanted is not None:
            wanted = min(wanted, total - self._position)
        try:
            yield self._iterator, wanted
        finally:
            self._source.on_epoch_end()

    def finished(self, steps: int, wanted: int | None) -> None:
        """Note that an epoch ended after `steps` of `wanted`; warns when data ran out early."""
        self._position += steps
        total = self._source.steps()
        if total is not None and self._position >= total:
            self._position = 0
            if self._source.passes == "again":
                self._iterator = None
        if total is None and (wanted is None or steps < wanted):
            if self._source.passes == "once":
                self.exhausted = True
            else:
                self._iterator = None
        if self._steps_per_epoch is not None and steps < self._steps_per_epoch:
            warnings.warn(
                f"The data ended after {steps} of {self._steps_per_epoch} steps of this epoch. "
                "Make sure that it holds steps_per_epoch * epochs batches, or use .repeat().",
                stacklevel=2,
            )
