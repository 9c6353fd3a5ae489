"""One replica's step: train, test or predict on its share of a batch.

Keras's own `train_step` (or the user's) runs as it is; `keras_internals`
gives it a replica's semantics while it is traced. Each function here returns
a function of one element of `sharing_out.for_replicas`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from autostrategy import tensorflow_internals
from autostrategy.training import keras_internals, keras_variables, relocation
from autostrategy.training import share as shares
from autostrategy.training.layouts import Layout

# What a replica keeps for itself while a loop runs: variables by id of the
# Keras variable that they stand in for.
Own = dict[int, tf.Variable]


def step_of(
    model: keras.Model, layout: Layout, own_of: dict[int, Own], *, training: bool
) -> Callable[..., Any]:
    """The train or test step of one replica: one element of `sharing_out.for_replicas` -> logs.

    `own_of` is what `begin` fills, by replica.

    Logs are those that a step of the user's own returns, as means over the
    rows of all replicas; Keras's own steps return metrics, which are read
    after the loop instead.
    """
    name = "train_step" if training else "test_step"
    step = getattr(model, name)
    own = keras_internals.returns_own_logs(model, name)

    if layout.single:
        wanted = model.jit_compile if layout.compiled is None else layout.compiled
        compiled = wanted and not model.run_eagerly and layout.compilable_alone
        run = tf.function(step, jit_compile=True, reduce_retracing=True) if compiled else step

        def single(batch: Any) -> dict[str, Any]:
            with shares.unread_results(not own):
                logs = run(without_optionals(batch))
            return dict(logs) if own else {}

        return single

    ids = [id(variable) for variable in keras_internals.metric_variables_of(model)]

    def run_on(share: shares.Share, batch: Any) -> Any:
        if layout.runner is None:
            return step(batch)
        return layout.runner(model, share, lambda: step(batch))

    def replica(
        batch: Any, extent: dict[str, tf.Tensor], totals: list[tf.Tensor]
    ) -> dict[str, Any]:
        share = shares.Share(
            **extent,
            replicas=layout.replicas,
            training=training,
            metric_ids=layout.metric_ids,
            momenta=layout.momenta,
            assigned=layout.assigned,
            not_sums=layout.not_sums,
            totals=dict(zip(ids, totals, strict=True)),
            local=own_of.get(_replica(), {}),
            central=layout.central,
            varying=layout.varying if layout.has_peers else None,
            weighs_loss=training and not keras_internals.has_own(model, name),
        )
        with shares.of_replica(share), _counting_rows_once(model, layout, share):
            with shares.unread_results(not own):
                logs = run_on(share, without_optionals(batch))
            logs = shares.weighted_sum(dict(logs), share) if own and logs else {}
            _average(layout, share)
            return logs

    return replica


def predict_step_of(model: keras.Model) -> Callable[..., Any]:
    """The predict step of one replica: one element of `sharing_out.for_replicas` -> outputs."""

    def replica(batch: Any, extent: dict[str, tf.Tensor] | None = None) -> Any:
        return model.predict_step(without_optionals(batch))

    return replica


def without_optionals(batch: Any) -> Any:
    """A batch with None where the data adapter put an empty `tf.experimental.Optional`."""
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )


@contextlib.contextmanager
def _counting_rows_once(model: keras.Model, layout: Layout, share: shares.Share) -> Iterator[None]:
    """Undo what a replica that repeats another's rows puts into metrics."""
    if _replica() == 0 or not layout.scarce:
        yield
        return
    variables = keras_internals.metric_variables_of(model)
    share.before = {id(variable): tf.identity(variable.value) for variable in variables}
    yield

    def restore() -> tf.Tensor:
        for variable in variables:
            if id(variable) in share.assigned:
                variable.assign(share.before[id(variable)])
        return tf.constant(True)

    tf.cond(share.counted, lambda: tf.constant(True), restore)


def _average(layout: Layout, share: shares.Share) -> None:
    """Make state that a layer keeps in floats equal on all replicas, as the mean over rows.

    After every step, since the layer may read it in the next: spectral norms,
    a codebook, a counter. Whole numbers are taken to be counted alike by all.
    """
    variables = [
        variable
        for key, variable in layout.assigned.items()
        if key not in layout.metric_ids | layout.momenta.keys() and variable.value.dtype.is_floating
    ]
    weighted = [
        variable.value * tf.cast(share.weight, variable.value.dtype) for variable in variables
    ]
    for variable, value in zip(variables, _all_reduce_packed(weighted), strict=True):
        keras_variables.part_of(variable).assign(value)


def begin(model: keras.Model, layout: Layout, own_of: dict[int, Own]) -> list[tf.Tensor]:
    """Set aside the totals of all metrics, so that the loop counts from zero.

    Between loops every replica holds the global totals, so that metrics can be
    read anywhere without an exchange: on the chief alone, in a callback.
    """
    metrics = keras_internals.metric_variables_of(model)
    components = [keras_variables.local_component(variable.value) for variable in metrics]
    totals = [component.read_value() for component in components]
    if layout.own_state:
        own_of[_replica()] = {
            id(variable): tensorflow_internals.temporary_variable(
                _first_value(variable, layout), like=variable._value
            )
            for variable in layout.own_state
        }
    else:
        for component in components:
            component.assign(tf.zeros_like(component))
    return totals


def end(
    model: keras.Model, layout: Layout, own_of: dict[int, Own], totals: list[tf.Tensor]
) -> None:
    """Make the state of all replicas equal again, in one exchange for each type.

    Metrics become their totals plus what all replicas counted; the statistics
    that BatchNormalization moves become the mean over replicas.
    """
    own = own_of.get(_replica(), {})

    def part(variable: Any) -> tf.Variable:
        if id(variable) in own:
            return own[id(variable)]
        return keras_variables.local_component(variable.value)

    metrics = keras_internals.metric_variables_of(model)
    averaged = [each for key, each in layout.assigned.items() if key in layout.momenta]
    exchanged = _all_reduce_packed([part(each).read_value() for each in metrics + averaged])
    for variable, total, counted in zip(metrics, totals, exchanged, strict=False):
        part(variable).assign(total + counted)
    for variable, summed in zip(averaged, exchanged[len(metrics) :], strict=True):
        part(variable).assign(summed / tf.cast(layout.replicas, summed.dtype))
    if layout.own_state and _replica() == 0:
        for variable in layout.own_state:
            variable.value.assign(part(variable).read_value())


def _replica() -> int:
    """The number of the replica that is traced; -1 on a TPU, where all are traced as one."""
    context = tf.distribute.get_replica_context()
    replica = tf.get_static_value(context.replica_id_in_sync_group)
    return -1 if replica is None else int(replica)


def _first_value(variable: Any, layout: Layout) -> tf.Tensor:
    """What a replica's own variable holds when a loop begins."""
    value = variable.value.read_value()
    if id(variable) in layout.metric_ids:
        return tf.zeros_like(value)
    if keras_internals.is_seed(variable):
        return relocation.seed_of(value, layout.first + _replica())
    return value


def _all_reduce_packed(values: list[tf.Tensor]) -> list[tf.Tensor]:
    """`values` summed over replicas, all of one type in one exchange."""
    summed: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(value.dtype for value in values):
        indices = [i for i, value in enumerate(values) if value.dtype == dtype]
        flat = tf.concat([tf.reshape(values[i], [-1]) for i in indices], axis=0)
        sizes = [values[i].shape.num_elements() for i in indices]
        parts = tf.split(shares.all_reduce_sum(flat), sizes)
        for i, part in zip(indices, parts, strict=True):
            summed[i] = tf.reshape(part, values[i].shape)
    return [summed[i] for i in range(len(values))]
