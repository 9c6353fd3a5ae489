"""Callbacks see the calls that they see on one device, and do what they do there."""

from __future__ import annotations

from typing import Any

import numpy as np
from flavours import load_model, number
from jobs import Feature, Job, without
from parts import VALIDATION, VALIDATION_BATCH, X, Y, dataset, net, rows

BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_test_batch_end")
EPOCH_HOOKS = (
    "on_train_begin",
    "on_epoch_begin",
    "on_test_begin",
    "on_test_end",
    "on_epoch_end",
    "on_train_end",
)


def recorder(k: Any, hooks: tuple[str, ...]) -> tuple[Any, list[str], list[float]]:
    """A callback, the calls that it saw, and the numbers that it was given."""
    calls: list[str] = []
    numbers: list[float] = []

    def record(name: str) -> Any:
        def hook(self: Any, *arguments: Any, **keywords: Any) -> None:
            *first, logs = [*arguments, *keywords.values()]
            calls.append(" ".join(map(str, (name, *first, *(logs or {})))))
            numbers.extend(float(value) for value in (logs or {}).values())

        return hook

    body = {name: record(name) for name in hooks}
    return type("Recorder", (k.callbacks.Callback,), body)(), calls, numbers


def events(hooks: tuple[str, ...]) -> Any:
    """Every call of these hooks, with the numbers."""

    def make(k: Any) -> Job:
        def script(session: Any) -> None:
            callback, calls, numbers = recorder(k, hooks)
            session.fit(
                rows(X, Y),
                epochs=3,
                callbacks=[callback],
                validation_data=dataset(X[:VALIDATION], Y[:VALIDATION], batch=VALIDATION_BATCH),
                validation_freq=2,
            )
            session.tell("calls", np.array(calls))
            session.tell("numbers", numbers)

        model = net(k, lambda: {"metrics": ["mae"]})
        return Job(model, dict, script=script, exact=("iterations", "calls"))

    return make


def acting(make_callbacks: Any, *, epochs: int = 6, falls: bool = False, **arguments: Any) -> Any:
    """Training under callbacks that change its course."""

    def make(k: Any) -> Job:
        def script(session: Any) -> None:
            callbacks = make_callbacks(k)
            session.fit(rows(X, Y), epochs=epochs, callbacks=callbacks, **arguments)
            session.tell("learning rate", number(session.model.optimizer.learning_rate))

        model = net(k, lambda: {"metrics": ["mae"]})
        return Job(model, dict, script=script, exact=(), falls=falls)

    return make


def scheduler(k: Any) -> list[Any]:
    return [k.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)]


def plateau(k: Any) -> list[Any]:
    return [k.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, factor=0.5)]


def stopping(k: Any) -> list[Any]:
    return [k.callbacks.EarlyStopping("loss", patience=1, min_delta=0.3, restore_best_weights=True)]


def stopping_in_a_batch(k: Any) -> list[Any]:
    class Stop(k.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                self.model.stop_training = True

    return [Stop()]


def setting_the_rate(k: Any) -> list[Any]:
    class Set(k.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate.assign(0.05 / (batch + 1))

    return [Set()]


def checkpoint(k: Any) -> Job:
    def script(session: Any) -> None:
        path = session.shared_path("best.keras")
        saving = k.callbacks.ModelCheckpoint(path, "loss", save_best_only=True)
        session.fit(rows(X, Y), callbacks=[saving])
        model = load_model(k, session.when_written(path))
        for index, array in enumerate(model.get_weights()):
            session.tell(f"saved/{index}", array)

    return Job(net(k), dict, script=script)


def restored(k: Any) -> Job:
    """Interrupted after the second epoch, and gone on with from the backup."""

    def script(session: Any) -> None:
        class Interrupt(k.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if epoch == 1:
                    raise InterruptedError("on purpose")

        folder = session.shared_path("backup")
        try:
            session.fit(rows(X, Y), callbacks=[k.callbacks.BackupAndRestore(folder), Interrupt()])
        except InterruptedError:
            session.begin()
        session.fit(rows(X, Y), callbacks=[k.callbacks.BackupAndRestore(folder)])

    return Job(net(k), dict, script=script, expected=without("history"))


CALLBACKS = (
    Feature("callbacks, every epoch", events(EPOCH_HOOKS)),
    Feature("callbacks, every batch", events(EPOCH_HOOKS + BATCH_HOOKS)),
    Feature("LearningRateScheduler", acting(scheduler, falls=True)),
    Feature("ReduceLROnPlateau", acting(plateau, falls=True)),
    Feature("EarlyStopping, best weights restored", acting(stopping)),
    Feature("stop_training in a batch", acting(stopping_in_a_batch)),
    Feature("learning rate set in a batch", acting(setting_the_rate)),
    Feature("ModelCheckpoint", checkpoint),
    Feature("BackupAndRestore", restored),
)
