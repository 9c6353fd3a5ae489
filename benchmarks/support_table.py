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
    judge.WRONG: "✗",
    judge.RAISES: "raises",
    judge.HANGS: "hangs",
    judge.CRASHES: "crashes",
    judge.ABSENT: "–",
    None: "?",
}
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
    return json.loads(path.read_text()) if path.exists() else {"versions": {}, "cells": {}}


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
    """Measure the cells that are asked for, and save after each column."""
    python_of = pythons(options.tf_keras_python)
    systems = options.system or list(SYSTEMS)
    names = options.feature or list(FEATURES)
    for system in [each for each in systems if each not in python_of]:
        print(f"{system}: not measured, since tf_keras cannot be imported", flush=True)
    systems = [each for each in systems if each in python_of]

    def save() -> None:
        options.results.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")

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
                for name, verdict, seconds in column(names, "uneven"):
                    kept[name] = {**verdict.as_json(), "seconds": seconds}
                today = datetime.date.today().isoformat()
                results["versions"].setdefault(system, {})[strategy] = {**versions, "date": today}
                save()
                again = [name for name in names if _may_be_right_on_even_batches(kept[name], name)]
                for name, verdict, seconds in column(again, "even"):
                    kept[name]["seconds"] += seconds
                    if verdict.status == judge.RIGHT:
                        kept[name]["status"] = EVEN
                    else:
                        kept[name]["even"] = verdict.as_json()
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
) -> Iterator[tuple[str, judge.Verdict, float]]:
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
            print(f"  {batches}, {name}: {verdict.status} {verdict.detail}", flush=True)
        yield name, verdict, round(seconds, 1)


def _may_be_right_on_even_batches(cell: dict[str, Any], name: str) -> bool:
    about_batches = name in {feature.name for feature in GROUPS["Batches"]}
    return cell["status"] not in (judge.RIGHT, judge.ABSENT) and not about_batches


def _known(kept: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells of a column whose feature exists, here and in that system."""
    found = [kept[name] for name in FEATURES if name in kept]
    return [cell for cell in found if cell["status"] != judge.ABSENT]


def _count(kept: dict[str, dict[str, Any]]) -> str:
    known = _known(kept)
    if not known:
        return "not measured"
    right = sum(cell["status"] == judge.RIGHT for cell in known)
    even = sum(cell["status"] == EVEN for cell in known)
    return f"{right} of {len(known)}" + (f", and {even} on even batches" if even else "")


def summary(cells: Cells) -> list[str]:
    """How many cells are right, for every system and strategy."""
    lines = [f"| | {' | '.join(STRATEGIES)} |", f"| --- |{' --- |' * len(STRATEGIES)}"]
    for system in SYSTEMS:
        counts = [_count(cells.get(system, {}).get(strategy, {})) for strategy in STRATEGIES]
        lines.append(f"| {NAMES[system]} | {' | '.join(counts)} |")
    return lines


def table(kept: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Feature by strategy, for one system."""
    lines = []
    for group, features in GROUPS.items():
        lines += [f"| **{group}** | {' | '.join(STRATEGIES)} |"]
        lines += [f"| --- |{' --- |' * len(STRATEGIES)}"]
        for feature in features:
            found = [kept.get(strategy, {}).get(feature.name) for strategy in STRATEGIES]
            symbols = [SYMBOLS[cell["status"] if cell else None] for cell in found]
            lines.append(f"| {feature.name} | {' | '.join(symbols)} |")
        lines.append("")
    return lines


def not_right(kept: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """What was measured in each cell that is not right; the same text once for a strategy."""
    lines = []
    for strategy in STRATEGIES:
        by_text: dict[str, list[str]] = {}
        for name in FEATURES:
            cell = kept.get(strategy, {}).get(name)
            if cell is None or cell["status"] in (judge.RIGHT, judge.ABSENT):
                continue
            by_text.setdefault(_measured(cell), []).append(name)
        if by_text:
            lines += [f"**{strategy}**", ""]
        for text, names in by_text.items():
            lines.append(f"- {'; '.join(names)}: {text}")
        if by_text:
            lines.append("")
    return lines


def _measured(cell: dict[str, Any]) -> str:
    if cell["status"] == EVEN:
        return f"on uneven batches. {_escaped(cell['detail'])}"
    even = cell.get("even")
    if even is not None:  # what remains where batches are not the matter
        cell = even
    error = "" if cell["error"] is None else f", relative error {cell['error']:.2g}"
    where = "" if even is None else ", on even batches too"
    return f"{cell['status']}{where}{error}. {_escaped(cell['detail'])}"


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

One harness, `tests/support`, trains every feature in a small net, about 20 steps on uneven batches,
under every strategy with each system. A cell is **right** (✓) when losses, metrics, weights and
optimizer variables are those of one device of the same system with `keras.Model.fit`, to a
relative error of 1e-5 in float32 (a few features say otherwise: half precision is compared more
loosely; Dropout's masks and BatchNormalization's statistics are held to what they should be).
Under parameter servers steps are asynchronous, so there the steps taken, rows, evaluations and
predictions must be exact, and the loss must fall. Batches are uneven: 22 rows in batches of 7,
which no number of replicas divides, and a last batch of one row. What is not right on these is
tried again with 32 rows in batches of 8: **(✓)** is right there, and only there. Otherwise a cell
is wrong (✗), raises, hangs (no end within a minute) or crashes; – is a feature that the system does
not have, ? is not measured.

Strategies have two replicas: virtual CPUs, two worker processes, or for parameter servers one
chief, two workers and two servers, all on one machine. `tpu_stand_in` has two virtual CPUs with
the step compiled by XLA; no TPU was there. Stock Keras and tf_keras train with `model.fit` of a
model made in `strategy.scope()`.
"""


def markdown(results: dict[str, Any]) -> str:
    """The page."""
    cells = results["cells"]
    lines = [HEADER, *_dates(results["versions"]), "", "Right cells, of those that exist:", ""]
    lines += [*summary(cells), ""]
    for system in SYSTEMS:
        kept = cells.get(system, {})
        lines += [f"## {NAMES[system]}", "", *table(kept)]
        found = not_right(kept)
        if found:
            lines += [f"### {NAMES[system]}: what was measured where it is not right", "", *found]
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
