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
from measuring.support_page import (  # noqa: E402
    EVEN,
    count,
    markdown,
    summary,
    without_numbers,
)
from systems import STRATEGIES, SYSTEMS  # noqa: E402

# As many features with one message are tried again on even batches before it is taken to be about
# something else in the others too.
TRIALS = 2
VERSIONS = """
import importlib.metadata as m, json
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({n: version(n) for n in ("tensorflow", "keras", "tf_keras", "numpy")}))
"""


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
                print(f"{system} {strategy}: {count(kept)}, {seconds:.0f} s", flush=True)


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
    return without_numbers(cell.get("detail", "")) if cell["status"] == judge.RAISES else None


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
