"""What one measuring process does: a job on its command line, a result on its output.

Only the standard library is imported here, since the processes of other
interpreters (tf_keras, PyTorch) use this file too.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_RESULT = "RESULT "
_LONGEST_REASON = 160


@dataclass(frozen=True, kw_only=True)
class Job:
    """One contender's training in one process.

    `epochs` counts the timed ones; one more comes before them, in which
    everything is traced. `batch` is the global batch. `execution` is Keras's
    `steps_per_execution`. `records` is a file of rows for the workers of
    parameter servers. `meeting` is a folder in which `parties` processes wait
    for each other before the timed epochs, `number` is this one's number among
    them, and `core` the one core it may use; these matter to scaling.py alone.
    """

    contender: str
    net: str
    strategy: str
    batch: int
    epochs: int
    epoch_steps: int
    execution: int = 1
    records: str | None = None
    meeting: str | None = None
    parties: int = 1
    number: int = 0
    core: int | None = None

    @property
    def rows(self) -> int:
        """Rows of one epoch."""
        return self.batch * self.epoch_steps

    @property
    def steps(self) -> int:
        """Timed steps."""
        return self.epochs * self.epoch_steps

    def to_argument(self) -> str:
        """As text for the command line of a process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, text: str) -> Job:
        """What `to_argument` wrote."""
        return cls(**json.loads(text))

    def pin(self) -> None:
        """Keep this process, and every thread it starts later, on its core."""
        if self.core is not None:
            os.sched_setaffinity(0, {self.core})

    def meet(self) -> None:
        """Wait until all processes that are timed together have come this far."""
        if self.meeting is None:
            return
        folder = Path(self.meeting)
        (folder / str(self.number)).touch()
        while len(list(folder.iterdir())) < self.parties:
            time.sleep(0.002)


class Clock:
    """Times the epochs after the first, which traces; `ended` is when the last one ended."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._begun: float | None = None
        self._ended = 0.0

    def epoch_begins(self, epoch: int) -> None:
        if epoch == 1:
            self._job.meet()
            self._begun = time.perf_counter()

    def epoch_ends(self) -> None:
        self._ended = time.perf_counter()

    def result(self, loss: float) -> dict[str, float]:
        """Milliseconds of a timed step, and the last epoch's loss as a sign of life."""
        assert self._begun is not None
        seconds = self._ended - self._begun
        return {"milliseconds": seconds / self._job.steps * 1e3, "loss": float(loss)}


def perform(argument: str, run: Callable[[Job], dict[str, Any]]) -> None:
    """Run the job of the command line in this process and print its result, or what it raises."""
    job = Job.from_argument(argument)
    job.pin()
    try:
        result = run(job)
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        _tell({"raises": f"{type(error).__name__}: {_reason(str(error))}"})
        # Threads of a cluster may keep a failed process alive for ever.
        os._exit(1)
    _tell(result)


def result_in(output: str) -> dict[str, Any] | None:
    """What `perform` printed, None where it did not come to that."""
    lines = [line for line in output.splitlines() if line.startswith(_RESULT)]
    return json.loads(lines[-1].removeprefix(_RESULT)) if lines else None


def _tell(result: dict[str, Any]) -> None:
    # In one write, on a line of its own: other threads print too.
    sys.stdout.write(f"\n{_RESULT}{json.dumps(result)}\n")
    sys.stdout.flush()


def _reason(message: str) -> str:
    """The line that says most: the first, but for errors of TensorFlow's graphs."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if lines and lines[0].startswith("Graph execution error"):
        causes = [line for line in lines if line.startswith("(0) ")]
        plain = [line for line in lines if not line.startswith(("[[", "[Op", "("))]
        lines = [*causes[:1], *plain[-1:]]
    return lines[0][:_LONGEST_REASON] if lines else ""
