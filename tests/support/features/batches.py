"""Batches that no number of replicas divides."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from jobs import Feature, Job
from parts import BATCH, X, Y, net, rows, sgd

MULTIPLE = "must be a multiple of the"


def batches(count: int, size: int, epochs: int, rate: float = 0.05) -> Any:
    """So many rows in batches of this size, with a metric and momentum."""

    def make(k: Any) -> Job:
        model = net(k, lambda: {"metrics": ["mae"], "optimizer": sgd(k, rate)})
        data = rows(X[:count], Y[:count], batch=size)
        return Job(model, data, lambda: {"epochs": epochs})

    return make


def dropped_remainder(k: Any) -> Job:
    def data() -> tuple[Any, ...]:
        return (
            tf.data.Dataset.from_tensor_slices((X[:20], Y[:20])).batch(BATCH, drop_remainder=True),
        )

    return Job(net(k), data)


BATCHES = (
    Feature("batches that the replicas divide", batches(20, 4, 4)),
    Feature("short last batch", batches(22, 8, 6)),
    Feature("batch that the replicas do not divide", batches(21, 7, 6), refused_on_tpu=MULTIPLE),
    # 22 rows, or 25 where batches have 8.
    Feature("last batch of fewer rows than replicas", batches(3 * BATCH + 1, BATCH, 5)),
    # At a low rate, since steps on one row that are taken asynchronously need not lower a loss.
    Feature("batches of one row", batches(6, 1, 4, rate=0.005), refused_on_tpu=MULTIPLE),
    Feature("fewer rows than a batch", batches(5, 8, 20), refused_on_tpu=MULTIPLE),
    Feature("drop_remainder", dropped_remainder),
)
