"""The hosts of a PBS job. Its script runs on the first of them, and nothing elsewhere.

    PBS_JOBID=881.pbs  PBS_NODEFILE=/var/spool/pbs/aux/881.pbs

The file has a line per MPI process (`mpiprocs`), in the order of the job's
vnodes: openpbs, doc/man1/pbs_resources.7B.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autostrategy.clusters import allocations, variables
from autostrategy.clusters.allocations import Allocation
from autostrategy.errors import ProbeError

_JOB_ID = "PBS_JOBID"
_NODEFILE = "PBS_NODEFILE"


def from_env(env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")) -> None:
    """None: PBS gives hosts and no ranks.

    Raises:
        ProbeError: as `allocation`.
    """
    allocation(env, root)


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Which hosts wait for a process, and how to start one on each."""
    found = allocation(env, root)
    return allocations.notes(found) if found else ()


def allocation(env: Mapping[str, str], root: Path = Path("/")) -> Allocation | None:
    """Hosts of the job, None outside one.

    Raises:
        ProbeError: the node file cannot be read, as on every host but the first.
    """
    path = env.get(_NODEFILE)
    if not path or _JOB_ID not in env:
        return None
    text = variables.read_file(root, path)
    if text is None:
        raise ProbeError(
            f"{_NODEFILE} must be a file that can be read. Received: {variables.quote(path)}, "
            "which cannot; PBS writes it on the first host only. Start the script there, with "
            f"mpirun, or unset {_NODEFILE} to train on this host alone."
        )
    hosts, slots = allocations.one_line_per_slot(text.split())
    return Allocation(
        source="PBS",
        hosts=hosts,
        slots=slots,
        how_to_start=(
            "The script of a job runs on the first host only. Start one process on each host: "
            f"{allocations.mpirun(len(hosts))}."
        ),
    )
