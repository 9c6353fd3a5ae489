"""Steps of a worker under parameter servers: whole batches, and nobody waits.

The chief schedules loops of k steps on whichever worker is free. A loop runs
the model's own step on each of its batches; variables are read from the
servers and updated there by TensorFlow's single operations (`assign_add`), so
that two workers that update at once both count. What only this loop needs
lives on the worker: metrics count from zero there and are added to the totals
when the loop ends; seeds are derived from the number of the loop, so that no
two loops draw the same masks; a layer's own state is brought up to date with
the servers after each step, by adding what the step changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from autostrategy import parameter_servers, tensorflow_internals
from autostrategy.training import keras_internals, keras_semantics, relocation, steps
from autostrategy.training import share as shares
from autostrategy.training.batches import rows_of
from autostrategy.training.layouts import Layout
from autostrategy.training.sharing_out import part

# (batches one after another, rows of each, arrays of the worker, number of the
# loop, steps of accumulation to go on from) -> steps done, logs of the step's own
Loop = Callable[..., Any]


def make_loop(
    model: keras.Model,
    layout: Layout,
    spec: Any,
    grab: Callable[[Any, Any], Any],
    *,
    training: bool,
) -> Loop:
    """A `tf.function` for `ClusterCoordinator.schedule`.

    Args:
        model: a built model whose state lives on the servers.
        layout: of one worker.
        spec: `tf.TypeSpec` structure of an element that the chief sends.
        grab: from an element and the arrays that the worker holds to a batch.
        training: whether to train or to test.
    """
    loop = _Loop(model, layout, training=training)

    def run(
        packed: Any, sizes: tf.Tensor, resident: Any, number: tf.Tensor, carried: tf.Tensor
    ) -> Any:
        arrays = None if resident is None else resident.get_next()
        ends = tf.cumsum(sizes)

        def batch_at(index: tf.Tensor) -> Any:
            start = ends[index] - sizes[index]
            return grab(part(spec, packed, start, sizes[index], index), arrays)

        def body(index: tf.Tensor) -> tuple[tf.Tensor]:
            loop.step(batch_at(index))
            return (index + 1,)

        with loop.running(number, carried):
            # As in `loops.make_loop`: the last step's own logs are wanted.
            last = tf.size(sizes) - int(loop.own_logs)
            tf.while_loop(lambda index: index < last, body, (tf.constant(0),))
            logs = loop.step(batch_at(last)) if loop.own_logs else {}
        return tf.size(sizes), logs

    return tf.function(run, reduce_retracing=True, autograph=False)


def make_reading_loop(
    model: keras.Model,
    layout: Layout,
    spec: Any,
    grab: Callable[[Any, Any], Any],
    *,
    training: bool,
) -> Loop:
    """As `make_loop`, for a worker that reads batches by itself.

    Its function takes an iterator of the worker and the number of steps; it
    stops early where the worker's data ends, and also returns the worker's number.
    """
    loop = _Loop(model, layout, training=training)

    def run(iterator: Any, count: tf.Tensor, number: tf.Tensor, carried: tf.Tensor) -> Any:
        def once() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            element = iterator.get_next_as_optional()
            specs: list[Any] = []

            def do() -> Any:
                logs = loop.step(grab(element.get_value(), None))
                specs.append({key: (each.dtype, each.shape) for key, each in logs.items()})
                return tf.constant(1), logs

            def skip() -> Any:
                zeros = {key: tf.zeros(shape, dtype) for key, (dtype, shape) in specs[-1].items()}
                return tf.constant(0), zeros

            return tf.cond(element.has_value(), do, skip)

        def body(done: tf.Tensor, going: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            more, _ = once()
            return done + more, tf.equal(more, 1)

        with loop.running(number, carried):
            last = count - int(loop.own_logs)
            done, _ = tf.while_loop(
                lambda done, going: tf.logical_and(going, done < last),
                body,
                (tf.constant(0), tf.constant(True)),
            )
            logs: dict[str, tf.Tensor] = {}
            if loop.own_logs:
                more, logs = once()
                done += more
        return done, tensorflow_internals.ask_here(parameter_servers.NUMBER), logs

    return tf.function(run, reduce_retracing=True, autograph=False)


@dataclass(frozen=True)
class _Round:
    """Gradient accumulation of one optimizer: its counter, where that began, steps of a round."""

    counter: Any
    gradients: list[Any]
    start: tf.Tensor
    steps: tf.Tensor


class _Loop:
    """The step of a loop that is being traced, and what the loop keeps on the worker."""

    def __init__(self, model: keras.Model, layout: Layout, *, training: bool) -> None:
        name = "train_step" if training else "test_step"
        self.own_logs = keras_internals.returns_own_logs(model, name)
        self._model = model
        self._layout = layout
        self._training = training
        self._step = getattr(model, name)
        self._metric_variables = keras_internals.metric_variables_of(model)
        self._own: dict[int, tf.Variable] = {}
        self._totals: dict[int, tf.Tensor] = {}
        self._kept: list[Any] = []  # variables must live as long as the function that made them

    @contextlib.contextmanager
    def running(self, number: tf.Tensor, carried: tf.Tensor) -> Iterator[None]:
        """Begin and end loop `number`; `carried` are steps of accumulation to go on from."""
        self._own = _begin(self._layout, number)
        rounds = self._begin_rounds(carried)
        self._kept.append(self._own)
        read = self._metric_variables if self.own_logs else []
        self._totals = {id(each): each._value.read_value() for each in read}
        metrics = keras_internals.metrics_of(self._model) if self.own_logs else []
        with keras_semantics.replica_semantics(), keras_semantics.global_results(metrics):
            yield
        for variable in self._metric_variables:
            variable._value.assign_add(self._own[id(variable)].read_value())
        self._end_rounds(rounds, carried)

    def _begin_rounds(self, carried: tf.Tensor) -> list[_Round]:
        """Keep rounds of gradient accumulation on this worker.

        Workers that shared accumulators would take each other's for their own.
        Only the first loop of an epoch goes on with a round that the last one
        of the epoch before has left behind, of `carried` steps.
        """
        rounds = []
        for optimizer in keras_internals.accumulating(self._model) if self._training else []:
            counter, gradients = keras_internals.accumulators_of(optimizer)
            steps = tf.constant(optimizer.gradient_accumulation_steps, counter.dtype)
            count = counter._value.read_value()
            start = count - count % steps + tf.cast(carried, count.dtype) % steps
            rounds.append(_Round(counter, gradients, start, steps))
            own = [(counter, start)]
            for each in gradients:
                left = each._value.read_value()
                own.append((each, tf.where(carried > 0, left, tf.zeros_like(left))))
            for variable, value in own:
                self._own[id(variable)] = tensorflow_internals.temporary_variable(
                    value, like=variable._value
                )
        return rounds

    def _end_rounds(self, rounds: list[_Round], carried: tf.Tensor) -> None:
        """Count the steps, and leave an unfinished round behind for the next epoch."""
        for each in rounds:
            end = self._own[id(each.counter)].read_value()
            each.counter._value.assign_add(end - each.start)

            def leave(gradients: list[Any] = each.gradients) -> tf.Tensor:
                for gradient in gradients:
                    gradient._value.assign(self._own[id(gradient)].read_value())
                return tf.constant(True)

            unfinished = tf.not_equal(end % each.steps, 0)
            tf.cond(tf.logical_or(unfinished, carried > 0), leave, lambda: tf.constant(True))

    def step(self, batch: Any) -> dict[str, tf.Tensor]:
        """One step; its own logs."""
        own, layout = self._own, self._layout
        share = shares.of_worker(layout, own, totals=self._totals, training=self._training)
        before = {key: variable.read_value() for key, variable in own.items()}
        with shares.of_replica(share), shares.unread_results(not self.own_logs):
            logs = self._step(steps.without_optionals(batch))
        _exchange_state(layout, share, before)
        if not self.own_logs:
            return {}
        return {key: tf.convert_to_tensor(value) for key, value in dict(logs).items()}


def make_predict(
    model: keras.Model, layout: Layout, spec: Any, grab: Callable[[Any, Any], Any]
) -> Callable[..., Any]:
    """A `tf.function` from one element to the outputs of its rows, run on a worker."""

    def predict(
        packed: Any, sizes: tf.Tensor, resident: Any, number: tf.Tensor, carried: tf.Tensor
    ) -> Any:
        arrays = None if resident is None else resident.get_next()
        batch = grab(part(spec, packed, tf.constant(0), sizes[0], tf.constant(0)), arrays)
        share = shares.of_worker(layout, {}, totals={}, training=False)
        with keras_semantics.replica_semantics(), shares.of_replica(share):
            return model.predict_step(steps.without_optionals(batch))

    return tf.function(predict, reduce_retracing=True, autograph=False)


def pack(elements: Sequence[Any]) -> tuple[Any, tf.Tensor]:
    """Elements one after another, and the rows of each, shape [elements] int32.

    So one trace of a loop takes any number of batches of any size.
    """
    sizes = tf.stack([tf.cast(rows_of(element), tf.int32) for element in elements])
    return tf.nest.map_structure(_joined, *elements), sizes


def _joined(*leaves: Any) -> Any:
    if leaves[0] is None:
        return None
    if isinstance(leaves[0], tf.SparseTensor):
        return tf.sparse.concat(axis=0, sp_inputs=list(leaves), expand_nonconcat_dims=True)
    if isinstance(leaves[0], tf.experimental.Optional):
        return leaves[0]
    return tf.stack(leaves) if leaves[0].shape.rank == 0 else tf.concat(leaves, axis=0)


def _begin(layout: Layout, number: tf.Tensor) -> dict[int, tf.Variable]:
    own = {}
    for variable in layout.own_state:
        value = variable._value.read_value()
        if id(variable) in layout.metric_ids:
            value = tf.zeros_like(value)
        elif keras_internals.is_seed(variable):
            value = relocation.seed_of(value, number)
        own[id(variable)] = tensorflow_internals.temporary_variable(value, like=variable._value)
    return own


def _exchange_state(layout: Layout, share: shares.Share, before: dict[int, tf.Tensor]) -> None:
    """Add what the step changed in layers' state to the servers' and take what others added."""
    for variable in layout.own_state:
        key = id(variable)
        counted = key in layout.metric_ids or keras_internals.is_seed(variable)
        if counted or key not in layout.assigned:
            continue
        served = variable._value
        served.assign_add(share.local[key].read_value() - before[key])
        share.local[key].assign(served.read_value())
