import json
import os
from pathlib import Path

import psutil
import pytest

from autostrategy.hardware import host

CASES = json.loads((Path(__file__).parent / "cgroup_cases.json").read_text())
GIBIBYTE = 2**30


def machine(root, files, *, cores=16, total=64 * GIBIBYTE, available=48 * GIBIBYTE):
    """A folder that stands for / of a Linux machine."""
    files = {
        "/proc/cpuinfo": "".join(
            f"processor\t: {core}\nmodel name\t: x\n\n" for core in range(cores)
        ),
        "/proc/self/status": f"Name:\tpython\nCpus_allowed_list:\t0-{cores - 1}\n",
        "/proc/meminfo": f"MemTotal:  {total // 1024} kB\nMemAvailable:  {available // 1024} kB\n",
        **files,
    }
    for path, text in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_smallest_limit_counts(case, tmp_path):
    total = case.get("total_memory", 64 * GIBIBYTE)
    root = machine(tmp_path, case["files"], cores=case.get("affinity", 16), total=total)

    found = host.probe(root, name="h")

    assert case.get("cpus", found.usable_cores) == found.usable_cores
    assert case.get("memory_bytes", found.memory_bytes) == found.memory_bytes


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 16.0),
        ({"/proc/self/status": "Cpus_allowed_list:\t0-3,8\n"}, 5.0),
        ({"/proc/self/status": "Cpus_allowed_list:\t3\n"}, 1.0),
        ({"/proc/self/status": "Name:\tpython\n"}, 16.0),
        ({"/sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        ({"/sys/fs/cgroup/cpu.max": "max\n"}, 16.0),
        ({"/sys/fs/cgroup/cpu.max": "100000 0\n"}, 16.0),
        ({"/sys/fs/cgroup/cpu.max": "nonsense"}, 16.0),
        (
            {
                "/proc/self/cgroup": "3:cpu,cpuacct:/a/b\n0::/\n",
                "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n",
                "/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
                "/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "400000\n",
                "/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (
            # A container without a namespace of its own: the path is the host's.
            {
                "/proc/self/cgroup": "4:cpu:/docker/0a1b\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "/proc/self/cgroup": "0::/../../other\n",
                "/other/cpu.max": "100000 100000\n",
                "/sys/fs/cgroup/cpu.max": "300000 100000\n",
            },
            3.0,
        ),
    ],
)
def test_usable_cores_are_affinity_or_quota_whichever_is_less(files, cores, tmp_path):
    assert cores == host.probe(machine(tmp_path, files), name="h").usable_cores


@pytest.mark.parametrize(
    ("files", "memory", "available"),
    [
        ({}, 64, 48),
        ({"/sys/fs/cgroup/memory.max": str(8 * GIBIBYTE)}, 8, 8),
        (
            {
                "/sys/fs/cgroup/memory.max": str(8 * GIBIBYTE),
                "/sys/fs/cgroup/memory.current": str(5 * GIBIBYTE),
                "/sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {2 * GIBIBYTE}\n",
            },
            8,
            5,
        ),
        (
            # The parent has less left than the group itself may still take.
            {
                "/proc/self/cgroup": "0::/pod/c\n",
                "/sys/fs/cgroup/pod/memory.max": str(16 * GIBIBYTE),
                "/sys/fs/cgroup/pod/memory.current": str(15 * GIBIBYTE),
                "/sys/fs/cgroup/pod/c/memory.max": str(8 * GIBIBYTE),
                "/sys/fs/cgroup/pod/c/memory.current": str(4 * GIBIBYTE),
            },
            8,
            1,
        ),
        (
            {
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": str(5 * GIBIBYTE),
            },
            64,
            48,
        ),
        (
            {
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GIBIBYTE),
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": str(3 * GIBIBYTE),
                "/sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {GIBIBYTE}\n",
            },
            4,
            2,
        ),
        ({"/sys/fs/cgroup/memory.max": "nonsense"}, 64, 48),
    ],
)
def test_memory_is_physical_or_limit_whichever_is_less(files, memory, available, tmp_path):
    found = host.probe(machine(tmp_path, files), name="h")

    assert (memory * GIBIBYTE, available * GIBIBYTE) == (
        found.memory_bytes,
        found.memory_available_bytes,
    )


def test_logical_cores_count_those_this_process_may_not_use(tmp_path):
    files = {"/proc/self/status": "Cpus_allowed_list:\t0-1\n"}
    found = host.probe(machine(tmp_path, files), name="h")

    assert (found.logical_cores, found.usable_cores) == (16, 2.0)


def test_an_empty_folder_is_one_core_and_no_memory(tmp_path):
    found = host.probe(tmp_path, name="h")

    assert (found.logical_cores, found.usable_cores, found.memory_bytes) == (1, 1.0, 0)
    assert found.platform == "linux"


def test_this_machine_agrees_with_psutil():
    found = host.probe(Path("/"), name="h")

    assert found.logical_cores == os.cpu_count()
    assert 0 < found.usable_cores <= len(os.sched_getaffinity(0))
    assert 0 < found.memory_available_bytes <= found.memory_bytes
    assert found.memory_bytes <= psutil.virtual_memory().total
