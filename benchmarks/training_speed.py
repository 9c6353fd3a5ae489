"""Steps per second under every strategy: autostrategy, a hand-written loop, Keras 3 and tf_keras.

    python benchmarks/training_speed.py [--strategy mirrored ...] [--net dense ...]
        [--contender autostrategy loop ...] [--rounds 5] [--json raw.json]
        [--tf-keras-python INTERPRETER]

Each contender runs in processes of its own, in turn, round after round, on the
same machine; what counts is the ratio within a round. All train the same net
on the same number of batches of 128 rows; the first epoch, which traces, is
left out.

    autostrategy          `fit` with its defaults
    autostrategy_reading  the same with data that the workers of parameter
                          servers read by themselves, as the loop's workers do
    loop                  what a careful user would write by hand: 32 steps in
                          one call of TensorFlow (measuring/loops.py)
    keras                 `Model.fit` of Keras 3, its model made in the scope
    tf_keras              `Model.fit` of tf_keras, by an interpreter that has it

The last two are measured with 1, 8 and 32 steps_per_execution, and the best
one's row says which it was. Mirrored and central storage have two virtual CPUs,
multi-worker two local processes, parameter servers a chief, two workers and a
server. Peak memory is the resident set of a contender's largest process.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from measuring import nets, processes, strategies, tables
from measuring.job import Job

CONTENDERS = ("autostrategy", "autostrategy_reading", "loop", "keras", "tf_keras")
EXECUTIONS = (1, 8, 32)
WITH_EXECUTIONS = ("keras", "tf_keras")
BATCH = 128
EPOCH_STEPS = {"dense": 256, "convolutional": 128}
EPOCHS = {"dense": 8, "convolutional": 3}
# An epoch must be whole launches of the loop, and whole executions of Keras.
WHOLE = 32
# A contender that raised in each of so many rounds is not tried again.
TRIES = 2
HEAD = ("strategy", "net", "contender", "ms a step", "speed, autostrategy = 1")
MEMORY = ("peak MB", "peak memory, loop = 1")


def main() -> None:
    arguments = parse()
    if "tf_keras" in arguments.contender and arguments.tf_keras_python is None:
        raise SystemExit("tf_keras needs --tf-keras-python, an interpreter that has tf_keras.")
    if arguments.epoch_steps and arguments.epoch_steps % WHOLE:
        raise SystemExit(f"--epoch-steps must be a multiple of {WHOLE}.")
    print(tables.line((*HEAD, *MEMORY)))
    print(tables.line(["---"] * len((*HEAD, *MEMORY))))
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for strategy in arguments.strategy:
            for net in arguments.net:
                own = measure(
                    strategy,
                    net,
                    arguments,
                    Path(folder),
                    functools.partial(save, arguments.json, records),
                )
                for row in rows(own, strategy, net):
                    print(tables.line(row), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--strategy",
        nargs="+",
        default=list(strategies.STRATEGIES),
        choices=strategies.STRATEGIES,
    )
    parser.add_argument("--net", nargs="+", default=list(nets.NETS), choices=nets.NETS)
    parser.add_argument(
        "--contender",
        nargs="+",
        choices=CONTENDERS,
        help="by default all, tf_keras only with --tf-keras-python",
    )
    parser.add_argument(
        "--execution",
        nargs="+",
        type=int,
        default=list(EXECUTIONS),
        choices=EXECUTIONS,
        help="steps_per_execution of keras and tf_keras to choose the best of",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for every single measurement")
    parser.add_argument("--tf-keras-python", help="interpreter of an environment with tf_keras")
    parser.add_argument("--epochs", type=int, help="timed epochs, to try it out quickly")
    parser.add_argument("--epoch-steps", type=int, help=f"steps of one, a multiple of {WHOLE}")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one measurement")
    arguments = parser.parse_args()
    if arguments.contender is None:
        missing = arguments.tf_keras_python is None
        arguments.contender = [each for each in CONTENDERS if not (missing and each == "tf_keras")]
    return arguments


def variants(strategy: str, contenders: list[str], executions: list[int]) -> list[tuple[str, int]]:
    """Contenders with their steps_per_execution, those that the strategy has."""
    return [
        (each, execution)
        for each in contenders
        if each != "autostrategy_reading" or strategy == strategies.PARAMETER_SERVER
        for execution in (executions if each in WITH_EXECUTIONS else [1])
    ]


def measure(
    strategy: str,
    net: str,
    arguments: argparse.Namespace,
    folder: Path,
    keep: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """All rounds of one strategy and net; every second round runs in reverse order."""
    epoch_steps = arguments.epoch_steps or EPOCH_STEPS[net]
    rows_file = folder / net
    if strategy == strategies.PARAMETER_SERVER and not rows_file.exists():
        nets.write_records(rows_file, BATCH * epoch_steps)
    own: list[dict[str, Any]] = []
    for number in range(arguments.rounds):
        turn = variants(strategy, arguments.contender, arguments.execution)
        for contender, execution in reversed(turn) if number % 2 else turn:
            earlier = [r for r in own if (r["contender"], r["execution"]) == (contender, execution)]
            if len(earlier) >= TRIES and all("raises" in each for each in earlier):
                continue
            job = Job(
                contender=contender,
                net=net,
                strategy=strategy,
                batch=BATCH,
                epochs=arguments.epochs or EPOCHS[net],
                epoch_steps=epoch_steps,
                execution=execution,
                records=str(rows_file),
            )
            tasks = strategies.TASKS.get(strategy)
            environments = processes.cluster(tasks) if tasks else [{}]
            result = processes.measure(
                [job] * len(environments),
                python=arguments.tf_keras_python if contender == "tf_keras" else sys.executable,
                timeout=arguments.timeout,
                environments=environments,
            )
            named = {
                "strategy": strategy,
                "net": net,
                "contender": contender,
                "execution": execution,
                "round": number,
                **result,
            }
            own.append(named)
            keep(named)
    return own


def save(path: Path | None, records: list[dict[str, Any]], record: dict[str, Any]) -> None:
    """Add a measurement to the file at once: a run takes hours, and may be stopped."""
    records.append(record)
    if path is None:
        return
    machine = {
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "keras": metadata.version("keras"),
        "tensorflow": metadata.version("tensorflow"),
        "date": time.strftime("%Y-%m-%d"),
    }
    path.write_text(json.dumps({"machine": machine, "measurements": records}, indent=1) + "\n")


def rows(own: list[dict[str, Any]], strategy: str, net: str) -> list[list[str]]:
    """Rows of the table of one strategy and net, a row for each contender."""
    made = []
    for contender in dict.fromkeys(each["contender"] for each in own):
        best = best_of(own, contender)
        named = contender
        if contender in WITH_EXECUTIONS and any("milliseconds" in each for each in best):
            named += f", {best[0]['execution']} steps an execution"
        made.append([strategy, net, named, *cells(best, own)])
    return made


def best_of(own: list[dict[str, Any]], contender: str) -> list[dict[str, Any]]:
    """The contender's measurements with the steps_per_execution that is fastest in the median.

    One that always ran is better than one that raised sometimes.
    """
    variants_of: dict[int, list[dict[str, Any]]] = {}
    for each in own:
        if each["contender"] == contender:
            variants_of.setdefault(each["execution"], []).append(each)

    def order(measurements: list[dict[str, Any]]) -> tuple[float, float]:
        ran = [each["milliseconds"] for each in measurements if "milliseconds" in each]
        raised = (len(measurements) - len(ran)) / len(measurements)
        return raised, tables.median(ran) if ran else 0.0

    return min(variants_of.values(), key=order)


def cells(measurements: list[dict[str, Any]], own: list[dict[str, Any]]) -> list[str]:
    """Time, speed, memory and memory's ratio of one contender."""
    raised = [each["raises"] for each in measurements if "raises" in each]
    ran = [each for each in measurements if "milliseconds" in each]
    why = f"raises: {raised[0]}" if raised else ""
    if not ran:
        return [why, "", "", ""]
    if raised:
        why = f"; in {len(raised)} of {len(measurements)} rounds {why}"
    speed = tables.ratios(own, ran, "autostrategy", "milliseconds", inverse=True)
    memory = tables.ratios(own, ran, "loop", "megabytes")
    return [
        tables.spread([each["milliseconds"] for each in ran]) + why,
        tables.spread(speed),
        f"{tables.median([each['megabytes'] for each in ran]):.0f}",
        tables.spread(memory),
    ]


if __name__ == "__main__":
    main()
