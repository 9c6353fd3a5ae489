"""gather(): look for what the facts do not say."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from autostrategy import rendezvous
from autostrategy.diagnosis import asking
from autostrategy.diagnosis.evidence import Evidence
from autostrategy.facts import Cluster, Facts
from autostrategy.hardware import host, nvidia, rocm_visibility

# The only variables that a check may see; none of them holds a secret.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "KERAS_BACKEND",
    "KUBERNETES_SERVICE_HOST",
    "LD_LIBRARY_PATH",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "SLURM_JOB_ID",
    "TF_CONFIG",
    *(name for name in rocm_visibility.VARIABLES if name != "CUDA_VISIBLE_DEVICES"),
)

_PACKAGES = (
    "keras",
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-metal",
    "tensorflow-rocm",
    "tf-nightly",
    "nvidia-cublas-cu12",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cudnn-cu12",
    "nvidia-nccl-cu12",
)

_NVIDIA = "0x10de"
# PCI base classes of display controllers and of processing accelerators.
_CARD_CLASSES = ("0x03", "0x12")

_CLUSTER_SECONDS = 10.0


def gather(
    facts: Facts,
    *,
    env: Mapping[str, str],
    root: Path,
    probe_errors: tuple[str, ...] = (),
    cluster: bool = False,
) -> Evidence:
    """Evidence for a diagnosis of the machine below `root`, which stands for /.

    With any other root than / itself no driver, library or process is asked.

    Args:
        facts: of the same machine.
        env: its environment.
        root: its file system.
        probe_errors: what probing it raised.
        cluster: whether to knock at every other task of the cluster.
    """
    here = host.is_this_machine(root)
    files = _device_files(root)
    cards = _nvidia_cards(root)
    found_gpu = bool(cards) or any(device.kind == "gpu" for device in facts.host.devices)
    missing, cudnn = asking.libraries(env) if here and found_gpu else (None, None)
    knocked = facts.cluster if cluster else None
    return Evidence(
        system=_system(),
        env={name: env[name] for name in VARIABLES if name in env},
        packages=_packages(),
        probe_errors=probe_errors,
        keras_backend=_keras_backend(root, env),
        container=_container(root, env),
        distribution=_distribution(root),
        nvidia_cards=cards,
        device_files=files,
        # Below WSL2 the driver is that of Windows, reached through /dev/dxg.
        driver_loaded="dxg" in files or (root / "proc/driver/nvidia/version").exists(),
        nvml_error=nvidia.fault() if here and found_gpu else None,
        amd_gpus=_amd_gpus(root),
        missing_libraries=missing,
        cudnn_version=cudnn,
        libdevice=_libdevice(root, env) if found_gpu else None,
        tensorflow=asking.tensorflow(env) if here and found_gpu else None,
        open_files=_open_files() if here else None,
        shared_memory_bytes=_size(root / "dev/shm"),
        cluster_wanted=cluster,
        unanswered=_unanswered(knocked) if knocked else {},
        cannot_listen=_cannot_listen(knocked) if knocked else None,
    )


def _system() -> str:
    return (
        f"{platform.system()} {platform.release()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _keras_backend(root: Path, env: Mapping[str, str]) -> tuple[str, str] | None:
    """KERAS_BACKEND, else keras.json in KERAS_HOME or ~/.keras (keras/src/backend/config.py)."""
    if env.get("KERAS_BACKEND"):
        return env["KERAS_BACKEND"], "KERAS_BACKEND"
    folder = env.get("KERAS_HOME")
    if folder is None and "HOME" in env:
        folder = f"{env['HOME']}/.keras"
    if folder is None:
        return None
    file = root / PurePosixPath(folder).as_posix().lstrip("/") / "keras.json"
    try:
        settings: Any = json.loads(host.read_text(file) or "{}")
    except ValueError:
        return None
    backend = settings.get("backend") if isinstance(settings, dict) else None
    return (backend, "keras.json") if isinstance(backend, str) else None


def _container(root: Path, env: Mapping[str, str]) -> str | None:
    for name in (".dockerenv", "run/.containerenv"):
        if (root / name).exists():
            return f"/{name}"
    if "KUBERNETES_SERVICE_HOST" in env:
        return "KUBERNETES_SERVICE_HOST"
    # 0::/kubepods/burstable/pod1/c1, 4:cpu:/docker/0a1b
    groups = host.read_text(root / "proc/self/cgroup") or ""
    match = re.search(r"/(docker|kubepods|containerd|lxc|libpod)\b", groups)
    return f"the control group /{match[1]}" if match else None


def _distribution(root: Path) -> str | None:
    text = host.read_text(root / "etc/os-release") or ""
    match = re.search(r'^ID="?([a-z0-9._-]+)"?$', text, re.MULTILINE)
    return match[1] if match else None


def _nvidia_cards(root: Path) -> tuple[str, ...]:
    folder = root / "sys/bus/pci/devices"
    return tuple(
        each.name
        for each in (sorted(folder.iterdir()) if folder.is_dir() else ())
        if (host.read_text(each / "vendor") or "").strip() == _NVIDIA
        # One that is passed through to a virtual machine is not this host's.
        and (each / "driver").resolve().name != "vfio-pci"
        and (host.read_text(each / "class") or "").startswith(_CARD_CLASSES)
    )


def _device_files(root: Path) -> tuple[str, ...]:
    folder = root / "dev"
    found = [*folder.glob("nvidia[0-9]*"), folder / "nvidiactl", folder / "nvidia-uvm"]
    return tuple(sorted(path.name for path in [*found, folder / "dxg"] if path.exists()))


def _amd_gpus(root: Path) -> tuple[str, ...]:
    """Nodes of the kernel's compute driver that have vector units; the others are processors."""
    folder = root / "sys/class/kfd/kfd/topology/nodes"
    nodes = sorted(folder.iterdir(), key=lambda each: each.name.zfill(9)) if folder.is_dir() else ()
    found = []
    for node in nodes:
        # simd_count 440
        properties = dict(
            re.findall(r"^(\w+) (\d+)$", host.read_text(node / "properties") or "", re.MULTILINE)
        )
        if int(properties.get("simd_count", "0")):
            number = int(properties.get("unique_id", "0"))
            found.append(f"GPU-{number:016x}" if number else "")
    return tuple(found)


def _libdevice(root: Path, env: Mapping[str, str]) -> bool:
    """Where XLA looks: its flag, pip's package, CUDA's folder, the working directory."""
    folders = [root / "usr/local/cuda", root / "opt/cuda"]
    if match := re.search(r"--xla_gpu_cuda_data_dir=(\S+)", env.get("XLA_FLAGS", "")):
        folders.append(root / match[1].lstrip("/"))
    if host.is_this_machine(root):
        try:
            distribution = importlib.metadata.distribution("nvidia-cuda-nvcc-cu12")
            folders.append(Path(str(distribution.locate_file("nvidia/cuda_nvcc"))))
        except importlib.metadata.PackageNotFoundError:
            pass
        if Path("libdevice.10.bc").exists():
            return True
    return any((folder / "nvvm/libdevice/libdevice.10.bc").exists() for folder in folders)


def _open_files() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _size(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except (OSError, AttributeError):
        return None
    return found.f_frsize * found.f_blocks


def _own_address(cluster: Cluster) -> str | None:
    """An evaluator has none."""
    addresses = cluster.addresses(cluster.task_type)
    return addresses[cluster.task_index] if addresses else None


def _unanswered(cluster: Cluster) -> dict[str, str]:
    own = _own_address(cluster)
    others = [each for job in cluster.jobs for each in job.addresses if each != own]
    return rendezvous.unanswered(others, timeout=_CLUSTER_SECONDS)


def _cannot_listen(cluster: Cluster) -> str | None:
    own = _own_address(cluster)
    return rendezvous.cannot_listen(own) if own else None
