"""Databricks: a driver and its notebooks, whose Spark workers no variable names.

A task that spark-tensorflow-distributor or Ray starts has TF_CONFIG, set when the
task runs (tensorflow/ecosystem, spark_tensorflow_distributor/
mirrored_strategy_runner.py), and is read as that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_VERSION = "DATABRICKS_RUNTIME_VERSION"


def from_env(env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")) -> None:
    """None: without TF_CONFIG this process is alone."""


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """What it takes to train on Spark's workers too."""
    if not env.get(_VERSION):
        return ()
    return (
        f"On Databricks {env[_VERSION]} the environment names no cluster, so this process trains "
        "on its own. Spark's workers take part when Ray's TensorflowTrainer starts the script on "
        "them, which sets TF_CONFIG.",
    )
