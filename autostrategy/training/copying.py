"""Copies of what Python sources hand out, so that TensorFlow may do with them as it likes.

TensorFlow takes an aligned NumPy array from a Python function without a copy,
and a later operation may then write its result in place: stock Keras was seen
to overwrite a user's labels that way.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import keras
import numpy as np

from autostrategy.errors import TrainingError


def copying(x: Any) -> Any:
    """`x`, or for a generator and a PyDataset one that yields copies of its arrays.

    Raises:
        TrainingError: a generator has nothing left.
    """
    if inspect.isgenerator(x):
        first = next(x, None)
        if first is None:
            raise TrainingError(
                "x must yield at least 1 batch. Received: a generator that is empty, or that an "
                "earlier fit used up. Make a new one for each call."
            )
        return (_copy(batch) for batch in itertools.chain([first], x))
    if isinstance(x, keras.utils.PyDataset):
        return CopyingPyDataset(x)
    return x


def _copy(batch: Any) -> Any:
    return keras.tree.map_structure(
        lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf, batch
    )


class CopyingPyDataset(keras.utils.PyDataset):
    """A user's PyDataset with copied batches, in an order that all workers agree on."""

    def __init__(self, inner: keras.utils.PyDataset) -> None:
        super().__init__(
            workers=inner.workers,
            use_multiprocessing=inner.use_multiprocessing,
            max_queue_size=inner.max_queue_size,
        )
        self._inner = inner
        self._seed: int | None = None
        self._epoch = 0
        self._order: np.ndarray | None = None

    def reorder(self, seed: int | None, epoch: int) -> None:
        """Draw batches in an order made from `seed` and the epoch; None keeps the order."""
        self._seed = None if self._inner.num_batches is None else seed
        self._epoch = epoch
        self._order = None

    @property
    def num_batches(self) -> int | None:
        return self._inner.num_batches

    def __getitem__(self, index: int) -> Any:
        if self._seed is not None and self._order is None:
            generator = np.random.default_rng([self._seed, self._epoch])
            self._order = generator.permutation(self.num_batches or 0)
        return _copy(self._inner[index if self._order is None else int(self._order[index])])

    def on_epoch_begin(self) -> None:
        self._inner.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._inner.on_epoch_end()
        self._epoch += 1
        self._order = None
