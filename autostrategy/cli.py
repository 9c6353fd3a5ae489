"""The command line: parse, call one verb, print its value.

Exit status: 0, or that of the script; 1 when a request cannot be met; 2 for
wrong usage; 130 after Ctrl-C. `doctor` ends with 0 when it found nothing, 1 for
warnings, 2 when something is blocked.

Imports that cost time wait until their command runs: `probe` and `plan` must
answer at once, and `run` must set the environment before TensorFlow is read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autostrategy.errors import AutoStrategyError, PlanError

if TYPE_CHECKING:
    from autostrategy.facts import Facts

_EXAMPLES = """\
examples:
  autostrategy probe                          what this machine and its cluster are
  autostrategy plan --batch-size 256          which strategy, and why no other
  autostrategy doctor                         what is wrong here, and how to mend it
  autostrategy run train.py --epochs 5        train.py in this process of a cluster
"""

_PROBE_EXAMPLES = """\
examples:
  autostrategy probe
  autostrategy probe --json > facts.json      for a bug report, or to plan elsewhere
"""

_PLAN_EXAMPLES = """\
examples:
  autostrategy plan
  autostrategy plan --facts facts.json        what another machine would do
  autostrategy plan --devices 4               on a CPU: a rehearsal on 4 virtual devices
  autostrategy plan --devices GPU:0,GPU:2
  autostrategy plan --batch-size 64 --learning-rate 0.1 --optimizer SGD
"""

_DOCTOR_EXAMPLES = """\
examples:
  autostrategy doctor
  autostrategy doctor --cluster               does every task of the cluster answer?
  autostrategy doctor --json > doctor.json    for a bug report

exit status: 0 nothing found, 1 warnings, 2 something is blocked
"""

_RUN_EXAMPLES = """\
examples:
  autostrategy run train.py --epochs 5        what follows the script is the script's
  autostrategy run -m package.train
  srun autostrategy run train.py              one process for each task of a Slurm step
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (by default the process's own) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["run"]:
        # argparse would take the script's own options for ours.
        own, rest = _split_run(arguments[1:])
        args = parser().parse_args(["run", *own])
        args.arguments = rest
    else:
        args = parser().parse_args(arguments)
    try:
        status: int = args.command(args)
        # A reader that has left is noticed here and not at interpreter exit.
        sys.stdout.flush()
    except AutoStrategyError as error:
        print(f"autostrategy: {error}", file=sys.stderr)
        if getattr(args, "json", False):
            print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
        return 1
    except BrokenPipeError:
        # Python's own advice (library/signal.html, "Note on SIGPIPE").
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    return status


def parser() -> argparse.ArgumentParser:
    """The whole command line, for parsing and for the test that freezes it."""
    top = argparse.ArgumentParser(
        prog="autostrategy",
        description="Train any Keras 3 model on whatever hardware is there.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="store_true", help="print the version and end")
    top.set_defaults(command=lambda args: _version_or_help(top, args))
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    probe = _command(commands, "probe", "look at this machine and its cluster", _PROBE_EXAMPLES)
    _json_flag(probe)
    probe.set_defaults(command=_probe)

    plan = _command(commands, "plan", "choose a strategy and say why", _PLAN_EXAMPLES)
    plan.add_argument("--facts", metavar="FILE", help="facts of another machine; - for stdin")
    plan.add_argument("--strategy", default="auto", help="auto (default), or a strategy's name")
    plan.add_argument("--devices", type=_devices, metavar="N|NAMES", help="2, or GPU:0,GPU:1")
    plan.add_argument("--batch-size", type=int, metavar="ROWS", help="as for one device")
    plan.add_argument("--batch-scaling", default="auto", help="auto (default), linear, sqrt, off")
    plan.add_argument("--learning-rate", type=float, metavar="RATE", help="as for one device")
    plan.add_argument("--optimizer", metavar="NAME", help="its Keras class; decides auto scaling")
    _json_flag(plan)
    plan.set_defaults(command=_plan)

    doctor = _command(commands, "doctor", "say what is wrong, and what mends it", _DOCTOR_EXAMPLES)
    doctor.add_argument("--cluster", action="store_true", help="knock at every other task too")
    _json_flag(doctor)
    doctor.set_defaults(command=_doctor)

    run = _command(commands, "run", "run a script as one task of its cluster", _RUN_EXAMPLES)
    run.usage = "autostrategy run [-h] [--verbose] (SCRIPT | -m MODULE) [arguments ...]"
    run.add_argument("--verbose", action="store_true", help="show TensorFlow's start-up messages")
    run.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as python -m does")
    run.add_argument("script", metavar="SCRIPT", nargs="?", help="a Python file")
    run.set_defaults(command=lambda args: _run(run, args))
    return top


def _command(commands: Any, name: str, what: str, examples: str) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return added


def _json_flag(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print the value as JSON")


def _devices(text: str) -> int | tuple[str, ...]:
    """'2' is a count, 'GPU:0,GPU:1' are names."""
    if text.lstrip("-").isdigit():
        return int(text)
    return tuple(name.strip() for name in text.split(","))


def _version_or_help(top: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if not args.version:
        top.print_help()
        return 0
    from importlib.metadata import version

    print(f"autostrategy {version('autostrategy')}")
    return 0


def _probe(args: argparse.Namespace) -> int:
    from autostrategy import facts_text, prober

    facts = prober.probe()
    if args.json:
        print(facts.to_json())
    elif sys.stdout.isatty():
        _print_table(("", "found"), facts_text.rows(facts))
    else:
        print(facts_text.describe(facts))
    return 0


def _plan(args: argparse.Namespace) -> int:
    from autostrategy import plan_text, planner

    plan = planner.plan(
        _facts(args.facts),
        strategy=args.strategy,
        devices=args.devices,
        batch_size=args.batch_size,
        batch_scaling=args.batch_scaling,
        learning_rate=args.learning_rate,
        optimizer=args.optimizer,
    )
    if args.json:
        print(plan.to_json())
    elif sys.stdout.isatty():
        print(plan_text.heading(plan))
        _print_table(
            ("strategy", "", "reason"),
            [(each.kind.value, "yes" if each.chosen else "no", each.text) for each in plan.reasons],
        )
        print(plan_text.details(plan))
    else:
        print(plan)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from autostrategy.diagnosis.doctor import doctor

    diagnosis = doctor(cluster=args.cluster)
    print(diagnosis.to_json() if args.json else diagnosis)
    return diagnosis.status


def _facts(file: str | None) -> Facts:
    from autostrategy.facts import Facts

    if file is None:
        from autostrategy import prober

        return prober.probe()
    try:
        return Facts.from_json(sys.stdin.read() if file == "-" else Path(file).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            f"--facts must name a readable text file. Received: {file} ({error}). "
            "Write one with: autostrategy probe --json > facts.json"
        ) from None


def _print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    # Only a terminal gets a drawn table; rich costs more time than a whole plan.
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*headings)
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def _run(command: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if (args.script is None) == (args.module is None):
        command.error("one SCRIPT, or -m MODULE, must be given")
    if args.script is not None and not Path(args.script).exists():
        command.error(
            f"SCRIPT must be a file. Received: {args.script!r}. "
            f"The working directory is {Path.cwd()}; -m runs a module."
        )
    from autostrategy import script, startup_noise

    if not args.verbose:
        # 2 hides information and warnings of TensorFlow's C++ code and keeps its
        # errors. It is read once, when TensorFlow is imported.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        startup_noise.silence_import()
    script.join_cluster()
    if args.module is not None:
        return script.run_module(args.module, args.arguments)
    return script.run_file(args.script, args.arguments)


def _split_run(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, up to and with SCRIPT or -m MODULE, and the script's own."""
    for index, argument in enumerate(arguments):
        if argument == "-m":
            return arguments[: index + 2], arguments[index + 2 :]
        if not argument.startswith("-"):
            return arguments[: index + 1], arguments[index + 1 :]
    return arguments, []
