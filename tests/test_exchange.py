"""A launch becomes a cluster; with real processes where a launcher's number matters."""

import json
import os
import socket
import subprocess
import sys
import threading
import types

import psutil
import pytest
from planning import facts

from autostrategy import LaunchError, exchange, meeting
from autostrategy.facts import Launch
from autostrategy.facts_text import unmet


def launch(rank=0, world_size=2, **fields):
    return Launch(source="Open MPI", rank=rank, world_size=world_size, **fields)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def clusters_of(launches, env=None, timeout=10):
    """The cluster of each process, or its error, in a thread each."""
    found = [None] * len(launches)

    def process(place):
        try:
            found[place] = exchange.cluster_of(launches[place], timeout=timeout, env=env or {})
        except LaunchError as error:
            found[place] = error

    threads = [threading.Thread(target=process, args=(place,)) for place in range(len(launches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_all_processes_have_one_cluster_and_their_own_rank():
    env = {"AUTOSTRATEGY_MEETING_POINT": f"localhost:{free_port()}"}

    found = clusters_of([launch(rank, 3) for rank in range(3)], env)

    assert len({each.jobs for each in found}) == 1
    assert len(set(found[0].workers)) == 3
    assert all(address.startswith("localhost:") for address in found[0].workers)
    assert [each.rank for each in found] == [0, 1, 2]
    assert {each.source for each in found} == {"Open MPI"}


def test_the_port_after_the_launchers_own_is_used():
    """torchrun's store may listen at the address that it tells."""
    while True:
        store = socket.create_server(("127.0.0.1", 0))
        port = store.getsockname()[1]
        try:
            socket.create_server(("127.0.0.1", port + 1)).close()
            break
        except OSError:
            store.close()
    with store:
        found = clusters_of([launch(rank, meeting_point=f"127.0.0.1:{port}") for rank in (0, 1)])

    assert [each.rank for each in found] == [0, 1]


def test_the_last_port_has_no_next():
    assert exchange._meeting_point(launch(meeting_point="n1:65535"), {}, 1) == "n1:65534"


def test_processes_of_one_host_meet_without_being_told_where():
    found = clusters_of([launch(rank, local_rank=rank, local_size=2) for rank in (0, 1)])

    assert [each.rank for each in found] == [0, 1]
    assert all(address.startswith("127.0.0.1:") for address in found[0].workers)


def test_ranks_below_one_mpirun_meet_at_its_number(tmp_path):
    """Wrappers between mpirun and the ranks make no difference."""
    mpirun = tmp_path / "mpirun.openmpi"
    os.symlink(sys.executable, mpirun)
    ask = f"import sys; sys.path[:0] = {sys.path!r}; from autostrategy import exchange; "
    ask += "print(exchange._launcher())"
    start = (
        "import subprocess, sys, os; print(os.getpid(), flush=True); "
        f"[subprocess.run([*wrapper, {sys.executable!r}, '-c', {ask!r}], check=True) "
        "for wrapper in ([], ['env', 'A=1', 'nice'])]"
    )
    out = subprocess.run(
        [str(mpirun), "-c", start], capture_output=True, text=True, check=True, timeout=60
    )

    assert len(out.stdout.split()) == 3
    assert len(set(out.stdout.split())) == 1


def test_without_a_launcher_in_sight_it_is_the_parent(monkeypatch):
    monkeypatch.setattr(psutil.Process, "parents", lambda self: [])

    assert exchange._launcher() == os.getppid()


def test_own_ports_follow_the_variable_and_the_place_on_the_host():
    first = 20000 + os.getpid() % 5000
    env = {
        "AUTOSTRATEGY_MEETING_POINT": f"127.0.0.1:{free_port()}",
        "AUTOSTRATEGY_PORT": str(first),
    }

    found = clusters_of([launch(rank, local_rank=rank, local_size=2) for rank in (0, 1)], env)

    assert found[0].workers == (f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}")


def test_a_port_that_is_taken_is_said():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        env = {
            "AUTOSTRATEGY_MEETING_POINT": "127.0.0.1:1",
            "AUTOSTRATEGY_PORT": str(port),
        }
        with pytest.raises(
            LaunchError, match=rf"port of a process must be free .* Received: {port}, address "
        ):
            exchange.cluster_of(launch(), timeout=1, env=env)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("AUTOSTRATEGY_MEETING_POINT", "node01", "AUTOSTRATEGY_MEETING_POINT must be host:port"),
        ("AUTOSTRATEGY_PORT", "many", "AUTOSTRATEGY_PORT must be a whole number"),
    ],
)
def test_variables_that_make_no_sense_are_refused(name, text, said):
    env = {"AUTOSTRATEGY_MEETING_POINT": "127.0.0.1:1", name: text}

    with pytest.raises(LaunchError, match=said):
        exchange.cluster_of(launch(), timeout=1, env=env)


@pytest.mark.parametrize(
    ("source", "way_out"), [("Open MPI", "or install mpi4py."), ("jsrun", r"node01:12345\.$")]
)
def test_without_a_meeting_point_it_is_asked_for(monkeypatch, source, way_out):
    monkeypatch.setattr(exchange.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(LaunchError, match=f"Set AUTOSTRATEGY_MEETING_POINT in all.*{way_out}"):
        exchange.cluster_of(
            Launch(source=source, rank=0, world_size=4, local_size=2), timeout=1, env={}
        )


class World:
    """A stand-in for mpi4py's COMM_WORLD in threads."""

    def __init__(self, rank, size, told):
        self.rank, self.size, self.told = rank, size, told

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def bcast(self, value, root):
        assert root == 0
        return value if self.rank == 0 else self.told


def with_mpi4py(monkeypatch, world):
    monkeypatch.setattr(exchange.importlib.util, "find_spec", lambda name: name == "mpi4py")
    monkeypatch.setitem(
        sys.modules, "mpi4py", types.SimpleNamespace(MPI=types.SimpleNamespace(COMM_WORLD=world))
    )


def test_mpi_passes_on_where_rank_0_is(monkeypatch):
    with_mpi4py(monkeypatch, World(0, 4, None))
    point = exchange._meeting_point(launch(0, 4), {}, timeout=5)
    assert point.rpartition(":")[0] == socket.gethostname()

    with_mpi4py(monkeypatch, World(1, 4, "n1:1234"))
    assert exchange._meeting_point(launch(1, 4), {}, timeout=5) == "n1:1234"


def test_an_mpi4py_of_another_mpi_is_found_out(monkeypatch):
    """It then takes each process for a world of its own."""
    with_mpi4py(monkeypatch, World(0, 1, None))

    with pytest.raises(LaunchError, match=r"ranks of Open MPI, 1 of 4\. Received: 0 of 1"):
        exchange._meeting_point(launch(1, 4), {}, timeout=5)


def test_an_mpi_that_does_not_pass_on_is_not_waited_for(monkeypatch):
    world = World(1, 4, None)
    world.bcast = lambda value, root: threading.Event().wait(30)
    with_mpi4py(monkeypatch, world)

    with pytest.raises(LaunchError, match=r"must pass on the address of rank 0 within 0\.1 s"):
        exchange._meeting_point(launch(1, 4), {}, timeout=0.1)


def test_facts_with_a_launch_become_facts_with_a_cluster_once(monkeypatch):
    own = launch(1, 2, meeting_point="n1:1")
    calls = []

    def introduce(point, introduction, *, timeout):
        calls.append((point, introduction.rank))
        return ("n1:5", f"n2:{introduction.port}")

    monkeypatch.setattr(meeting, "introduce", introduce)
    monkeypatch.delenv("AUTOSTRATEGY_MEETING_POINT", raising=False)
    exchange._met.cache_clear()
    found = facts(launch=own, notes=("a note", unmet(own)))

    first, second = (exchange.introduced(found, timeout=5) for _ in range(2))
    exchange._met.cache_clear()

    assert first == second
    assert calls == [("n1:2", 1)]
    assert first.launch is None
    assert first.cluster.rank == 1
    assert first.notes == ("a note",)
    assert json.loads(first.cluster.tf_config)["task"] == {"type": "worker", "index": 1}


def test_facts_without_a_launch_stay_as_they_are():
    found = facts()

    assert exchange.introduced(found, timeout=1) is found
