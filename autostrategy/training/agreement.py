"""What workers tell each other before and between steps, over TensorFlow's collectives."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from autostrategy.errors import PlanError, TrainingError
from autostrategy.planner import Plan
from autostrategy.training.layouts import Layout

_MOST_CHARACTERS = 8192
UNEQUAL = (
    "All workers must read the same data. Received: data that ended on some workers while others "
    "had more. Give every worker the same batches; each trains on its own rows of them."
)


# One function for each strategy: a new one for each exchange would be traced
# each time, and TensorFlow would say so.
_gather_on: dict[int, Callable[[tf.Tensor], Any]] = {}


def exchange(layout: Layout, message: str) -> list[str]:
    """`message` of every worker, in rank order; at most 8192 characters of ASCII."""
    strategy = layout.strategy
    assert strategy is not None
    assert len(message) <= _MOST_CHARACTERS
    gather = _gather_on.setdefault(id(strategy), _make_gather(strategy))
    codes = tf.constant([ord(c) for c in message.ljust(_MOST_CHARACTERS)], tf.int32)
    table = strategy.experimental_local_results(gather(codes))[0].numpy()
    return ["".join(map(chr, row)).rstrip() for row in table[:: layout.local]]


def _make_gather(strategy: tf.distribute.Strategy) -> Callable[[tf.Tensor], Any]:
    def replica(codes: tf.Tensor) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_gather(codes[tf.newaxis], axis=0)

    return tf.function(lambda codes: strategy.run(replica, args=(codes,)), autograph=False)


def require_same_plan(layout: Layout, plan: Plan, **data: Any) -> None:
    """Stop every worker unless all planned the same, for data of the same size.

    Args:
        layout: the replicas.
        plan: of this worker.
        **data: what is known of its data: batches and rows, None when unknown.

    Raises:
        PlanError: naming the fields that differ, on every worker.
    """
    digest = {**plan.digest, **{name: str(value) for name, value in data.items()}}
    digests = [json.loads(text) for text in exchange(layout, json.dumps(digest))]
    names = sorted({name for digest in digests for name in digest})
    different = [name for name in names if len({digest.get(name) for digest in digests}) > 1]
    if different:
        told = "; ".join(
            f"{name}: " + ", ".join(f"{d.get(name)} (worker {w})" for w, d in enumerate(digests))
            for name in different
        )
        raise PlanError(
            f"All workers must make the same plan. Received: plans that differ in {told}. Give "
            "every worker the same arguments, data, packages and devices."
        )


def all_have(layout: Layout, here: bool) -> bool:
    """Whether all workers have what `here` says.

    Raises:
        TrainingError: some have and some have not, on every worker.
    """
    having = {text == "True" for text in exchange(layout, str(here))}
    if len(having) > 1:
        raise TrainingError(UNEQUAL)
    return here


def largest(layout: Layout, value: float) -> float:
    """The largest `value` over all workers, so that they all decide alike."""
    return max(float(text) for text in exchange(layout, repr(float(value))))
