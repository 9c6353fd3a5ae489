"""What the checks look at, beside the facts: frozen, gathered once, made by hand in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autostrategy.facts import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowAnswer:
    """What TensorFlow said in a process of its own.

    `gpus` is None when it did not come to the question: `fault` says why.
    `built_with_cuda` is asked of the binary, `tf.test.is_built_with_cuda`, since
    the build info of a CPU wheel says True; `compute_capabilities` is from there.
    """

    gpus: int | None = None
    built_with_cuda: bool = True
    compute_capabilities: tuple[str, ...] = ()
    stderr: str = ""
    fault: str | None = None
    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Observations of a machine that only a diagnosis needs.

    `env` holds none but the variables that a check reads, so that no secret
    can come into a report. None means: not asked, or not told.

    Attributes:
        packages: version by name of the installed packages that matter.
        probe_errors: why probing failed, one text for each contradiction.
        keras_backend: the backend that Keras would take, and what says so.
        container: what shows that this is a container.
        distribution: `ID` of /etc/os-release, such as "ubuntu".
        nvidia_cards: PCI addresses of NVIDIA's display and compute cards.
        device_files: names in /dev of NVIDIA's devices, and "dxg" (WSL2).
        driver_loaded: whether the kernel has NVIDIA's driver.
        nvml_error: the name in nvml.h of what NVML answers instead of starting.
        amd_gpus: UUIDs of AMD GPUs that the kernel offers for computing.
        missing_libraries: CUDA libraries that cannot be loaded, with the reason.
        cudnn_version: of the cuDNN that would be loaded, as 9.3.0.
        libdevice: whether XLA would find libdevice.10.bc.
        open_files: how many files this process may hold open.
        shared_memory_bytes: the size of /dev/shm.
        cluster_wanted: whether somebody asked to knock at the cluster.
        unanswered: addresses of the cluster where nobody answers, with the reason.
        cannot_listen: why this task cannot listen at its own address.
    """

    system: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    probe_errors: tuple[str, ...] = ()
    keras_backend: tuple[str, str] | None = None
    container: str | None = None
    distribution: str | None = None
    nvidia_cards: tuple[str, ...] = ()
    device_files: tuple[str, ...] = ()
    driver_loaded: bool = False
    nvml_error: str | None = None
    amd_gpus: tuple[str, ...] = ()
    missing_libraries: Mapping[str, str] | None = None
    cudnn_version: tuple[int, ...] | None = None
    libdevice: bool | None = None
    tensorflow: TensorFlowAnswer | None = None
    open_files: int | None = None
    shared_memory_bytes: int | None = None
    cluster_wanted: bool = False
    unanswered: Mapping[str, str] = field(default_factory=dict)
    cannot_listen: str | None = None

    def gpus(self, facts: Facts) -> int:
        """NVIDIA cards of this machine, by its driver or, without one, by PCI."""
        known = sum(
            device.kind == "gpu" and device.mig != "instance" for device in facts.host.devices
        )
        return known or len(self.nvidia_cards)
