"""plan(): which strategy fits these facts, and why each other one does not."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from autostrategy import json_values
from autostrategy.facts import Cluster, Facts
from autostrategy.scaling import Scaling


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a kind was chosen, or why it was not."""

    kind: StrategyKind
    chosen: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A decision with its reasons; `build` and the trainer obey it.

    `devices` are TensorFlow's names in this process, before any device is
    hidden from TensorFlow ("GPU:0", "CPU:0", "TPU:0"). `virtual_cpus` is how many CPU devices
    to make of the one CPU, 0 when the plan is no rehearsal. `replicas` counts
    over all workers. `reasons` has one for each kind, the chosen first.
    """

    kind: StrategyKind
    devices: tuple[str, ...]
    virtual_cpus: int = 0
    replicas: int = 1
    workers: int = 1
    cluster: Cluster | None = None
    scaling: Scaling = Scaling()
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def global_batch(self) -> int | None:
        """Rows of one step over all replicas."""
        return self.scaling.global_batch_size

    @property
    def digest(self) -> dict[str, str]:
        """What must be equal on all workers: flat, sorted, free of host and task."""
        raise NotImplementedError

    def explain(self) -> str:
        """The plan, its reasons and its warnings as plain text."""
        raise NotImplementedError

    def to_json(self) -> str:
        """This plan as JSON text."""
        return json_values.encode(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote."""
        return json_values.decode(cls, text)


def plan(facts: Facts, workload: Workload | None = None, **wishes: Any) -> Plan:
    """The strategy for `facts` that meets `workload`, with the reason for each kind."""
    raise NotImplementedError
