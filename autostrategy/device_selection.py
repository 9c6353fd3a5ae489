"""Which devices this process computes on, and why others are left out.

Devices are named as TensorFlow names them: "GPU:1" is the second GPU that
CUDA_VISIBLE_DEVICES leaves visible, "CPU:1" a second, virtual CPU device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from autostrategy.errors import PlanError
from autostrategy.facts import Device, Facts

# Someone else's job: it would slow every step, or our model would not fit.
_BUSY_MEMORY_SHARE = 0.5
_BUSY_UTILIZATION_PERCENT = 50
# A display card beside a compute card.
_TINY_MEMORY_SHARE = 0.5

# "GPU:0", "gpu:0", "/gpu:0", "/device:GPU:0"
_NAME = re.compile(r"/?(?:device:)?(cpu|gpu|tpu):(\d+)", re.IGNORECASE)


def choose(
    facts: Facts,
    wish: int | tuple[str, ...] | None,
    *,
    keep_all: bool = False,
    place: tuple[int, int] = (0, 1),
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the devices to use, and a remark for each one that needs it.

    Without a wish that is all TPU cores, else the GPUs that are free and
    alike, else the CPU. A wish overrides every doubt about a device.

    Args:
        facts: only the host is looked at.
        wish: how many devices, or their names.
        keep_all: leave out no GPU, because every worker must choose alike and
            cannot know how busy the others are; remark on it instead.
        place: which this worker is of how many on this host. They share out its
            GPUs in order, unless CUDA_VISIBLE_DEVICES gave each its own.

    Raises:
        PlanError: the wish names what is not there, or a worker has no GPU.
    """
    accelerators = by_name(facts)
    if isinstance(wish, tuple):
        return _named(wish, accelerators)
    tpus = [name for name, device in accelerators.items() if device.kind == "tpu"]
    pool = tpus or _own_gpus(facts, list(accelerators), place)
    if pool and wish is not None and wish > len(pool):
        raise PlanError(
            f"devices must be at most the {len(pool)} that this process can use "
            f"({', '.join(pool)}). Received: {wish}. Use devices={len(pool)}, "
            f"or rehearse on the CPU with devices={_cpu_names(wish)!r}."
        )
    if not pool:
        return tuple(_cpu_names(wish or 1)), ()
    if tpus:
        return tuple(tpus[:wish]), ()
    left_out = _left_out({name: accelerators[name] for name in pool})
    if keep_all and wish is None:
        return _with_remarks(pool, accelerators)
    preferred = [name for name in pool if name not in left_out]
    if wish is None:
        names, remarks = _with_remarks(preferred, accelerators)
        return names, (*(f"{name} is left out: {why}" for name, why in left_out.items()), *remarks)
    return _with_remarks(sorted([*preferred, *left_out][:wish], key=pool.index), accelerators)


def by_name(facts: Facts) -> dict[str, Device]:
    """The accelerators that TensorFlow can use in this process, by their names.

    A process can use one MIG instance and no other GPU beside it
    (NVIDIA MIG user guide, "CUDA visible devices"), so whole GPUs win.
    """
    chips = [device for device in facts.host.devices if device.kind == "tpu"]
    cores = [chip for chip in chips for _ in range(chip.cores)]
    names = {f"TPU:{index}": chip for index, chip in enumerate(cores)}
    gpus = sorted(
        (device for device in facts.host.devices if _is_usable_gpu(device)),
        key=lambda device: device.visible_index or 0,
    )
    whole = [device for device in gpus if device.mig != "instance"]
    return names | {f"GPU:{device.visible_index}": device for device in whole or gpus[:1]}


def named_tpu(facts: Facts) -> tuple[str, ...]:
    """Cores of a TPU that the environment names and that is not in this host.

    'v3-8' has 8 cores, as has a board when the type is unknown. The strategy
    counts again, once it is connected.
    """
    if facts.tpu is None or any(device.kind == "tpu" for device in facts.host.devices):
        return ()
    match = re.fullmatch(r"v\d+\w*-(\d+)", facts.tpu.accelerator_type or "")
    return tuple(f"TPU:{index}" for index in range(int(match[1]) if match else 8))


def hidden_gpus(facts: Facts) -> tuple[Device, ...]:
    """GPUs of this host that CUDA_VISIBLE_DEVICES hides from this process."""
    if facts.visible_devices is None:
        return ()
    return tuple(
        device
        for device in facts.host.devices
        if device.kind == "gpu" and device.visible_index is None and device.mig != "parent"
    )


def mig_instances(facts: Facts) -> int:
    """How many MIG instances there are where this process computes on one, else 0.

    CUDA shows a process no second one, so those that are not visible count too.
    """
    if not any(device.mig == "instance" for device in by_name(facts).values()):
        return 0
    return sum(device.mig == "instance" for device in facts.host.devices)


def virtual_cpus(names: Iterable[str]) -> int:
    """CPU devices to make of the one CPU, 0 when CPU:0 is enough."""
    highest = max((int(name[4:]) for name in names if name.startswith("CPU:")), default=0)
    return highest + 1 if highest else 0


def are_cpus(names: Iterable[str]) -> bool:
    """Whether all devices are (virtual) CPU devices."""
    return all(name.startswith("CPU:") for name in names)


def _is_usable_gpu(device: Device) -> bool:
    return device.kind == "gpu" and device.visible_index is not None and device.mig != "parent"


def _own_gpus(facts: Facts, gpus: list[str], place: tuple[int, int]) -> list[str]:
    """Those of `gpus` that belong to one worker of several on this host.

    Two workers on one GPU end in NCCL's "Duplicate GPU detected".
    """
    index, workers = place
    if not gpus or workers < 2 or facts.visible_devices is not None:
        return gpus
    each = len(gpus) // workers
    if each == 0:
        raise PlanError(
            f"Each of the {workers} workers on a host must have a GPU of its own. Received: "
            f"{len(gpus)} ({', '.join(gpus)}). Start no more workers there than GPUs, or train on "
            "CPUs with devices=['CPU:0']."
        )
    return gpus[index * each : (index + 1) * each]


def _named(
    wish: tuple[str, ...], accelerators: dict[str, Device]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = tuple(_normal(name) or name for name in wish)
    for received, name in zip(wish, names, strict=True):
        if name not in accelerators and not (_normal(name) or "").startswith("CPU:"):
            raise PlanError(
                f"devices must name devices of this host: "
                f"{', '.join([*accelerators, 'CPU:0'])}. Received: {received!r}. "
                "Name some of these, or pass a count; CPU:1, CPU:2, ... are virtual devices."
            )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PlanError(
            f"devices must name each device once. Received: {twice} twice. "
            f"Use devices={list(dict.fromkeys(names))!r}."
        )
    return _with_remarks(names, accelerators)


def _normal(name: str) -> str | None:
    match = _NAME.fullmatch(name)
    return f"{match[1].upper()}:{int(match[2])}" if match else None


def _cpu_names(count: int) -> list[str]:
    return [f"CPU:{index}" for index in range(count)]


def _with_remarks(
    names: Iterable[str], accelerators: dict[str, Device]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`names`, and for each that we would rather not use the reason."""
    gpus = {name: device for name, device in accelerators.items() if device.kind == "gpu"}
    doubts = _left_out(gpus) | _busy(gpus)
    names = tuple(names)
    return names, tuple(
        f"{name} is used although {doubts[name]}" for name in names if name in doubts
    )


def _left_out(gpus: dict[str, Device]) -> dict[str, str]:
    """Why each doubtful GPU is left out; never all of them."""
    left_out: dict[str, str] = {}
    for test in (_busy, _tiny, _unlike):
        rest = {name: device for name, device in gpus.items() if name not in left_out}
        found = test(rest)
        if found and len(found) == len(rest):
            # All are busy: the one with the most free memory still beats the CPU.
            freest = max(rest, key=lambda name: rest[name].memory_free_bytes or 0)
            found = {name: why for name, why in found.items() if name != freest}
        left_out |= found
    return {name: left_out[name] for name in gpus if name in left_out}


def _busy(gpus: dict[str, Device]) -> dict[str, str]:
    return {name: why for name, device in gpus.items() if (why := _occupation(device))}


def _occupation(device: Device) -> str | None:
    pids = ", ".join(str(process.pid) for process in (device.processes or ())[:3])
    by = f" (process {pids})" if pids else ""
    share = _occupied_share(device)
    if share > _BUSY_MEMORY_SHARE:
        return f"other processes hold {share:.0%} of its memory{by}"
    if (device.utilization_percent or 0) >= _BUSY_UTILIZATION_PERCENT:
        return f"it is in use, {device.utilization_percent} % of the time{by}"
    return None


def _occupied_share(device: Device) -> float:
    # Unified memory is the host's, and its free part says nothing about the GPU.
    if not device.memory_bytes or device.unified_memory:
        return 0.0
    if device.memory_free_bytes is not None:
        return 1 - device.memory_free_bytes / device.memory_bytes
    return (
        sum(process.memory_bytes or 0 for process in device.processes or ()) / device.memory_bytes
    )


def _tiny(gpus: dict[str, Device]) -> dict[str, str]:
    largest = max((device.memory_bytes or 0 for device in gpus.values()), default=0)
    return {
        name: f"its memory, {device.memory_bytes / 2**30:.0f} GiB, "
        f"is less than half of the largest, {largest / 2**30:.0f} GiB"
        for name, device in gpus.items()
        if device.memory_bytes is not None and device.memory_bytes < _TINY_MEMORY_SHARE * largest
    }


def _unlike(gpus: dict[str, Device]) -> dict[str, str]:
    """MirroredStrategy waits for the slowest, so only the largest group of one model stays."""
    models = [device.name for device in gpus.values()]
    memory = {device.name: device.memory_bytes or 0 for device in gpus.values()}
    kept = max(models, key=lambda model: (models.count(model), memory[model]), default="")
    return {
        name: f"{device.name} is another model than {kept}, and a step waits for the slowest"
        for name, device in gpus.items()
        if device.name != kept
    }
