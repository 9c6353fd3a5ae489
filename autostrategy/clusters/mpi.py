"""Processes of mpirun: ranks and sizes, but no addresses.

    Open MPI             OMPI_COMM_WORLD_RANK=3  OMPI_COMM_WORLD_SIZE=4
                         OMPI_COMM_WORLD_LOCAL_RANK=1  OMPI_COMM_WORLD_LOCAL_SIZE=2
    MPICH, Intel MPI     PMI_RANK=5  PMI_SIZE=8  MPI_LOCALRANKID=1  MPI_LOCALNRANKS=4
    MVAPICH2             MV2_COMM_WORLD_RANK=2  MV2_COMM_WORLD_SIZE=4 ...
    Cray PALS            PMI_RANK=5  PMI_SIZE=8  PMI_LOCAL_RANK=1  PMI_LOCAL_SIZE=4

Names: Open MPI's manual ("Environment variables"; its OMPI_UNIVERSE_SIZE counts
slots and not processes); pmodels/mpich, src/pm/hydra/proxy/pmip_cb.c, for Hydra,
which Intel MPI shares; huggingface/accelerate, utils/environment.py, for MVAPICH2;
argonne-lcf's launcher scripts for PALS.

Open MPI stands first: where a scheduler leaves PMI_* behind, mpirun is the inner
launcher. `srun --mpi=pmi2` sets PMI_*, `srun --mpi=pmix` and jsrun set PMIX_RANK;
those tasks are left to slurm.py, which knows their addresses, and to jsrun.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autostrategy.clusters import allocations, hostlist, ranks, variables
from autostrategy.clusters.allocations import Allocation
from autostrategy.errors import ProbeError
from autostrategy.facts import Launch

_OPEN_MPI = ranks.RankVariables(
    source="Open MPI",
    rank="OMPI_COMM_WORLD_RANK",
    size="OMPI_COMM_WORLD_SIZE",
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
)
_MVAPICH2 = ranks.RankVariables(
    source="MVAPICH2",
    rank="MV2_COMM_WORLD_RANK",
    size="MV2_COMM_WORLD_SIZE",
    local_rank="MV2_COMM_WORLD_LOCAL_RANK",
    local_size="MV2_COMM_WORLD_LOCAL_SIZE",
)
_HYDRA = ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_PALS = ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")

SOURCES = ("Open MPI", "MVAPICH2", "MPICH", "Intel MPI", "Cray PALS")

# Where a launcher's pod or host finds the hosts that mpirun will use.
_HOSTFILES = ("OMPI_MCA_orte_default_hostfile", "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE")

_WAY_OUT = (
    "Start all processes with one mpirun; in a process that no mpirun started, unset the "
    "variables that an earlier one left."
)


def from_env(
    env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")
) -> Launch | None:
    """The processes of mpirun, None outside one and where it started only one.

    Raises:
        ProbeError: a rank without its size, or not below it.
    """
    names = _names(env)
    if names is None:
        _refuse_rank_without_size(env)
        return None
    return ranks.launch(env, names, way_out=_WAY_OUT, hosts=_hosts_of_slurm(env))


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Leftovers of another launcher, a better way to start, hosts that mpirun will use."""
    names = _names(env)
    if names is None:
        found = allocation(env, root)
        return allocations.notes(found) if found else ()
    told: list[str] = []
    if names is _OPEN_MPI and "PMI_RANK" in env:
        pmi, own = (
            f"rank {env.get(rank)} of {env.get(size)}"
            for rank, size in (("PMI_RANK", "PMI_SIZE"), (names.rank, names.size))
        )
        if pmi != own:
            told.append(
                f"PMI_* and OMPI_* disagree ({pmi}, {own}). Open MPI is believed; PMI_* are what "
                "an outer launcher left."
            )
    if "SLURM_JOB_ID" in env and env.get(names.size) != "1":
        told.append(
            "mpirun started this process inside a Slurm job. Slurm tells its own tasks their "
            "addresses: start the script with srun instead of mpirun."
        )
    return tuple(told)


def allocation(env: Mapping[str, str], root: Path = Path("/")) -> Allocation | None:
    """Hosts and slots in the hostfile of a launcher, as Kubeflow's MPIJob has one.

        pi-worker-0 slots=2        Open MPI
        pi-worker-0:2              Hydra

    training-operator release-1.9, pkg/controller.v1/mpi/mpijob_controller.go.
    """
    variable = next((name for name in _HOSTFILES if env.get(name)), None)
    text = variables.read_file(root, env[variable]) if variable else None
    if variable is None or text is None:
        return None
    slots: dict[str, int] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].replace(":", " ").replace("slots=", " ").split()
        if words:
            count = words[1] if len(words) > 1 else "1"
            known = count.isascii() and count.isdigit() and len(count) <= 9
            slots[words[0]] = slots.get(words[0], 0) + (int(count) if known else 1)
    how = "This is where mpirun is to be called, with one process per host"
    if variable == _HOSTFILES[0]:
        how += f" (Open MPI 5 does not read {variable}: pass it --hostfile)"
    return Allocation(
        source=f"MPI hostfile {env[variable]}",
        hosts=tuple(slots),
        slots=tuple(slots.values()),
        how_to_start=f"{how}: {allocations.mpirun(len(slots))}.",
    )


def is_below_mpirun(env: Mapping[str, str]) -> bool:
    """Whether mpirun started this process, whatever started mpirun.

    Its ranks inherit SLURM_PROCID from the daemon that started them, so several
    share one (jax-ml/jax pull request 13929).
    """
    return _OPEN_MPI.rank in env or _MVAPICH2.rank in env or _HYDRA[0] in env


def _names(env: Mapping[str, str]) -> ranks.RankVariables | None:
    for names in (_OPEN_MPI, _MVAPICH2):
        if names.rank in env:
            return names
    if not all(name in env for name in ("PMI_RANK", "PMI_SIZE")) or _is_anothers_task(env):
        return None
    hydra = "Intel MPI" if any(name.startswith("I_MPI_") for name in env) else "MPICH"
    source, local = ("Cray PALS", _PALS) if _PALS[0] in env else (hydra, _HYDRA)
    return ranks.RankVariables(
        source=source,
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank=local[0],
        local_size=local[1],
    )


def _is_anothers_task(env: Mapping[str, str]) -> bool:
    """Whether srun or jsrun started this process, with no mpirun between."""
    srun = "SLURM_STEP_NUM_TASKS" in env and "SLURM_PROCID" in env
    return (srun or "JSM_NAMESPACE_RANK" in env) and not is_below_mpirun(env)


def _refuse_rank_without_size(env: Mapping[str, str]) -> None:
    if _is_anothers_task(env):
        return
    # Hydra tells no size where it gives PMI_PORT and PMI_ID (pmip_cb.c); PMIx has
    # the size only for a process that asks its server (jax-ml/jax#14576).
    for rank in ("PMI_RANK", "PMI_ID", "PMIX_RANK"):
        if rank in env:
            raise ProbeError(
                f"A rank must come with the number of ranks. Received: {rank}={env[rank]!r}, and "
                "no variable with a size, such as PMI_SIZE. Start the script with an mpirun that "
                f"sets both, or set TF_CONFIG in each process, or unset {rank} to train alone."
            )


def _hosts_of_slurm(env: Mapping[str, str]) -> tuple[str, ...]:
    """Hosts of the Slurm job around mpirun.

    The job's and not the step's: the ranks on the first host are in no step, and
    the others in one of daemons that leaves the first host out.
    """
    text = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_STEP_NODELIST")
    return hostlist.expand(text) if text else ()
