"""The contenders that train with a `fit`: autostrategy, stock Keras 3 and tf_keras."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from measuring import nets, strategies
from measuring.job import Clock, Job


def run(job: Job) -> dict[str, Any]:
    """Train as the job's contender does, and return what its clock measured."""
    return _CONTENDERS[job.contender](job)


def _callback(keras: Any, clock: Clock) -> Any:
    class Timing(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            clock.epoch_begins(epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            clock.epoch_ends()

    return Timing()


def _autostrategy(job: Job, *, workers_read: bool = False) -> dict[str, Any]:
    """`autostrategy.fit` with its defaults; every task of a cluster makes the same call."""
    import keras

    import autostrategy

    if workers_read:
        assert job.records is not None
        data: dict[str, Any] = {
            "x": nets.read_records(job.records, job.net, job.batch),
            "steps_per_epoch": job.epoch_steps,
        }
    else:
        x, y = nets.arrays(job.net, job.rows)
        data = {"x": x, "y": y, "batch_size": job.batch, "batch_scaling": "off"}
    clock = Clock(job)
    history = autostrategy.fit(
        lambda: nets.model(keras, job.net),
        strategy=job.strategy,
        devices=2 if job.strategy in strategies.IN_ONE_PROCESS else None,
        epochs=job.epochs + 1,
        verbose=0,
        callbacks=[_callback(keras, clock)],
        **data,
    )
    return clock.result(history.history["loss"][-1])


def _autostrategy_reading(job: Job) -> dict[str, Any]:
    """The same with data that the workers of parameter servers read by themselves."""
    return _autostrategy(job, workers_read=True)


def _stock(keras: Any, job: Job) -> dict[str, Any]:
    strategy = strategies.make(job.strategy)
    clock = Clock(job)
    served = job.strategy == strategies.PARAMETER_SERVER
    # Both accept data of parameter servers only from a function.
    data = _served_data(keras, job) if served else _data(job)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = nets.model(keras, job.net, steps_per_execution=job.execution)
    history = model.fit(
        epochs=job.epochs + 1, verbose=0, callbacks=[_callback(keras, clock)], **data
    )
    return clock.result(history.history["loss"][-1])


def _data(job: Job) -> dict[str, Any]:
    x, y = nets.arrays(job.net, job.rows)
    if job.strategy != strategies.MULTI_WORKER:
        return {"x": x, "y": y, "batch_size": job.batch}
    return {"x": strategies.dataset(x, y, job.batch), "steps_per_epoch": job.epoch_steps}


def _served_data(keras: Any, job: Job) -> dict[str, Any]:
    assert job.records is not None
    made = nets.read_records(job.records, job.net, job.batch)
    if job.contender == "tf_keras":
        return {
            "x": keras.utils.experimental.DatasetCreator(made),
            "steps_per_epoch": job.epoch_steps,
        }
    # Keras 3 has no DatasetCreator: arrays are what it takes.
    x, y = nets.arrays(job.net, job.rows)
    return {"x": x, "y": y, "batch_size": job.batch}


def _keras(job: Job) -> dict[str, Any]:
    """Stock Keras 3, its model made in the strategy's scope."""
    import keras

    return _stock(keras, job)


def _tf_keras(job: Job) -> dict[str, Any]:
    """Legacy Keras, for which TensorFlow's strategies were written."""
    import tf_keras

    return _stock(tf_keras, job)


_CONTENDERS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "autostrategy": _autostrategy,
    "autostrategy_reading": _autostrategy_reading,
    "keras": _keras,
    "tf_keras": _tf_keras,
}
