"""Addresses for the processes of a launch, which know their ranks and not each other.

TensorFlow needs the address of every task before it starts. So process 0 listens
where all can find it; each process sends it one line of JSON, its rank and a port
that it holds free, and gets the list of addresses back. A process is called by the
address that its connection came from, as process 0 sees it. Nothing that came is
run, and process 0 stops listening once all have their answer. The alternatives are
in docs/decisions/0010.

Where all can find it: AUTOSTRATEGY_MEETING_POINT; or the address that a launcher
tells, one port further, because its own store may listen at that one (torchrun's
does); or on one host a port that follows from the process number of its mpirun; or
what MPI itself passes on, where mpi4py is installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import os
import socket
from collections.abc import Iterator, Mapping

import psutil

from autostrategy import meeting, rendezvous
from autostrategy.clusters import addresses, mpi
from autostrategy.errors import LaunchError, ProbeError
from autostrategy.facts import Cluster, Facts, Job, Launch
from autostrategy.facts_text import unmet

MEETING_POINT = "AUTOSTRATEGY_MEETING_POINT"
# Below those that a Slurm job is given, which are below Linux's ephemeral ports.
_LOCAL_PORTS = range(10000, 12000)
# What stands between mpirun and the processes that it starts on one host.
_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "orted", "prted", "hydra_pmi_proxy")


def introduced(facts: Facts, *, timeout: float) -> Facts:
    """`facts` with a cluster in place of a launch; all its processes must call this.

    Processes meet once: a later call gives the cluster of the first.

    Raises:
        LaunchError: as `cluster_of`.
    """
    if facts.launch is None:
        return facts
    cluster = _met(facts.launch, timeout)
    notes = tuple(note for note in facts.notes if note != unmet(facts.launch))
    return dataclasses.replace(facts, cluster=cluster, launch=None, notes=notes)


def cluster_of(launch: Launch, *, timeout: float, env: Mapping[str, str] | None = None) -> Cluster:
    """The cluster that the processes of `launch` are, one worker each in rank order.

    Args:
        launch: ranks and, where known, an address of process 0.
        timeout: seconds to wait for the slowest process.
        env: the environment to read, os.environ by default: for
            AUTOSTRATEGY_MEETING_POINT, and for AUTOSTRATEGY_PORT, the port of the
            first process on each host, without which each takes any free one.

    Raises:
        LaunchError: a process did not come in time (the message names the
            ranks), two have one rank, or no meeting point is known.
    """
    env = os.environ if env is None else env
    point = _meeting_point(launch, env, timeout)
    with _held_port(launch, env) as port:
        introduction = meeting.Introduction(
            rank=launch.rank, world_size=launch.world_size, port=port
        )
        if launch.rank == 0:
            only_here = launch.local_size == launch.world_size
            found = meeting.receive(point, introduction, only_here=only_here, timeout=timeout)
        else:
            found = meeting.introduce(point, introduction, timeout=timeout)
    return Cluster(
        source=launch.source,
        jobs=(Job(name="worker", addresses=found),),
        task_type="worker",
        task_index=launch.rank,
    )


@functools.cache
def _met(launch: Launch, timeout: float) -> Cluster:
    return cluster_of(launch, timeout=timeout)


def _meeting_point(launch: Launch, env: Mapping[str, str], timeout: float) -> str:
    try:
        if env.get(MEETING_POINT):
            return addresses.parse(MEETING_POINT, env[MEETING_POINT])
    except ProbeError as error:
        raise LaunchError(str(error)) from None
    if launch.meeting_point:
        host, _, port = launch.meeting_point.rpartition(":")
        return f"{host}:{int(port) + 1 if int(port) < 65535 else int(port) - 1}"
    if launch.local_size == launch.world_size:
        return f"127.0.0.1:{_LOCAL_PORTS[_launcher() % len(_LOCAL_PORTS)]}"
    if launch.source in mpi.SOURCES and importlib.util.find_spec("mpi4py"):
        return rendezvous.within(
            lambda: _by_mpi(launch),
            timeout=timeout,
            otherwise=f"MPI must pass on the address of rank 0 within {timeout:g} s. Received "
            "nothing: not all ranks came. Do all of them call fit, and did all start?",
        )
    raise LaunchError(
        f"The {launch.world_size} processes of {launch.source} must have a place to exchange "
        f"their addresses. Received none from the launcher. Set {MEETING_POINT} in all of them to "
        "the host name of rank 0 and a free port there, such as node01:12345"
        + ("; or install mpi4py." if launch.source in mpi.SOURCES else ".")
    )


def _launcher() -> int:
    """Process number of the mpirun above this process, which all its ranks here share."""
    for process in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):
            # Debian's are called mpirun.openmpi and mpiexec.hydra.
            if process.name().partition(".")[0] in _LAUNCHERS:
                return process.pid
    return os.getppid()


def _by_mpi(launch: Launch) -> str:
    """An address on the host of rank 0, which it tells the others through MPI."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (launch.rank, launch.world_size):
        raise LaunchError(
            f"mpi4py must know the ranks of {launch.source}, {launch.rank} of "
            f"{launch.world_size}. Received: {world.Get_rank()} of {world.Get_size()}. It is "
            f"built for another MPI; install it for this one, or set {MEETING_POINT}."
        )
    point = None
    if launch.rank == 0:
        with contextlib.closing(socket.create_server(("", 0))) as free:
            point = f"{socket.gethostname()}:{free.getsockname()[1]}"
    return str(world.bcast(point, root=0))


@contextlib.contextmanager
def _held_port(launch: Launch, env: Mapping[str, str]) -> Iterator[int]:
    """A port of this host that nobody else takes while the block runs."""
    try:
        first = addresses.own_port(env) or 0
    except ProbeError as error:
        raise LaunchError(str(error)) from None
    wanted = first + (launch.local_rank or 0) if first else 0
    try:
        held = socket.create_server(("", wanted))
    except OSError as error:
        raise LaunchError(
            f"The port of a process must be free on its host. Received: {wanted}, "
            f"{(error.strerror or str(error)).lower()}. Set {addresses.PORT} to one that is, or "
            "unset it."
        ) from None
    with contextlib.closing(held):
        yield held.getsockname()[1]
