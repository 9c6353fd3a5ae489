"""Ray: a worker of TensorflowTrainer has TF_CONFIG, and is read as that.

Ray sets it in the worker's process when the training function is about to run
(ray, python/ray/train/tensorflow/config.py): not yet while modules are imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_JOB_ID = "RAY_JOB_ID"


def from_env(env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")) -> None:
    """None: without TF_CONFIG this process is alone."""


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """When to look, so that TF_CONFIG is there."""
    if not env.get(_JOB_ID):
        return ()
    return (
        "This process of Ray has no TF_CONFIG, so it trains on its own. Ray's TensorflowTrainer "
        "sets it just before the training function runs: call autostrategy in that function.",
    )
