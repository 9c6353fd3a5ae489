"""Predict: every row once, in input order, on however many replicas."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autostrategy.errors import TrainingError
from autostrategy.training import (
    agreement,
    compiled_steps,
    keras_semantics,
    loops,
    static_shapes,
    steps,
)
from autostrategy.training import callbacks as callback_rules
from autostrategy.training.feed import Feed
from autostrategy.training.layouts import Layout


def make_predict(model: keras.Model, layout: Layout, *, workers: int) -> Callable[[Any], Any]:
    """A function from one element of `sharing_out.for_replicas` to outputs for all its rows."""
    step = steps.predict_step_of(model)
    if layout.compiled:
        step = compiled_steps.whole(step)
    if workers > 1:
        step = _gathering(step)
    filled = layout.shapes is not None and layout.shapes.filled

    def predict(element: Any) -> Any:
        with keras_semantics.replica_semantics():
            outputs = loops.run_element(layout, step, element)
        if layout.strategy is None:
            return outputs
        rows = None if layout.single else element[0][1]["rows"]
        # Of each replica's part as many rows as are real; the rest fills it up.
        real = [tf.reduce_sum(tf.cast(each["real"], tf.int32)) for _, each in element if filled]
        first_only = workers > 1 or layout.single
        return tf.nest.map_structure(
            lambda output: _join(
                layout.strategy.experimental_local_results(output)[: 1 if first_only else None],
                rows,
                real,
            ),
            outputs,
        )

    if model.run_eagerly:
        return predict
    return tf.function(predict, reduce_retracing=True, autograph=False)


def run(
    model: keras.Model, predict: Callable[[Any], Any], feed: Feed, callbacks: Any, verbose: Any
) -> Any:
    """Outputs for one pass of `feed`, as `keras.Model.predict` returns them.

    Raises:
        TrainingError: there is no data.
    """
    hooks = callback_rules.listed(callbacks, model, verbose=verbose, steps=feed.steps)
    model.stop_predicting = False
    hooks.on_predict_begin()
    outputs: list[Any] = []
    with static_shapes.told(), feed.epoch() as (iterator, wanted):
        for step, element in enumerate(_agreed(itertools.islice(iterator, wanted), feed)):
            hooks.on_predict_batch_begin(step)
            outputs.append(predict(element))
            hooks.on_predict_batch_end(step, {"outputs": outputs[-1]})
            if model.stop_predicting:
                break
    hooks.on_predict_end()
    if not outputs:
        raise TrainingError("x must have at least 1 batch. Received: an empty dataset.")
    return concatenated(outputs)


def _agreed(elements: Iterator[Any], feed: Feed) -> Iterator[Any]:
    """Elements until they end, which they must on all workers at once."""
    layout = feed.layout
    if not layout.has_peers or feed.sure:
        yield from elements
        return
    while True:
        element = next(elements, None)
        if not agreement.all_have(layout, element is not None):
            return
        yield element


def concatenated(outputs: list[Any]) -> Any:
    """Outputs of single batches as one structure of arrays (ragged tensors stay ragged)."""
    return tf.nest.map_structure(lambda *parts: _concatenated(parts), *outputs)


def _concatenated(parts: tuple[Any, ...]) -> Any:
    if isinstance(parts[0], tf.RaggedTensor):
        return tf.concat(parts, axis=0)
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(axis=0, sp_inputs=list(parts))
    arrays = [part.numpy() for part in parts]
    return np.stack(arrays) if arrays[0].ndim == 0 else np.concatenate(arrays, axis=0)


def _join(parts: tuple[Any, ...], rows: tf.Tensor | None, real: list[tf.Tensor]) -> Any:
    """Parts in replica order; beyond `rows` they repeat a batch with few rows.

    Only the first `real` rows of each part count, where that is not empty.
    """
    if real and parts[0].shape.rank != 0:
        return tf.concat([part[:size] for part, size in zip(parts, real, strict=True)], axis=0)
    if len(parts) == 1 and rows is None:
        return parts[0]
    if isinstance(parts[0], tf.SparseTensor):
        joined = tf.sparse.concat(axis=0, sp_inputs=list(parts))
        shape = tf.concat([[tf.cast(rows, tf.int64)], joined.dense_shape[1:]], 0)
        return tf.sparse.slice(joined, tf.zeros_like(shape), shape)
    if parts[0].shape.rank == 0:
        return tf.stack(parts)
    return tf.concat(parts, axis=0)[:rows]


def _gathering(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step with the outputs of all workers' replicas, in replica order."""

    def gather(output: Any) -> tf.Tensor:
        if not tf.is_tensor(output) or output.dtype == tf.string:
            raise TrainingError(
                "predict on several workers takes models whose outputs are dense numbers. "
                f"Received an output of type {type(output).__name__}. "
                "Predict in one process: history.model.predict(x)."
            )
        return tf.distribute.get_replica_context().all_gather(output, axis=0)

    def gathering_step(batch: Any, extent: Any) -> Any:
        return tf.nest.map_structure(gather, step(batch, extent))

    return gathering_step
