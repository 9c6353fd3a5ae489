"""Keras's functions as a replica needs them, put in place while its step is traced.

Keras 3's own `train_step` and `test_step` are right for one device. In a
replica they would be wrong (clipping before the exchange, one device's seed on
all, reductions that ignore unequal shares), so while a replica's step is being
traced the functions of `keras_variables`, `keras_losses` and
`keras_optimizers` stand in for Keras's. They look at the share of the current
thread and do nothing outside a step, so a user's own threads, and models that
train elsewhere in the process, see Keras as it is.

Private to Keras; tested with Keras 3.12 and 3.15, and
tests/training/test_keras_internals.py fails loudly when a part changes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.trainers.trainer import Trainer as KerasTrainer

from autostrategy.training import keras_losses, keras_optimizers, keras_variables, padding
from autostrategy.training import share as shares

_results = KerasTrainer.get_metrics_result


def _replica_results(model: Any) -> Any:
    return {} if shares.results_are_unread() else _results(model)


_REPLACEMENTS: tuple[tuple[Any, str, Any], ...] = (
    *keras_variables.REPLACEMENTS,
    *keras_losses.REPLACEMENTS,
    *keras_optimizers.REPLACEMENTS,
    *padding.REPLACEMENTS,
    (KerasTrainer, "get_metrics_result", _replica_results),
)
_ORIGINALS = tuple(vars(owner)[name] for owner, name, _ in _REPLACEMENTS)

_lock = threading.Lock()
_depth = 0


@contextlib.contextmanager
def replica_semantics() -> Iterator[None]:
    """Keras's functions as a replica needs them, while the block traces its step.

    May be nested, and entered by several threads: the last to leave puts
    Keras's own back.
    """
    global _depth
    with _lock:
        if _depth == 0:
            for owner, name, replacement in _REPLACEMENTS:
                setattr(owner, name, replacement)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                for (owner, name, _), original in zip(_REPLACEMENTS, _ORIGINALS, strict=True):
                    setattr(owner, name, original)


@contextlib.contextmanager
def global_results(metrics: list[Any]) -> Iterator[None]:
    """Let `result()` of these metrics, called in a step, be that of all replicas.

    A step of the user's own may put `metric.result()` into its logs under any
    name; what this replica counted would be no answer.
    """
    for metric in metrics:
        metric.result = _global_result(metric, metric.result)
    try:
        yield
    finally:
        for metric in metrics:
            del metric.result


def _everywhere(share: shares.Share, counted: list[Any]) -> list[Any]:
    return counted if share.asynchronous else list(shares.all_reduce_sum(counted))


def _global_result(metric: Any, result: Callable[..., Any]) -> Callable[..., Any]:
    def of_all_replicas(*args: Any, **kwargs: Any) -> Any:
        share = shares.current()
        if share is None:
            return result(*args, **kwargs)
        counted = [
            tf.where(share.counted, variable.value, share.before.get(id(variable), variable.value))
            for variable in metric.variables
        ]
        mapping = [
            (variable, share.totals[id(variable)] + value)
            for variable, value in zip(metric.variables, _everywhere(share, counted), strict=True)
        ]
        with StatelessScope(state_mapping=mapping):
            return result(*args, **kwargs)

    return of_all_replicas
