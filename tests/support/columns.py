"""A column of the table: features of one system under one strategy, each within a time limit.

Cells run one after another in a child process, or one child for each task of a
cluster; a nursery (nursery.py) forks them. Where a cell hangs or ends its process, the children
are started anew at the next one. After an error in a cluster, TensorFlow's collectives or its
coordinator may stay broken: the processes go on only where the error is one that a fresh cluster
gave too, and whatever is not right after that is measured again in a fresh one. So is what seems to
hang, once, and with more time: the machine may only have been busy.
"""

from __future__ import annotations

import contextlib
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
from dataclasses import dataclass
from typing import Any

import judge
from run_cells import flavour_of, outcome_path
from systems import CLUSTERS

HERE = pathlib.Path(__file__).parent
PARAMETER_SERVER = {"chief": 1, "worker": 2, "ps": 2}
MULTI_WORKER = {"worker": 2}
# Once one task of a cluster has an error, this is how long the others may take to tell theirs.
OTHERS_SECONDS = 3.0
IMPORT_SECONDS = 120.0


def batches_of(strategy: str) -> str:
    """The batches that a column is measured on: any, but a TPU wants multiples of its replicas."""
    return "short" if strategy == "tpu_stand_in" else "uneven"


@dataclass
class Limits:
    """Seconds: for a cell, and more for the first of a process, which starts a cluster."""

    cell: float = 60.0
    start: float = 30.0


class Nursery:
    """The process that forks the tasks of a column."""

    def __init__(self, python: str, modules: list[str]) -> None:
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "KERAS_BACKEND": "tensorflow",
            "OPENBLAS_NUM_THREADS": "1",  # no threads before a fork
            "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parent.parent))),
        }
        environment.pop("TF_CONFIG", None)
        if "tf_keras" in modules:
            environment["TF_USE_LEGACY_KERAS"] = "1"  # tf_keras asks tf.keras for some classes
        self._process = subprocess.Popen(
            [python, str(HERE / "nursery.py"), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._ready = threading.Event()
        self._tasks: dict[int, queue.Queue[tuple[int, dict[str, Any]]]] = {}
        self._next = 0
        threading.Thread(target=self._read, daemon=True).start()
        if not self._ready.wait(IMPORT_SECONDS):
            self.close()
            raise RuntimeError(f"{modules} are not imported within {IMPORT_SECONDS:g} s")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if "ready" in line:
                self._ready.set()
            else:
                self._tasks[line["task"]].put((line["task"], line))
        for task, lines in list(self._tasks.items()):
            lines.put((task, {"ended": "unknown, since its parent ended"}))

    def start(
        self,
        arguments: list[str],
        environment: dict[str, str],
        log: pathlib.Path,
        lines: queue.Queue[tuple[int, dict[str, Any]]],
    ) -> int:
        """A new task, which puts what it reports into `lines`; its number."""
        task, self._next = self._next, self._next + 1
        self._tasks[task] = lines
        request = {"arguments": arguments, "environment": environment, "log": str(log)}
        self._ask({"start": task, **request})
        return task

    def kill(self, task: int) -> None:
        """End a task, if it has not ended."""
        self._ask({"kill": task})

    def _ask(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End all tasks, and the nursery."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _modules_of(system: str) -> list[str]:
    """What a nursery imports."""
    if system == "autostrategy":
        return ["tensorflow", "keras", "autostrategy.training.trainer", "autostrategy.training.fit"]
    return ["tensorflow", flavour_of(system)]


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
        nursery: Nursery,
        system: str,
        strategy: str,
        names: list[str],
        *,
        expected: pathlib.Path,
        folder: pathlib.Path,
        batches: str,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "names.json").write_text(json.dumps(names))
        self.fresh, self.after_error = True, False
        self._nursery = nursery
        self._lines: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self._logs: dict[int, pathlib.Path] = {}
        self._reporting: list[int] = []
        self._early: list[tuple[int, dict[str, Any]]] = []
        for kind, index, config in _tasks_of(strategy):
            log = folder / f"{kind}{index}.log"
            arguments = [system, strategy, "--names", str(folder / "names.json")]
            arguments += ["--expected", str(expected), "--folder", str(folder)]
            arguments += ["--batches", batches]
            environment = {} if config is None else {"TF_CONFIG": config}
            task = nursery.start(arguments, environment, log, self._lines)
            self._logs[task] = log
            if strategy != "parameter_server" or kind == "chief":
                self._reporting.append(task)

    def next_verdict(self, limit: float) -> tuple[judge.Verdict, bool]:
        """The next cell's, and whether the processes can go on after it."""
        end = time.monotonic() + limit
        verdicts: dict[int, judge.Verdict] = {}
        lines, self._early = self._early, []
        while len(verdicts) < len(self._reporting):
            try:
                task, line = (
                    lines.pop(0)
                    if lines
                    else self._lines.get(timeout=max(0.0, end - time.monotonic()))
                )
            except queue.Empty:
                break
            if task not in self._reporting:
                continue
            if task in verdicts:  # a faster task, at its next cell
                self._early.append((task, line))
                continue
            if "ended" in line:
                text = _last_words(line["ended"], self._logs[task])
                verdicts[task] = judge.Verdict(judge.CRASHES, text)
            else:
                line = {key: line[key] for key in ("status", "detail", "error")}
                verdicts[task] = judge.Verdict(**line)
            if verdicts[task].status in (judge.CRASHES, judge.RAISES):
                end = min(end, time.monotonic() + OTHERS_SECONDS)
        hangs = judge.Verdict(judge.HANGS, f"no end within {limit:g} s")
        found = [verdicts.get(task, hangs) for task in self._reporting]
        going = all(each.status not in (judge.HANGS, judge.CRASHES) for each in found)
        return _joined(found), going

    def stop(self) -> None:
        """End every process that is still there."""
        for task in self._logs:
            self._nursery.kill(task)


def _last_words(status: int | str, log: pathlib.Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
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
        batches: "even" for such as two replicas divide, "short" where all but the last are.
    """
    limits = limits or Limits()
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or pathlib.Path(temporary)
        nursery = Nursery(python, _modules_of(system)) if names else None
        cluster: _Cluster | None = None
        starts = 0
        clean: set[str] = set()
        try:
            for position, name in enumerate(names):
                begin = time.monotonic()
                while True:
                    if cluster is None:
                        starts += 1
                        assert nursery is not None
                        cluster = _Cluster(
                            nursery,
                            system,
                            strategy,
                            names[position:],
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
                    fine = verdict.status in (judge.RIGHT, judge.REFUSED, judge.ABSENT)
                    again = cluster.after_error and not fine and verdict.detail not in clean
                    again = again or (verdict.status == judge.HANGS and not fresh)
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
            if nursery is not None:
                nursery.close()


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
