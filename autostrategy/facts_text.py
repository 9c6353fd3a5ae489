"""Facts in brief: one row for the host, one for each device, the cluster, the notes."""

from __future__ import annotations

from autostrategy import device_selection, plain_table
from autostrategy.facts import Cluster, Device, Facts, Launch


def describe(facts: Facts) -> str:
    """Facts as the few lines that a person wants to see before a plan."""
    return plain_table.table(rows(facts))


def rows(facts: Facts) -> list[tuple[str, str]]:
    """What was found, by name: ("host", ...), ("GPU:0", ...), ("cluster", ...)."""
    host = facts.host
    found = [
        ("host", f"{host.name} ({host.platform})"),
        ("cores", f"{host.usable_cores:g} usable of {host.logical_cores}"),
        ("memory", f"{_gib(host.memory_available_bytes)} free of {_gib(host.memory_bytes)}"),
    ]
    if host.driver_version:
        found.append(
            ("driver", f"{host.driver_version}, CUDA up to {host.cuda_driver_version or 'unknown'}")
        )
    names = device_selection.by_name(facts)
    for device in host.devices:
        # A TPU chip may have two cores, each of them a device for TensorFlow.
        name = ", ".join(name for name, named in names.items() if named is device)
        found.append((name or f"{device.kind} {device.index}, unused", _text(device)))
    if not host.devices:
        found.append(("GPU, TPU", "none found"))
    if facts.tpu is not None:
        found.append(
            ("TPU", " ".join(filter(None, (facts.tpu.address, facts.tpu.accelerator_type))))
        )
    if facts.visible_devices is not None:
        found.append(("CUDA_VISIBLE_DEVICES", repr(facts.visible_devices)))
    found.append(("cluster", cluster(facts.cluster) if facts.cluster else "none"))
    if facts.launch is not None:
        found.append(("launch", launch(facts.launch)))
    return [*found, *(("note", note) for note in facts.notes)]


def cluster(cluster: Cluster) -> str:
    """'TF_CONFIG: this is worker 1, chief=False; worker h0:2222 h1:2222'."""
    jobs = "; ".join(f"{job.name} {' '.join(job.addresses)}" for job in cluster.jobs)
    task = f"{cluster.task_type} {cluster.task_index}"
    return f"{cluster.source}: this is {task}, chief={cluster.is_chief}; {jobs}"


def launch(launch: Launch) -> str:
    """'Open MPI: this is rank 3 of 4, 1 of 2 on this host; they can meet at n1:29400'."""
    text = f"{launch.source}: this is rank {launch.rank} of {launch.world_size}"
    if launch.local_rank is not None:
        of_all = f" of {launch.local_size}" if launch.local_size is not None else ""
        text += f", {launch.local_rank}{of_all} on this host"
    if launch.meeting_point is not None:
        text += f"; they can meet at {launch.meeting_point}"
    if launch.hosts:
        text += f"; hosts {' '.join(launch.hosts)}"
    return text


def unmet(launch: Launch) -> str:
    """What to know of processes before they have exchanged addresses."""
    text = (
        f"{launch.source} started {launch.world_size} processes, of which this is rank "
        f"{launch.rank}. They know no addresses of each other: each would train on its own until "
        "their addresses are exchanged, as autostrategy.fit and 'autostrategy run' do."
    )
    if launch.local_size == launch.world_size:
        text += (
            " All of them are on this host, where one process can train on all devices: start the "
            "script once. If several must run, each is limited to its own share of the GPUs."
        )
    return text


def _text(device: Device) -> str:
    parts = [device.name]
    if device.memory_bytes is not None:
        free = device.memory_free_bytes
        parts.append(
            (f"{_gib(free)} free of " if free is not None else "") + _gib(device.memory_bytes)
        )
    if device.compute_capability:
        parts.append(f"compute capability {device.compute_capability}")
    if device.mig != "off":
        parts.append(f"MIG {device.mig}")
    if device.processes:
        parts.append(f"{len(device.processes)} processes")
    return ", ".join(parts)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
