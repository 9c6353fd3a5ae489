"""Processes that know their ranks learn each other's addresses, or who is missing."""

import contextlib
import json
import socket
import threading
import time

import pytest

from autostrategy import LaunchError, meeting
from autostrategy.meeting import Introduction


def free_port(host="127.0.0.1"):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.closing(socket.create_server((host, 0), family=family)) as server:
        return server.getsockname()[1]


def all_meet(introductions, *, point=None, timeout=10, delays=None, only_here=True):
    """What each process gets, in a thread each: addresses, or the text of its error."""
    point = point or f"127.0.0.1:{free_port()}"
    found = [None] * len(introductions)

    def process(place, own):
        time.sleep((delays or {}).get(own.rank, 0))
        try:
            if own.rank == 0:
                found[place] = meeting.receive(point, own, only_here=only_here, timeout=timeout)
            else:
                found[place] = meeting.introduce(point, own, timeout=timeout)
        except LaunchError as error:
            found[place] = str(error)

    threads = [threading.Thread(target=process, args=each) for each in enumerate(introductions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def world(size):
    return [Introduction(rank=rank, world_size=size, port=1000 + rank) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 5, 64])
def test_all_get_the_addresses_of_all_in_rank_order(size):
    expected = tuple(f"127.0.0.1:{1000 + rank}" for rank in range(size))

    assert all_meet(world(size)) == [expected] * size


@pytest.mark.parametrize("late", [0, 1])
def test_whoever_comes_first_waits(late):
    found = all_meet(world(2), delays={late: 0.5})

    assert found == [("127.0.0.1:1000", "127.0.0.1:1001")] * 2


def test_a_process_of_the_same_host_is_called_by_the_name_of_the_meeting_point():
    found = all_meet(world(2), point=f"localhost:{free_port()}")

    assert found == [("localhost:1000", "localhost:1001")] * 2


def test_a_host_that_knows_itself_by_a_loopback_address_listens_on_all_interfaces():
    port = free_port()
    own = Introduction(rank=0, world_size=2, port=1)
    book = meeting._Book(own, f"localhost:{port}")

    with (
        meeting._listening(f"localhost:{port}", book, only_here=False),
        socket.create_connection(("127.0.0.2", port)) as other,
    ):
        other.sendall(b'{"rank": 1, "world_size": 2, "port": 2}\n')
        book.wait(10)

    assert book.addresses() == ("localhost:1", "localhost:2")


def test_processes_on_one_host_are_met_on_its_loopback_alone():
    own = Introduction(rank=0, world_size=2, port=1)
    server = meeting._server("127.0.0.1:0", meeting._Book(own, "127.0.0.1:0"), only_here=True)
    with contextlib.closing(server.socket):
        assert server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.skipif(not socket.has_ipv6, reason="this host has no IPv6")
def test_processes_meet_over_ipv6():
    try:
        port = free_port("::1")
    except OSError as error:
        pytest.skip(f"this host has no IPv6 loopback: {error}")

    assert all_meet(world(2), point=f"[::1]:{port}") == [("[::1]:1000", "[::1]:1001")] * 2


def test_ranks_that_do_not_come_are_named_to_those_who_came():
    found = all_meet([each for each in world(4) if each.rank in (0, 2)], timeout=1)

    assert found[0] == found[1]
    assert "All 4 processes must come within 1 s. Missing after that time: rank 1, 3." in found[0]


def test_many_missing_ranks_are_counted():
    (text,) = all_meet(world(20)[:1], timeout=0.2)

    assert "rank 1, 2, 3, 4, 5, 6, 7, 8 and 11 more." in text


def test_a_process_that_finds_nobody_says_where_it_looked():
    point = f"127.0.0.1:{free_port()}"

    (text,) = all_meet(world(2)[1:], point=point, timeout=0.3)

    assert f"Rank 0 must be found at {point} within 0.3 s. Received by rank 1: connection " in text


def test_a_host_name_that_does_not_resolve_is_said_by_both_sides():
    found = all_meet(world(2), point="nowhere.invalid:1", timeout=0.3)

    assert "Rank 0 must be able to listen at nowhere.invalid:1" in found[0]
    assert all("the host name does not resolve" in text for text in found)


def test_a_port_that_is_taken_is_said():
    with socket.create_server(("", 0)) as taken:
        point = f"127.0.0.1:{taken.getsockname()[1]}"
        (text,) = all_meet(world(2)[:1], point=point)

    assert f"Rank 0 must be able to listen at {point}" in text
    assert "address already in use. Set AUTOSTRATEGY_MEETING_POINT" in text


def test_processes_of_two_launches_do_not_mix():
    other = Introduction(rank=1, world_size=3, port=7)

    found = all_meet([world(2)[0], other])

    assert found[0] == found[1]
    assert "must be of one launch of 2. Received: rank 1 of 3, from 127.0.0.1" in found[0]


def test_two_processes_of_one_rank_are_told_so():
    found = all_meet([*world(3)[:2], world(3)[1]])

    assert len(set(found)) == 1
    assert "Received: rank 1 twice, from 127.0.0.1 and 127.0.0.1" in found[0]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        b"\xff\xfe\x00",
        b"[]\n",
        b'{"rank": 1}\n',
        b'{"rank": "x", "world_size": 2, "port": 1}\n',
        b"[" * 2000 + b"\n",
        b'{"rank": 1e999, "world_size": 2, "port": 1}\n',
    ],
)
def test_strangers_harm_nobody(line):
    point = f"127.0.0.1:{free_port()}"

    def stranger():
        time.sleep(0.2)
        address = ("127.0.0.1", int(point.rpartition(":")[2]))
        with contextlib.suppress(OSError), socket.create_connection(address) as other:
            other.sendall(line)

    thread = threading.Thread(target=stranger)
    thread.start()
    found = all_meet(world(2), point=point, delays={1: 0.6})
    thread.join()

    assert found == [("127.0.0.1:1000", "127.0.0.1:1001")] * 2


def test_an_answer_that_is_none_of_ours_is_not_believed():
    """Somebody else listens at the point until rank 0 does."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        point = f"127.0.0.1:{stranger.getsockname()[1]}"

        def answer():
            connection, _ = stranger.accept()
            with connection:
                connection.recv(100)
                connection.sendall(json.dumps(["welcome"]).encode() + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(LaunchError, match="what answered there was no process of this run"):
            meeting.introduce(point, world(2)[1], timeout=0)
        thread.join()


def test_who_waits_for_an_interrupted_rank_0_is_told(monkeypatch):
    def interrupted(book, timeout):
        while 1 not in book.ports:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(meeting._Book, "wait", interrupted)
    point = f"127.0.0.1:{free_port()}"
    told = []
    thread = threading.Thread(
        target=lambda: told.extend(all_meet(world(3)[1:2], point=point)), daemon=True
    )
    thread.start()

    with pytest.raises(KeyboardInterrupt):
        meeting.receive(point, world(3)[0], only_here=True, timeout=10)
    thread.join(30)

    assert told == ["Rank 0 was interrupted while it waited for the others."]
