"""The way from an NVIDIA card to TensorFlow, link by link.

A broken link breaks all that follow it: without a driver no library loads and
TensorFlow sees no GPU. So the links are asked in order, and the first that
keeps a card from being used is the cause; what follows is not reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from autostrategy import device_selection
from autostrategy.diagnosis import drivers
from autostrategy.diagnosis.evidence import Evidence
from autostrategy.diagnosis.finding import Finding
from autostrategy.diagnosis.software import tensorflow
from autostrategy.facts import Device, Facts

# Compute capabilities of the wheels of 2.20 and 2.21 (`tf.sysconfig.get_build_info`).
# Code for sm_80 runs on all of 8.x; compute_90 is compiled at first use on any later card.
_WHEEL = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")


def path(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """The first link that is broken, and what the links before it have to say."""
    for link in LINKS:
        found = tuple(link(facts, evidence))
        yield from found
        if any(each.severity == "blocked" for each in found):
            return


def _visibility(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES names what is there, and hides nothing by mistake."""
    value = facts.visible_devices
    hidden = device_selection.hidden_gpus(facts)
    if value is None:
        return
    notes = [note for note in facts.notes if note.startswith("CUDA_VISIBLE_DEVICES=")]
    wrong = [note for note in notes if "has blanks" not in note]
    if wrong:
        yield Finding(
            severity="blocked" if hidden else "warning",
            what="CUDA_VISIBLE_DEVICES names a GPU that is not there or twice, which hides "
            f"{len(hidden)} of {len(drivers.seen(facts))} GPUs.",
            evidence=wrong[0].partition(" Unset it")[0],
            remedy="unset CUDA_VISIBLE_DEVICES",
        )
    # A scheduler gives a job some of the GPUs, workers of one host must share
    # them out, and a MIG instance is always alone.
    elif (
        hidden
        and "SLURM_JOB_ID" not in evidence.env
        and _workers_here(facts) < 2
        and all(each.mig == "off" for each in _usable(facts))
    ):
        yield Finding(
            severity="warning",
            what=f"CUDA_VISIBLE_DEVICES hides {len(hidden)} of {len(drivers.seen(facts))} GPUs.",
            evidence=f"CUDA_VISIBLE_DEVICES={value!r}",
            remedy="unset CUDA_VISIBLE_DEVICES",
        )


def _instances(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """A card in MIG mode has instances."""
    parents = [device for device in facts.host.devices if device.mig == "parent"]
    used = {device.parent_index for device in facts.host.devices}
    empty = [card for card in parents if card.index not in used]
    if empty:
        yield Finding(
            severity="blocked",
            what=f"GPU {empty[0].index} is in MIG mode and has no instance, so nothing can run.",
            evidence=f"{empty[0].name}, MIG on, 0 instances",
            remedy=f"sudo nvidia-smi -i {empty[0].index} -mig 0",
        )


def _wheel(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """TensorFlow was built for GPUs."""
    name = tensorflow(evidence)
    if not evidence.gpus(facts) or name is None:
        return
    answer = evidence.tensorflow
    if name == "tensorflow-cpu" or (answer and not answer.built_with_cuda):
        yield Finding(
            severity="blocked",
            what="TensorFlow is built for the CPU alone, beside "
            f"{drivers.cards(evidence.gpus(facts))}.",
            evidence=f"{name} {evidence.packages[name]} is installed",
            remedy=f"pip uninstall -y {name} && pip install 'tensorflow[and-cuda]'",
        )


def _libraries(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """Each CUDA library that TensorFlow opens can be loaded."""
    missing = dict(evidence.missing_libraries or {})
    if not missing or not evidence.gpus(facts):
        return
    if reason := missing.pop("libcuda.so.1", None):
        remedy = "sudo ldconfig  # finds it where the driver was installed; else install it again"
        if "dxg" in evidence.device_files:
            remedy = "export LD_LIBRARY_PATH=/usr/lib/wsl/lib"
        elif evidence.container:
            remedy = drivers.GIVE_LIBRARIES
        yield Finding(
            severity="blocked",
            what="The driver's own library libcuda.so.1 cannot be loaded.",
            evidence=reason,
            remedy=remedy,
        )
        return
    by_pip = any(name.startswith("nvidia-") for name in evidence.packages)
    yield Finding(
        severity="blocked",
        what="TensorFlow cannot load "
        + ("all of CUDA's libraries." if by_pip else "CUDA's libraries, which are not installed."),
        evidence="missing: " + ", ".join(missing),
        remedy="pip install 'tensorflow[and-cuda]'",
    )


def _too_old(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """Each card is one that TensorFlow has code for."""
    numbers = [_capability(text) for text in _built_for(evidence)]
    old = [card for card in _usable(facts) if _below(card, min(numbers))]
    if old:
        yield Finding(
            severity="blocked",
            what=f"{old[0].name} is too old for this TensorFlow, which leaves it out.",
            evidence=f"compute capability {old[0].compute_capability}; TensorFlow has "
            + ", ".join(_built_for(evidence)),
            remedy="autostrategy run train.py  # on the CPU, or on a GPU of compute capability "
            f"{'.'.join(map(str, min(numbers)))} or more",
        )


def _too_new(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    numbers = [_capability(text) for text in _built_for(evidence)]
    new = [
        card
        for card in _usable(facts)
        if card.compute_capability and _capability(card.compute_capability)[0] > max(numbers)[0]
    ]
    if new:
        yield Finding(
            severity="warning",
            what=f"{new[0].name} is newer than this TensorFlow: its code is compiled at first use, "
            "which may take half an hour, and some of it may fail.",
            evidence=f"compute capability {new[0].compute_capability}; TensorFlow has "
            + ", ".join(_built_for(evidence)),
            # The largest size; the default drops code before all of it is kept.
            remedy="export CUDA_CACHE_MAXSIZE=4294967296  # so that it is compiled only once",
        )


# What TensorFlow writes, what that means, and what mends it.
_SAID = (
    (r"SYSTEM_NOT_READY|system not yet initialized", "sudo systemctl start nvidia-fabricmanager"),
    (r"CUDA_ERROR_UNKNOWN|unknown error", "sudo modprobe nvidia_uvm"),
    (r"SYSTEM_DRIVER_MISMATCH|driver mismatch", "sudo reboot"),
    (r"NO_DEVICE|no CUDA-capable device", "unset CUDA_VISIBLE_DEVICES LD_LIBRARY_PATH"),
    (r"Could not find cuda drivers", "sudo ldconfig"),
    (r"[Cc]ould not load dynamic library|Cannot dlopen", "pip install 'tensorflow[and-cuda]'"),
    (r"[Ii]gnoring visible gpu device", "nvidia-smi"),
)

_ASK_TENSORFLOW = (
    "TF_CPP_MAX_VLOG_LEVEL=1 python -c 'import tensorflow as tf; "
    'tf.config.list_physical_devices("GPU")\''
)


def _tensorflow(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """TensorFlow sees what the driver shows, whatever else may be in its way."""
    answer = evidence.tensorflow
    wanted = len([name for name in device_selection.by_name(facts) if name.startswith("GPU")])
    if answer is None or answer.gpus is None or answer.gpus >= wanted:
        return
    lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
    telling, remedy = next(
        ((line, remedy) for pattern, remedy in _SAID for line in lines if re.search(pattern, line)),
        (lines[-1] if lines else "TensorFlow does not say why", _ASK_TENSORFLOW),
    )
    yield Finding(
        severity="blocked",
        what=f"TensorFlow sees {answer.gpus} of the {wanted} GPUs that the driver shows.",
        evidence=telling,
        remedy=remedy,
    )


LINKS: tuple[Callable[[Facts, Evidence], Iterator[Finding]], ...] = (
    drivers.container,
    drivers.installed,
    drivers.one_version,
    drivers.answers,
    drivers.new_enough,
    drivers.able_to_compute,
    _visibility,
    _instances,
    _wheel,
    _libraries,
    _too_old,
    _tensorflow,
    _too_new,
)


def _workers_here(facts: Facts) -> int:
    """Workers of the cluster that run on this task's host, this one included."""
    cluster = facts.cluster
    if cluster is None or not cluster.addresses(cluster.task_type):
        return 1
    here = cluster.addresses(cluster.task_type)[cluster.task_index].rpartition(":")[0]
    return sum(address.rpartition(":")[0] == here for address in cluster.workers)


def _usable(facts: Facts) -> list[Device]:
    return [each for each in device_selection.by_name(facts).values() if each.kind == "gpu"]


def _built_for(evidence: Evidence) -> tuple[str, ...]:
    return (evidence.tensorflow and evidence.tensorflow.compute_capabilities) or _WHEEL


def _below(card: Device, least: tuple[int, int]) -> bool:
    return card.compute_capability is not None and _capability(card.compute_capability) < least


def _capability(text: str) -> tuple[int, int]:
    """'8.9', 'sm_89' and 'compute_90' as (8, 9), (8, 9) and (9, 0); 'sm_120' is (12, 0)."""
    digits = "".join(re.findall(r"\d+", text))
    return int(digits[:-1]), int(digits[-1])
