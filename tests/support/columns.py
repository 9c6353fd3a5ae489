"""A column of the table: features of one system under one strategy, each within a time limit.

Cells run one after another in a child process, or one child for each task of a
cluster. Where a cell hangs or ends its process, the children are started anew
at the next one. After an error in a cluster, TensorFlow's collectives or its coordinator may stay
broken: the processes go on only where the error is one that a fresh cluster gave too, and whatever
is not right after that is measured again in a fresh one.
"""

from __future__ import annotations

import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import judge
from run_cells import LINE, flavour_of, outcome_path
from systems import CLUSTERS

HERE = pathlib.Path(__file__).parent
PARAMETER_SERVER = {"chief": 1, "worker": 2, "ps": 2}
MULTI_WORKER = {"worker": 2}


@dataclass
class Limits:
    """Seconds: for a cell, and more for the first of a process, which imports and starts."""

    cell: float = 60.0
    start: float = 90.0


@dataclass
class _Task:
    process: subprocess.Popen[str]
    reports: bool
    log: pathlib.Path
    lines: queue.Queue[dict[str, Any] | None] = field(default_factory=queue.Queue)


def _free_ports(count: int) -> list[int]:
    import socket

    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _tasks_of(strategy: str) -> list[tuple[str, int, str | None]]:
    """(type, index, TF_CONFIG) of every task; one without a cluster otherwise."""
    if strategy not in CLUSTERS:
        return [("worker", 0, None)]
    counts = MULTI_WORKER if strategy == "multi_worker_mirrored" else PARAMETER_SERVER
    ports = iter(_free_ports(sum(counts.values())))
    cluster = {
        kind: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for kind, count in counts.items()
    }
    return [
        (kind, index, json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}))
        for kind, count in counts.items()
        for index in range(count)
    ]


class _Cluster:
    """The child processes of a column, from one start to the next."""

    def __init__(
        self,
        system: str,
        strategy: str,
        names: list[str],
        *,
        python: str,
        expected: pathlib.Path,
        folder: pathlib.Path,
        batches: str,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "names.json").write_text(json.dumps(names))
        self.fresh, self.after_error = True, False
        self.tasks = []
        for kind, index, config in _tasks_of(strategy):
            environment = {
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "KERAS_BACKEND": "tensorflow",
                "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parent.parent))),
            }
            environment.pop("TF_CONFIG", None)
            if config is not None:
                environment["TF_CONFIG"] = config
            log = folder / f"{kind}{index}.log"
            command = [python, str(HERE / "run_cells.py"), system, strategy]
            command += ["--names", str(folder / "names.json"), "--expected", str(expected)]
            command += ["--folder", str(folder), "--batches", batches]
            with log.open("w") as file:
                process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment
                )
            reports = strategy != "parameter_server" or kind == "chief"
            task = _Task(process, reports, log)
            threading.Thread(target=_read, args=(task,), daemon=True).start()
            self.tasks.append(task)

    def next_verdict(self, limit: float) -> tuple[judge.Verdict, bool]:
        """The next cell's, and whether the processes can go on after it."""
        end = time.monotonic() + limit
        verdicts = []
        for task in self.tasks:
            if not task.reports:
                continue
            try:
                line = task.lines.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                end = min(end, time.monotonic() + 2)  # what others know by now is enough
                verdicts.append(judge.Verdict(judge.HANGS, f"no end within {limit:g} s"))
                continue
            if line is None:
                verdicts.append(judge.Verdict(judge.CRASHES, _last_words(task)))
                continue
            line = {key: line[key] for key in ("status", "detail", "error")}
            verdicts.append(judge.Verdict(**line))
        going = all(each.status not in (judge.HANGS, judge.CRASHES) for each in verdicts)
        return _joined(verdicts), going

    def stop(self) -> None:
        """End every process that is still there."""
        for task in self.tasks:
            task.process.kill()
        for task in self.tasks:
            task.process.wait()


def _read(task: _Task) -> None:
    assert task.process.stdout is not None
    for line in task.process.stdout:
        if line.startswith(LINE):
            task.lines.put(json.loads(line.removeprefix(LINE)))
    task.lines.put(None)


def _last_words(task: _Task) -> str:
    status = task.process.wait()
    lines = [line for line in task.log.read_text().splitlines() if line.strip()]
    return f"the process ended with status {status}: {lines[-1] if lines else ''}"[:300]


def _joined(verdicts: list[judge.Verdict]) -> judge.Verdict:
    """The first that is not right, errors before what they left hanging."""
    order = (judge.RAISES, judge.CRASHES, judge.WRONG, judge.HANGS)
    for status in order:
        for verdict in verdicts:
            if verdict.status == status:
                return verdict
    return verdicts[0]


def run_column(
    system: str,
    strategy: str,
    names: list[str],
    *,
    expected: pathlib.Path,
    python: str = sys.executable,
    limits: Limits | None = None,
    keep: pathlib.Path | None = None,
    batches: str = "uneven",
) -> Iterator[tuple[str, judge.Verdict, float]]:
    """(feature, verdict, seconds) of every name, as soon as it is known.

    Args:
        system, strategy: the column; "plain" measures what others are held to.
        names: features.
        expected: folder of the plain device's outcomes.
        python: the interpreter of the children.
        limits: seconds for each cell.
        keep: where logs are kept; by default they go.
        batches: "even" for such as two replicas divide.
    """
    limits = limits or Limits()
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or pathlib.Path(temporary)
        cluster: _Cluster | None = None
        starts = 0
        clean: set[str] = set()
        try:
            for position, name in enumerate(names):
                begin = time.monotonic()
                while True:
                    if cluster is None:
                        starts += 1
                        cluster = _Cluster(
                            system,
                            strategy,
                            names[position:],
                            python=python,
                            expected=expected,
                            folder=folder / f"{batches}{starts}",
                            batches=batches,
                        )
                    fresh = cluster.fresh
                    limit = limits.cell + (limits.start if fresh else 0)
                    verdict, going = cluster.next_verdict(limit)
                    cluster.fresh = False
                    raises = verdict.status == judge.RAISES
                    if raises and fresh and "ollective" not in verdict.detail:
                        clean.add(verdict.detail)
                    doubtful = verdict.status != judge.RIGHT and verdict.detail not in clean
                    again = cluster.after_error and doubtful and verdict.status != judge.ABSENT
                    if strategy in CLUSTERS and raises:
                        cluster.after_error = True
                        going = going and verdict.detail in clean
                    if again or not going:
                        cluster.stop()
                        cluster = None
                    if not again:
                        break
                yield name, verdict, time.monotonic() - begin
        finally:
            if cluster is not None:
                cluster.stop()


def measure_expected(
    systems: list[str],
    names: list[str],
    folder: pathlib.Path,
    *,
    python_of: Callable[[str], str] = lambda system: sys.executable,
    batches: str = "uneven",
) -> dict[str, dict[str, judge.Verdict]]:
    """One plain device of each flavour, where its outcome is not in `folder` yet."""
    folder.mkdir(parents=True, exist_ok=True)
    verdicts: dict[str, dict[str, judge.Verdict]] = {}
    for flavour in sorted({flavour_of(system) for system in systems}):
        paths = {name: outcome_path(folder, flavour, name, batches) for name in names}
        missing = [name for name, path in paths.items() if not path.exists()]
        if missing:
            made = run_column(
                flavour,
                "plain",
                missing,
                expected=folder,
                python=python_of(flavour),
                batches=batches,
            )
            verdicts[flavour] = {name: verdict for name, verdict, _ in made}
    return verdicts
