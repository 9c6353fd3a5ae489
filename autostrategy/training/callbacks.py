"""Keras callbacks in a run of ours: who writes files, and who needs every batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from autostrategy.training.learning_rate import ScaledLearningRate

# They write to a path that all workers share, so only the chief runs them.
_WRITERS: tuple[type, ...] = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
)
_SAVERS = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
_BATCH_HOOKS = {
    "train": ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"),
    "test": ("on_test_batch_begin", "on_test_batch_end"),
}


def for_this_task(
    callbacks: Sequence[Any], *, is_chief: bool, rate: ScaledLearningRate
) -> list[Any]:
    """The callbacks that this task runs.

    On the chief all; elsewhere those that write no files of Keras's own kinds,
    and `BackupAndRestore` restores without writing. Those that save the model
    see the user's learning rate, not the scaled one. A user's own callbacks
    run on every task, since they may decide (stop, change the rate).
    """
    kept: list[Any] = []
    for callback in callbacks:
        if not is_chief and isinstance(callback, _WRITERS):
            kept.append(_Silent(callback))
        elif not isinstance(callback, _SAVERS):
            kept.append(callback)
        else:
            kept.append(_Saving(callback, rate) if is_chief else _Restoring(callback, rate))
    return kept


def listed(callbacks: Any, model: keras.Model, *, verbose: Any, steps: int | None) -> Any:
    """The callbacks of an evaluation or prediction; those of its training stay as they are."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=1,
        steps=steps,
        model=model,
    )


def need_every_batch(callbacks: Sequence[Any], phase: str = "train") -> bool:
    """Whether a callback looks at single batches, so that loops must be one step long."""
    return any(
        _overrides(getattr(callback, "wrapped", callback), name)
        for callback in callbacks
        for name in _BATCH_HOOKS[phase]
    )


def see_batches(callbacks: Sequence[Any]) -> bool:
    """Whether anybody looks at metrics within an epoch: a callback, or a moving progress bar."""
    bars = (each for each in callbacks if isinstance(each, keras.callbacks.ProgbarLogger))
    return need_every_batch(callbacks) or any(bar.verbose == 1 for bar in bars)


def _overrides(callback: Any, name: str) -> bool:
    if name in vars(callback):  # keras.callbacks.LambdaCallback sets hooks on the instance
        return True
    owner = next(kind for kind in type(callback).__mro__ if name in vars(kind))
    if owner in _SAVERS:  # Keras's own hook, which does nothing if files are per epoch
        return getattr(callback, "save_freq", "epoch") != "epoch"
    return owner not in (keras.callbacks.Callback, keras.callbacks.ProgbarLogger)


class _Silent(keras.callbacks.Callback):
    """A callback that another task runs.

    It is still asked whether it looks at batches: all tasks must run loops of
    the same lengths.
    """

    def __init__(self, wrapped: Any) -> None:
        super().__init__()
        self.wrapped = wrapped


class _Saving(keras.callbacks.Callback):
    """A callback that saves the model, run while the user's learning rate is in place."""

    def __init__(self, wrapped: Any, rate: ScaledLearningRate) -> None:
        super().__init__()
        self.wrapped = wrapped
        self._rate = rate

    def set_params(self, params: Any) -> None:
        self.wrapped.set_params(params)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.wrapped.set_model(model)


def _delegate(name: str) -> Callable[..., None]:
    def hook(self: _Saving, *args: Any, **kwargs: Any) -> None:
        with self._rate.unscaled():
            getattr(self.wrapped, name)(*args, **kwargs)

    hook.__name__ = name
    return hook


for _name in [name for name in vars(keras.callbacks.Callback) if name.startswith("on_")]:
    setattr(_Saving, _name, _delegate(_name))


class _Restoring(_Saving):
    """A `BackupAndRestore` on a task that must not write: it restores, and that is all."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Write nothing."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write nothing."""

    def on_train_end(self, logs: Any = None) -> None:
        """Delete nothing."""
