"""The hosts of an LSF job. Its script runs on the first of them; jsrun is a module of its own.

    LSB_JOBID=5512  LSB_MCPU_HOSTS="hostA 4 hostB 4"  LSB_HOSTS="hostA hostA ... hostB"

"About parallel jobs" in LSF's manual: LSB_MCPU_HOSTS has pairs of host and slots,
LSB_HOSTS has a word per slot and is left out of large jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autostrategy.clusters import allocations, variables
from autostrategy.clusters.allocations import Allocation
from autostrategy.errors import ProbeError

_JOB_ID = "LSB_JOBID"
_PAIRS = "LSB_MCPU_HOSTS"
_SLOTS = "LSB_HOSTS"


def from_env(env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")) -> None:
    """None: LSF gives hosts and no ranks.

    Raises:
        ProbeError: as `allocation`.
    """
    allocation(env)


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Which hosts wait for a process, and how to start one on each."""
    found = allocation(env)
    return allocations.notes(found) if found else ()


def allocation(env: Mapping[str, str], root: Path = Path("/")) -> Allocation | None:
    """Hosts of the job, None outside one.

    Raises:
        ProbeError: LSB_MCPU_HOSTS is no list of hosts with their slots.
    """
    if _JOB_ID not in env or not (env.get(_PAIRS) or env.get(_SLOTS)):
        return None
    hosts, slots = _pairs(env[_PAIRS]) if env.get(_PAIRS) else _words(env[_SLOTS])
    return Allocation(
        source="LSF",
        hosts=hosts,
        slots=slots,
        how_to_start=(
            "The script of a job runs on the first host only. Start one process on each host, "
            f"with jsrun or mpirun: {allocations.mpirun(len(hosts))}."
        ),
    )


def _words(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return allocations.one_line_per_slot(text.split())


def _pairs(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    words = text.split()
    hosts, counts = words[::2], words[1::2]
    whole = all(count.isascii() and count.isdigit() and len(count) <= 9 for count in counts)
    if len(hosts) != len(counts) or not whole:
        raise ProbeError(
            f"{_PAIRS} must have pairs of a host and its slots, as in 'hostA 4 hostB 4'. "
            f"Received: {variables.quote(text)}. Outside an LSF job unset {_JOB_ID}."
        )
    return tuple(hosts), tuple(int(count) for count in counts)
