"""Global batch, per-replica batch, learning rate and warm-up. Pure arithmetic.

The user writes a batch and a learning rate for one device. On R replicas the
rules keep the batch of a replica, so the global batch grows, and move the
learning rate with it:

    rule      global batch    learning rate     for
    off       batch           rate              exactly the user's numbers
    linear    batch x R       rate x R          SGD and its momentum forms [1]
    sqrt      batch x R       rate x sqrt(R)    Adam-like optimizers [2, 3, 4]

[1] Goyal et al. 2017, Accurate, Large Minibatch SGD, arXiv:1706.02677:
    linear rule, and five epochs of warm-up from the unscaled rate.
[2] Malladi et al. 2022, On the SDEs and Scaling Rules for Adaptive Gradient
    Algorithms, arXiv:2205.10782: square root for RMSprop and Adam.
[3] You et al. 2020, Large Batch Optimization for Deep Learning,
    arXiv:1904.00962: square root for LAMB.
[4] Krizhevsky 2014, One weird trick, arXiv:1404.5997: square root keeps the
    variance of an update constant, whatever the optimizer.

The rate is scaled here and nowhere else, from `base_learning_rate`, so that
neither a second `fit` nor a resumed one scales it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from autostrategy import plain_table
from autostrategy.errors import PlanError

BATCH_SCALINGS = ("auto", "linear", "sqrt", "off")

# The length of an update is proportional to the gradient, so the linear rule
# holds. Everything else normalises the gradient (Adam and its kin, Lion's sign,
# Muon's orthogonal matrix) or is unknown to us, and gets the more careful root.
_LINEAR_OPTIMIZERS = frozenset({"sgd"})

_WARMUP_EPOCHS = 5
# Goyal's five epochs are 6 % of 90; a short run should not spend itself on them.
_WARMUP_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Batch and learning rate of a plan, after the rule was applied.

    `global_batch_size` is the rows of one step over all replicas, None when
    the batch is the data's own; `per_replica_batch_size` is the largest share
    of one replica. `learning_rate` is None when the base rate is unknown to
    the plan; the factor then applies to the rate that the trainer finds.
    `steps_per_epoch` counts steps of the global batch.
    """

    rule: Literal["off", "linear", "sqrt"] = "off"
    global_batch_size: int | None = None
    per_replica_batch_size: int | None = None
    learning_rate: float | None = None
    base_learning_rate: float | None = None
    learning_rate_factor: float = 1.0
    warmup_steps: int = 0
    steps_per_epoch: int | None = None
    notes: tuple[str, ...] = ()


def scale(
    *,
    replicas: int,
    batch_size: int | None = None,
    batch_scaling: str = "auto",
    learning_rate: float | None = None,
    optimizer: str | None = None,
    warmup_steps: int | None = None,
    steps_per_epoch: int | None = None,
    epochs: int | None = None,
    rows: int | None = None,
) -> Scaling:
    """Batch and learning rate for `replicas`, from what was written for one device.

    The batch grows at most to `rows`, so that an epoch keeps a step, and the
    learning rate follows the batch, not the replicas. The default warm-up is
    five epochs [1], at most a tenth of a run whose `epochs` are known.

    Args:
        replicas: model copies whose gradients are added in one step.
        batch_size: rows of one step on one device; None keeps the data's batches.
        batch_scaling: "linear", "sqrt", "off", or "auto" to go by `optimizer`.
        learning_rate: of one device; None when only the trainer knows it.
        optimizer: Keras class name, in any case.
        warmup_steps: steps of the scaled run; None for the default.
        steps_per_epoch: at `batch_size`.
        epochs: of the run.
        rows: examples in one epoch.

    Raises:
        PlanError: `batch_scaling` is no rule, or a rule has no batch to scale.
    """
    if batch_scaling not in BATCH_SCALINGS:
        raise PlanError(
            f"batch_scaling must be one of {', '.join(map(repr, BATCH_SCALINGS))}. "
            f"Received: {batch_scaling!r}. Use 'off' to keep batch and learning rate as written."
        )
    if batch_size is None and batch_scaling in ("linear", "sqrt"):
        raise PlanError(
            f"batch_scaling={batch_scaling!r} must know the batch that it scales. "
            "Received: batch_size=None. Pass batch_size=, or batch_scaling='off'."
        )
    notes = []
    rule = batch_scaling if batch_scaling != "auto" else _rule_for(optimizer)
    growth = replicas
    if rule == "off" or replicas == 1 or batch_size is None:
        if batch_size is None and replicas > 1:
            notes.append(
                f"no batch_size was given: the batches of the data are kept and each is "
                f"shared by {replicas} replicas"
            )
        rule, growth = "off", 1
    elif rows is not None and batch_size * replicas > rows:
        growth = max(1, rows // batch_size)
        notes.append(
            f"the {rows} rows of an epoch hold fewer than {replicas} batches of {batch_size}: "
            f"the batch grows {growth} times instead of {replicas}, and the rate with it"
        )
    if rule != "off" and batch_scaling == "auto":
        notes.append(_why_rule(rule, optimizer))
    factor = {"off": 1.0, "linear": float(growth), "sqrt": math.sqrt(growth)}[rule]
    global_batch_size = None if batch_size is None else batch_size * growth
    if global_batch_size is not None and global_batch_size % replicas:
        notes.append(_uneven(global_batch_size, replicas))
    scaled_steps = _steps_per_epoch(steps_per_epoch, batch_size, global_batch_size, rows)
    if warmup_steps is None:
        warmup_steps = 0 if factor == 1.0 else _default_warmup(scaled_steps, epochs)
        if factor != 1.0 and scaled_steps is None:
            notes.append(
                "no warm-up: the steps of an epoch are unknown; pass warmup_steps= to have one"
            )
    return Scaling(
        rule=rule,  # type: ignore[arg-type]  # one of BATCH_SCALINGS, and not "auto"
        global_batch_size=global_batch_size,
        per_replica_batch_size=(
            None if global_batch_size is None else math.ceil(global_batch_size / replicas)
        ),
        learning_rate=None if learning_rate is None else learning_rate * factor,
        base_learning_rate=learning_rate,
        learning_rate_factor=factor,
        warmup_steps=warmup_steps,
        steps_per_epoch=scaled_steps,
        notes=tuple(notes),
    )


def learning_rate_factor_at(step: int, scaling: Scaling) -> float:
    """What the base rate is multiplied by at `step`, counted from 0 over the whole run.

    It rises linearly from 1 at step 0 to the factor at `warmup_steps`, and
    stays. A schedule object is scaled with this factor too.
    """
    if step >= scaling.warmup_steps:
        return scaling.learning_rate_factor
    return 1.0 + (scaling.learning_rate_factor - 1.0) * step / scaling.warmup_steps


def learning_rate_at(step: int, scaling: Scaling) -> float:
    """The learning rate at `step`, counted from 0 over the whole run.

    Raises:
        PlanError: the base rate is unknown to the plan.
    """
    if scaling.base_learning_rate is None:
        raise PlanError(
            "learning_rate_at must know the base learning rate. Received: a plan made without one. "
            "Plan with learning_rate=, or multiply by learning_rate_factor_at."
        )
    return scaling.base_learning_rate * learning_rate_factor_at(step, scaling)


def block(scaling: Scaling, *, replicas: int) -> str:
    """What is done to batch and learning rate, as the lines printed before training."""
    rows = [("global batch", _batch_text(scaling, replicas))]
    if scaling.per_replica_batch_size is not None:
        most = "at most " if (scaling.global_batch_size or 0) % replicas else ""
        rows.append(("per replica", f"{most}{scaling.per_replica_batch_size}"))
    rows.append(("learning rate", _rate_text(scaling)))
    rows.append(("warm-up", f"{scaling.warmup_steps} steps" if scaling.warmup_steps else "none"))
    if scaling.steps_per_epoch is not None:
        rows.append(("steps per epoch", str(scaling.steps_per_epoch)))
    return plain_table.table([*rows, *(("note", note) for note in scaling.notes)])


def _batch_text(scaling: Scaling, replicas: int) -> str:
    if scaling.global_batch_size is None:
        return "as the data comes"
    return f"{scaling.global_batch_size} rows over {replicas} replica{'s' * (replicas != 1)}"


def _rate_text(scaling: Scaling) -> str:
    if scaling.rule == "off":
        unscaled = scaling.base_learning_rate
        return "the optimizer's own" if unscaled is None else f"{unscaled:g}, not scaled"
    product = f"x {scaling.learning_rate_factor:g} ({scaling.rule})"
    if scaling.learning_rate is None:
        return f"the optimizer's own {product}"
    return f"{scaling.learning_rate:g} = {scaling.base_learning_rate:g} {product}"


def _rule_for(optimizer: str | None) -> str:
    return "linear" if (optimizer or "").lower() in _LINEAR_OPTIMIZERS else "sqrt"


def _why_rule(rule: str, optimizer: str | None) -> str:
    if optimizer is None:
        # `keras.Model.compile` takes rmsprop when it is given no optimizer.
        return "square root rule, since no optimizer was named and Keras's default is Adam-like"
    if rule == "linear":
        return f"linear rule, since {optimizer} is SGD-like (arXiv:1706.02677)"
    return (
        f"square root rule, since {optimizer} is not SGD-like (arXiv:2205.10782); "
        "its betas and epsilon are left as they are"
    )


def _uneven(global_batch_size: int, replicas: int) -> str:
    share, more = divmod(global_batch_size, replicas)
    return (
        f"the {global_batch_size} rows of a step are no multiple of {replicas} replicas: "
        f"{more} get {share + 1}, the others {share}; the result is the same"
    )


def _steps_per_epoch(
    steps_per_epoch: int | None,
    batch_size: int | None,
    global_batch_size: int | None,
    rows: int | None,
) -> int | None:
    if batch_size is None or global_batch_size is None:
        return steps_per_epoch
    if steps_per_epoch is not None:
        return math.ceil(steps_per_epoch * batch_size / global_batch_size)
    return None if rows is None else math.ceil(rows / global_batch_size)


def _default_warmup(steps_per_epoch: int | None, epochs: int | None) -> int:
    if steps_per_epoch is None:
        return 0
    warmup_epochs = (
        _WARMUP_EPOCHS if epochs is None else min(_WARMUP_EPOCHS, _WARMUP_SHARE * epochs)
    )
    return math.ceil(warmup_epochs * steps_per_epoch)
