"""One process collects where all are to be reached, and tells all of them.

A connection carries one line of JSON each way:

    {"rank": 1, "world_size": 2, "port": 40123}
    {"addresses": ["10.0.0.4:40345", "10.0.0.5:40123"]}    or    {"error": "..."}

A line that is none of this, as a port scanner's, is dropped and harms nobody.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import socket
import socketserver
import threading
import time
from dataclasses import dataclass
from typing import Any

from autostrategy.errors import LaunchError

_PAUSE_SECONDS = 0.1
# Whoever connects sends its line at once.
_LINE_SECONDS = 5.0
_LINE_BYTES = 1 << 10
# What process 0 needs to tell why nobody comes, before the others stop waiting.
_GRACE_SECONDS = 5.0
_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """What a process says of itself; `port` is on its own host."""

    rank: int
    world_size: int
    port: int


def receive(point: str, own: Introduction, *, only_here: bool, timeout: float) -> tuple[str, ...]:
    """Addresses of all processes in rank order, collected at `point` by this one.

    Args:
        point: host:port of this host under which the others find it.
        own: this process.
        only_here: all processes are on this host, so nobody else may connect.
        timeout: seconds to wait for the others.

    Raises:
        LaunchError: `point` cannot be listened at, the message names a rank
            that did not come, or two processes contradict each other.
    """
    book = _Book(own, point)
    with _listening(point, book, only_here=only_here):
        book.wait(timeout)
    if book.error is not None:
        raise LaunchError(book.error)
    return book.addresses()


def introduce(point: str, own: Introduction, *, timeout: float) -> tuple[str, ...]:
    """Addresses of all processes in rank order, as process 0 at `point` tells them.

    Raises:
        LaunchError: nobody listened there in time, or process 0 found a fault.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            with _connected(point, timeout + _GRACE_SECONDS) as connection:
                answer = _asked(connection, own)
            break
        except OSError as error:
            reason = (
                "the host name does not resolve"
                if isinstance(error, socket.gaierror)
                else (error.strerror or str(error)).lower()
            )
        except ValueError:
            # Process 0 may not be there yet, and an earlier run or a stranger is.
            reason = "what answered there was no process of this run"
        if time.monotonic() > deadline:
            raise LaunchError(
                f"Rank 0 must be found at {point} within {timeout:g} s. Received by rank "
                f"{own.rank}: {reason}. Is rank 0 started, and does it call fit? Otherwise set "
                "AUTOSTRATEGY_MEETING_POINT in all processes to an address of its host, or allow "
                "more time with AUTOSTRATEGY_START_TIMEOUT."
            )
        time.sleep(_PAUSE_SECONDS)
    if "error" in answer:
        raise LaunchError(str(answer["error"]))
    return tuple(str(each) for each in answer["addresses"])


class _Book:
    """Who has come; threads of `_Handler` write it, under `changed`."""

    def __init__(self, own: Introduction, point: str) -> None:
        self.own = own
        self.host = point.rpartition(":")[0]
        self.ports: dict[int, tuple[str, int]] = {own.rank: (self.host, own.port)}
        self.error: str | None = None
        self.changed = threading.Condition()

    @property
    def is_closed(self) -> bool:
        return self.error is not None or len(self.ports) == self.own.world_size

    def enter(self, introduction: Introduction, host: str) -> None:
        with self.changed:
            rank, size = introduction.rank, introduction.world_size
            if size != self.own.world_size or not 0 <= rank < size:
                self.error = (
                    f"All processes that meet must be of one launch of {self.own.world_size}. "
                    f"Received: rank {rank} of {size}, from {host}. If two jobs meet here, set "
                    "AUTOSTRATEGY_MEETING_POINT to another address in each."
                )
            elif rank in self.ports:
                self.error = (
                    f"Each rank must be that of one process. Received: rank {rank} twice, from "
                    f"{self.ports[rank][0]} and {host}. If two jobs meet here, set "
                    "AUTOSTRATEGY_MEETING_POINT to another address in each."
                )
            else:
                self.ports[rank] = (host, introduction.port)
            self.changed.notify_all()

    def wait(self, timeout: float) -> None:
        """Return when all have come, or with an error in the book."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.is_closed, timeout):
                missing = [rank for rank in range(self.own.world_size) if rank not in self.ports]
                named = ", ".join(str(rank) for rank in missing[:_NAMED])
                more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
                self.error = (
                    f"All {self.own.world_size} processes must come within {timeout:g} s. Missing "
                    f"after that time: rank {named}{more}. Do all of them call fit? Look at their "
                    "output, or allow more time with AUTOSTRATEGY_START_TIMEOUT."
                )
                self.changed.notify_all()

    def addresses(self) -> tuple[str, ...]:
        pairs = (self.ports[rank] for rank in range(self.own.world_size))
        return tuple(f"{host}:{port}" for host, port in pairs)

    def answer(self) -> dict[str, Any]:
        if self.error is not None:
            return {"error": self.error}
        return {"addresses": self.addresses()}


class _Handler(socketserver.StreamRequestHandler):
    timeout = _LINE_SECONDS
    server: _Server

    def handle(self) -> None:
        book = self.server.book
        try:
            said = json.loads(self.rfile.readline(_LINE_BYTES))
            introduction = Introduction(**{name: int(said[name]) for name in _FIELDS})
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return
        book.enter(introduction, self._host())
        with book.changed:
            book.changed.wait_for(lambda: book.is_closed)
        with contextlib.suppress(OSError):  # it may have given up
            self.wfile.write(json.dumps(book.answer()).encode() + b"\n")

    def _host(self) -> str:
        """Where the other process is; of this host, the name that all know it by."""
        other = ipaddress.ip_address(self.request.getpeername()[0].partition("%")[0])
        own = ipaddress.ip_address(self.request.getsockname()[0].partition("%")[0])
        if isinstance(other, ipaddress.IPv6Address) and other.ipv4_mapped:
            other = other.ipv4_mapped
        if other == own or other.is_loopback:
            return self.server.book.host
        return f"[{other}]" if other.version == 6 else str(other)


_FIELDS = tuple(field.name for field in dataclasses.fields(Introduction))


class _Server(socketserver.ThreadingTCPServer):
    # An earlier run may have just left.
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily, book: _Book) -> None:
        self.address_family = family
        self.book = book
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: whoever broke off will say so itself."""


@contextlib.contextmanager
def _listening(point: str, book: _Book, *, only_here: bool) -> Any:
    server = _server(point, book, only_here=only_here)
    thread = threading.Thread(target=server.serve_forever, args=(_PAUSE_SECONDS,), daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        with book.changed:
            book.error = book.error or "Rank 0 was interrupted while it waited for the others."
            book.changed.notify_all()
        raise
    finally:
        server.shutdown()
        server.server_close()  # waits until each has its answer


def _server(point: str, book: _Book, *, only_here: bool) -> _Server:
    """Listens where `point` resolves to, or on all interfaces where that is not its own.

    Many hosts know themselves by a loopback address (Debian: 127.0.1.1), and
    behind NAT an address is another's.
    """
    host, _, port = point.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, where = found[0][0], str(found[0][4][0])
        if ipaddress.ip_address(where.partition("%")[0]).is_loopback and not only_here:
            where = ""
        with contextlib.suppress(OSError):
            return _Server((where, int(port)), family, book)
        return _Server(("127.0.0.1" if only_here else "", int(port)), socket.AF_INET, book)
    except OSError as error:
        why = "the host name does not resolve" if isinstance(error, socket.gaierror) else None
        raise LaunchError(
            f"Rank 0 must be able to listen at {point}, where the others look for it. Received: "
            f"{why or (error.strerror or str(error)).lower()}. Set AUTOSTRATEGY_MEETING_POINT in "
            "all processes to the host name of rank 0 and a free port there."
        ) from None


def _connected(point: str, timeout: float) -> socket.socket:
    host, _, port = point.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=_LINE_SECONDS)
    connection.settimeout(timeout)
    return connection


def _asked(connection: socket.socket, own: Introduction) -> dict[str, Any]:
    """The answer to `own`; ValueError when it is not one of `_Handler`."""
    connection.sendall(json.dumps(dataclasses.asdict(own)).encode() + b"\n")
    with connection.makefile("rb") as lines:
        answer = json.loads(lines.readline())
    if not isinstance(answer, dict) or not ({"addresses", "error"} & answer.keys()):
        raise ValueError(answer)
    return answer
