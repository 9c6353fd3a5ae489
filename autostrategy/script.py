"""Run a user's script as `__main__`, as `python SCRIPT` would."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any


def join_cluster() -> None:
    """In a cluster, make the strategy before the script can touch TensorFlow.

    A multi-worker strategy starts a server in this process, and TensorFlow
    refuses that once anything else has run ("Collective ops must be configured
    at program startup", tensorflow/tensorflow#34568). On a single machine
    nothing is imported, so a script that needs no TensorFlow starts at once.

    Raises:
        AutoStrategyError: the environment contradicts itself, no plan fits it,
            or another task did not appear.
    """
    from autostrategy import planner, prober

    facts = prober.probe()
    if facts.launch is not None:
        from autostrategy import exchange, rendezvous

        facts = exchange.introduced(facts, timeout=rendezvous.start_timeout_or())
    cluster = facts.cluster
    if cluster is None or (cluster.world_size < 2 and not cluster.addresses("ps")):
        return
    from autostrategy import builder

    builder.prepare(planner.plan(facts))


def run_file(file: str, arguments: Sequence[str]) -> int:
    """Run the Python file (or folder, or zip file with a `__main__`) and return its status."""
    sys.argv = [file, *arguments]
    _set_first_path(os.path.dirname(os.path.realpath(file)))
    return _status(lambda: runpy.run_path(file, run_name="__main__"))


def run_module(module: str, arguments: Sequence[str]) -> int:
    """Run the module as `python -m` does and return its status."""
    # runpy puts the file's path there once it is found, as python does.
    sys.argv = ["-m", *arguments]
    _set_first_path(os.getcwd())
    return _status(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def _set_first_path(folder: str) -> None:
    # `python -P` means that the user wants no such entry, and there is none to replace.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _status(run: Callable[[], Any]) -> int:
    """0, or the status python would end with; a SystemExit goes on to the interpreter."""
    try:
        run()
    except SystemExit as error:
        if error.code not in (None, 0):
            sys.last_value = error
        raise
    except BaseException as error:
        # As python does for an error that nobody caught: what runs at exit can tell.
        sys.last_value = error
        # The hook prints the traceback that the error holds, whatever it is given.
        error = error.with_traceback(_below_runpy(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _below_runpy(traceback: TracebackType | None) -> TracebackType | None:
    """The part of `traceback` that python would show: from the script's first line on."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while traceback is not None and traceback.tb_frame.f_code.co_filename in ours:
        traceback = traceback.tb_next
    return traceback
