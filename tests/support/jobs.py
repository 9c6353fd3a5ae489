"""What one feature trains, and what must hold of the numbers that come out.

A feature is a row of the table in docs/support.md. Its job is written once and
run by every system under every strategy (systems.py), then judged (judge.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Named arrays that a run leaves behind: "history/loss", "weight/0", "iterations", ...
Outcome = dict[str, np.ndarray]


@dataclass(frozen=True)
class Job:
    """One training, and how to judge it.

    Attributes:
        model: makes the compiled model; called in the strategy's scope.
        data: makes the positional arguments of `fit`.
        arguments: makes the other arguments of `fit`, anew for each run.
        script: what to do with a session; by default one `fit` of the data.
        expected: from the outcome on one plain device and the number of
            replicas to what must come out; by default the former. Only the
            names that it has are compared.
        check: raises AssertionError for an outcome that is wrong; for what is
            random by nature, or where no array of numbers says it.
        exact: names, or beginnings of names, that must be equal even where
            steps are taken asynchronously.
        falls: whether asynchronous training must lower the loss.
        around: a setting that holds while the job runs, a dtype policy.
        rtol, atol: how near to what is expected.
    """

    model: Callable[[], Any]
    data: Callable[[], tuple[Any, ...]]
    arguments: Callable[[], dict[str, Any]] = dict
    script: Callable[[Any], None] | None = None
    expected: Callable[[Outcome, int], Outcome] | None = None
    check: Callable[[Outcome, int], None] | None = None
    exact: tuple[str, ...] = ("iterations",)
    falls: bool = True
    around: Callable[[], Any] = contextlib.nullcontext
    rtol: float = 1e-5
    atol: float = 1e-6

    def run(self, session: Any) -> None:
        """The script, or else one fit."""
        if self.script is not None:
            self.script(session)
        else:
            session.fit(self.data, **self.arguments())


@dataclass(frozen=True)
class Feature:
    """A row of the table.

    Attributes:
        name: in the table.
        make: takes `keras` or `tf_keras` and returns the job.
        only_keras_3: whether tf_keras has nothing of the kind.
        refused_on_tpu: a part of autostrategy's message, where its rules of a
            TPU (docs/decisions/0008) refuse the feature.
    """

    name: str
    make: Callable[[Any], Job]
    only_keras_3: bool = False
    refused_on_tpu: str | None = None

    def refused_by(self, system: str, strategy: str) -> str | None:
        """A part of the documented message, where the feature is refused."""
        tpu = system == "autostrategy" and strategy == "tpu_stand_in"
        return self.refused_on_tpu if tpu else None


def only(*names: str) -> Callable[[Outcome, int], Outcome]:
    """For `Job.expected`: compare just these names, or beginnings of names, with one device."""

    def expected(plain: Outcome, _replicas: int) -> Outcome:
        return {name: value for name, value in plain.items() if name.startswith(names)}

    return expected


def without(*names: str) -> Callable[[Outcome, int], Outcome]:
    """For `Job.expected`: compare all but these names, or beginnings of names."""

    def expected(plain: Outcome, _replicas: int) -> Outcome:
        return {name: value for name, value in plain.items() if not name.startswith(names)}

    return expected
