"""An evaluator task: evaluates the checkpoints of a cluster beside its training.

TensorFlow keeps evaluators out of the training cluster (they share files with
it, nothing else), so what there is to evaluate are the files of the
`ModelCheckpoint` among the callbacks, and the end of training is when the
chief's address stops answering.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import keras

from autostrategy import rendezvous
from autostrategy.errors import LaunchError, TrainingError
from autostrategy.facts import Cluster
from autostrategy.training.trainer import Trainer

_LOOK_SECONDS = 0.5
# The chief may be silent for so long: between its first knock and the start of
# TensorFlow's server nobody listens there.
_SILENT_SECONDS = 10.0
# A file that still cannot be read when it has not changed for so long is broken.
_SETTLED_SECONDS = 5.0


def run(
    trainer: Trainer,
    validation_data: Any,
    callbacks: Any,
    *,
    cluster: Cluster,
    timeout: float,
    batch_size: int | None,
    steps: int | None,
) -> NoReturn:
    """Evaluate each checkpoint once as it appears, until the chief ends; then end this process.

    Args:
        trainer: of a model like the chief's.
        validation_data, batch_size, steps: as in `keras.Model.fit`.
        callbacks: those of the run; the files of its `ModelCheckpoint` are read.
        cluster: whose evaluator this task is.
        timeout: seconds to wait for the chief.

    Raises:
        SystemExit: status 0, when the chief ended and the last file is evaluated.
        TrainingError: there is nothing to evaluate with, or no files are written.
        LaunchError: the chief did not appear in time.
    """
    if validation_data is None:
        raise TrainingError(
            "An evaluator task needs data to evaluate with. Received: validation_data=None. Give "
            "validation_data to fit, or leave the evaluator out of the cluster."
        )
    checkpoints = [
        each
        for each in keras.tree.flatten(callbacks or [])
        if isinstance(each, keras.callbacks.ModelCheckpoint)
    ]
    if not checkpoints:
        raise TrainingError(
            "An evaluator task evaluates the files of a keras.callbacks.ModelCheckpoint. Received: "
            "callbacks without one. Add it to the callbacks of fit, with a path that all tasks "
            "share, or leave the evaluator out of the cluster."
        )
    path = str(checkpoints[0].filepath)
    data = keras.utils.unpack_x_y_sample_weight(validation_data)
    watch = _Watch(path)
    chief = (cluster.addresses("chief") or cluster.addresses("worker"))[0]
    for file in _until_end(watch, chief, timeout):
        if not _loaded(trainer, file, *data):
            continue
        watch.read(file)
        x, y, sample_weight = data
        logs = trainer.evaluate(
            x,
            y,
            batch_size=batch_size,
            sample_weight=sample_weight,
            steps=steps,
            verbose=0,
            return_dict=True,
        )
        values = "  ".join(f"{name} {float(value):.6g}" for name, value in logs.items())
        sys.stdout.write(f"evaluator  {file.name}  {values}\n")
        sys.stdout.flush()
    raise SystemExit(0)


class _Watch:
    """Files that a `ModelCheckpoint` path stands for, each once for each time it was written."""

    def __init__(self, path: str) -> None:
        pattern = re.sub(r"\{[^}]*\}", "*", path)
        self._folder, self._pattern = Path(pattern).parent, Path(pattern).name
        self._seen: dict[Path, tuple[int, int]] = {}

    def read(self, file: Path) -> None:
        """Note that the file was read as it is now; it may have been half written when found."""
        with contextlib.suppress(OSError):
            status = file.stat()
            self._seen[file] = (status.st_mtime_ns, status.st_size)

    def new(self) -> list[Path]:
        """Files that are new or were written again, oldest first."""
        states = {}
        for file in self._folder.glob(self._pattern):
            try:
                status = file.stat()
            except OSError:
                continue  # replaced at this moment
            states[file] = (status.st_mtime_ns, status.st_size)
        changed = [file for file, state in states.items() if self._seen.get(file) != state]
        self._seen.update(states)
        return sorted(changed, key=lambda file: states[file])


def _until_end(watch: _Watch, chief: str, timeout: float) -> Any:
    """New files, until the chief that was there does not answer any more."""
    seen = False
    last = time.monotonic()
    while True:
        here = rendezvous.knock(chief) is None
        files: Sequence[Path] = watch.new()
        yield from files
        if here:
            seen, last = True, time.monotonic()
        silent = time.monotonic() - last
        if seen and silent > _SILENT_SECONDS:
            return
        if not seen and silent > timeout:
            raise LaunchError(
                f"The chief must start within {timeout:g} s. Received: no answer from {chief}. "
                "Start the chief, check the address and firewalls, or allow more time with "
                "AUTOSTRATEGY_START_TIMEOUT."
            )
        time.sleep(_LOOK_SECONDS)


def _loaded(trainer: Trainer, file: Path, x: Any, y: Any, sample_weight: Any) -> bool:
    """Read the weights of a checkpoint; False, with a warning, for one that cannot be read.

    Weights alone are read, never code, from whole models too.
    """
    trainer.prepare(x, y, sample_weight=sample_weight)
    while True:
        try:
            trainer.model.load_weights(str(file))
            return True
        except Exception as error:
            # It may be half written.
            try:
                age = time.time() - file.stat().st_mtime
            except OSError:
                return False
            if age > _SETTLED_SECONDS:
                warnings.warn(
                    f"The checkpoint {file.name} cannot be read and is left out: "
                    f"{type(error).__name__}: {str(error).splitlines()[0][:200]}",
                    stacklevel=2,
                )
                return False
            time.sleep(_LOOK_SECONDS)
