"""The page docs/support.md, from what `support_table.py` has measured.

Modules of tests/support must be importable.
"""

from __future__ import annotations

import re
from typing import Any

import judge
from features import FEATURES, GROUPS
from systems import STRATEGIES, SYSTEMS

NAMES = {
    "autostrategy": "autostrategy",
    "keras": "stock Keras 3",
    "tf_keras": "tf_keras (Keras 2)",
}
EVEN = "even"  # right where the replicas divide every batch, and only there
SYMBOLS = {
    judge.RIGHT: "✓",
    EVEN: "(✓)",
    judge.REFUSED: "refused",
    judge.WRONG: "✗",
    judge.RAISES: "raises",
    judge.HANGS: "hangs",
    judge.CRASHES: "crashes",
    judge.ABSENT: "–",
    None: "?",
}
SHOWN = 12  # features by name in a list of those with one message

Cells = dict[str, dict[str, dict[str, dict[str, Any]]]]  # [system][strategy][feature]


def _known(kept: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells of a column whose feature exists, here and in that system."""
    found = [kept[name] for name in FEATURES if name in kept]
    return [cell for cell in found if cell["status"] != judge.ABSENT]


def count(kept: dict[str, dict[str, Any]]) -> str:
    known = _known(kept)
    if not known:
        return "not measured"
    right = sum(cell["status"] == judge.RIGHT for cell in known)
    text = f"{right} of {len(known)}"
    more = {EVEN: "on even batches", judge.REFUSED: "refused as documented"}
    for status, words in more.items():
        count = sum(cell["status"] == status for cell in known)
        text += f", {count} {words}" if count else ""
    missing = sum(name not in kept for name in FEATURES)
    return text + (f", {missing} not measured" if missing else "")


def summary(cells: Cells) -> list[str]:
    """How many cells are right, for every system and strategy."""
    lines = [f"| | {' | '.join(STRATEGIES)} |", f"| --- |{' --- |' * len(STRATEGIES)}"]
    for system in SYSTEMS:
        counts = [count(cells.get(system, {}).get(strategy, {})) for strategy in STRATEGIES]
        lines.append(f"| {NAMES[system]} | {' | '.join(counts)} |")
    return lines


def table(kept: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Feature by strategy, for one system."""
    lines = [f"| | {' | '.join(STRATEGIES)} |", f"| --- |{' --- |' * len(STRATEGIES)}"]
    for group, features in GROUPS.items():
        lines.append(f"| **{group}** |{' |' * len(STRATEGIES)}")
        for feature in features:
            found = [kept.get(strategy, {}).get(feature.name) for strategy in STRATEGIES]
            symbols = [SYMBOLS[cell["status"] if cell else None] for cell in found]
            lines.append(f"| {feature.name} | {' | '.join(symbols)} |")
    return [*lines, ""]


def not_right(system: str, kept: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """What was measured in each cell that is not right: refusals, wrong numbers, errors."""
    cells = [
        (strategy, name, kept[strategy][name])
        for name in FEATURES
        for strategy in STRATEGIES
        if name in kept.get(strategy, {})
        and kept[strategy][name]["status"] not in (judge.RIGHT, judge.ABSENT)
    ]
    refusals = [each for each in cells if each[2]["status"] == judge.REFUSED]
    numbers = [each for each in cells if _is_about_numbers(each[2])]
    errors = [each for each in cells if each not in refusals and each not in numbers]
    lines = []
    for title, found, make in (
        ("refused, as documented", refusals, _grouped),
        ("errors", errors, _grouped),
        ("wrong numbers", numbers, _listed),
    ):
        if found:
            lines += [f"### {NAMES[system]}: {title}", "", *make(found), ""]
    return lines


Found = list[tuple[str, str, dict[str, Any]]]  # strategy, feature, cell


def _last(cell: dict[str, Any]) -> dict[str, Any]:
    """What remains where batches are not the matter: on even ones, where they were tried."""
    return {"detail": "", **cell.get("even", cell)}


def _is_about_numbers(cell: dict[str, Any]) -> bool:
    if cell["status"] == EVEN:
        return "rror: " not in cell.get("detail", "")
    return _last(cell)["status"] == judge.WRONG


def _listed(cells: Found) -> list[str]:
    """A row for each feature and measurement, with the strategies that gave it."""
    rows: dict[tuple[str, str], list[str]] = {}
    for strategy, name, cell in cells:
        last = _last(cell)
        error = last.get("error")  # a huge one is of what should be 0
        error = "" if error is None or error > 1e6 else f"{error:.1e}"
        batches = "uneven only" if cell["status"] == EVEN else "even too" if "even" in cell else ""
        rows.setdefault((name, f"{batches} | {error} | {_escaped(last['detail'])}"), []).append(
            strategy
        )
    lines = ["| feature | strategies | batches | relative error | measured |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    return lines + [
        f"| {name} | {', '.join(strategies)} | {text} |"
        for (name, text), strategies in rows.items()
    ]


def _grouped(cells: Found) -> list[str]:
    """Each message once, with the features that gave it, or their number where they are many."""
    by_message: dict[str, tuple[str, dict[str, list[str]]]] = {}
    for strategy, name, cell in cells:
        last = _last(cell)
        batches = ", on uneven batches only" if cell["status"] == EVEN else ""
        status = judge.RAISES if cell["status"] == EVEN else last["status"]
        text = f"{status}{batches}: {_escaped(last['detail'])}"
        _, found = by_message.setdefault(without_numbers(text), (text, {}))
        found.setdefault(strategy, []).append(name)
    lines = []
    for text, found in by_message.values():
        lines.append(f"- {text}")
        for strategy, names in found.items():
            shown = names if len(names) <= SHOWN else [f"{len(names)} features"]
            lines.append(f"  - {strategy}: {'; '.join(shown)}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("`", "'").replace("<", "&lt;").replace("|", "\\|")


def _dates(versions: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    lines = []
    for system in SYSTEMS:
        measured = versions.get(system, {})
        if not measured:
            lines.append(f"- {NAMES[system]}: not measured")
            continue
        dates = sorted({each["date"] for each in measured.values()})
        newest = max(measured.values(), key=lambda each: each["date"])
        keras = "tf_keras" if system == "tf_keras" else "keras"
        span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        lines.append(
            f"- {NAMES[system]}: TensorFlow {newest['tensorflow']}, {keras} {newest[keras]}, {span}"
        )
    return lines


HEADER = """# What trains right under which strategy

Made by `benchmarks/support_table.py` from its results file; not edited by hand.
"""
EXPLAINED = """## What was compared

One harness, `tests/support`, trains every feature in a small net, for about 20 steps, under every
strategy with each system, and on one device of the same Keras with `Model.fit` and no strategy.
A cell is right when losses, metrics, weights and optimizer variables of the two are equal to a
relative 1e-5 or an absolute 1e-6, in float32. Features that need it say otherwise in the harness:
half precision is compared more loosely, float64 more closely, and Dropout's masks and
BatchNormalization's moving statistics are held to what they should be. Under parameter servers
steps are asynchronous: there the number of steps, rows seen, evaluations and predictions must be
those of one device, and the loss must fall.

Batches are uneven: 22 rows in batches of 7, which two replicas do not divide, and a last batch of
one row. For `tpu_stand_in` full batches are multiples of the replicas: 29 rows in batches of 8.
What is not right on these is tried again on 32 rows in batches of 8. (Where two features raise the
same message there too, others with that message are not tried again.)

Strategies have two replicas: virtual CPUs; two worker processes; for parameter servers one chief,
two workers and two servers; all on one machine. autostrategy trains with `autostrategy.fit` and a
model made outside any scope. Stock Keras and tf_keras train with `model.fit` of a model made and
compiled in `strategy.scope()`; under parameter servers they are given a repeated dataset and
`steps_per_epoch`, as TensorFlow's guide says.

`tpu_stand_in` is two virtual CPUs with the step compiled by XLA; no TPU was there. For stock Keras
and tf_keras that is MirroredStrategy with `jit_compile=True`. On a TPU they would use TPUStrategy,
of which their column says nothing.

| | |
| --- | --- |
| ✓ | right |
| (✓) | right on even batches, and only there |
| refused | a clear error that the documentation announces; listed below the table |
| ✗ | wrong numbers |
| raises | an error |
| hangs | no end within 25 s and, alone, within 55 s, where one device takes a second |
| crashes | the process ends |
| – | the system has no such feature |
| ? | not measured |
"""


def markdown(results: dict[str, Any]) -> str:
    """The page."""
    cells = results["cells"]
    lines = [HEADER, *_dates(results["versions"]), "", "Right cells, of those that exist:", ""]
    lines += [*summary(cells), "", EXPLAINED]
    for system in SYSTEMS:
        kept = cells.get(system, {})
        lines += [f"## {NAMES[system]}", "", *table(kept), *not_right(system, kept)]
    return "\n".join(lines).rstrip() + "\n"


def without_numbers(text: str) -> str:
    """A message without what differs from run to run."""
    return re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "#", text)
