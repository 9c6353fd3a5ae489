"""What a run did, as text and JSON."""

from __future__ import annotations

from dataclasses import dataclass

from autostrategy import json_values
from autostrategy.planner import StrategyKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Counts and times of one `fit`.

    Attributes:
        strategy: what the run was trained with.
        replicas, workers: model copies and processes.
        global_batch: rows of a full step, None when the data did not tell.
        epochs: epochs begun.
        steps: optimizer steps over all epochs.
        examples: rows trained on over all replicas, None when not known.
        seconds: wall time from the first epoch's start to the last one's end,
            validation and callbacks included.
        training_seconds: of which training loops.
        first_loop_seconds: of which the first loop, which traces the step.
    """

    strategy: StrategyKind
    replicas: int
    workers: int
    global_batch: int | None
    epochs: int
    steps: int
    examples: int | None
    seconds: float
    training_seconds: float
    first_loop_seconds: float

    @property
    def examples_per_second(self) -> float | None:
        """Rows per second over all replicas in training loops, the first loop left out."""
        steady = self.training_seconds - self.first_loop_seconds
        if self.examples is None or self.steps < 2 or steady <= 0:
            return None
        return self.examples * (self.steps - 1) / self.steps / steady

    def __str__(self) -> str:
        rate = self.examples_per_second
        replicas = f"{self.replicas} replica{'s' * (self.replicas != 1)}"
        workers = f" on {self.workers} workers" if self.workers > 1 else ""
        lines = [
            f"strategy  {self.strategy.value}, {replicas}{workers}",
            f"steps     {self.steps} in {self.epochs} epochs, {self.seconds:.1f} s",
        ]
        if rate is not None:
            lines.append(f"speed     {rate:,.0f} examples per second")
        return "\n".join(lines)

    def to_json(self) -> str:
        """This report as JSON text."""
        return json_values.encode(self)
