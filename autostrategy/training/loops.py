"""Inner loops: run k steps in one call of TensorFlow.

begin        metrics count from zero on each replica
k times      next(iterator), one step on all replicas
end          one exchange makes metrics and moving statistics equal again
read         metrics and logs, as they stand after the k-th step
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from autostrategy.errors import TrainingError
from autostrategy.training import agreement, keras_internals, keras_semantics, steps
from autostrategy.training import share as shares
from autostrategy.training.layouts import Layout

# (iterator, number of steps) -> steps done, logs
Loop = Callable[[Any, int], tuple[int, dict[str, Any]]]


class Loops:
    """The loops of one model, each traced once for as long as it is compiled alike."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._made: dict[tuple[Any, ...], Loop] = {}

    def __call__(
        self,
        layout: Layout,
        *,
        training: bool,
        to_end: bool,
        one_step: bool,
        compiled: bool | None = None,
    ) -> Loop:
        """As `make_loop`; `compiled` says whether steps of one replica go through XLA."""
        key: tuple[Any, ...] = (*keras_internals.compiled_state(self._model), training, to_end)
        key += (one_step, layout.scarce, layout.shapes, layout.runner, compiled)
        if key not in self._made:
            if compiled is not None:
                layout = dataclasses.replace(layout, compiled=compiled)
            self._made[key] = make_loop(
                self._model, layout, training=training, to_end=to_end, one_step=one_step
            )
        return self._made[key]


def make_loop(
    model: keras.Model, layout: Layout, *, training: bool, to_end: bool, one_step: bool
) -> Loop:
    """A loop that trains or tests.

    Args:
        model: a built model whose state lives in the layout's strategy.
        layout: the replicas.
        training: whether to train or to test.
        to_end: stop without an error where the data ends; costs a test for
            each step, so only data of unknown size needs it.
        one_step: each call does one step, so no loop is traced.

    Returns:
        A function of a dataset iterator and a number of steps; it returns how
        many steps it did and the logs, a dictionary of tensors. It raises a
        `TrainingError` on every worker when the data of one has ended before
        another's.
    """
    layout = dataclasses.replace(layout, assigned={})
    own_of: dict[int, steps.Own] = {}
    step = steps.step_of(model, layout, own_of, training=training)
    name = "train_step" if training else "test_step"
    own = keras_internals.returns_own_logs(model, name)

    def run_steps(iterator: Any, count: tf.Tensor) -> Any:
        metrics = keras_internals.metrics_of(model) if own and not layout.single else []
        with (
            keras_semantics.replica_semantics(),
            keras_semantics.global_results(metrics),
        ):
            totals = on_replicas(layout, lambda: steps.begin(model, layout, own_of))
            run_step = functools.partial(run_element, layout, step, totals=totals)
            # The logs of a step of the user's own matter for the last step
            # only, so that step stands outside the loop.
            done = tf.constant(0)
            unequal = tf.constant(False)
            if not one_step:
                last = count - int(own)
                done, unequal = _repeat(layout, run_step, iterator, last, to_end=to_end)
            logs: dict[str, Any] = {}
            if one_step or own:
                more, split, logs = _once(layout, run_step, iterator, to_end=to_end)
                done, unequal = done + more, tf.logical_or(unequal, split)
            on_replicas(layout, lambda each: steps.end(model, layout, own_of, each), totals)
        return done, unequal, logs, model.get_metrics_result()

    run = run_steps
    if not model.run_eagerly:
        run = tf.function(run_steps, reduce_retracing=True, autograph=False)

    def loop(iterator: Any, count: int) -> tuple[int, dict[str, Any]]:
        done, unequal, logs, metrics = run(iterator, tf.constant(count, tf.int32))
        if unequal:
            raise TrainingError(agreement.UNEQUAL)
        return int(done), keras_internals.logs_or_metrics(model, logs, metrics)

    return loop


def on_replicas(layout: Layout, function: Callable[..., Any], *args: Any) -> Any:
    """`function` on every replica; nothing at all where one device is alone."""
    if layout.single or layout.strategy is None:
        return None
    return layout.strategy.run(function, args=args)


def run_element(
    layout: Layout, step: Callable[..., Any], element: Any, *, totals: Any = None
) -> Any:
    """`step` on every replica with its part of one element of `sharing_out.for_replicas`.

    `totals` is what `steps.begin` returned; predict steps take none.
    """
    if layout.strategy is None:
        return step(element)
    if layout.single:
        return layout.strategy.run(step, args=(element,))
    parts = layout.strategy.experimental_distribute_values_from_function(
        lambda context: element[context.replica_id_in_sync_group - layout.first]
    )
    return layout.strategy.run(step, args=parts if totals is None else (*parts, totals))


def _repeat(
    layout: Layout, step: Callable[..., Any], iterator: Any, count: tf.Tensor, *, to_end: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Up to `count` steps; the number done, and whether only some workers had data for more."""
    if not to_end:

        def step_once(done: tf.Tensor) -> tuple[tf.Tensor]:
            _once(layout, step, iterator, to_end=False)
            return (done + 1,)

        (done,) = tf.while_loop(lambda done: done < count, step_once, (tf.constant(0),))
        return done, tf.constant(False)

    def body(done: tf.Tensor, going: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, ...]:
        more, split, _ = _once(layout, step, iterator, to_end=True)
        return done + more, tf.equal(more, 1), split

    done, _, unequal = tf.while_loop(
        lambda done, going, unequal: tf.logical_and(going, done < count),
        body,
        (tf.constant(0), tf.constant(True), tf.constant(False)),
    )
    return done, unequal


def _once(
    layout: Layout, step: Callable[..., Any], iterator: Any, *, to_end: bool
) -> tuple[tf.Tensor, tf.Tensor, dict[str, Any]]:
    """One step, or none where `to_end` and the data has ended.

    Returns:
        The number done, whether only some workers had data, and the step's logs.
    """
    if not to_end:
        return tf.constant(1), tf.constant(False), _logs(layout, step(iterator.get_next()))
    element = iterator.get_next_as_optional()
    everywhere, somewhere = _agreed(layout, element.has_value())
    specs: list[Any] = []

    def do() -> tuple[tf.Tensor, dict[str, Any]]:
        logs = _logs(layout, step(element.get_value()))
        specs.append({name: (value.dtype, value.shape) for name, value in logs.items()})
        return tf.constant(1), logs

    def skip() -> tuple[tf.Tensor, dict[str, Any]]:
        shapes = specs[-1] if specs else {}
        return tf.constant(0), {
            name: tf.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()
        }

    done, logs = tf.cond(everywhere, do, skip)
    return done, tf.not_equal(everywhere, somewhere), logs


def _agreed(layout: Layout, here: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Whether all workers, and whether any, have what `here` says: a step of some would hang."""
    if not layout.has_peers:
        return here, here
    assert layout.strategy is not None

    def count() -> tf.Tensor:
        return shares.all_reduce_sum(tf.cast(here, tf.int32))

    having = layout.strategy.experimental_local_results(layout.strategy.run(count))[0]
    return tf.equal(having, layout.replicas), having > 0


def _logs(layout: Layout, logs: dict[str, Any]) -> dict[str, Any]:
    """Logs of a step as plain tensors; all replicas hold the same."""
    if layout.strategy is None:
        return {name: tf.convert_to_tensor(value) for name, value in logs.items()}
    return {
        name: layout.strategy.experimental_local_results(value)[0] for name, value in logs.items()
    }
