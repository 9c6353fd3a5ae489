"""Start the processes of one measurement, wait for them, and collect results and peak memory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from measuring.job import Job, result_in

_HERE = Path(__file__).resolve().parent.parent
# How long the others may take to end by themselves once the leader has ended.
_GRACE_SECONDS = 3.0
_LOOK_SECONDS = 0.02
_QUIET = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}


@dataclass
class _Running:
    process: subprocess.Popen[str]
    output: TextIO
    errors: TextIO
    status: int | None = None
    megabytes: float = 0.0
    ended: float = 0.0

    def look(self, *, block: bool = False) -> None:
        """Note status and peak memory once the process has ended."""
        if self.status is not None:
            return
        pid, status, usage = os.wait4(self.process.pid, 0 if block else os.WNOHANG)
        if pid:
            self.status = self.process.returncode = os.waitstatus_to_exitcode(status)
            self.megabytes = usage.ru_maxrss / 1024
            self.ended = time.monotonic()


def measure(
    jobs: Sequence[Job],
    *,
    python: str,
    timeout: float,
    environments: Sequence[dict[str, str]] | None = None,
    need_all: bool = False,
) -> dict[str, Any]:
    """Run `jobs` at the same time, each in a process, and say what came of it.

    The first is the leader: when it has ended, the others are given a moment
    and then killed, since TensorFlow's servers never end by themselves.

    Args:
        jobs: one for each process.
        python: the interpreter.
        timeout: seconds until all are killed.
        environments: variables of each process, such as TF_CONFIG.
        need_all: wait for every process, and collect every result.

    Returns:
        The leader's result (with `need_all`, "results" of all), with
        "megabytes" of the largest process; or "raises" with the reason.
    """
    with contextlib.ExitStack() as stack:
        # Files rather than pipes: a full pipe would stop a process that nobody reads.
        files = [
            stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            for _ in range(2 * len(jobs))
        ]
        running = [
            _start(job, python, environment, files.pop(), files.pop())
            for job, environment in zip(jobs, environments or [{}] * len(jobs), strict=True)
        ]
        awaited = running if need_all else running[:1]
        try:
            timed_out = not _wait(running, awaited, timeout)
        finally:
            for each in running:
                if each.status is None:
                    each.process.kill()
                    each.look(block=True)
        results = [result_in(_text(each.output)) for each in running]
        megabytes = max(each.megabytes for each in running)
        wanted = results if need_all else results[:1]
        if all(result is not None and "raises" not in result for result in wanted):
            own = {"results": results} if need_all else dict(results[0] or {})
            return {**own, "megabytes": megabytes}
        return {"raises": _reason(running, results, timed_out, timeout), "megabytes": megabytes}


def cluster(numbers: dict[str, int]) -> list[dict[str, str]]:
    """TF_CONFIG of each task of a local cluster, in the order of `numbers` by job."""
    ports = iter(free_ports(sum(numbers.values())))
    addresses = {
        job: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for job, count in numbers.items()
    }
    return [
        {"TF_CONFIG": json.dumps({"cluster": addresses, "task": {"type": job, "index": index}})}
        for job, count in numbers.items()
        for index in range(count)
    ]


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _start(
    job: Job, python: str, environment: dict[str, str], output: TextIO, errors: TextIO
) -> _Running:
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    process = subprocess.Popen(
        [python, "-m", "measuring.run_job", job.to_argument()],
        cwd=_HERE,
        env={**inherited, **_QUIET, **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        text=True,
    )
    return _Running(process, output, errors)


def _wait(running: list[_Running], awaited: list[_Running], timeout: float) -> bool:
    """Wait for the awaited ones and a moment for the rest; whether that was in time."""
    deadline = time.monotonic() + timeout
    over = False
    while time.monotonic() < deadline:
        for each in running:
            each.look()
        if all(each.status is not None for each in running):
            return True
        failed = any(each.status for each in running)
        if not over and (failed or all(each.status is not None for each in awaited)):
            over, deadline = True, min(deadline, time.monotonic() + _GRACE_SECONDS)
        time.sleep(_LOOK_SECONDS)
    return over


def _reason(
    running: list[_Running],
    results: list[dict[str, Any] | None],
    timed_out: bool,
    timeout: float,
) -> str:
    """Why there is no result: of the process that failed first."""
    order = sorted(range(len(running)), key=lambda index: running[index].ended)
    for index in order:
        told = results[index]
        if told is not None and "raises" in told:
            return told["raises"]
    if timed_out:
        return f"does not end within {timeout:g} s"
    first = running[order[0]]
    lines = _text(first.errors).strip().splitlines()
    last = lines[-1].strip() if lines else ""
    what = f"killed by signal {-first.status}" if first.status < 0 else f"status {first.status}"
    return f"{what}: {last}"[:200]


def _text(file: TextIO) -> str:
    file.seek(0)
    return file.read()
