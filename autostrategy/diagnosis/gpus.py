"""The way from an NVIDIA card to TensorFlow, link by link.

A broken link breaks all that follow it: without a driver no library loads and
TensorFlow sees no GPU. So the links are asked in order, and the first that
keeps a card from being used is the cause; what follows is not reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from autostrategy import device_selection
from autostrategy.diagnosis.evidence import Evidence
from autostrategy.diagnosis.finding import Finding
from autostrategy.diagnosis.software import tensorflow
from autostrategy.facts import Device, Facts

_INSTALL_DRIVER = {
    "debian": "sudo apt-get install nvidia-driver && sudo reboot",
    "fedora": "sudo dnf install akmod-nvidia && sudo reboot",
    "ubuntu": "sudo ubuntu-drivers install && sudo reboot",
}
_DRIVER_GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide"

_GIVE_GPUS = "docker run --gpus all ..."
_GIVE_GPUS_IN_A_POD = "resources: {limits: {nvidia.com/gpu: 1}}  # in the pod's container"

# CUDA 12 runs from driver 525 on (CUDA release notes, "minor version compatibility").
_OLDEST_CUDA = 12
_OLDEST_DRIVER = "525.60.13"

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


def _container(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """A container was given the GPUs of its host."""
    if not evidence.container or evidence.device_files or _seen(facts):
        return
    wanted = evidence.env.get("NVIDIA_VISIBLE_DEVICES", "")
    asks = wanted not in ("", "void", "none")
    if not asks and not evidence.nvidia_cards:
        return
    pod = "KUBERNETES_SERVICE_HOST" in evidence.env
    yield Finding(
        severity="blocked" if evidence.nvidia_cards else "warning",
        what="This container was not given the GPUs "
        + ("of its host." if evidence.nvidia_cards else "that it asks for."),
        evidence=f"a container by {evidence.container}"
        + (f", NVIDIA_VISIBLE_DEVICES={wanted}" if asks else "")
        + ", no /dev/nvidia0"
        + (f", and {_cards(len(evidence.nvidia_cards))} on PCI" if evidence.nvidia_cards else ""),
        remedy=_GIVE_GPUS_IN_A_POD if pod else _GIVE_GPUS,
    )


def _driver(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """A card on PCI has NVIDIA's driver."""
    if not evidence.nvidia_cards or evidence.driver_loaded or _seen(facts):
        return
    installed = evidence.nvml_error == "NVML_ERROR_DRIVER_NOT_LOADED"
    distribution = evidence.distribution or "this system"
    yield Finding(
        severity="blocked",
        what=f"{_cards(len(evidence.nvidia_cards))} {_is(len(evidence.nvidia_cards))} here, and "
        f"NVIDIA's driver is not {'loaded' if installed else 'installed'}.",
        evidence=f"PCI {', '.join(evidence.nvidia_cards)}; no /proc/driver/nvidia/version",
        remedy="sudo modprobe nvidia"
        if installed
        else _INSTALL_DRIVER.get(distribution, f"see {_DRIVER_GUIDE} for {distribution}"),
    )


def _library_and_driver(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """The driver in the kernel and its libraries are of one version, and may be used."""
    if evidence.nvml_error == "NVML_ERROR_LIB_RM_VERSION_MISMATCH":
        yield Finding(
            severity="blocked",
            what="The NVIDIA driver was updated and not loaded again, so no GPU answers.",
            evidence="NVML: driver/library version mismatch",
            remedy="sudo reboot",
        )
    elif evidence.nvml_error == "NVML_ERROR_NO_PERMISSION":
        yield Finding(
            severity="blocked",
            what="This user may not open the GPUs.",
            evidence="NVML: insufficient permissions",
            remedy='sudo usermod -aG video "$USER"  # then log in again',
        )


def _driver_age(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """The driver is new enough for CUDA 12."""
    version = facts.host.cuda_driver_version
    if version is not None and int(version.partition(".")[0]) < _OLDEST_CUDA:
        yield Finding(
            severity="blocked",
            what=f"The NVIDIA driver is too old for CUDA {_OLDEST_CUDA}, which TensorFlow needs.",
            evidence=f"driver {facts.host.driver_version}, CUDA up to {version}",
            remedy=_INSTALL_DRIVER.get(evidence.distribution or "", f"see {_DRIVER_GUIDE}")
            + f"  # {_OLDEST_DRIVER} or later",
        )


def _capabilities(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """The container runtime brings libcuda, and not NVML alone."""
    value = evidence.env.get("NVIDIA_DRIVER_CAPABILITIES")
    if not value or not evidence.container or not evidence.gpus(facts):
        return
    if not {"compute", "all"} & {part.strip() for part in value.split(",")}:
        yield Finding(
            severity="blocked",
            what="This container was given the GPUs without the libraries to compute on them.",
            evidence=f"NVIDIA_DRIVER_CAPABILITIES={value} does not have compute",
            remedy="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
        )


def _visibility(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES names what is there, and hides nothing by mistake."""
    value = facts.visible_devices
    hidden = device_selection.hidden_gpus(facts)
    if value is None or not hidden:
        return
    notes = [note for note in facts.notes if note.startswith("CUDA_VISIBLE_DEVICES=")]
    wrong = [note for note in notes if "has blanks" not in note]
    usable = _usable(facts)
    if wrong:
        yield Finding(
            severity="blocked",
            what=f"CUDA_VISIBLE_DEVICES names a GPU that is not there or twice, which hides "
            f"{len(hidden)} of {len(_seen(facts))} GPUs.",
            evidence=wrong[0].partition(" Unset it")[0],
            remedy="unset CUDA_VISIBLE_DEVICES",
        )
    # A scheduler gives a job some of the GPUs, workers of one host must share
    # them out, and a MIG instance is always alone.
    elif (
        "SLURM_JOB_ID" not in evidence.env
        and _workers_here(facts) < 2
        and all(each.mig == "off" for each in usable)
    ):
        yield Finding(
            severity="warning",
            what=f"CUDA_VISIBLE_DEVICES hides {len(hidden)} of {len(_seen(facts))} GPUs.",
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
            what=f"TensorFlow is built for the CPU alone, beside {_cards(evidence.gpus(facts))}.",
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
            remedy = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
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
    _container,
    _driver,
    _library_and_driver,
    _driver_age,
    _capabilities,
    _visibility,
    _instances,
    _wheel,
    _libraries,
    _too_old,
    _tensorflow,
    _too_new,
)


def _seen(facts: Facts) -> list[Device]:
    return [each for each in facts.host.devices if each.kind == "gpu" and each.mig != "parent"]


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


def _cards(count: int) -> str:
    return "1 NVIDIA GPU" if count == 1 else f"{count} NVIDIA GPUs"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
