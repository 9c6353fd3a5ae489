"""What the user wants: the kinds of strategy there are, and a workload for one."""

from __future__ import annotations

import dataclasses
import enum
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autostrategy.errors import PlanError


class StrategyKind(enum.Enum):
    """The strategies of `tf.distribute` that a plan can ask for."""

    ONE_DEVICE = "one_device"
    MIRRORED = "mirrored"
    MULTI_WORKER_MIRRORED = "multi_worker_mirrored"
    CENTRAL_STORAGE = "central_storage"
    PARAMETER_SERVER = "parameter_server"
    TPU = "tpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the user wants, as written for one device; None means "not said".

    Attributes:
        strategy: "auto", or the value of a `StrategyKind`.
        devices: how many devices this process uses, or their names.
        batch_size: rows of one step on one device.
        batch_scaling: "auto", "linear", "sqrt" or "off"; see `scaling`.
        learning_rate: of one device.
        optimizer: its Keras class name, in any case.
        warmup_steps: steps of the scaled run; 0 for none.
        steps_per_epoch: at `batch_size`.
        epochs: of the run; bounds the default warm-up.
        parameter_bytes: the model's variables.
        rows: examples in one epoch.
    """

    strategy: str = "auto"
    devices: int | tuple[str, ...] | None = None
    batch_size: int | None = None
    batch_scaling: str = "auto"
    learning_rate: float | None = None
    optimizer: str | None = None
    warmup_steps: int | None = None
    steps_per_epoch: int | None = None
    epochs: int | None = None
    parameter_bytes: int | None = None
    rows: int | None = None


def checked(workload: Workload) -> Workload:
    """`workload` in plain types, so that it can be written as JSON.

    Raises:
        PlanError: a value that no machine could meet.
    """
    kinds = ["auto", *(kind.value for kind in StrategyKind)]
    strategy = workload.strategy
    strategy = strategy.value if isinstance(strategy, StrategyKind) else strategy
    if strategy not in kinds:
        raise PlanError(
            f"strategy must be one of {', '.join(map(repr, kinds))}. Received: {strategy!r}. "
            "Use 'auto' to have it chosen."
        )
    return dataclasses.replace(
        workload,
        strategy=strategy,
        devices=_device_wish(workload.devices),
        batch_size=_count("batch_size", workload.batch_size, 1),
        learning_rate=_rate(workload.learning_rate),
        warmup_steps=_count("warmup_steps", workload.warmup_steps, 0),
        steps_per_epoch=_count("steps_per_epoch", workload.steps_per_epoch, 1),
        epochs=_count("epochs", workload.epochs, 1),
        parameter_bytes=_count("parameter_bytes", workload.parameter_bytes, 0),
        rows=_count("rows", workload.rows, 0),
    )


def _device_wish(devices: Any) -> int | tuple[str, ...] | None:
    if devices is None or isinstance(devices, numbers.Integral):
        return _count("devices", devices, 1)
    names = tuple(devices) if isinstance(devices, Sequence) else ()
    if isinstance(devices, str) or not names or not all(isinstance(name, str) for name in names):
        raise PlanError(
            "devices must be a count or a list of names. "
            f"Received: {devices!r}. Use for example devices=2 or devices=['GPU:0', 'GPU:1']."
        )
    return names


def _count(name: str, value: Any, least: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise PlanError(
            f"{name} must be a whole number, at least {least}. Received: {value!r}. "
            f"Leave {name} out to have the default."
        )
    return int(value)


def _rate(value: Any) -> float | None:
    if value is None:
        return None
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and value >= 0):
        raise PlanError(
            f"learning_rate must be a finite number, at least 0. Received: {value!r}. "
            "Leave it out when the optimizer has a schedule; the schedule is scaled in training."
        )
    return float(value)
