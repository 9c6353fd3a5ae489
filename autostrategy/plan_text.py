"""A plan as text: what a person reads, and what workers compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autostrategy import facts_text, plain_table, scaling
from autostrategy.facts import Cluster

if TYPE_CHECKING:
    from autostrategy.planner import Plan


def explain(plan: Plan) -> str:
    """The plan, the reason for each kind, and what to mind.

    mirrored on GPU:0, GPU:1

    mirrored                a replica on each of GPU:0, GPU:1
    one_device              not: would use only one of GPU:0, GPU:1
    ...
    """
    reasons = plain_table.table(
        (reason.kind.value, reason.text if reason.chosen else f"not: {reason.text}")
        for reason in plan.reasons
    )
    return "\n\n".join([heading(plan), reasons, details(plan)])


def heading(plan: Plan) -> str:
    """'mirrored on GPU:0, GPU:1'."""
    return f"{plan.kind.value} on {', '.join(plan.devices)}"


def details(plan: Plan) -> str:
    """What a plan says beside its reasons: cluster, batch, warnings, notes."""
    parts = [
        plain_table.table([("cluster", facts_text.cluster(plan.cluster))] if plan.cluster else []),
        scaling.block(plan.scaling, replicas=plan.replicas),
        plain_table.table(
            [
                *(("warning", text) for text in plan.warnings),
                *(("note", text) for text in plan.notes),
            ]
        ),
    ]
    return "\n\n".join(part for part in parts if part)


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
