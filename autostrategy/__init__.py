"""Train any Keras 3 model on whatever hardware is there, with one call."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autostrategy.errors import (
    AutoStrategyError,
    LaunchError,
    PlanError,
    ProbeError,
    TrainingError,
)
from autostrategy.facts import Cluster, Device, Facts, Host
from autostrategy.planner import Plan, Reason, StrategyKind, Workload, plan
from autostrategy.prober import probe
from autostrategy.scaling import Scaling

if TYPE_CHECKING:
    from autostrategy.builder import build
    from autostrategy.diagnosis.doctor import Diagnosis, doctor
    from autostrategy.diagnosis.finding import Finding
    from autostrategy.report import Report
    from autostrategy.training.fit import fit
    from autostrategy.training.trainer import Trainer

# These need TensorFlow, which `import autostrategy` must not, or are seldom needed.
_LAZY = {
    "Diagnosis": "autostrategy.diagnosis.doctor",
    "Finding": "autostrategy.diagnosis.finding",
    "Report": "autostrategy.report",
    "Trainer": "autostrategy.training.trainer",
    "build": "autostrategy.builder",
    "doctor": "autostrategy.diagnosis.doctor",
    "fit": "autostrategy.training.fit",
}

__all__ = [
    "AutoStrategyError",
    "build",
    "Cluster",
    "Device",
    "Diagnosis",
    "doctor",
    "Facts",
    "Finding",
    "fit",
    "Host",
    "LaunchError",
    "Plan",
    "plan",
    "PlanError",
    "probe",
    "ProbeError",
    "Reason",
    "Report",
    "Scaling",
    "StrategyKind",
    "Trainer",
    "TrainingError",
    "Workload",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
