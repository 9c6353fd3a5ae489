"""The first links from an NVIDIA card to TensorFlow: container, driver, NVML. See `gpus`."""

from __future__ import annotations

from collections.abc import Iterator

from autostrategy.diagnosis.evidence import Evidence
from autostrategy.diagnosis.finding import Finding
from autostrategy.facts import Device, Facts

_INSTALL_DRIVER = {
    "debian": "sudo apt-get install nvidia-driver && sudo reboot",
    "fedora": "sudo dnf install akmod-nvidia && sudo reboot",
    "ubuntu": "sudo ubuntu-drivers install && sudo reboot",
}
_DRIVER_GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide"

_GIVE_GPUS = "docker run --gpus all ..."
GIVE_LIBRARIES = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
_GIVE_GPUS_IN_A_POD = "resources: {limits: {nvidia.com/gpu: 1}}  # in the pod's container"

# CUDA 12 runs from driver 525 on (CUDA release notes, "minor version compatibility").
_OLDEST_CUDA = 12
_OLDEST_DRIVER = "525.60.13"

# Faults of NVML that `one_version` speaks of.
_SAID_BEFORE = ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "NVML_ERROR_NO_PERMISSION")


def container(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """A container was given the GPUs of its host."""
    if not evidence.container or evidence.device_files or seen(facts):
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
        + (f", and {cards(len(evidence.nvidia_cards))} on PCI" if evidence.nvidia_cards else ""),
        remedy=_GIVE_GPUS_IN_A_POD if pod else _GIVE_GPUS,
    )


def installed(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """A card on PCI has NVIDIA's driver."""
    if not evidence.nvidia_cards or evidence.driver_loaded or seen(facts):
        return
    installed = evidence.nvml_error == "NVML_ERROR_DRIVER_NOT_LOADED"
    distribution = evidence.distribution or "this system"
    yield Finding(
        severity="blocked",
        what=f"{cards(len(evidence.nvidia_cards))} {_is(len(evidence.nvidia_cards))} here, and "
        f"NVIDIA's driver is not {'loaded' if installed else 'installed'}.",
        evidence=f"PCI {', '.join(evidence.nvidia_cards)}; no /proc/driver/nvidia/version",
        remedy="sudo modprobe nvidia"
        if installed
        else _INSTALL_DRIVER.get(distribution, f"see {_DRIVER_GUIDE} for {distribution}"),
    )


def one_version(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
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


def answers(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """NVML shows the cards; without it probing finds none."""
    if seen(facts) or not evidence.nvidia_cards:
        return
    kept = [note for note in facts.notes if "is kept from this process" in note]
    unasked = [note for note in facts.notes if note.startswith("NVML cannot be asked")]
    error = evidence.nvml_error
    if error == "NVML_ERROR_LIBRARY_NOT_FOUND":
        yield Finding(
            severity="blocked",
            what="The driver's own library libnvidia-ml.so.1 is not found, so no GPU is seen.",
            evidence="the driver is loaded, and NVML: library not found",
            remedy=GIVE_LIBRARIES if evidence.container else "sudo ldconfig",
        )
    elif error not in (None, *_SAID_BEFORE):
        yield Finding(
            severity="blocked",
            what="The NVIDIA driver does not answer.",
            evidence=f"NVML: {error}",
            remedy="sudo dmesg | grep -i nvrm  # says why; then: sudo reboot",
        )
    elif unasked:
        yield Finding(
            severity="blocked",
            what="The package nvidia-ml-py is missing, so no GPU is seen.",
            evidence=unasked[0],
            remedy="pip install nvidia-ml-py",
        )
    elif kept:
        yield Finding(
            severity="blocked",
            what="This job or container was given none of the GPUs of its host.",
            evidence=kept[0],
            remedy="srun --gpus=1 ..." if "SLURM_JOB_ID" in evidence.env else _GIVE_GPUS,
        )


def new_enough(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
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


def able_to_compute(facts: Facts, evidence: Evidence) -> Iterator[Finding]:
    """The container runtime brings libcuda, and not NVML alone."""
    value = evidence.env.get("NVIDIA_DRIVER_CAPABILITIES")
    if not value or not evidence.container or not evidence.gpus(facts):
        return
    if not {"compute", "all"} & {part.strip() for part in value.split(",")}:
        yield Finding(
            severity="blocked",
            what="This container was given the GPUs without the libraries to compute on them.",
            evidence=f"NVIDIA_DRIVER_CAPABILITIES={value} does not have compute",
            remedy=GIVE_LIBRARIES,
        )


def seen(facts: Facts) -> list[Device]:
    """Whole GPUs and MIG instances that NVML shows, visible or not."""
    return [each for each in facts.host.devices if each.kind == "gpu" and each.mig != "parent"]


def cards(count: int) -> str:
    """'1 NVIDIA GPU', '2 NVIDIA GPUs'."""
    return "1 NVIDIA GPU" if count == 1 else f"{count} NVIDIA GPUs"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
