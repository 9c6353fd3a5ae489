"""NVIDIA GPUs, as NVML sees them before CUDA is touched.

NVML makes no CUDA context, so a process that asked it can still fork and still
choose its devices. Each call is guarded on its own, because which of them a
card answers depends on its make, its driver and the binding: one that fails
makes one field None and hides nothing else. Functions take the module `pynvml`
as an argument, or whatever speaks like it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from autostrategy.facts import Device, DeviceProcess, Host, Link
from autostrategy.hardware import nvidia_links
from autostrategy.hardware.nvml_calls import ask, failures, is_error, pci_address, text

# Reasons that slow a card down (nvml.h, nvmlClocksEventReason*). Idling and
# clocks that somebody set are no trouble.
_THROTTLE_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "temperature",
    0x40: "hardware temperature limit",
    0x80: "power supply",
}

# What a person can do about a driver that is there and does not answer.
_WAYS_OUT = {
    "NVML_ERROR_DRIVER_NOT_LOADED": "If this machine has one: load the driver (modprobe nvidia), "
    "or start the container with --gpus all.",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "The driver was updated but not reloaded: reboot, or "
    "unload and load the nvidia kernel modules.",
    "NVML_ERROR_NO_PERMISSION": "Ask for access to /dev/nvidiactl and /dev/nvidia0.",
    "NVML_ERROR_GPU_IS_LOST": "It fell off the bus: reboot, and see the kernel log for 'Xid 79'.",
    "NVML_ERROR_INSUFFICIENT_POWER": "Check its power cables.",
    "NVML_ERROR_IRQ_ISSUE": "The kernel found an interrupt problem: see its log.",
    "NVML_ERROR_RESET_REQUIRED": "It must be reset: nvidia-smi --gpu-reset, or reboot.",
}

# Why NVML may refuse to start.
_FAULTS = (
    "NVML_ERROR_LIBRARY_NOT_FOUND",
    "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    "NVML_ERROR_NO_PERMISSION",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaFindings:
    """Cards and MIG instances, the links between cards, versions, and notes."""

    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    notes: tuple[str, ...] = ()


def probe(host: Host, nvml: Any = None) -> NvidiaFindings:
    """GPUs that NVML can see, and one note for each that it could not read.

    No driver means no GPU and no note; that is the normal laptop. A driver that
    is there and does not answer is a note that says what to do. `host` lends
    its memory to cards that have none of their own.
    """
    if nvml is None:
        try:
            import pynvml
        except ImportError as error:
            return NvidiaFindings(
                notes=(f"NVML cannot be asked: {error}. Run pip install nvidia-ml-py.",)
            )
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except failures(nvml) as error:
        if is_error(nvml, error, "NVML_ERROR_LIBRARY_NOT_FOUND"):
            return NvidiaFindings()
        return NvidiaFindings(
            notes=(
                f"The NVIDIA driver does not answer ({error}), so no GPU can be used. "
                f"{_way_out(nvml, error)}",
            )
        )
    try:
        return _read(nvml, host)
    finally:
        ask(nvml, "nvmlShutdown")


def fault(nvml: Any = None) -> str | None:
    """What nvml.h calls the error with which NVML refuses to start, None when it starts."""
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            return None
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except failures(nvml) as error:
        return next((name for name in _FAULTS if is_error(nvml, error, name)), str(error))
    ask(nvml, "nvmlShutdown")
    return None


def _read(nvml: Any, host: Host) -> NvidiaFindings:
    notes: list[str] = []
    handles: dict[int, Any] = {}
    try:
        count = nvml.nvmlDeviceGetCount()
    except failures(nvml) as error:
        count = 0
        notes.append(f"NVML does not count the GPUs ({error}). {_way_out(nvml, error)}")
    for index in range(count):
        try:
            handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
        except failures(nvml) as error:
            if is_error(nvml, error, "NVML_ERROR_NO_PERMISSION"):
                # A device cgroup, as Slurm and containers use: no fault to mend.
                notes.append(
                    f"GPU {index} of {count} is kept from this process's job or container."
                )
            else:
                notes.append(
                    f"GPU {index} of {count} cannot be read ({error}). {_way_out(nvml, error)}"
                )
    cards = tuple(_card(nvml, index, handle, host, notes) for index, handle in handles.items())
    return NvidiaFindings(
        devices=(*cards, *_mig_instances(nvml, handles, cards, count, notes)),
        links=nvidia_links.between(nvml, handles, cards),
        driver_version=text(ask(nvml, "nvmlSystemGetDriverVersion")),
        cuda_driver_version=_cuda_version(ask(nvml, "nvmlSystemGetCudaDriverVersion_v2")),
        notes=tuple(notes),
    )


def _card(nvml: Any, index: int, handle: Any, host: Host, notes: list[str]) -> Device:
    # [current, pending]; cards before Ampere answer with an error.
    mig = ask(nvml, "nvmlDeviceGetMigMode", handle)
    is_parent = mig is not None and mig[0] == 1
    utilization = ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    total, free, unified = _memory(nvml, handle, host)
    return Device(
        kind="gpu",
        index=index,
        name=_name(nvml, handle, f"GPU {index}", notes),
        uuid=text(ask(nvml, "nvmlDeviceGetUUID", handle)),
        pci_address=pci_address(ask(nvml, "nvmlDeviceGetPciInfo", handle)),
        memory_bytes=total,
        memory_free_bytes=free,
        unified_memory=unified,
        compute_capability=_compute_capability(nvml, handle),
        mig="parent" if is_parent else "off",
        utilization_percent=None if utilization is None else int(utilization.gpu),
        # The current generation drops to 1 while a card idles, so the maximum.
        pcie_generation=ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        processes=_processes(nvml, handle),
        throttle_reasons=_throttle_reasons(nvml, handle),
    )


def _mig_instances(
    nvml: Any,
    handles: dict[int, Any],
    cards: tuple[Device, ...],
    count: int,
    notes: list[str],
) -> tuple[Device, ...]:
    instances: list[Device] = []
    for card in cards:
        if card.mig != "parent":
            continue
        parent = handles[card.index]
        for slot in range(ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", parent) or 0):
            handle = ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", parent, slot)
            if handle is None:
                continue  # slots have holes
            memory = _memory_info(nvml, handle)
            instances.append(
                Device(
                    kind="gpu",
                    index=count + len(instances),
                    name=_name(nvml, handle, f"MIG instance {slot} of GPU {card.index}", notes),
                    uuid=text(ask(nvml, "nvmlDeviceGetUUID", handle)),
                    pci_address=card.pci_address,
                    memory_bytes=None if memory is None else int(memory.total),
                    memory_free_bytes=None if memory is None else int(memory.free),
                    compute_capability=card.compute_capability,
                    mig="instance",
                    parent_index=card.index,
                    gpu_instance=ask(nvml, "nvmlDeviceGetGpuInstanceId", handle),
                    compute_instance=ask(nvml, "nvmlDeviceGetComputeInstanceId", handle),
                    pcie_generation=card.pcie_generation,
                    pcie_width=card.pcie_width,
                    processes=_processes(nvml, handle),
                    throttle_reasons=card.throttle_reasons,
                )
            )
    return tuple(instances)


def _name(nvml: Any, handle: Any, which: str, notes: list[str]) -> str:
    try:
        name = text(nvml.nvmlDeviceGetName(handle))
        why = ""
    except UnicodeDecodeError:
        name, why = None, ": it is not UTF-8"
    except failures(nvml):
        name, why = None, ""
    if name is None:
        notes.append(f"The name of {which} cannot be read{why}.")
        return "NVIDIA GPU"
    return name


def _memory(nvml: Any, handle: Any, host: Host) -> tuple[int | None, int | None, bool]:
    """Total and free bytes, and whether they are the host's.

    A GPU on a system on chip (Jetson, GB10) has no memory of its own and says
    so by refusing both versions of the call as not supported.
    """
    memory = _memory_info(nvml, handle)
    if memory is not None:
        return int(memory.total), int(memory.free), False
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except failures(nvml) as error:
        if is_error(nvml, error, "NVML_ERROR_NOT_SUPPORTED"):
            return host.memory_bytes, host.memory_available_bytes, True
    return None, None, False


def _memory_info(nvml: Any, handle: Any) -> Any:
    # Version 2, from driver 510 on, does not count what the driver reserves as
    # used. Its number is nvmlMemory_v2, not 2.
    version = getattr(nvml, "nvmlMemory_v2", None)
    memory = version and ask(nvml, "nvmlDeviceGetMemoryInfo", handle, version=version)
    return memory or ask(nvml, "nvmlDeviceGetMemoryInfo", handle)


def _compute_capability(nvml: Any, handle: Any) -> str | None:
    version = ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    return None if version is None else f"{version[0]}.{version[1]}"


def _processes(nvml: Any, handle: Any) -> tuple[DeviceProcess, ...] | None:
    """Processes that compute here, but not this one. In a container the ids are the host's.

    Before driver 510 the call is not there, and nothing is known of any.
    """
    running = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    if running is None:
        return None
    return tuple(
        DeviceProcess(
            pid=each.pid,
            memory_bytes=each.usedGpuMemory,
            name=_process_name(nvml, each.pid),
        )
        for each in running
        if each.pid != os.getpid()
    )


def _process_name(nvml: Any, pid: int) -> str | None:
    path = text(ask(nvml, "nvmlSystemGetProcessName", pid))
    return os.path.basename(path) if path else None


def _throttle_reasons(nvml: Any, handle: Any) -> tuple[str, ...]:
    bits = ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:  # its name before driver 535
        bits = ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    return tuple(reason for bit, reason in _THROTTLE_REASONS.items() if bits & bit)


def _cuda_version(number: int | None) -> str | None:
    """12040 -> '12.4'."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _way_out(nvml: Any, error: Any) -> str:
    for name, way_out in _WAYS_OUT.items():
        if is_error(nvml, error, name):
            return way_out
    return "See what nvidia-smi says."
