"""Which features train right under which strategy: autostrategy, stock Keras 3 and tf_keras.

    python benchmarks/support_table.py --all --tf-keras-python /path/to/python --write
    python benchmarks/support_table.py --system autostrategy --strategy mirrored
    python benchmarks/support_table.py --feature clipnorm --feature AUC
    python benchmarks/support_table.py --write

The cells that are asked for are measured (tests/support does it, and says what
"right" means) and put into the results file beside those measured earlier;
`--write` makes the Markdown from that file alone. tf_keras is measured where it
can be imported, or by the interpreter given; otherwise its cells stay as they
were. Without a choice of cells nothing is measured, and the results are summed up.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUPPORT = ROOT / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

import columns  # noqa: E402
import judge  # noqa: E402
from features import FEATURES, GROUPS  # noqa: E402
from systems import STRATEGIES, SYSTEMS  # noqa: E402

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
# As many features with one message are tried again on even batches before it is taken to be about
# something else in the others too.
TRIALS = 2
SHOWN = 12  # features by name in a list of those with one message
VERSIONS = """
import importlib.metadata as m, json
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({n: version(n) for n in ("tensorflow", "keras", "tf_keras", "numpy")}))
"""

Cells = dict[str, dict[str, dict[str, dict[str, Any]]]]  # [system][strategy][feature]


def read(path: pathlib.Path) -> dict[str, Any]:
    """The results so far."""
    if not path.exists():
        return {"versions": {}, "cells": {}}
    results = json.loads(path.read_text())
    messages = results.pop("messages", [])
    for cell in _every(results):
        for part in (cell, cell.get("even", {})):
            if isinstance(part.get("detail"), int):
                part["detail"] = messages[part["detail"]]
    return results


def dumped(results: dict[str, Any]) -> str:
    """The results file: a line for each cell, and each message once."""
    messages: dict[str, int] = {}
    lines = []
    for system, by_strategy in results["cells"].items():
        texts = []
        for strategy, kept in by_strategy.items():
            cells = [
                f"   {json.dumps(name)}: {json.dumps(_compact(kept[name], messages))}"
                for name in FEATURES
                if name in kept
            ]
            texts.append(f"  {json.dumps(strategy)}: {{\n" + ",\n".join(cells) + "\n  }")
        lines.append(f" {json.dumps(system)}: {{\n" + ",\n".join(texts) + "\n }")
    cells = ",\n".join(lines)
    versions, told = (json.dumps(each, indent=1) for each in (results["versions"], [*messages]))
    return f'{{"versions": {versions},\n"cells": {{\n{cells}\n}},\n"messages": {told}}}\n'


def _every(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for by_strategy in results["cells"].values():
        for kept in by_strategy.values():
            yield from kept.values()


def _compact(cell: dict[str, Any], messages: dict[str, int]) -> dict[str, Any]:
    """Without what is empty; numbers in three digits, and of a message its number."""
    found = {key: value for key, value in cell.items() if value not in (None, "")}
    if "error" in found:
        found["error"] = float(f"{found['error']:.3g}")
    if "detail" in found:
        found["detail"] = messages.setdefault(found["detail"], len(messages))
    if "even" in found:
        found["even"] = _compact(found["even"], messages)
    return found


def versions_of(python: str) -> dict[str, str | None]:
    """Of the packages that an interpreter has."""
    done = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def pythons(tf_keras_python: str | None) -> dict[str, str]:
    """The interpreter of each system that can be measured here."""
    found = dict.fromkeys(("autostrategy", "keras"), sys.executable)
    candidate = tf_keras_python or sys.executable
    if versions_of(candidate)["tf_keras"]:
        found["tf_keras"] = candidate
    return found


def measure(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Measure the cells that are asked for, and save after each."""
    python_of = pythons(options.tf_keras_python)
    systems = options.system or list(SYSTEMS)
    names = options.feature or list(FEATURES)
    for system in [each for each in systems if each not in python_of]:
        print(f"{system}: not measured, since tf_keras cannot be imported", flush=True)
    systems = [each for each in systems if each in python_of]

    def save() -> None:
        options.results.write_text(dumped(results))

    with tempfile.TemporaryDirectory() as temporary:
        expected = options.expected or pathlib.Path(temporary)
        for system in systems:
            versions = versions_of(python_of[system])
            for strategy in options.strategy or STRATEGIES:
                begin = time.monotonic()
                kept = results["cells"].setdefault(system, {}).setdefault(strategy, {})
                column = functools.partial(
                    _column,
                    system,
                    strategy,
                    expected=expected,
                    python=python_of[system],
                    options=options,
                )
                first = [name for name in names if not (options.missing and name in kept)]
                today = datetime.date.today().isoformat()
                results["versions"].setdefault(system, {})[strategy] = {**versions, "date": today}
                for name, verdict in column(first, columns.batches_of(strategy)):
                    kept[name] = verdict.as_json()
                    save()
                again = [name for name in names if _may_be_right_on_even_batches(kept[name], name)]
                trials, groups = _trials(kept, again)
                for name, verdict in column(trials, "even"):
                    _put_even(kept[name], verdict)
                    save()
                for name, verdict in column(_not_settled(kept, groups), "even"):
                    _put_even(kept[name], verdict)
                    save()
                save()
                seconds = time.monotonic() - begin
                print(f"{system} {strategy}: {_count(kept)}, {seconds:.0f} s", flush=True)


def _column(
    system: str,
    strategy: str,
    names: list[str],
    batches: str,
    *,
    expected: pathlib.Path,
    python: str,
    options: argparse.Namespace,
) -> Iterator[tuple[str, judge.Verdict]]:
    """The column's cells on such batches, after those of one device where they are missing."""
    columns.measure_expected([system], names, expected, python_of=lambda _: python, batches=batches)
    made = columns.run_column(
        system,
        strategy,
        names,
        expected=expected,
        python=python,
        limits=columns.Limits(cell=options.limit),
        keep=options.logs and options.logs / f"{system}-{strategy}",
        batches=batches,
    )
    for name, verdict, seconds in made:
        if options.verbose or verdict.status not in (judge.RIGHT, judge.ABSENT):
            text = f"{verdict.status} {verdict.detail}"
            print(f"  {batches}, {name}: {text} ({seconds:.1f} s)", flush=True)
        yield name, verdict


def _may_be_right_on_even_batches(cell: dict[str, Any], name: str) -> bool:
    about_batches = name in {feature.name for feature in GROUPS["Batches"]}
    settled = cell["status"] in (judge.RIGHT, EVEN, judge.REFUSED, judge.ABSENT) or "even" in cell
    return not settled and not about_batches


def _put_even(cell: dict[str, Any], verdict: judge.Verdict) -> None:
    """Add what even batches gave."""
    if verdict.status == judge.RIGHT:
        cell["status"] = EVEN
    else:
        cell["even"] = verdict.as_json()


def _message(cell: dict[str, Any]) -> str | None:
    """What a cell raised, without what differs from run to run; None where it did not raise."""
    return _without_numbers(cell.get("detail", "")) if cell["status"] == judge.RAISES else None


def _without_numbers(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "#", text)


def _trials(kept: dict[str, dict[str, Any]], names: list[str]) -> tuple[list[str], list[list[str]]]:
    """The cells to try on even batches first, and all that raise a message in common."""
    by_message: dict[str, list[str]] = {}
    for name in names:
        message = _message(kept[name])
        if message is not None:
            by_message.setdefault(message, []).append(name)
    later = {name for group in by_message.values() for name in group[TRIALS:]}
    return [name for name in names if name not in later], list(by_message.values())


def _not_settled(kept: dict[str, dict[str, Any]], groups: list[list[str]]) -> list[str]:
    """The later cells of groups whose trials were not all alike on even batches.

    The others are given what the trials gave.
    """
    rest: list[str] = []
    for group in groups:
        trials, later = group[:TRIALS], group[TRIALS:]
        message = _message(kept[trials[0]])
        alike = all(_message(kept[name].get("even", kept[name])) == message for name in trials)
        if not alike or any(kept[name]["status"] == EVEN for name in trials):
            rest += later
            continue
        for name in later:
            kept[name]["even"] = {**kept[trials[0]]["even"], "as": trials[0]}
    return rest


def _known(kept: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells of a column whose feature exists, here and in that system."""
    found = [kept[name] for name in FEATURES if name in kept]
    return [cell for cell in found if cell["status"] != judge.ABSENT]


def _count(kept: dict[str, dict[str, Any]]) -> str:
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
        counts = [_count(cells.get(system, {}).get(strategy, {})) for strategy in STRATEGIES]
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
        _, found = by_message.setdefault(_without_numbers(text), (text, {}))
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="measure every cell")
    parser.add_argument("--system", action="append", choices=SYSTEMS)
    parser.add_argument("--strategy", action="append", choices=STRATEGIES)
    parser.add_argument("--feature", action="append", choices=list(FEATURES), metavar="NAME")
    parser.add_argument("--tf-keras-python", help="an interpreter that has tf_keras")
    parser.add_argument("--missing", action="store_true", help="go on: not what is there already")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one cell")
    parser.add_argument("--results", type=pathlib.Path, default=SUPPORT / "results.json")
    parser.add_argument("--expected", type=pathlib.Path, help="keep one device's outcomes here")
    parser.add_argument("--logs", type=pathlib.Path, help="keep the processes' logs here")
    parser.add_argument("--verbose", action="store_true", help="print cells that are right too")
    parser.add_argument(
        "--write",
        type=pathlib.Path,
        nargs="?",
        const=ROOT / "docs" / "support.md",
        help="write the Markdown; by default docs/support.md",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no child outlives this
    results = read(options.results)
    if options.all or options.system or options.strategy or options.feature:
        measure(options, results)
    if options.write:
        options.write.write_text(markdown(results))
    print("\n".join(summary(results["cells"])))


if __name__ == "__main__":
    main()
