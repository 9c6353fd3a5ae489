"""One replica's share of a global batch, and the arithmetic that makes shares exact.

Everything rests on one rule: **a replica computes what one device would
compute for the replica's own rows, and whatever crosses replicas is weighted
by rows.** With n rows in the global batch and r of them here:

    gradient, logs      sum over replicas of weight * value, weight = r / n
    a mean over rows    needs nothing: its weighted sum is the global mean
    a sum over rows     is divided by fraction = r / n first
    a scalar loss       is computed on the gathered global batch (it may be
                        any function of the batch, so no weighting is right)

A batch with fewer rows than replicas is given whole to every replica, so that
no layer ever meets zero rows and collectives inside layers stay matched. Then
fraction is 1, and weight is 1 on the first replica and 0 on the others, which
are not counted in metrics either.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

_thread = threading.local()


class CannotFill(Exception):
    """Rows that only fill up a batch would change a result; see `static_shapes`."""


class CannotCompile(Exception):
    """Something crosses replicas where a step is being compiled; see `compiled_steps`."""


@dataclass(kw_only=True)
class Share:
    """The share of the replica whose step is being traced in this thread.

    `rows` (of the global batch) and `start` (of this share in it) are scalar
    int32 tensors, `weight` and `fraction` scalar float64 tensors,
    `counted` a scalar bool: whether this replica's rows belong in metrics.
    `metric_ids` are the ids of the Keras variables that metrics own.
    `momenta` has the momentum of each statistic that BatchNormalization moves,
    by id. `totals` is what each metric variable holds for all replicas beside what
    this one counts, `before` what it held before the step, both by id.
    `local` has the variables that stand in for Keras variables of this replica
    alone, by id; empty where each replica has its own part of every variable.
    `central` says that all replicas share the trained variables, so that one
    update serves all. `asynchronous` says that the step is a worker's of
    parameter servers, which takes whole batches and waits for nobody; of the
    scalars it has none. `varying` collects what workers exchange in shapes that
    differ from step to step, None where there is one worker. `part` is the
    number of the part of a partitioned variable that is being updated,
    `optimizer` what updates it.
    `weighs_loss` says that the step is Keras's own, where weighting the loss
    is enough. `real` says which of the rows count, shape [rows], where some only fill
    up the batch, and is None elsewhere.
    The other fields change while the step is traced: `assigned` collects the
    Keras variables that the step writes by itself (not through an optimizer) by
    id, `not_sums` those of metrics that it writes something else to than a sum,
    `weighted` says that the loss carries the weight, `reduced` that gradients
    already crossed replicas. `taken` collects what an optimizer is asked to
    apply, instead of applying it, unless it is None; `compiled` says that the
    optimizer's update is compiled.
    """

    rows: tf.Tensor
    start: tf.Tensor
    weight: tf.Tensor
    fraction: tf.Tensor
    counted: tf.Tensor
    replicas: int
    training: bool
    metric_ids: frozenset[int]
    assigned: dict[int, Any]
    not_sums: dict[int, Any]
    momenta: dict[int, float]
    totals: dict[int, tf.Tensor]
    weighs_loss: bool
    local: dict[int, tf.Variable] = field(default_factory=dict)
    central: bool = False
    asynchronous: bool = False
    varying: list[str] | None = None
    part: int | None = None
    optimizer: Any = None
    before: dict[int, tf.Tensor] = field(default_factory=dict)
    weighted: bool = False
    reduced: bool = False
    real: tf.Tensor | None = None
    taken: list[tuple[Any, list[Any], Any]] | None = None
    compiled: bool = False
    loss_arguments: tuple[Any, Any, Any] | None = None


def current() -> Share | None:
    """The share of the step being traced in this thread, None outside one."""
    return getattr(_thread, "share", None)


def crossing() -> Share | None:
    """The current share, if its step exchanges anything with other replicas."""
    share = current()
    return None if share is None or share.asynchronous else share


@contextlib.contextmanager
def of_replica(share: Share) -> Iterator[Share]:
    """Make `share` the current one of this thread while the block runs."""
    before = current()
    _thread.share = share
    try:
        yield share
    finally:
        _thread.share = before


@contextlib.contextmanager
def unread_results(unread: bool) -> Iterator[None]:
    """Let metric results that this thread asks for in the block be left out, if `unread`.

    They cost operations in every step, although only the last step's are read.
    """
    before = results_are_unread()
    _thread.unread_results = unread
    try:
        yield
    finally:
        _thread.unread_results = before


def results_are_unread() -> bool:
    """Whether nobody reads the metric results that this thread asks for."""
    return getattr(_thread, "unread_results", False)


def of_worker(
    layout: Any, own: dict[int, tf.Variable], *, totals: dict[int, tf.Tensor], training: bool
) -> Share:
    """The share of a worker that takes whole batches and exchanges nothing; see `server_steps`.

    Args:
        layout: the worker's `steps.Layout`.
        own: variables that stand in for Keras variables, by id.
        totals: what metrics hold beside what this worker counts, by id.
        training: whether the step trains.
    """
    one = tf.constant(1.0, tf.float64)
    return Share(
        rows=tf.constant(0),
        start=tf.constant(0),
        weight=one,
        fraction=one,
        counted=tf.constant(True),
        replicas=1,
        training=training,
        metric_ids=layout.metric_ids,
        assigned=layout.assigned,
        not_sums=layout.not_sums,
        momenta={},
        totals=totals,
        weighs_loss=False,
        local=own,
        asynchronous=True,
    )


def all_reduce_sum(values: Any) -> Any:
    """Structure of tensors, each summed over all replicas. Call it in a replica."""
    _require_uncompiled()
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def _require_uncompiled() -> None:
    share = current()
    if share is not None and share.compiled and share.taken is not None:
        raise CannotCompile("values cross replicas inside the step")


def weighted_sum(values: dict[str, Any], share: Share) -> dict[str, tf.Tensor]:
    """Per-replica logs, as the mean over the rows of all replicas."""
    scaled = {
        name: tf.cast(value, tf.float32) * tf.cast(share.weight, tf.float32)
        for name, value in values.items()
        if tf.as_dtype(tf.convert_to_tensor(value).dtype) != tf.string
    }
    return all_reduce_sum(scaled) if scaled else {}


def scalar_loss(share: Share, loss: Any, sample_weight: Any, reduction: str | None) -> tf.Tensor:
    """A loss that returns one number for a batch, on the global batch.

    The value is the same on all replicas. The gradient with respect to this
    replica's predictions is divided by its fraction, because the step weights
    it by that again. No gradient crosses replicas, so gathering costs no
    second exchange in the backward pass.

    Args:
        share: this replica's share, with the loss and its arguments noted.
        loss: this replica's own value, scalar; only its type is used.
        sample_weight: weights of this replica's rows, or None.
        reduction: the loss's reduction.

    Returns:
        Scalar tensor of the type of `loss`.
    """
    assert share.loss_arguments is not None
    loss_object, y_true, y_pred = share.loss_arguments
    value = tf.cast(loss_object.call(*gathered(share, y_true, y_pred)), loss.dtype)
    if sample_weight is not None:
        # Keras broadcasts the scalar over the rows' weights and reduces that.
        total = tf.reduce_sum(tf.cast(sample_weight, loss.dtype))
        size = tf.cast(tf.size(sample_weight), loss.dtype)
        ratio = tf.cast(share.weight / share.fraction, loss.dtype)
        total, size = all_reduce_sum([total * ratio, size * ratio])
        value *= total if reduction == "sum" else tf.math.divide_no_nan(total, size)
    constant = tf.stop_gradient(value)
    return constant + (value - constant) / tf.cast(share.fraction, loss.dtype)


def gathered(share: Share, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Targets and predictions of the global batch, each of shape [rows, ...]."""
    _require_uncompiled()
    if share.real is not None:
        raise CannotFill("a loss or metric gives one number for the whole batch")
    return (
        tf.nest.map_structure(
            lambda leaf: _gather(share, tf.convert_to_tensor(leaf), keep_local=False), y_true
        ),
        tf.nest.map_structure(
            lambda leaf: _gather(share, tf.convert_to_tensor(leaf), keep_local=True), y_pred
        ),
    )


def _gather(share: Share, local: tf.Tensor, *, keep_local: bool) -> tf.Tensor:
    """Rows of all replicas in order; `keep_local` keeps the gradient to this one's."""
    context = tf.distribute.get_replica_context()
    note_varying(share, local, "the rows of a loss or metric over the whole batch")
    rows = context.all_gather(tf.stop_gradient(local), axis=0)[: share.rows]
    if not keep_local:
        return rows
    end = share.start + tf.shape(local)[0]
    return tf.concat([rows[: share.start], local, rows[end:]], axis=0)


def note_varying(share: Share, exchanged: tf.Tensor, what: str) -> None:
    """Note that workers exchange a tensor whose shape is not the same in every step."""
    if share.varying is not None and exchanged.shape[0] is None:
        share.varying.append(what)


def masked_mean(share: Share, local_mean: tf.Tensor, local_divisor: tf.Tensor) -> tf.Tensor:
    """A mean over something else than rows (valid steps, weights), made global.

    Args:
        local_mean: sum over this replica divided by `local_divisor`, scalar.
        local_divisor: what this replica divided by, scalar.

    Returns:
        Scalar whose weighted sum over replicas is the global sum divided by
        the global divisor.
    """
    divisor = tf.stop_gradient(tf.cast(local_divisor, local_mean.dtype))
    weight = tf.cast(share.weight, divisor.dtype)
    fraction = tf.cast(share.fraction, divisor.dtype)
    total = all_reduce_sum(divisor * weight / fraction)
    return local_mean * tf.math.divide_no_nan(divisor, total * fraction)


def divide_by_fraction(share: Share, value: tf.Tensor) -> tf.Tensor:
    """A sum over this replica's rows, ready for a weighted sum over replicas."""
    return value / tf.cast(share.fraction, value.dtype)
