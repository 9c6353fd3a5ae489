"""What to mind about a plan that is nevertheless right."""

from __future__ import annotations

from autostrategy import device_selection
from autostrategy.facts import Facts
from autostrategy.workload import StrategyKind, Workload


def warnings(
    kind: StrategyKind, facts: Facts, workload: Workload, devices: tuple[str, ...]
) -> tuple[str, ...]:
    """One sentence for each thing that the user should know before training."""
    found = []
    cpus = [name for name in devices if name.startswith("CPU")]
    if len(cpus) > 1:
        found.append(
            f"{len(cpus)} virtual CPU devices share the cores of one CPU: "
            "this is a rehearsal of several devices, not faster than one"
        )
    elif cpus and len(devices) > 1:
        found.append("CPU:0 is among the devices, and every step waits for the slowest")
    if kind is StrategyKind.TPU and cpus:
        found.append(
            "no TPU computes: the step is compiled with XLA and keeps to static shapes, as a TPU "
            "asks, on CPU devices"
        )
    if kind is StrategyKind.MULTI_WORKER_MIRRORED:
        found.append(
            f"every worker is assumed to use as many devices as this one, {len(devices)}; "
            "workers compare before the first step"
        )
    if kind is StrategyKind.TPU and facts.tpu and len(facts.tpu.hosts) > 1:
        found.append(
            f"this host has a part of a TPU slice of {len(facts.tpu.hosts)} hosts, and only the "
            "cores of this host are counted; TensorFlow drives a slice from one process"
        )
    if kind is StrategyKind.MIRRORED and facts.host.platform == "windows":
        found.append(
            "on Windows gradients are added by copies between devices, not NCCL, "
            "and TensorFlow after 2.10 sees GPUs only under WSL2"
        )
    if kind is StrategyKind.PARAMETER_SERVER and workload.batch_scaling in ("linear", "sqrt"):
        found.append("each update uses the batch of one worker, so nothing is scaled")
    return (
        *found,
        *_shared_gpus(kind, facts, devices),
        *_memory_warnings(facts, workload, devices),
    )


def _memory_warnings(facts: Facts, workload: Workload, devices: tuple[str, ...]) -> tuple[str, ...]:
    # Variables and their gradients; optimizer slots and activations come on top.
    needed = 2 * (workload.parameter_bytes or 0)
    accelerators = device_selection.by_name(facts)
    return tuple(
        f"{name} has {memory / 2**30:.1f} GiB, but variables and gradients alone "
        f"need {needed / 2**30:.1f} GiB on each device"
        for name in devices
        if name in accelerators and needed > (memory := accelerators[name].memory_bytes or needed)
    )


def _shared_gpus(kind: StrategyKind, facts: Facts, devices: tuple[str, ...]) -> tuple[str, ...]:
    cluster = facts.cluster
    if cluster is None or kind is not StrategyKind.MULTI_WORKER_MIRRORED:
        return ()
    _, workers = cluster.place
    if workers < 2 or not devices[0].startswith("GPU"):
        return ()
    here = cluster.addresses(cluster.task_type)[cluster.task_index].rpartition(":")[0]
    if facts.visible_devices is None:
        return (f"the {workers} workers on {here} share out its GPUs in order of their ranks",)
    return (
        f"{workers} workers are on {here}: each must see GPUs of its own, "
        "through CUDA_VISIBLE_DEVICES or srun --gpus-per-task",
    )
