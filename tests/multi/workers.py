"""Start a cluster of local worker processes and collect what they print."""

from __future__ import annotations

import functools
import itertools
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass


@dataclass
class Ended:
    """How one task ended: exit status ("timeout" when it was killed), its output, and when."""

    status: int | str
    output: str
    task: tuple[str, int] = ("worker", 0)
    at: float = 0.0

    @property
    def value(self):
        """What the body passed to `tell`."""
        line = next(line for line in self.output.splitlines() if line.startswith("TOLD "))
        return json.loads(line.removeprefix("TOLD "))


# What every body starts with.
_HEAD = """
import json, os
import numpy as np
def tell(value):
    print("TOLD " + json.dumps(value), flush=True)
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def run(
    body: str, workers: int | dict[str, int], *, tmp_path, timeout=180, env=None, only=None
) -> list[Ended]:
    """`body` in each task of a cluster with TF_CONFIG set; `only` starts just these.

    `workers` is a number, or numbers by job. An evaluator is started beside the cluster.
    """
    script = tmp_path / "body.py"
    script.write_text(_HEAD + textwrap.dedent(body))
    jobs = {"worker": workers} if isinstance(workers, int) else workers
    tasks = [(job, index) for job, count in jobs.items() for index in range(count)]
    ports = iter(free_ports(len(tasks)))
    addresses = {
        job: [f"127.0.0.1:{next(ports)}" for _ in range(count)]
        for job, count in jobs.items()
        if job != "evaluator"
    }
    processes = []
    started = tasks if only is None else [tasks[index] for index in only]
    for job, index in started:
        task = {"cluster": addresses, "task": {"type": job, "index": index}}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(script)],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": "-1",
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                    "TF_CONFIG": json.dumps(task),
                    "ADDRESSES": ",".join(itertools.chain(*addresses.values())),
                    **(env or {}),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    with ThreadPoolExecutor(len(processes)) as pool:
        return list(pool.map(functools.partial(_ended, timeout), processes, started))


def _ended(timeout, process, task) -> Ended:
    try:
        output, _ = process.communicate(timeout=timeout)
        return Ended(process.returncode, output, task, time.monotonic())
    except subprocess.TimeoutExpired:
        process.kill()
        return Ended("timeout", process.communicate()[0], task, time.monotonic())


def told(ended: list[Ended]) -> list:
    """The values of all workers, after checking that all ended well."""
    assert [each.status for each in ended] == [0] * len(ended), "\n".join(
        each.output[-3000:] for each in ended
    )
    return [each.value for each in ended]


# The first call must come before any use of TensorFlow on worker and ps tasks,
# which end in it.
SERVE = """
import sys
import autostrategy
plan = autostrategy.plan(autostrategy.probe())
autostrategy.build(plan)
"""


def chief_of(ended: list[Ended]) -> Ended:
    """The chief of parameter servers, after checking that all tasks ended well."""
    assert {each.task: each.status for each in ended} == {each.task: 0 for each in ended}, (
        "\n".join(f"{each.task}: {each.output[-3000:]}" for each in ended)
    )
    return next(each for each in ended if each.task == ("chief", 0))
