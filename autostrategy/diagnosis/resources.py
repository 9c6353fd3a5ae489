"""Checks of what a run needs beside its devices: libraries' versions, memory, file handles."""

from __future__ import annotations

from collections.abc import Iterator

from autostrategy import device_selection
from autostrategy.diagnosis.evidence import Evidence
from autostrategy.diagnosis.finding import Finding
from autostrategy.facts import Device, Facts

# What tensorflow[and-cuda] 2.20 and 2.21 require of nvidia-cudnn-cu12.
_CUDNN = (9, 3)

# A desktop holds less than this; a job of somebody else holds more.
_HELD_SHARE = 0.2

# Linux's usual soft limit; macOS's is 256. Each task of a cluster, each file of
# the data and each thread of NCCL takes some.
_OPEN_FILES = {"linux": 1024, "darwin": 256, "windows": 0}

# Docker's default is 64 MiB; NCCL moves data between GPUs without peer access
# through /dev/shm (NCCL user guide, "Shared memory").
_SHARED_MEMORY_BYTES = 512 << 20


def cudnn(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """cuDNN is as new as the one TensorFlow was built with: same major, at least its minor."""
    version = evidence.cudnn_version
    if version is None or version[0] != _CUDNN[0] or version >= _CUDNN:
        return
    shadowed = "LD_LIBRARY_PATH" in evidence.env and "nvidia-cudnn-cu12" in evidence.packages
    yield Finding(
        severity="blocked",
        what="cuDNN is older than the one that TensorFlow was built with, and the first "
        "convolution fails.",
        evidence=f"cuDNN {_dotted(version)} is loaded; {_dotted(_CUDNN)} is needed",
        remedy="unset LD_LIBRARY_PATH  # it comes before the cuDNN that pip installed"
        if shadowed
        else "pip install --upgrade 'nvidia-cudnn-cu12>=9.3,<10'",
    )


def libdevice(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """XLA finds its device library (tensorflow/tensorflow#58681)."""
    if evidence.libdevice is False and _gpus(facts):
        yield Finding(
            severity="warning",
            what="XLA does not find libdevice.10.bc, so jit_compile=True fails.",
            evidence="nvidia-cuda-nvcc-cu12 is not installed, and no /usr/local/cuda has it",
            remedy="pip install 'nvidia-cuda-nvcc-cu12<13'",
        )


def memory(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """No other process holds much of a GPU's memory."""
    gpus = _gpus(facts)
    held = {}
    for name, device in gpus.items():
        total, free = device.memory_bytes, device.memory_free_bytes
        if total and free is not None and not device.unified_memory:
            share = 1 - free / total
            if share > _HELD_SHARE:
                by = ", ".join(
                    f"process {each.pid}{f' ({each.name})' if each.name else ''}"
                    for each in device.processes or ()
                )
                held[name] = f"{share:.0%} of {name}{f' by {by}' if by else ''}"
    if not held:
        return
    # by_name numbers what is visible; CUDA_VISIBLE_DEVICES wants the UUID or the card.
    others = [device.uuid or str(device.index) for name, device in gpus.items() if name not in held]
    pids = [str(each.pid) for name in held for each in gpus[name].processes or ()]
    remedy = "nvidia-smi  # names who holds it, where this process may not"
    if others:
        remedy = f"export CUDA_VISIBLE_DEVICES={','.join(others)}"
    elif pids:
        remedy = f"kill {' '.join(pids)}  # if they are yours, or wait for them to end"
    yield Finding(
        severity="warning",
        what=f"Other processes hold memory of {', '.join(held)}.",
        evidence="; ".join(held.values()),
        remedy=remedy,
    )


def shared_memory(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """GPUs that exchange through /dev/shm have room in it."""
    size = evidence.shared_memory_bytes
    if size is None or size >= _SHARED_MEMORY_BYTES or len(_gpus(facts)) < 2:
        return
    yield Finding(
        severity="warning",
        what="Shared memory is small, and NCCL may fail or slow down between the GPUs of this "
        "host.",
        evidence=f"{size / 2**20:.0f} MiB in /dev/shm",
        remedy="docker run --shm-size=1g ..."
        if evidence.container
        else "sudo mount -o remount,size=1g /dev/shm",
    )


def open_files(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """This process may open enough files."""
    needed = _OPEN_FILES[facts.host.platform]
    if evidence.open_files is not None and evidence.open_files < needed:
        yield Finding(
            severity="warning",
            what="This process may open few files; data pipelines and NCCL need more.",
            evidence=f"ulimit -n is {evidence.open_files}, and {needed} is usual",
            remedy="ulimit -n 4096",
        )


def notes(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """A card or TPU that probing could not read."""
    for note in facts.notes:
        if "cannot be read (" in note or "neither /dev/accel0" in note:
            what, _, remedy = note.partition(". ")
            yield Finding(
                severity="blocked", what=f"{what}.", evidence=note, remedy=remedy or "nvidia-smi"
            )


def _gpus(facts: Facts) -> dict[str, Device]:
    return {
        name: device
        for name, device in device_selection.by_name(facts).items()
        if device.kind == "gpu"
    }


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
