"""A process that has imported TensorFlow and Keras, and forks the tasks of a column.

    python nursery.py MODULE...

Importing takes seconds, a fork none, and stock Keras makes it necessary to start a cluster anew
for nearly every cell. Nothing of TensorFlow runs here, so that a fork is safe
and a child can still make any strategy.

Requests are lines of JSON on standard input: {"start": TASK, "arguments": [...],
"environment": {...}, "log": FILE} or {"kill": TASK}. Lines on standard output are those that tasks
report, with "task", and {"task": TASK, "ended": STATUS} after the last of each.
It ends, and its children with it, when its standard input does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import traceback
from typing import Any, NoReturn

import run_cells

POLL_SECONDS = 0.1


def _write(file: int, line: dict[str, Any]) -> None:
    os.write(file, f"{json.dumps(line)}\n".encode())  # at once: other processes write there too


def _task(request: dict[str, Any], reports: int) -> NoReturn:
    """What a child does, from its fork to its end."""
    status = 1
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, log), (2, log)):
            os.dup2(source, target)
        os.environ.update(request["environment"])
        task = request["start"]
        run_cells.run(request["arguments"], lambda line: _write(reports, {**line, "task": task}))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def main() -> None:
    reports = os.dup(1)
    os.dup2(2, 1)  # what modules print is no report
    for name in sys.argv[1:]:
        importlib.import_module(name)
    _write(reports, {"ready": True})
    tasks: dict[int, int] = {}  # process to task
    pending = b""
    try:
        while True:
            if select.select([0], [], [], POLL_SECONDS)[0]:
                read = os.read(0, 65536)
                if not read:
                    return
                *lines, pending = (pending + read).split(b"\n")
                for line in lines:
                    _follow(json.loads(line), tasks, reports)
            while tasks and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                process, status = ended
                code = os.waitstatus_to_exitcode(status)
                _write(reports, {"task": tasks.pop(process), "ended": code})
    finally:
        for process in tasks:
            os.kill(process, signal.SIGKILL)


def _follow(request: dict[str, Any], tasks: dict[int, int], reports: int) -> None:
    if "start" in request:
        process = os.fork()
        if process == 0:
            _task(request, reports)
        tasks[process] = request["start"]
    for process, task in tasks.items():
        if task == request.get("kill"):
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
