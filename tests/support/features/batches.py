"""Batches that no number of replicas divides."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from jobs import Feature, Job
from parts import X, Y, net, rows


def batches(count: int, size: int, epochs: int) -> Any:
    """So many rows in batches of this size, with a metric and momentum."""

    def make(k: Any) -> Job:
        model = net(k, lambda: {"metrics": ["mae"]})
        data = rows(X[:count], Y[:count], batch=size)
        return Job(model, data, lambda: {"epochs": epochs})

    return make


def dropped_remainder(k: Any) -> Job:
    def data() -> tuple[Any, ...]:
        return (tf.data.Dataset.from_tensor_slices((X[:20], Y[:20])).batch(7, drop_remainder=True),)

    return Job(net(k), data)


BATCHES = (
    Feature("batches that the replicas divide", batches(20, 4, 4)),
    Feature("short last batch", batches(22, 8, 6)),
    Feature("batch that the replicas do not divide", batches(21, 7, 6)),
    Feature("last batch of fewer rows than replicas", batches(22, 7, 5)),
    Feature("batches of one row", batches(6, 1, 3)),
    Feature("fewer rows than a batch", batches(5, 8, 20)),
    Feature("drop_remainder", dropped_remainder),
)
