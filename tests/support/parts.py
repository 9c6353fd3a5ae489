"""Data, nets and small pieces that many features share.

22 rows in batches of 7: no number of replicas divides them, and the last batch
has one row. With SUPPORT_BATCHES=even the same features have 32 rows in batches
of 8, which two replicas divide: so it is seen whether a system is right about a
feature and only wrong about such batches. SUPPORT_BATCHES=short has 29 rows in
batches of 8, the last of 5: full batches are multiples of the replicas, as a TPU
wants them. 5 epochs are 20 steps in each case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from flavours import data_set_class

_BATCHES = os.environ.get("SUPPORT_BATCHES", "uneven")
ROWS, BATCH = {"uneven": (22, 7), "short": (29, 8), "even": (32, 8)}[_BATCHES]
# Rows of the validation data, and of a batch of it.
VALIDATION, VALIDATION_BATCH = {"uneven": (13, 3), "short": (13, 4), "even": (12, 4)}[_BATCHES]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal numbers, always the same."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X, Y = random(ROWS, 3), random(ROWS, 1, seed=1)
YES = (Y > 0).astype("float32")
CLASSES = np.random.default_rng(2).integers(0, 3, (ROWS, 1))
ONE_HOT = np.eye(3, dtype="float32")[CLASSES[:, 0]]
ROW_WEIGHTS = np.random.default_rng(3).uniform(0, 2, ROWS).astype("float32")
TOKENS = np.random.default_rng(4).integers(1, 6, (ROWS, 5))
for _row, _length in enumerate(np.random.default_rng(5).integers(1, 6, ROWS)):
    TOKENS[_row, _length:] = 0
STEPS = random(ROWS, 5, 1, seed=6)
STEP_WEIGHTS = np.random.default_rng(7).uniform(0, 2, (ROWS, 5)).astype("float32")
IDS = np.arange(ROWS, dtype="float32")[:, None]


def dataset(*arrays: Any, batch: int = BATCH) -> tf.data.Dataset:
    """A dataset in the given order, never shuffled."""
    structure = arrays if len(arrays) > 1 else arrays[0]
    return tf.data.Dataset.from_tensor_slices(structure).batch(batch)


def rows(*arrays: Any, batch: int = BATCH) -> Callable[[], tuple[Any, ...]]:
    """For `Job.data`: a dataset of these arrays."""
    return lambda: (dataset(*arrays, batch=batch),)


def in_order(**more: Any) -> Callable[[], dict[str, Any]]:
    """For `Job.arguments`, with arrays as data."""
    return lambda: {"batch_size": BATCH, **more}


def kernel(k: Any, seed: int) -> Any:
    """An initializer that draws the same numbers each time."""
    return k.initializers.RandomNormal(stddev=0.5, seed=seed)


def dense(k: Any, units: int, seed: int, *arguments: Any, **keywords: Any) -> Any:
    """A dense layer whose kernel is always the same."""
    return k.layers.Dense(units, *arguments, kernel_initializer=kernel(k, seed), **keywords)


def sgd(k: Any, rate: float = 0.05, **keywords: Any) -> Any:
    """The optimizer of most features."""
    return k.optimizers.SGD(rate, momentum=0.9, **keywords)


def slow(k: Any) -> Any:
    """For sums over rows and layers that amplify: rounding must not grow in 20 steps."""
    return k.optimizers.SGD(0.005)


def sequential(
    k: Any, layers: Callable[[], list[Any]], compiled: Callable[[], dict[str, Any]]
) -> Callable[[], Any]:
    """A function that makes a Sequential model and compiles it; both are made in the scope."""

    def model_fn() -> Any:
        model = k.Sequential(layers())
        model.compile(**compiled())
        return model

    return model_fn


def net(
    k: Any,
    compiled: Callable[[], dict[str, Any]] = dict,
    *,
    units: int = 1,
    activation: str | None = None,
) -> Callable[[], Any]:
    """A function that makes two dense layers, by default with SGD and mean squared error."""
    return sequential(
        k,
        lambda: [k.Input((3,)), dense(k, 4, 1, "tanh"), dense(k, units, 2, activation)],
        lambda: {"optimizer": sgd(k), "loss": "mse", **compiled()},
    )


def heads(k: Any, losses: Callable[[], dict[str, Any]], **compiled: Any) -> Callable[[], Any]:
    """A function that makes a net with one output for each loss, and none sharing a weight."""

    def model_fn() -> Any:
        x = k.Input((3,))
        made = losses()
        outputs = {
            name: dense(k, 1, index, name=name)(dense(k, 2, index + 50, "tanh")(x))
            for index, name in enumerate(made)
        }
        model = k.Model(x, outputs)
        model.compile(slow(k), made, **compiled)
        return model

    return model_fn


def two_layers(k: Any) -> Any:
    """A subclassed model of two dense layers, without variables before it sees data."""

    class TwoLayers(k.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = dense(k, 4, 1, "tanh"), dense(k, 1, 2)

        def call(self, x: Any, training: bool = False) -> Any:
            return self.out(self.hidden(x))

    return TwoLayers


def rows_seen(k: Any) -> Any:
    """A user's metric that counts rows, in whole numbers."""

    class Rows(k.metrics.Metric):
        def __init__(self, name: str = "rows") -> None:
            super().__init__(name=name)
            self.seen = self.add_weight(name="seen", shape=(), initializer="zeros", dtype="int32")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.seen.assign_add(tf.shape(y_true)[0])

        def result(self) -> Any:
            return tf.cast(tf.convert_to_tensor(self.seen), "float32")

        def reset_state(self) -> None:
            self.seen.assign(0)

    return Rows()


def times_seen(k: Any) -> Any:
    """A metric on row numbers as labels: the largest |times that a row was seen - 1|."""

    class Repeats(k.metrics.Metric):
        def __init__(self, name: str = "repeats") -> None:
            super().__init__(name=name)
            self.seen = self.add_weight(name="seen", shape=(ROWS,), initializer="zeros")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            numbers = tf.cast(tf.reshape(y_true, [-1]), "int32")
            self.seen.assign_add(tf.reduce_sum(tf.one_hot(numbers, ROWS), axis=0))

        def result(self) -> Any:
            return tf.reduce_max(tf.abs(tf.convert_to_tensor(self.seen) - 1.0))

        def reset_state(self) -> None:
            self.seen.assign(tf.zeros((ROWS,)))

    return Repeats()


def batches_class(k: Any) -> Any:
    """A user's PyDataset (Sequence in tf_keras), whose batches are views of its arrays."""

    class Batches(data_set_class(k)):
        def __init__(self, *arrays: np.ndarray, batch: int = BATCH) -> None:
            super().__init__()
            self.arrays, self.batch = arrays, batch

        def __len__(self) -> int:
            return -(-len(self.arrays[0]) // self.batch)

        def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
            chosen = slice(index * self.batch, (index + 1) * self.batch)
            return tuple(array[chosen] for array in self.arrays)

    return Batches


def generator(*arrays: np.ndarray, passes: int = 5) -> Iterator[tuple[np.ndarray, ...]]:
    """A Python generator of batches, several times over the arrays."""
    for _ in range(passes):
        for start in range(0, len(arrays[0]), BATCH):
            yield tuple(array[start : start + BATCH] for array in arrays)


def mean_square(y_true: Any, y_pred: Any) -> Any:
    """A loss that is one number for the batch."""
    return tf.reduce_mean(tf.square(y_true - y_pred))
