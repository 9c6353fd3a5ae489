"""Cores and memory that this process may use, which is often less than there are.

A container or a batch job is held to its share by affinity and by cgroups,
neither of which `os.cpu_count()` or `psutil.virtual_memory()` regards. Linux is
read from /proc and /sys below a given root; elsewhere psutil is asked.

cgroup v1 and v2 are read alike: of every limit file on the path from the
process's group to the root of its hierarchy the smallest counts, and a file
that is not there limits nothing. Inside a container only that root may be
mounted, which is then the container's own group.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from autostrategy.facts import Host

_CGROUP_MOUNT = "sys/fs/cgroup"

# Folders that v1 controllers are mounted at, and v2's own: alone, or beside v1.
_CPU_FOLDERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")
_MEMORY_FOLDERS = ("memory",)
_V2_FOLDERS = ("", "unified")


def probe(root: Path, *, name: str) -> Host:
    """The host `name` without its devices, as `root`, which stands for /, shows it."""
    logical = logical_cores(root)
    physical, available = _physical_memory(root)
    limit, below_limit = _memory_limit(root)
    return Host(
        name=name,
        platform=_platform(root),
        logical_cores=logical,
        usable_cores=usable_cores(root, logical=logical),
        memory_bytes=min(physical, limit if limit is not None else physical),
        memory_available_bytes=min(
            available, below_limit if below_limit is not None else available
        ),
    )


def is_this_machine(root: Path) -> bool:
    """Whether `root` is / itself, so that drivers and psutil speak of it too."""
    return root == Path("/")


def logical_cores(root: Path) -> int:
    """Logical cores of the machine, whether this process may use them or not."""
    if is_this_machine(root):
        return os.cpu_count() or 1
    text = read_text(root / "proc/cpuinfo") or ""
    return max(1, len(re.findall(r"^processor\s*:", text, re.MULTILINE)), _affinity(root) or 1)


def usable_cores(root: Path, *, logical: int) -> float:
    """Cores by affinity and cgroup quota, whichever is less; 1.5 is an answer."""
    quotas = [
        quota
        for read, folders in ((_quota_v2, _V2_FOLDERS), (_quota_v1, _CPU_FOLDERS))
        for folder in _group_folders(root, folders)
        if (quota := read(folder)) is not None
    ]
    return float(min([_affinity(root) or logical, *quotas]))


def _affinity(root: Path) -> int | None:
    """Cores that the scheduler may run this process on."""
    status = read_text(root / "proc/self/status") or ""
    # Cpus_allowed_list:	0-3,8
    if match := re.search(r"^Cpus_allowed_list:\s*([0-9,-]+)$", status, re.MULTILINE):
        ranges = [part.split("-") for part in match[1].split(",")]
        return sum(int(each[-1]) - int(each[0]) + 1 for each in ranges)
    if is_this_machine(root) and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return None


def _quota_v2(folder: Path) -> float | None:
    """cpu.max: '200000 100000', or 'max 100000'."""
    match = re.fullmatch(r"([0-9]+) ([0-9]+)", (read_text(folder / "cpu.max") or "").strip())
    if match is None or not int(match[2]):
        return None
    return int(match[1]) / int(match[2])


def _quota_v1(folder: Path) -> float | None:
    """cpu.cfs_quota_us, -1 for none, over cpu.cfs_period_us."""
    quota = _read_int(folder / "cpu.cfs_quota_us")
    period = _read_int(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _physical_memory(root: Path) -> tuple[int, int]:
    """Memory of the machine and what is available of it, in bytes."""
    text = read_text(root / "proc/meminfo") or ""
    kibibytes: dict[str, str] = dict(re.findall(r"^(\w+):\s*(\d+) kB$", text, re.MULTILINE))
    if "MemTotal" in kibibytes:
        total = int(kibibytes["MemTotal"]) * 1024
        available = int(kibibytes.get("MemAvailable", kibibytes.get("MemFree", 0))) * 1024
        return total, available
    if is_this_machine(root):
        # Only here, for it costs more time to import than all of /proc to read.
        import psutil

        memory = psutil.virtual_memory()
        return memory.total, memory.available
    return 0, 0


def _memory_limit(root: Path) -> tuple[int | None, int | None]:
    """The smallest cgroup limit, and the least that any group has left below its own."""
    limits: list[int] = []
    left: list[int] = []
    for folders, limit_file, usage_file, cache in (
        (_V2_FOLDERS, "memory.max", "memory.current", "inactive_file"),
        (_MEMORY_FOLDERS, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for folder in _group_folders(root, folders):
            # v2 says 'max' and v1 a number beyond any memory for no limit.
            limit = _read_int(folder / limit_file)
            if limit is None:
                continue
            # Files in the page cache count as usage and yet can be dropped.
            statistics = read_text(folder / "memory.stat") or ""
            match = re.search(rf"^{cache} (\d+)$", statistics, re.MULTILINE)
            usage = (_read_int(folder / usage_file) or 0) - (int(match[1]) if match else 0)
            limits.append(limit)
            left.append(max(0, limit - max(0, usage)))
    return min(limits, default=None), min(left, default=None)


def _group_folders(root: Path, mounts: tuple[str, ...]) -> Iterator[Path]:
    """Folders from this process's group up to the root, for each of `mounts` that exists."""
    for mount in mounts:
        top = root / _CGROUP_MOUNT / mount
        if not top.is_dir():
            continue
        yield top
        folder = top
        for part in _group_path(root, mount):
            folder = folder / part
            yield folder


def _group_path(root: Path, mount: str) -> list[str]:
    """This process's group below a mount, from /proc/self/cgroup.

    0::/kubepods/pod1/c1            v2
    4:cpu,cpuacct:/docker/0a1b      v1
    """
    wanted = "" if mount in _V2_FOLDERS else mount.split(",")[0]
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if wanted in controllers.split(","):
            parts = [part for part in path.split("/") if part]
            # Seen from inside a namespace the group of another one starts with '..'.
            return [] if ".." in parts else parts
    return []


def _platform(root: Path) -> Literal["linux", "darwin", "windows"]:
    if is_this_machine(root) and sys.platform == "darwin":
        return "darwin"
    if is_this_machine(root) and sys.platform == "win32":
        return "windows"
    return "linux"


def _read_int(path: Path) -> int | None:
    text = (read_text(path) or "").strip()
    return int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else None


def read_text(path: Path) -> str | None:
    """The text of a file of /proc or /sys, None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
