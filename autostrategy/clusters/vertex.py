"""The worker pools of a Vertex AI training job.

    CLUSTER_SPEC={"cluster": {"workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
                              "workerpool1": ["cmle-training-workerpool1-ab-0:2222"]},
                  "task": {"type": "workerpool1", "index": 0, "trial": ""}}

cloud.google.com/vertex-ai/docs/training/distributed-training: pool 0 is the primary
replica, 1 the workers, 2 parameter servers, 3 evaluators. The pools under their
TensorFlow names are a TF_CONFIG, and are checked as one. Vertex mostly sets
TF_CONFIG too, which then answers first and says the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autostrategy.clusters import tf_config, variables
from autostrategy.errors import ProbeError
from autostrategy.facts import Cluster

_CLUSTER_SPEC = "CLUSTER_SPEC"
_JOBS = {
    "workerpool0": "chief",
    "workerpool1": "worker",
    "workerpool2": "ps",
    "workerpool3": "evaluator",
}


def from_env(
    env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")
) -> Cluster | None:
    """The cluster in CLUSTER_SPEC, None where it is unset or not Vertex AI's.

    Raises:
        ProbeError: it is no JSON, or no cluster that TensorFlow accepts.
    """
    text = env.get(_CLUSTER_SPEC, "")
    # Other systems have a variable of this name; the pools are Vertex AI's.
    if "workerpool" not in text:
        return None
    try:
        cluster = tf_config.from_env({"TF_CONFIG": json.dumps(_as_tf_config(text))})
    except (ProbeError, RecursionError) as error:
        raise ProbeError(
            f"{_CLUSTER_SPEC} must describe a cluster that TensorFlow accepts. "
            f"Received: {variables.quote(text)}. Of its pools as jobs: {error}"
        ) from None
    return dataclasses.replace(cluster, source="Vertex AI") if cluster else None


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """What pool 2 is taken for."""
    if '"workerpool2"' not in env.get(_CLUSTER_SPEC, ""):
        return ()
    return (
        "Worker pool 2 is taken as parameter servers. If it runs Vertex AI's Reduction Server, "
        "set TF_CONFIG without it.",
    )


def _as_tf_config(text: str) -> dict[str, Any]:
    try:
        spec = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProbeError(f"it must be JSON ({error}).") from None
    if not isinstance(spec, dict):
        raise ProbeError("it must be a JSON object.")
    cluster, task = spec.get("cluster"), spec.get("task")
    if isinstance(cluster, dict):
        cluster = {_job(pool): tasks for pool, tasks in cluster.items()}
    if isinstance(task, dict):
        task = {"type": _job(task.get("type")), "index": task.get("index")}
    return {"cluster": cluster, "task": task}


def _job(pool: object) -> str:
    if isinstance(pool, str) and pool in _JOBS:
        return _JOBS[pool]
    raise ProbeError(
        f"each pool, and the type of the task, must be one of {', '.join(_JOBS)}. "
        f"Received: {variables.quote(str(pool))}. Set TF_CONFIG for other jobs."
    )
