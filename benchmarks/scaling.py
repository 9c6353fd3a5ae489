"""What connecting two processes costs: autostrategy, a hand-written loop and PyTorch.

    python benchmarks/scaling.py [--net dense ...] [--contender autostrategy loop torch]
        [--rounds 5] [--json raw.json] [--torch-python INTERPRETER]

Each process is pinned to one core and has one thread for operations. In each
round each contender trains

    alone         one process, batches of 64 rows
    unconnected   two processes at the same time, each for itself: what this
                  machine gives to two processes at most
    connected     two processes on one model, global batches of 128 rows

and "share of the limit" is the connected ones' rows per second by the
unconnected ones' of the same round. autostrategy and the loop are connected by
multi-worker mirrored, PyTorch by DistributedDataParallel over gloo. The first
epoch is left out. Needs Linux and two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import nets, processes, strategies, tables
from measuring.job import Job

CONTENDERS = ("autostrategy", "loop", "torch")
MODES = ("alone", "unconnected", "connected")
BATCH = 64
EPOCH_STEPS = {"dense": 256, "convolutional": 128}
EPOCHS = {"dense": 8, "convolutional": 3}
WHOLE = 32
ONE_THREAD = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
HEAD = (
    "net",
    "contender",
    "rows/s alone",
    "rows/s of two unconnected",
    "rows/s of two connected",
    "share of the limit",
    "connected by alone",
)


def main() -> None:
    arguments = parse()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("scaling.py needs two cores.")
    if arguments.epoch_steps and arguments.epoch_steps % WHOLE:
        raise SystemExit(f"--epoch-steps must be a multiple of {WHOLE}.")
    print(tables.line(HEAD))
    print(tables.line(["---"] * len(HEAD)))
    records: list[dict[str, Any]] = []
    for net in arguments.net:
        for number in range(arguments.rounds):
            order = arguments.contender
            for contender in reversed(order) if number % 2 else order:
                for mode in MODES:
                    result = measure(contender, net, mode, cores, arguments)
                    names = {"net": net, "contender": contender, "mode": mode, "round": number}
                    records.append({**names, **result})
                    if arguments.json:
                        arguments.json.write_text(json.dumps(records, indent=1) + "\n")
        for contender in arguments.contender:
            own = [r for r in records if (r["net"], r["contender"]) == (net, contender)]
            print(tables.line([net, contender, *cells(own)]), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", nargs="+", default=list(nets.NETS), choices=nets.NETS)
    parser.add_argument(
        "--contender",
        nargs="+",
        choices=CONTENDERS,
        help="by default all, torch only with --torch-python",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for every single measurement")
    parser.add_argument("--torch-python", help="interpreter of an environment with PyTorch")
    parser.add_argument("--epochs", type=int, help="timed epochs, to try it out quickly")
    parser.add_argument("--epoch-steps", type=int, help=f"steps of one, a multiple of {WHOLE}")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one measurement")
    arguments = parser.parse_args()
    if arguments.contender is None:
        missing = arguments.torch_python is None
        arguments.contender = [each for each in CONTENDERS if not (missing and each == "torch")]
    if "torch" in arguments.contender and arguments.torch_python is None:
        parser.error("torch needs --torch-python, an interpreter that has PyTorch.")
    return arguments


def measure(
    contender: str, net: str, mode: str, cores: list[int], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Rows per second of all processes of one contender together, or what it raises."""
    connected = mode == "connected"
    parties = 1 if mode == "alone" else 2
    job = Job(
        contender=contender,
        net=net,
        strategy=strategies.MULTI_WORKER if connected else strategies.ONE_DEVICE,
        batch=BATCH * 2 if connected else BATCH,
        epochs=arguments.epochs or EPOCHS[net],
        epoch_steps=arguments.epoch_steps or EPOCH_STEPS[net],
        parties=parties,
    )
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            dataclasses.replace(job, meeting=folder, number=number, core=cores[number])
            for number in range(parties)
        ]
        result = processes.measure(
            jobs,
            python=arguments.torch_python if contender == "torch" else sys.executable,
            timeout=arguments.timeout,
            environments=[
                {**ONE_THREAD, **each} for each in environments(contender, parties, connected)
            ],
            need_all=True,
        )
    if "raises" in result:
        return result
    speeds = [job.batch / each["milliseconds"] * 1e3 for each in result["results"]]
    losses = [each["loss"] for each in result["results"]]
    rows = min(speeds) if connected else sum(speeds)
    return {"rows": rows, "losses": losses, "megabytes": result["megabytes"]}


def environments(contender: str, parties: int, connected: bool) -> list[dict[str, str]]:
    """What tells each process of its cluster, nothing where it has none."""
    if not connected:
        return [{}] * parties
    if contender != "torch":
        return processes.cluster({"worker": parties})
    (port,) = processes.free_ports(1)
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(parties),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return [{**shared, "RANK": str(rank)} for rank in range(parties)]


def cells(own: list[dict[str, Any]]) -> list[str]:
    """The row of one contender: rows per second of each mode, and their ratios in a round."""
    reasons = [each["raises"] for each in own if "raises" in each]
    rows = {(each["mode"], each["round"]): each["rows"] for each in own if "rows" in each}

    def ratios(mode: str, other: str) -> list[float]:
        return [
            value / rows[other, number]
            for (own_mode, number), value in rows.items()
            if own_mode == mode and (other, number) in rows
        ]

    made = [
        tables.spread([value for (own_mode, _), value in rows.items() if own_mode == mode], 0)
        for mode in MODES
    ]
    if reasons:
        made[-1] = f"{made[-1]} raises in {len(reasons)} runs: {reasons[0]}".strip()
    return [
        *made,
        tables.spread(ratios("connected", "unconnected")),
        tables.spread(ratios("connected", "alone")),
    ]


if __name__ == "__main__":
    main()
