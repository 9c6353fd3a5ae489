"""The hosts of a parallel job of SGE. Its script runs on the first of them.

    JOB_ID=4711  PE_HOSTFILE=/var/spool/sge/n1/active_jobs/4711.1/pe_hostfile

    n1.cluster 4 all.q@n1.cluster UNDEFINED         host, slots, queue, processors
    n2.cluster 4 all.q@n2.cluster <NULL>

Two fields count, as for open-mpi/ompi, orte/mca/ras/gridengine/
ras_gridengine_module.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autostrategy.clusters import allocations, variables
from autostrategy.clusters.allocations import Allocation
from autostrategy.errors import ProbeError

_HOSTFILE = "PE_HOSTFILE"


def from_env(env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")) -> None:
    """None: SGE gives hosts and no ranks.

    Raises:
        ProbeError: as `allocation`.
    """
    allocation(env, root)


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Which hosts wait for a process, and how to start one on each."""
    found = allocation(env, root)
    return allocations.notes(found) if found else ()


def allocation(env: Mapping[str, str], root: Path = Path("/")) -> Allocation | None:
    """Hosts of the job, None outside a parallel environment.

    Raises:
        ProbeError: the file cannot be read or has a line of another form.
    """
    path = env.get(_HOSTFILE)
    if not path:
        return None
    text = variables.read_file(root, path)
    if text is None:
        raise ProbeError(
            f"{_HOSTFILE} must be a file that can be read. Received: {variables.quote(path)}, "
            "which cannot. Start the script on the first host of the job, with mpirun, or unset "
            f"{_HOSTFILE} to train on this host alone."
        )
    slots: dict[str, int] = {}
    for line in text.splitlines():
        host, *others = line.split() or [""]
        count = others[0] if others else ""
        if host and not (count.isascii() and count.isdigit() and len(count) <= 9):
            raise ProbeError(
                f"A line of {_HOSTFILE} must begin with a host and its number of slots. Received: "
                f"{variables.quote(line)}. Compare with `man sge_pe`."
            )
        if host:  # a host with slots in two queues has two lines
            slots[host] = slots.get(host, 0) + int(count)
    return Allocation(
        source="SGE",
        hosts=tuple(slots),
        slots=tuple(slots.values()),
        how_to_start=(
            "The script of a job runs on the first host only. Start one process on each host: "
            f"{allocations.mpirun(len(slots))}."
        ),
    )
