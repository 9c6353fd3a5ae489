"""The outer loop: epochs, callbacks, validation; what one loop does not know.

on_train_begin
for each epoch
    on_epoch_begin
    while steps are left
        on_train_batch_begin, inner loop, on_train_batch_end
    validate
    on_epoch_end
on_train_end
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from autostrategy.errors import TrainingError
from autostrategy.training import agreement, keras_internals, static_shapes
from autostrategy.training import callbacks as callback_rules
from autostrategy.training.feed import Feed
from autostrategy.training.learning_rate import ScaledLearningRate
from autostrategy.training.pace import Pace
from autostrategy.training.xla_trial import XlaTrial

# (callbacks, verbose) -> logs
Validate = Callable[[Any, Any], dict[str, Any]]
LoopMaker = Callable[..., Any]
ENDED_EARLY = (
    "The data must hold as many batches as it says. Received: data that ended early. "
    "Does its length or cardinality promise more than it yields?"
)
# (model, feed, rate, pace, callbacks, counts, epoch, workers that agree) -> logs
EpochTrainer = Callable[..., dict[str, Any]]

# Testing has nobody to wait for but the progress bar.
_TEST_STEPS_PER_LOOP = 16


def train(
    model: keras.Model,
    feed: Feed,
    *,
    refeed: Callable[[int], Feed] | None,
    train_epoch: EpochTrainer,
    rate: ScaledLearningRate,
    pace: Pace,
    callbacks: Any,
    epochs: int,
    initial_epoch: int,
    verbose: Any,
    validate: Validate | None,
    validation_freq: Any,
    is_chief: bool,
    workers: int,
) -> tuple[keras.callbacks.History, dict[str, Any]]:
    """Train from `initial_epoch` to `epochs`.

    Args:
        model: a built model whose state lives in the strategy.
        feed: the data from `initial_epoch` on.
        refeed: the data from another epoch on, None where it cannot start again.
        train_epoch: runs the loops of one epoch: `in_process`, or the chief's
            of parameter servers.
        rate, pace: the learning rate and the steps of a loop.
        validate: evaluates the validation data, None without.
        The rest is as in `keras.Model.fit`.

    Returns:
        The history, and the counts and times of a `Report`.

    Raises:
        TrainingError: a loss is not finite, or there is no data.
    """
    given = keras.tree.flatten(callbacks) if callbacks else []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        given = list(callbacks.callbacks)
    hooks = keras.callbacks.CallbackList(
        callback_rules.for_this_task(given, is_chief=is_chief, rate=rate),
        add_history=True,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=feed.steps,
        model=model,
    )
    own = keras_internals.returns_own_logs(model, "train_step")
    by_batch = callback_rules.need_every_batch(given)
    if by_batch or own:
        # The logs of a step of the user's own come from the step, not from metrics.
        pace.single(always=own and not feed.sure)
    model.stop_training = False
    hooks.on_train_begin()
    restored = keras_internals.initial_epoch_of(model)
    if restored and restored != initial_epoch:
        initial_epoch = restored
        feed = refeed(restored) if refeed is not None else feed
    rate.start()
    counts = {"epochs": 0, "steps": 0, "examples": 0, "training": 0.0, "first": 0.0}
    begun = time.perf_counter()
    logs: dict[str, Any] = {}
    try:
        for epoch in range(initial_epoch, epochs):
            model.reset_metrics()
            with rate.full():
                hooks.on_epoch_begin(epoch)
            # Who looks at batches may stop at one, on one worker alone.
            agreeing = workers if by_batch else 1
            logs = train_epoch(model, feed, rate, pace, hooks, counts, epoch, agreeing)
            if feed.exhausted and not logs:
                break
            if validate is not None and _is_due(epoch, validation_freq):
                values = validate(hooks, verbose)
                logs = {**logs, **{f"val_{name}": value for name, value in values.items()}}
            with rate.full():
                hooks.on_epoch_end(epoch, logs)
            _agree_on_stopping(model, feed, workers)
            if model.stop_training or feed.exhausted:
                break
    finally:
        rate.stop()
    if epochs > initial_epoch and isinstance(model.optimizer, keras.optimizers.Optimizer):
        with keras_internals.scope_of(model.optimizer):
            model.optimizer.finalize_variable_values(model.trainable_weights)
    hooks.on_train_end(logs)
    history = model.history
    return history, {
        "epochs": counts["epochs"],
        "steps": counts["steps"],
        "examples": counts["examples"],
        "seconds": time.perf_counter() - begun,
        "training_seconds": counts["training"],
        "first_loop_seconds": counts["first"],
    }


def in_process(
    model: keras.Model,
    feed: Feed,
    rate: ScaledLearningRate,
    pace: Pace,
    hooks: keras.callbacks.CallbackList,
    counts: dict[str, Any],
    epoch: int,
    agreeing: int,
    *,
    loop: LoopMaker,
    trial: XlaTrial | None = None,
) -> dict[str, Any]:
    """One epoch's loops, each on all replicas of this process; the logs after the last.

    `loop` is `Trainer._loop`, `trial` tries XLA where that is left open; the
    rest is what `train` hands on.
    """
    logs: dict[str, Any] = {}
    with feed.epoch() as (iterator, wanted):
        step = 0
        while wanted is None or step < wanted:
            warming = rate.warming_up(counts["steps"])
            size = 1 if warming else pace.steps
            if wanted is not None:
                size = min(size, wanted - step)
            size = feed.alike(step, size if trial is None else trial.steps(size))
            rate.at_step(counts["steps"])
            hooks.on_train_batch_begin(step)
            run = loop(
                feed.layout,
                training=True,
                to_end=not feed.sure,
                one_step=pace.one_step,
                compiled=None if trial is None else trial.compiled,
            )
            begun = time.perf_counter()
            done, new = _run(run, iterator, size)
            seconds = time.perf_counter() - begun
            if done == 0:
                break
            logs = keras_internals.pythonify(new)
            counts["training"] += seconds
            counts["first"] = counts["first"] or seconds
            counts["steps"] += done
            step += done
            require_finite(logs, epoch, step, hooks)
            hooks.on_train_batch_end(step - 1, logs)
            _agree_on_stopping(model, feed, agreeing)
            if not warming:
                pace.took(done, seconds)
                if trial is not None:
                    trial.took(done, seconds)
            if model.stop_training or done < size:
                break
        if not model.stop_training:
            feed.finished(step, wanted)
        counts["epochs"] += bool(step)
        rows = feed.rows(step)
        counts["examples"] = None if rows is None else (counts["examples"] or 0) + rows
    return logs


def evaluate(
    model: keras.Model, feed: Feed, loop: LoopMaker, callbacks: Any, verbose: Any
) -> dict[str, Any]:
    """Loss and metrics over one pass of `feed`.

    `callbacks` is as in `keras.Model.evaluate`, or the `CallbackList` of the
    training that this belongs to.

    Raises:
        TrainingError: there is no data.
    """
    hooks = callback_rules.listed(callbacks, model, verbose=verbose, steps=feed.steps)
    every = callback_rules.need_every_batch(hooks.callbacks, "test")
    own = keras_internals.returns_own_logs(model, "test_step")
    pace = 1 if every or own else max(_TEST_STEPS_PER_LOOP, model.steps_per_execution)
    model.stop_evaluating = False
    hooks.on_test_begin()
    model.reset_metrics()
    logs: dict[str, Any] = {}
    with feed.epoch() as (iterator, wanted):
        step = 0
        while wanted is None or step < wanted:
            size = feed.alike(step, pace if wanted is None else min(pace, wanted - step))
            hooks.on_test_batch_begin(step)
            run = loop(feed.layout, training=False, to_end=not feed.sure, one_step=pace == 1)
            done, new = _run(run, iterator, size)
            if done == 0:
                break
            step += done
            logs = keras_internals.pythonify(new)
            hooks.on_test_batch_end(step - 1, logs)
            if model.stop_evaluating or done < size:
                break
        if not model.stop_evaluating:
            feed.finished(step, wanted)
    hooks.on_test_end(logs)
    return logs


def _run(run: Any, iterator: Any, size: int) -> tuple[int, dict[str, Any]]:
    try:
        with static_shapes.told():
            return run(iterator, size)
    except (tf.errors.OutOfRangeError, tf.errors.FailedPreconditionError) as error:
        if not ended_early(error):
            raise
        raise TrainingError(ENDED_EARLY) from None
    except tf.errors.UnavailableError as error:
        raise TrainingError(
            "Every worker must stay alive until all are done. Received: "
            f"{_first_line(error)}. Look at the output of the other workers for the reason."
        ) from None


def ended_early(error: Exception) -> bool:
    """Whether data ended that had promised more."""
    if isinstance(error, tf.errors.FailedPreconditionError):
        return "expected to contain" in str(error)  # by tf.data.experimental.assert_cardinality
    return isinstance(error, tf.errors.OutOfRangeError)


def _first_line(error: tf.errors.OpError) -> str:
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
    told = [line for line in lines if "aborted" in line or "Unavailable" in line]
    return (told or lines or ["no reason"])[0][:300].rstrip(".")


def require_finite(
    logs: dict[str, Any], epoch: int, step: int, hooks: keras.callbacks.CallbackList
) -> None:
    """Stop at a loss that is no number, unless a callback watches for it.

    Raises:
        TrainingError: naming epoch and step.
    """
    loss = logs.get("loss")
    watched = any(isinstance(each, keras.callbacks.TerminateOnNaN) for each in hooks.callbacks)
    if isinstance(loss, float) and not math.isfinite(loss) and not watched:
        raise TrainingError(
            f"The loss must be finite. Received: {loss} in epoch {epoch + 1}, at or before step "
            f"{step}. Look for NaN or infinity in the data, lower the learning rate, or clip "
            "gradients; keras.callbacks.TerminateOnNaN() ends such a run without an error."
        )


def _is_due(epoch: int, frequency: Any) -> bool:
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    return epoch + 1 in frequency


def _agree_on_stopping(model: keras.Model, feed: Feed, workers: int) -> None:
    """One worker's wish to stop is everybody's: the others would wait for it for ever."""
    if workers > 1:
        model.stop_training = agreement.largest(feed.layout, float(model.stop_training)) > 0
