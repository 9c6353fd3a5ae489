"""Start a cluster of local worker processes and collect what they print."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from dataclasses import dataclass


@dataclass
class Ended:
    """How one worker ended: exit status ("timeout" when it was killed) and its output."""

    status: int | str
    output: str

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


def run(body: str, workers: int, *, tmp_path, timeout=180, env=None, only=None) -> list[Ended]:
    """`body` in each of `workers` processes with TF_CONFIG set; `only` starts just these."""
    script = tmp_path / "body.py"
    script.write_text(_HEAD + textwrap.dedent(body))
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    processes = []
    for index in range(workers) if only is None else only:
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(script)],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": "-1",
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                    "TF_CONFIG": json.dumps(task),
                    "ADDRESSES": ",".join(addresses),
                    **(env or {}),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    ended = []
    for process in processes:
        try:
            output, _ = process.communicate(timeout=timeout)
            ended.append(Ended(process.returncode, output))
        except subprocess.TimeoutExpired:
            process.kill()
            ended.append(Ended("timeout", process.communicate()[0]))
    return ended


def told(ended: list[Ended]) -> list:
    """The values of all workers, after checking that all ended well."""
    assert [each.status for each in ended] == [0] * len(ended), "\n".join(
        each.output[-3000:] for each in ended
    )
    return [each.value for each in ended]
