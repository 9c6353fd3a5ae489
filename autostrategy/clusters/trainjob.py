"""Pods of a TrainJob (Kubeflow Trainer v2), whose names follow from the first's.

    tj-node-0-0.tj  tj-node-0-1.tj  tj-node-0-2.tj

kubeflow/trainer, pkg/runtime/framework/plugins/torch/torch.go and jax/jax.go:
'<trainjob>-node-0-<index>.<trainjob>'. No runtime of Trainer v2 sets TF_CONFIG;
those for PyTorch and JAX tell the number of pods and the name of the first.
"""

from __future__ import annotations

import re

from autostrategy.facts import Cluster, Job


def cluster(*, first_host: str, port: int, index: int, count: int) -> Cluster | None:
    """One worker in each of `count` pods; None where `first_host` is no TrainJob's.

    `index` is this pod's, below `count`.
    """
    match = re.fullmatch(r"([a-z0-9-]+)-node-0-0\.\1", first_host)
    if match is None:
        return None
    job = match[1]
    return Cluster(
        source="TrainJob",
        jobs=(
            Job(
                name="worker",
                addresses=tuple(f"{job}-node-0-{pod}.{job}:{port}" for pod in range(count)),
            ),
        ),
        task_type="worker",
        task_index=index,
    )
