"""Whether what came out of a cell is right, and by how much it is not."""

from __future__ import annotations

import re
import traceback
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jobs import Job, Outcome

RIGHT, REFUSED, WRONG, RAISES, HANGS, CRASHES, ABSENT = (
    "right",
    "refused",
    "wrong",
    "raises",
    "hangs",
    "crashes",
    "absent",
)


# In a message: folders of this machine, addresses, and TensorFlow's name for a call.
_NOISE = re.compile(
    r"(?<![\w.:/])/(?:[\w.+-]+/)+| object at 0x[0-9a-f]+|\{\{function_node [^}]*\}\} "
)
_LONGEST = 300


@dataclass(frozen=True)
class Verdict:
    """How a cell is, what was measured where it is not right, and the largest relative error."""

    status: str
    detail: str = ""
    error: float | None = None

    def as_json(self) -> dict[str, Any]:
        """For a line of a child process, or the results file."""
        return asdict(self)


def raised(error: BaseException, refusal: str | None = None) -> Verdict:
    """The verdict on a cell that raised; its first line says what.

    Args:
        error: what was raised.
        refusal: what a documented refusal's message contains, where one is expected.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines[:1] == ["Graph execution error:"]:  # then a stack, and what happened after it
        skipped = ("File ", "[[", "Detected at")
        lines = [line for line in lines[1:] if not line.startswith(skipped)] or lines
    if not lines:  # a bare assertion
        lines = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__)[-1:]]
    told = lines[0] if lines else ""
    if told.endswith(("{", "[", "(", ":")) and len(lines) > 1:  # an array or a list follows
        told = f"{told} ... {lines[-1]}"
    text = f"{type(error).__name__}: {_NOISE.sub('', told)}"
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ..."
    refused = refusal is not None and type(error).__name__ == "TrainingError" and refusal in text
    return Verdict(REFUSED if refused else RAISES, text)


def judge(
    job: Job, outcome: Outcome, plain: Outcome, replicas: int, *, synchronous: bool
) -> Verdict:
    """Compare an outcome with one device's, or with what the job says must hold."""
    expected = plain if job.expected is None else job.expected(plain, replicas)
    if not synchronous:
        exact = {name: value for name, value in expected.items() if name.startswith(job.exact)}
        verdict = _compare(job, outcome, exact)
        if verdict.status == RIGHT and job.falls:
            verdict = _falls(outcome, plain)
    else:
        verdict = _compare(job, outcome, expected)
    if verdict.status == RIGHT and job.check is not None:
        try:
            job.check(outcome, replicas)
        except AssertionError as error:
            return Verdict(WRONG, str(error).strip().splitlines()[0][:300])
    return verdict


def _compare(job: Job, outcome: Outcome, expected: Outcome) -> Verdict:
    """Right where every expected name is there and near; otherwise the worst name."""
    worst, where = 0.0, ""
    for name, wanted in expected.items():
        if name not in outcome:
            return Verdict(WRONG, f"{name} is missing")
        got = outcome[name]
        if got.shape != wanted.shape:
            return Verdict(WRONG, f"{name} has shape {got.shape}, not {wanted.shape}")
        if wanted.dtype.kind in "USO":
            if not np.array_equal(got, wanted):
                return Verdict(WRONG, f"{name} differs: {_first_difference(got, wanted)}")
            continue
        got, wanted = got.astype("float64"), wanted.astype("float64")
        if np.allclose(got, wanted, rtol=job.rtol, atol=job.atol, equal_nan=True):
            continue
        error = _relative_error(got, wanted)
        if error >= worst:
            worst, where = error, name
    if not where:
        return Verdict(RIGHT)
    got, wanted = outcome[where].ravel(), expected[where].ravel()
    place = int(np.argmax(np.abs(got.astype("float64") - wanted.astype("float64"))))
    detail = f"{where}: {_short(got[place])} instead of {_short(wanted[place])}"
    return Verdict(WRONG, detail, float(worst) if np.isfinite(worst) else None)


def _relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, relative to the largest number that was expected."""
    difference = np.abs(got - wanted)
    if not np.isfinite(difference).all():
        return np.inf
    return float(difference.max() / max(np.abs(wanted).max(), 1e-12))


def _first_difference(got: np.ndarray, wanted: np.ndarray) -> str:
    pairs = zip(got.ravel().tolist(), wanted.ravel().tolist(), strict=True)
    return next(f"{one!r} instead of {other!r}" for one, other in pairs if one != other)


def _short(value: Any) -> str:
    return f"{float(value):.6g}"


def _falls(outcome: Outcome, plain: Outcome) -> Verdict:
    """Asynchronous steps: every loss is finite, and the last is below the first or near enough."""
    names = [name for name in plain if name.startswith("history/") and plain[name].size]
    for name in names:
        if name in outcome and not np.isfinite(outcome[name]).all():
            return Verdict(WRONG, f"{name} is not finite: {outcome[name].tolist()}"[:300])
    name = "history/loss" if "history/loss" in plain else next(iter(names), None)
    if name is None:
        return Verdict(RIGHT)
    if name not in outcome:
        return Verdict(WRONG, f"{name} is missing")
    losses, theirs = outcome[name], plain[name]
    near = abs(losses[-1] - theirs[-1]) <= 0.25 * abs(theirs[-1])
    if losses[-1] < losses[0] or near:
        return Verdict(RIGHT)
    detail = f"{name} does not fall: {_short(losses[0])} to {_short(losses[-1])}"
    return Verdict(WRONG, f"{detail}, on one device {_short(theirs[0])} to {_short(theirs[-1])}")
