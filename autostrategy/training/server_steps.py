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

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from autostrategy import tensorflow_internals
from autostrategy.training import data, keras_internals, keras_semantics, relocation, steps
from autostrategy.training import share as shares
from autostrategy.training.steps import Layout

# (batches one after another, rows of each, number of the loop, resident arrays)
# -> steps done, logs of the step's own
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
    name = "train_step" if training else "test_step"
    step = getattr(model, name)
    own_logs = keras_internals.returns_own_logs(model, name)
    metric_variables = keras_internals.metric_variables_of(model)
    kept: list[Any] = []  # variables must live as long as the function that made them

    def run(packed: Any, sizes: tf.Tensor, number: tf.Tensor, resident: Any = None) -> Any:
        arrays = None if resident is None else resident.get_next()
        own = _begin(layout, number)
        kept.append(own)
        totals = (
            {id(each): each._value.read_value() for each in metric_variables} if own_logs else {}
        )
        ends = tf.cumsum(sizes)

        def one(index: tf.Tensor) -> dict[str, tf.Tensor]:
            share = shares.of_worker(layout, own, totals=totals, training=training)
            start = ends[index] - sizes[index]
            batch = grab(data.part(spec, packed, start, sizes[index], index), arrays)
            before = {key: variable.read_value() for key, variable in own.items()}
            with shares.of_replica(share), shares.unread_results(not own_logs):
                logs = step(steps.without_optionals(batch))
            _exchange_state(layout, share, before)
            return {key: tf.convert_to_tensor(value) for key, value in dict(logs).items()}

        def body(index: tf.Tensor) -> tuple[tf.Tensor]:
            one(index)
            return (index + 1,)

        metrics = keras_internals.metrics_of(model) if own_logs else []
        with keras_semantics.replica_semantics(), keras_semantics.global_results(metrics):
            # As in `loops.make_loop`: the last step's own logs are wanted.
            last = tf.size(sizes) - int(own_logs)
            tf.while_loop(lambda index: index < last, body, (tf.constant(0),))
            logs = one(last) if own_logs else {}
        for variable in metric_variables:
            variable._value.assign_add(own[id(variable)].read_value())
        return tf.size(sizes), logs

    return tf.function(run, reduce_retracing=True, autograph=False)


def make_predict(
    model: keras.Model, layout: Layout, spec: Any, grab: Callable[[Any, Any], Any]
) -> Callable[..., Any]:
    """A `tf.function` from one element to the outputs of its rows, run on a worker."""

    def predict(packed: Any, sizes: tf.Tensor, number: tf.Tensor, resident: Any = None) -> Any:
        arrays = None if resident is None else resident.get_next()
        batch = grab(data.part(spec, packed, tf.constant(0), sizes[0], tf.constant(0)), arrays)
        share = shares.of_worker(layout, {}, totals={}, training=False)
        with keras_semantics.replica_semantics(), shares.of_replica(share):
            return model.predict_step(steps.without_optionals(batch))

    return tf.function(predict, reduce_retracing=True, autograph=False)


def pack(elements: Sequence[Any]) -> tuple[Any, tf.Tensor]:
    """Elements one after another, and the rows of each, shape [elements] int32.

    So one trace of a loop takes any number of batches of any size.
    """
    sizes = tf.stack([tf.cast(data.rows_of(element), tf.int32) for element in elements])
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
