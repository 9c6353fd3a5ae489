"""The cluster that a Slurm step describes: one worker per task of `srun`.

    SLURM_JOB_ID=7  SLURM_STEP_ID=0  SLURM_STEP_NODELIST=n[01-02]
    SLURM_STEP_NUM_TASKS=4  SLURM_STEP_TASKS_PER_NODE=2(x2)  SLURM_PROCID=3

Only the variables of the *step* count. A batch script has SLURM_PROCID=0 and
SLURM_NTASKS=4 and yet is a single process; a step may be smaller than its job.

Rank to host: list and counts alone do not tell it, the distribution does.
`block` fills one node after the other, `cyclic` deals one task to each node in
turn, `plane` deals SLURM_DIST_PLANESIZE at a time. Without SLURM_DISTRIBUTION
Slurm uses block, or cyclic where there are no more tasks than nodes, which is
the same there. `arbitrary` follows a host file that no variable holds. Since a
topology plugin may reorder nodes, each task compares what this says of it with
SLURMD_NODENAME, SLURM_LOCALID and SLURM_GTIDS, which slurmd itself set.

Port: addresses.py, by job and step number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from autostrategy.clusters import addresses, hostlist, mpi, variables
from autostrategy.errors import ProbeError
from autostrategy.facts import Cluster, Job

_JOB_ID = "SLURM_JOB_ID"
_STEP_ID = "SLURM_STEP_ID"
_NODELIST = "SLURM_STEP_NODELIST"
_NUM_TASKS = "SLURM_STEP_NUM_TASKS"
_TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"
_RANK = "SLURM_PROCID"
_DISTRIBUTION = "SLURM_DISTRIBUTION"
_PLANE_SIZE = "SLURM_DIST_PLANESIZE"

# Steps that are no parallel program: pending, extern, batch script, interactive
# shell (slurm.h, SLURM_PENDING_STEP to SLURM_INTERACTIVE_STEP).
_PSEUDO_STEPS = ("4294967293", "4294967292", "4294967291", "4294967290")

_MAXIMUM_TASKS = 1 << 20

_WAY_OUT = (
    "Start the script with srun, whose variables agree; if they come from elsewhere, unset the "
    "SLURM_ variables or set TF_CONFIG."
)


def from_env(
    env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")
) -> Cluster | None:
    """The Slurm step in `env` as a cluster of workers, None outside one.

    None too in a step of one task, in a batch script, in the shell of salloc,
    and below mpirun. All tasks of a step get the same list in the same order,
    that of their ranks.

    Raises:
        ProbeError: the step's variables contradict each other, or do not tell
            which task runs where.
    """
    if not _is_task(env) or mpi.is_below_mpirun(env):
        return None
    count = _number(env, _NUM_TASKS)
    if not 1 <= count <= _MAXIMUM_TASKS:
        raise _error(f"{_NUM_TASKS} must be from 1 to {_MAXIMUM_TASKS}", count)
    rank = _number(env, _RANK)
    if rank >= count:
        raise _error(f"{_RANK} must be below {_NUM_TASKS}, which is {count}", rank)
    if count == 1:
        return None
    hosts = hostlist.expand(env[_NODELIST])
    counts = _tasks_per_node(env, hosts=len(hosts), tasks=count)
    places = _deal(counts, at_a_time=_tasks_at_a_time(env, counts))
    _check_own_place(env, hosts, places, rank, hostname)
    port = addresses.first_port_of_job(
        env,
        job=_number(env, _JOB_ID) if _JOB_ID in env else 0,
        step=_number(env, _STEP_ID) if _STEP_ID in env else 0,
        most_tasks=max(counts),
    )
    return Cluster(
        source="Slurm",
        jobs=(
            Job(
                name="worker",
                addresses=tuple(f"{hosts[node]}:{port + local}" for node, local in places),
            ),
        ),
        task_type="worker",
        task_index=rank,
    )


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """What a user of Slurm may have meant to do otherwise, one sentence each.

    Below mpirun, mpi.py has the word.
    """
    if "SLURM_JOB_ID" not in env or mpi.is_below_mpirun(env):
        return ()
    tasks = env.get("SLURM_NTASKS") or env.get("SLURM_NPROCS") or ""
    if not _is_task(env) and (tasks not in ("", "1") or "SLURM_HET_SIZE" in env):
        asked = f"the {tasks} tasks" if tasks else "the components"
        return (
            f"This process is inside a Slurm job but not a task of srun: {asked} that the job "
            "asked for are not running. Start the script with srun to use them.",
        )
    return ()


def _is_task(env: Mapping[str, str]) -> bool:
    return (
        all(name in env for name in (_NODELIST, _NUM_TASKS, _RANK))
        and env.get(_STEP_ID) not in _PSEUDO_STEPS
    )


def _number(env: Mapping[str, str], name: str) -> int:
    return variables.number(env, name, way_out=_WAY_OUT)


def _tasks_per_node(env: Mapping[str, str], *, hosts: int, tasks: int) -> list[int]:
    """Tasks on each node: '2(x3),1' -> [2, 2, 2, 1]."""
    text = env.get(_TASKS_PER_NODE)
    if text is None:
        if tasks % hosts:
            raise _error(f"{_TASKS_PER_NODE} must be set for {tasks} tasks on {hosts} nodes", None)
        return [tasks // hosts] * hosts
    runs: list[tuple[int, int]] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:\(x([0-9]{1,7})\))?", part, re.ASCII)
        if not match:
            raise _error(f"{_TASKS_PER_NODE} must have the form '2(x3),1'", text)
        runs.append((int(match[1]), int(match[2] or 1)))
    # Both sums before the list is made: a count may be absurd.
    nodes = sum(repeat for _, repeat in runs)
    if nodes != hosts:
        raise _error(
            f"{_TASKS_PER_NODE} must count the tasks of each of the {hosts} nodes in {_NODELIST}",
            f"{text}, which is {nodes} nodes",
        )
    total = sum(each * repeat for each, repeat in runs)
    if total != tasks:
        raise _error(
            f"{_TASKS_PER_NODE} must add up to {_NUM_TASKS}, which is {tasks}",
            f"{text}, which is {total}",
        )
    return [each for each, repeat in runs for _ in range(repeat)]


def _tasks_at_a_time(env: Mapping[str, str], counts: Sequence[int]) -> int:
    """How many consecutive ranks a node gets before the next node's turn."""
    # 'cyclic:block:cyclic,NoPack' says nodes first, then sockets and cores.
    given = env.get(_DISTRIBUTION, "")
    method = re.split(r"[:,=]", given, maxsplit=1)[0].strip().lower()
    if method in ("", "*", "block", "pack", "nopack"):
        return max(counts)
    if method == "cyclic":
        return 1
    if method == "plane" and _PLANE_SIZE in env:
        return max(1, _number(env, _PLANE_SIZE))
    raise ProbeError(
        f"{_DISTRIBUTION} must be block, cyclic, or plane with {_PLANE_SIZE}, for only then do "
        f"Slurm's variables tell which task runs on which node. Received: {given!r}. "
        "Start the step with srun --distribution=block, or set TF_CONFIG in each task."
    )


def _deal(counts: Sequence[int], *, at_a_time: int) -> list[tuple[int, int]]:
    """Place of each rank as (node, number on that node), dealt like cards."""
    places: list[tuple[int, int]] = []
    dealt = [0] * len(counts)
    waiting = [node for node, count in enumerate(counts) if count]
    while waiting:
        for node in waiting:
            hand = range(dealt[node], min(counts[node], dealt[node] + at_a_time))
            places += ((node, local) for local in hand)
            dealt[node] = hand.stop
        waiting = [node for node in waiting if dealt[node] < counts[node]]
    return places


def _check_own_place(
    env: Mapping[str, str],
    hosts: Sequence[str],
    places: Sequence[tuple[int, int]],
    rank: int,
    hostname: str | None,
) -> None:
    node, local = places[rank]
    ranks = ",".join(str(other) for other, place in enumerate(places) if place[0] == node)
    expected = {"SLURM_LOCALID": str(local), "SLURM_GTIDS": ranks, "SLURMD_NODENAME": hosts[node]}
    wrong = [name for name, value in expected.items() if env.get(name, value) != value]
    received = {name: env[name] for name in wrong}
    # A host name need not be a node name, so it speaks only where it is one,
    # and where slurmd has not told the node's name.
    short = (hostname or "").partition(".")[0]
    if "SLURMD_NODENAME" not in env and short in hosts and short != hosts[node]:
        received["host name"] = short
    if received:
        said = ", ".join(f"{name}={value}" for name, value in received.items())
        raise ProbeError(
            f"Rank {rank} must be task {local} of node {hosts[node]}, beside ranks {ranks}, by "
            f"SLURM_STEP_NODELIST, _TASKS_PER_NODE and SLURM_DISTRIBUTION. Received: {said}. "
            "Slurm placed the tasks otherwise (a topology plugin?): start the step with "
            "srun --distribution=block, or set TF_CONFIG in each task."
        )


def _error(rule: str, received: object) -> ProbeError:
    said = "nothing" if received is None else repr(received)
    return ProbeError(f"{rule}. Received: {said}. {_WAY_OUT}")
