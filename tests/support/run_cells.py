"""One task of a column: run features of one system under one strategy, and report each.

    python run_cells.py SYSTEM STRATEGY --names NAMES.json --expected FOLDER --folder FOLDER
        [--batches even]

The strategy "plain" is one device without any: its outcomes are written into
the folder of expected ones, which the other strategies read. Tasks are forked
by nursery.py and watched by columns.py, since a cell may hang or end the process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import pickle
import time
import traceback
from collections.abc import Callable
from typing import Any


def outcome_path(
    folder: pathlib.Path, flavour: str, name: str, batches: str = "uneven"
) -> pathlib.Path:
    """Where the outcome of one plain device is kept."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return folder / f"{flavour}-{batches}-{digest}.pickle"


def flavour_of(system: str) -> str:
    """Whose plain device a system is held to."""
    return "tf_keras" if system == "tf_keras" else "keras"


def serve_if_stock_server(system: str, strategy: str) -> None:
    """Without autostrategy, worker and ps tasks run TensorFlow's server until they are killed."""
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    if strategy != "parameter_server" or system == "autostrategy" or task["type"] == "chief":
        return
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
    ).join()


def make_virtual_cpus(count: int = 2) -> None:
    """CPU:0 to CPU:count-1, before TensorFlow starts."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * count
    )


def cell(
    system: str, strategy: str, name: str, expected: pathlib.Path, folder: pathlib.Path
) -> Any:
    """The verdict on one cell."""
    import judge
    import systems
    from features import FEATURES

    feature = FEATURES[name]
    k = systems.keras_of(system)
    if feature.only_keras_3 and k.__name__ != "keras":
        return judge.Verdict(judge.ABSENT)
    batches = os.environ.get("SUPPORT_BATCHES", "uneven")
    path = outcome_path(expected, flavour_of(system), name, batches)
    try:
        job = feature.make(k)
        outcome = systems.run(system, strategy, job, folder)
    except Exception as error:
        traceback.print_exc()
        return judge.raised(error, feature.refused_by(system, strategy))
    if strategy == "plain":
        path.write_bytes(pickle.dumps(outcome))
        return judge.judge(job, outcome, outcome, 1, synchronous=True)
    if not path.exists():
        return judge.Verdict(judge.WRONG, "one plain device did not end, so there are no numbers")
    plain = pickle.loads(path.read_bytes())
    replicas = systems.REPLICAS.get(strategy, 2)
    synchronous = strategy != "parameter_server"
    return judge.judge(job, outcome, plain, replicas, synchronous=synchronous)


def run(arguments: list[str] | None, report: Callable[[dict[str, Any]], None]) -> None:
    """Run every feature that the arguments name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system")
    parser.add_argument("strategy")
    parser.add_argument("--names", type=pathlib.Path, required=True)
    parser.add_argument("--expected", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--batches", choices=("uneven", "short", "even"), default="uneven")
    options = parser.parse_args(arguments)
    os.environ["SUPPORT_BATCHES"] = options.batches  # parts.py reads it
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    serve_if_stock_server(options.system, options.strategy)
    if "TF_CONFIG" not in os.environ:
        make_virtual_cpus()
    for number, name in enumerate(json.loads(options.names.read_text())):
        begin = time.perf_counter()
        folder = options.folder / str(number)
        print(f"---- {name}", flush=True)
        verdict = cell(options.system, options.strategy, name, options.expected, folder)
        seconds = round(time.perf_counter() - begin, 2)
        report({"name": name, "seconds": seconds, **verdict.as_json()})


if __name__ == "__main__":
    run(None, lambda line: print(json.dumps(line), flush=True))
