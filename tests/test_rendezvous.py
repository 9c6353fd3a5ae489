"""Workers find each other, or say which one is missing."""

import contextlib
import socket
import threading
import time

import pytest

from autostrategy import LaunchError, rendezvous
from autostrategy.facts import Cluster, Job


def free_addresses(count, host="127.0.0.1"):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"{host}:{each.getsockname()[1]}" for each in sockets]


def cluster(addresses, index=0):
    return Cluster(
        source="TF_CONFIG",
        jobs=(Job(name="worker", addresses=tuple(addresses)),),
        task_type="worker",
        task_index=index,
    )


def meet_all(addresses, *, delays=None, timeout=10):
    """Every worker in a thread; the errors in rank order, None for those that met.

    Who has met keeps its port open, as TensorFlow's server does.
    """
    errors = [None] * len(addresses)
    done = threading.Barrier(len(addresses))

    def worker(index):
        time.sleep((delays or {}).get(index, 0))
        try:
            rendezvous.meet(cluster(addresses, index), timeout=timeout)
            with rendezvous._listening(addresses[index]):
                done.wait(timeout)
        except (LaunchError, threading.BrokenBarrierError) as error:
            errors[index] = error

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(len(addresses))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return errors


@pytest.mark.parametrize("count", [2, 5])
def test_workers_meet(count):
    assert meet_all(free_addresses(count)) == [None] * count


def test_workers_wait_for_one_that_starts_later():
    assert meet_all(free_addresses(2), delays={1: 0.7}) == [None, None]


def test_a_port_is_free_again_after_the_meeting():
    addresses = free_addresses(2)
    assert meet_all(addresses) == [None, None]

    assert meet_all(addresses) == [None, None]


def test_a_missing_worker_is_named_within_the_time():
    addresses = free_addresses(3)
    begun = time.monotonic()
    with rendezvous._listening(addresses[1]), pytest.raises(LaunchError) as caught:
        rendezvous.meet(cluster(addresses), timeout=1)

    assert time.monotonic() - begun < 5
    text = str(caught.value)
    assert text.startswith("All 3 workers of the cluster must start within 1 s. Missing after")
    assert f"{addresses[2]} (connection refused)" in text
    assert f"seen from {addresses[0]}: {addresses[2]}" in text
    assert "AUTOSTRATEGY_START_TIMEOUT" in text


def test_a_name_that_does_not_resolve_is_said():
    (own,) = free_addresses(1)

    with pytest.raises(LaunchError, match=r"no-such-host\.invalid:2222 \(the host name does not"):
        rendezvous.meet(cluster([own, "no-such-host.invalid:2222"]), timeout=0.2)


def test_a_taken_port_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        own = f"127.0.0.1:{taken.getsockname()[1]}"
        (other,) = free_addresses(1)

        with pytest.raises(LaunchError, match="own address must be free to listen on") as caught:
            rendezvous.meet(cluster([own, other]), timeout=1)

    assert f"Received: {own}, Address already in use" in str(caught.value)


def test_only_workers_are_waited_for():
    own, other, server = free_addresses(3)
    tasks = {"chief": (own,), "worker": (other,), "ps": (server,)}
    jobs = tuple(Job(name=name, addresses=addresses) for name, addresses in tasks.items())
    worker = Cluster(source="TF_CONFIG", jobs=jobs, task_type="worker", task_index=0)

    rendezvous.meet(worker, timeout=0.5)


def test_ipv6_addresses_work():
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this host has no IPv6 loopback")
    addresses = free_addresses(2, host="[::1]")

    assert meet_all(addresses) == [None, None]


def test_within_returns_the_result_or_raises_the_error_of_the_act():
    assert rendezvous.within(lambda: 7, timeout=5, otherwise="late") == 7
    assert rendezvous.within(lambda: None, timeout=5, otherwise="late") is None
    with pytest.raises(KeyError, match="mine"):
        rendezvous.within(lambda: {}["mine"], timeout=5, otherwise="late")


def test_within_gives_up_with_the_given_text():
    release = threading.Event()

    with pytest.raises(LaunchError, match=r"^late$"):
        rendezvous.within(release.wait, timeout=0.1, otherwise="late")

    release.set()


def test_all_addresses_are_asked_at_once_and_each_says_why_nobody_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        (gone,) = free_addresses(1)

        found = rendezvous.unanswered([there, gone], timeout=5)

    assert found == {gone: "connection refused"}


def test_a_lookup_without_end_does_not_outlast_the_timeout(monkeypatch):
    monkeypatch.setattr(rendezvous, "knock", lambda address: time.sleep(30))

    start = time.monotonic()

    assert rendezvous.unanswered(["a:1", "b:1"], timeout=0.2) == {
        "a:1": "no answer",
        "b:1": "no answer",
    }
    assert time.monotonic() - start < 10


def test_a_task_can_listen_where_nobody_does():
    (free,) = free_addresses(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"

        assert f"Received: {taken}, " in rendezvous.cannot_listen(taken)
    assert rendezvous.cannot_listen(free) is None


@pytest.mark.parametrize("text", ["soon", "-3", "0", "inf", "nan"])
def test_a_start_timeout_that_is_no_time_is_refused(text, monkeypatch):
    monkeypatch.setenv(rendezvous.START_TIMEOUT_VARIABLE, text)

    with pytest.raises(LaunchError, match=f"must be a positive number of seconds.*'{text}'"):
        rendezvous.start_timeout_or(None)


def test_the_start_timeout_comes_from_the_call_then_the_environment_then_a_minute(monkeypatch):
    monkeypatch.delenv(rendezvous.START_TIMEOUT_VARIABLE, raising=False)
    assert rendezvous.start_timeout_or(None) == 60
    monkeypatch.setenv(rendezvous.START_TIMEOUT_VARIABLE, "2.5")
    assert rendezvous.start_timeout_or(None) == 2.5
    assert rendezvous.start_timeout_or(7.0) == 7.0
