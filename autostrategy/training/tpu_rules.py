"""The rules of a TPU: XLA compiles the step, shapes are static, no Python in the step.

They hold on a TPU, and on CPU devices that rehearse one (docs/decisions/
0008-tpu-rules.md). Here is what the trainer asks before the first step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import keras
import tensorflow as tf

from autostrategy import device_selection
from autostrategy.errors import TrainingError
from autostrategy.planner import Plan, StrategyKind
from autostrategy.training import (
    keras_internals,
    keras_semantics,
    loops,
    static_shapes,
    steps,
)
from autostrategy.training import share as shares
from autostrategy.training.batches import Batches, may_be_short
from autostrategy.training.layouts import Layout
from autostrategy.training.sharing_out import for_replicas
from autostrategy.training.static_shapes import StaticShapes


def require_allowed(model: keras.Model, made: Batches, plan: Plan) -> None:
    """Check, before the model is built, that XLA can take the batches at all.

    Raises:
        TrainingError: naming what is not allowed under the plan.
    """
    if plan.kind is not StrategyKind.TPU:
        return
    if model.run_eagerly:
        raise TrainingError(
            "The step must not run as Python under TPU rules. Received: run_eagerly=True. "
            "Compile the model with run_eagerly=False."
        )
    static_shapes.require_dense(made.spec)


def laid_out(
    model: keras.Model,
    layout: Layout,
    made: Batches,
    plan: Plan,
    *,
    training: bool,
    predicting: bool,
) -> Layout:
    """The layout for these batches, with shapes that do not change; as it is under other plans.

    Args:
        model: built, its state in the layout's strategy.
        layout: the replicas.
        made: the batches.
        plan: of the training.
        training: whether the step trains; one that tests may get batches that
            are no multiple of the replicas, since nothing depends on it.
        predicting: whether the step predicts.

    Raises:
        TrainingError: data or model cannot have static shapes.
    """
    if plan.kind is not StrategyKind.TPU:
        return layout
    # A TPU compiles whatever runs on it; a CPU that rehearses one must be told to.
    rehearsed = device_selection.are_cpus(plan.devices)
    compiled = rehearsed and all(layer.supports_jit for layer in keras_internals.layers_of(model))
    layout = dataclasses.replace(layout, compiled=compiled)
    size = made.batch_size or made.first
    if size is None:
        raise TrainingError(
            "Batches must have a size that the first one shows. Received: data without one. "
            "Use dataset.batch(size)."
        )
    if training:
        static_shapes.require_multiple(size, layout.replicas)
    if layout.single:
        return layout
    shapes = StaticShapes(rows=-(-size // layout.replicas), filled=False)
    full = shapes.rows * layout.replicas
    if not may_be_short(made, full):
        return dataclasses.replace(layout, shapes=shapes, scarce=False)
    filled = dataclasses.replace(
        layout, shapes=dataclasses.replace(shapes, filled=True), scarce=False
    )
    if reason_against_filling(model, filled, made, training=training, predicting=predicting):
        return dataclasses.replace(layout, shapes=shapes, scarce=True)
    return filled


def reason_against_filling(
    model: keras.Model, layout: Layout, made: Batches, *, training: bool, predicting: bool
) -> str | None:
    """Why rows that fill up a short batch would change a result; None when they would not.

    Found by tracing the step of one replica, which runs nothing. What depends
    on rows inside a layer of the user's own, and leaves no trace in a loss or
    in the layer's state, is not found.
    """
    name = "predict_step" if predicting else "train_step" if training else "test_step"
    if keras_internals.has_own(model, name):
        return f"{type(model).__name__} has its own {name}"
    if predicting:
        return None
    if keras_internals.returns_own_logs(model, name) or keras_internals.has_own(
        model, "compute_loss"
    ):
        return f"{type(model).__name__} computes its own loss or metrics"
    trying = dataclasses.replace(layout, runner=_try, assigned={}, not_sums={})
    step = steps.step_of(model, trying, {}, training=training)

    def trial(element: Any) -> None:
        totals = loops.on_replicas(trying, lambda: steps.begin(model, trying, {}))
        loops.run_element(trying, step, element, totals=totals)

    spec = for_replicas(made, layout).element_spec
    with keras_semantics.replica_semantics():
        try:
            tf.function(trial, autograph=False).get_concrete_function(spec)
        except _Tried as tried:
            return tried.reason
    raise AssertionError("a step that is tried does not end")


class _Tried(Exception):
    """Ends a trial, with why rows cannot fill up a batch, or None when they can."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason)
        self.reason = reason


def _try(model: keras.Model, share: shares.Share, step: Callable[[], Any]) -> NoReturn:
    """Trace a step up to its update, and end the trial with what was found."""
    share.taken = []
    try:
        step()
    except Exception as error:
        # Weights that a metric cannot take are as good a reason as our own.
        raise _Tried(str(error) or type(error).__name__) from None
    raise _Tried(_trace_of_rows(model, share))


def _trace_of_rows(model: keras.Model, share: shares.Share) -> str | None:
    """What in a step that was traced may have been reduced over rows by a layer itself."""
    kerass_own: set[int] = set()
    for layer in keras_internals.layers_of(model):
        if layer._losses:
            return f"{layer.name} adds a loss"
        if type(layer).__module__.startswith("keras."):
            kerass_own.update(id(variable) for variable in layer._non_trainable_variables)
            kerass_own.update(id(variable) for variable in layer._trainable_variables)
    for key, variable in share.assigned.items():
        state = key not in share.metric_ids and key not in kerass_own
        if state and variable.value.dtype.is_floating:
            return f"{variable.path} is written to in the step"
    return None
