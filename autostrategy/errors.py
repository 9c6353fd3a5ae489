"""Errors that autostrategy raises on purpose.

    AutoStrategyError (ValueError)
    ├── ProbeError      an environment contradicts itself
    ├── PlanError       a request cannot be met on these facts
    ├── LaunchError     a process could not be started or did not appear in time
    └── TrainingError   data or model cannot be trained as given

A missing GPU is a fact, not an error. Every message says what must hold, what
came, and what to do. All are ValueErrors, so code that guards `Model.fit` with
`except ValueError` keeps working.
"""

from __future__ import annotations


class AutoStrategyError(ValueError):
    """Base of every error that autostrategy raises on purpose."""


class ProbeError(AutoStrategyError):
    """An environment contradicts itself, such as a TF_CONFIG with no task."""


class PlanError(AutoStrategyError):
    """A request cannot be met on these facts; the message names the way out."""


class LaunchError(AutoStrategyError):
    """A process could not be started, or a peer did not appear in time."""


class TrainingError(AutoStrategyError):
    """Data or model cannot be trained as given."""
