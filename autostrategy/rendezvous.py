"""Find out whether every task of a cluster is there, before TensorFlow waits without end.

TensorFlow's collectives wait for a task that never started until somebody
looks (tensorflow issues 22407, 59573). So each task first opens its own port,
knocks at every other, and only then lets TensorFlow start its server there.
Nothing is sent over these connections.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from autostrategy.errors import LaunchError
from autostrategy.facts import Cluster

Value = TypeVar("Value")

# How long a task waits for the others to appear, in seconds.
START_TIMEOUT_VARIABLE = "AUTOSTRATEGY_START_TIMEOUT"
_START_TIMEOUT_SECONDS = 60.0
_KNOCK_SECONDS = 1.0
_PAUSE_SECONDS = 0.1


def start_timeout_or(given: float | None = None) -> float:
    """Seconds to wait for other tasks: `given`, AUTOSTRATEGY_START_TIMEOUT, or 60.

    Raises:
        LaunchError: the variable holds no positive number.
    """
    if given is not None:
        return given
    text = os.environ.get(START_TIMEOUT_VARIABLE) or str(_START_TIMEOUT_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise LaunchError(
            f"{START_TIMEOUT_VARIABLE} must be a positive number of seconds. Received: {text!r}."
        )
    return seconds


def meet(cluster: Cluster, *, timeout: float, jobs: tuple[str, ...] | None = None) -> None:
    """Return once every other training task of `cluster` accepts a connection.

    Args:
        cluster: the cluster with this task in it.
        timeout: seconds to wait for the slowest task.
        jobs: whom to wait for; by default all that train, chief and workers.

    Raises:
        LaunchError: this task's port is taken, or a task did not appear in
            time; the message names each missing address.
    """
    own = cluster.addresses(cluster.task_type)[cluster.task_index]
    wanted = cluster.workers if jobs is None else _addresses(cluster, jobs)
    missing = {address: "no answer" for address in wanted if address != own}
    deadline = time.monotonic() + timeout
    with _listening(own):
        while missing:
            for address in list(missing):
                reason = knock(address)
                if reason is None:
                    del missing[address]
                else:
                    missing[address] = reason
            if missing and time.monotonic() > deadline:
                raise LaunchError(_missing_text(_whom(wanted, jobs), own, missing, timeout))
            if missing:
                time.sleep(_PAUSE_SECONDS)


def within(act: Callable[[], Value], *, timeout: float, otherwise: str) -> Value:
    """The result of `act()`, or a LaunchError saying `otherwise` after `timeout` seconds.

    `act` runs in a daemon thread, because a wait inside TensorFlow cannot be
    interrupted; its own error is raised here.

    Raises:
        LaunchError: `act` neither returned nor raised in time.
    """
    results: list[Value] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(act())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout)
    if errors:
        raise errors[0]
    if not results:
        raise LaunchError(otherwise)
    return results[0]


def _addresses(cluster: Cluster, jobs: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(address for job in jobs for address in cluster.addresses(job))


def unanswered(addresses: Iterable[str], *, timeout: float) -> dict[str, str]:
    """Those of `addresses` where nobody answers, each with the reason; all are asked at once.

    A name server may keep a lookup waiting longer than any `timeout`, so each
    is asked in a daemon thread, which may be left behind.
    """
    addresses = tuple(addresses)
    reasons: dict[str, str | None] = dict.fromkeys(addresses, "no answer")

    def ask(address: str) -> None:
        reasons[address] = knock(address)

    threads = [threading.Thread(target=ask, args=(each,), daemon=True) for each in addresses]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {address: reason for address in addresses if (reason := reasons[address]) is not None}


def cannot_listen(address: str) -> str | None:
    """Why this task cannot listen at its own `address`, None when it can."""
    host, _, port = address.rpartition(":")
    try:
        _bind(host.strip("[]"), int(port), address).close()
    except LaunchError as error:
        return str(error)
    return None


def knock(address: str) -> str | None:
    """Why nobody answers at `address`, None when somebody does."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS):
            return None
    except socket.gaierror:
        return "the host name does not resolve"
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return (error.strerror or str(error)).lower()


@contextlib.contextmanager
def _listening(address: str) -> Iterator[None]:
    """Accept and drop connections at `address` while the block runs."""
    host, _, port = address.rpartition(":")
    server = _bind(host.strip("[]"), int(port), address)
    server.settimeout(_PAUSE_SECONDS)
    closing = threading.Event()

    def serve() -> None:
        while not closing.is_set():
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                # The knocking side closes first, so that this port does not
                # linger in TIME_WAIT where TensorFlow is about to bind it.
                with connection:
                    connection.settimeout(_KNOCK_SECONDS)
                    connection.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()
        server.close()


def _bind(host: str, port: int, address: str) -> socket.socket:
    """A listening socket on this task's own address.

    The name in a cluster spec may belong to another interface than the one it
    resolves to here (NAT, containers); then every interface is bound, which
    is what TensorFlow's server does anyway.
    """
    last: OSError | None = None
    for candidate in (host, ""):
        server = None
        try:
            family = socket.getaddrinfo(candidate or None, port, type=socket.SOCK_STREAM)[0][0]
            server = socket.socket(family, socket.SOCK_STREAM)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((candidate, port))
            server.listen(128)
            return server
        except OSError as error:
            last = error
            if server is not None:
                server.close()
    raise LaunchError(
        f"This task's own address must be free to listen on. Received: {address}, "
        f"{(last.strerror if last else None) or last}. Is an earlier run still alive, or does the "
        "address belong to another host?"
    )


def _whom(wanted: tuple[str, ...], jobs: tuple[str, ...] | None) -> str:
    servers = jobs is not None and "ps" in jobs
    return f"{len(wanted)} workers{' and servers' if servers else ''}"


def _missing_text(whom: str, own: str, missing: dict[str, str], timeout: float) -> str:
    names = ", ".join(f"{address} ({reason})" for address, reason in missing.items())
    return (
        f"All {whom} of the cluster must start within {timeout:g} s. "
        f"Missing after that time, seen from {own}: {names}. Start the missing tasks, check the "
        "addresses and firewalls, or allow more time with AUTOSTRATEGY_START_TIMEOUT."
    )
