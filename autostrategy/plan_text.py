"""A plan as text: what a person reads, and what workers compare."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from autostrategy import scaling
from autostrategy.facts import Cluster

if TYPE_CHECKING:
    from autostrategy.planner import Plan

_WIDTH = 100
_COLUMN = 24


def explain(plan: Plan) -> str:
    """The plan, the reason for each kind, and what to mind.

    mirrored on GPU:0, GPU:1

    mirrored                a replica on each of GPU:0, GPU:1
    one_device              not: would use only one of GPU:0, GPU:1
    ...
    """
    lines = [f"{plan.kind.value} on {', '.join(plan.devices)}", ""]
    for reason in plan.reasons:
        text = reason.text if reason.chosen else f"not: {reason.text}"
        lines += _row(reason.kind.value, text)
    if plan.cluster:
        lines += ["", *_row("cluster", cluster(plan.cluster))]
    lines += ["", scaling.block(plan.scaling, replicas=plan.replicas)]
    if plan.warnings or plan.notes:
        lines.append("")
    for warning in plan.warnings:
        lines += _row("warning", warning)
    for note in plan.notes:
        lines += _row("note", note)
    return "\n".join(lines)


def cluster(cluster: Cluster) -> str:
    """'TF_CONFIG: worker 1, chief=False; worker h0:2222 h1:2222'."""
    jobs = "; ".join(f"{job.name} {' '.join(job.addresses)}" for job in cluster.jobs)
    task = f"{cluster.task_type} {cluster.task_index}"
    return f"{cluster.source}: this is {task}, chief={cluster.is_chief}; {jobs}"


def jobs(cluster: Cluster) -> str:
    """The number of tasks of each type: 'chief=1 worker=2'."""
    return " ".join(f"{job.name}={len(job.addresses)}" for job in cluster.jobs)


def digest(plan: Plan) -> dict[str, str]:
    """What must be equal on all workers: flat, sorted, free of host and task.

    Addresses are left out, since a task may know itself by another name than
    the others do; the number of tasks of each type is in.
    """
    kinds = sorted({name.split(":")[0] for name in plan.devices})
    fields = {
        "strategy": plan.kind.value,
        "tasks": jobs(plan.cluster) if plan.cluster else "",
        "workers": str(plan.workers),
        "replicas": str(plan.replicas),
        # The tasks of a parameter server cluster differ in their devices by design.
        "devices_per_worker": ""
        if plan.kind.value == "parameter_server"
        else " and ".join(
            f"{sum(name.startswith(kind) for name in plan.devices)} {kind}" for kind in kinds
        ),
        "batch_scaling": plan.scaling.rule,
        "global_batch_size": str(plan.scaling.global_batch_size),
        "base_learning_rate": repr(plan.scaling.base_learning_rate),
        "learning_rate_factor": repr(plan.scaling.learning_rate_factor),
        "warmup_steps": str(plan.scaling.warmup_steps),
        "steps_per_epoch": str(plan.scaling.steps_per_epoch),
    }
    return dict(sorted(fields.items()))


def _row(name: str, text: str) -> list[str]:
    indent = " " * _COLUMN
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=name.ljust(_COLUMN),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
