"""The scaled learning rate, in force while training runs and never written to a file.

An optimizer's own rate is multiplied when training starts and divided again
when it ends, so a second `fit` or a loaded model starts from the rate that the
user wrote, and nothing is scaled twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from autostrategy.scaling import Scaling, learning_rate_factor_at
from autostrategy.training import keras_internals


def written(optimizer: Any) -> tuple[float | None, str | None]:
    """The rate as the user wrote it and the optimizer's class name, before anything is built.

    A MultiOptimizer may choose its optimizers by their variables, which are
    yet to come: its rate is None.
    """
    updating = keras_internals.updating(optimizer)
    rates = {keras_internals.constant_learning_rate(each) for each in updating}
    kinds = {type(each).__name__ for each in updating}
    kind = kinds.pop() if len(kinds) == 1 else "MultiOptimizer" if kinds else None
    return rates.pop() if len(rates) == 1 else None, kind


def warnings_about(optimizer: Any, scaling: Scaling, growth: int) -> tuple[str, ...]:
    """What becomes of a schedule when a step has `growth` times the rows, for the plan's warnings.

    Args:
        optimizer: of the model, built.
        scaling: in force.
        growth: how often a step has the user's batch.
    """
    rates = map(keras_internals.constant_learning_rate, keras_internals.updating(optimizer))
    if growth == 1 or None not in rates:
        return ()
    return (
        "The learning rate is a schedule: its values are multiplied by "
        f"{scaling.learning_rate_factor:g} and it runs {growth} times as fast, since each step has "
        f"{growth} times the rows.",
    )


class ScaledLearningRate:
    """Multiplies the rates of a model's optimizers; see `start`, `at_step`, `unscaled`.

    A rate that is a variable is set from outside, so callbacks such as
    `ReduceLROnPlateau` see and change the scaled rate. A schedule is wrapped:
    its values are multiplied, and it is stretched, so that it ends when the
    run of one device would have ended it.
    """

    def __init__(self, optimizer: Any, scaling: Scaling, *, stretch: int) -> None:
        self._scaling = scaling
        self._ramp = 1.0
        self._running = False
        # Whether there is anything to do.
        self.active = scaling.learning_rate_factor != 1.0 or stretch != 1
        self._numbers: list[_Number] = []
        self._schedules: list[_Schedule] = []
        for each in keras_internals.updating(optimizer) if self.active else ():
            if keras_internals.constant_learning_rate(each) is None:
                self._schedules.append(_Schedule(each, scaling, stretch))
            else:
                self._numbers.append(_Number(each))

    def warming_up(self, step: int) -> bool:
        """Whether a rate still changes with each step, so that steps must be taken one by one."""
        return self._running and bool(self._numbers) and step < self._scaling.warmup_steps

    def start(self) -> None:
        """Scale the rates."""
        self._running = self.active
        for schedule in self._schedules:
            schedule.start()
        for number in self._numbers:
            number.start(self._scaling.learning_rate_factor)

    def stop(self) -> None:
        """Give back the user's rates, with what callbacks made of them meanwhile."""
        if not self._running:
            return
        self._running = False
        for schedule in self._schedules:
            schedule.stop()
        for number in self._numbers:
            number.stop(self._scaling.learning_rate_factor * self._ramp)
        self._ramp = 1.0

    def at_step(self, step: int) -> None:
        """Set the warm-up's rate for `step`, counted from the start of the run."""
        factor = self._scaling.learning_rate_factor
        self._set_ramp(learning_rate_factor_at(step, self._scaling) / factor)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Show the rates without warm-up while callbacks look at them or change them."""
        ramp = self._ramp
        self._set_ramp(1.0)
        try:
            yield
        finally:
            self._set_ramp(ramp)

    @contextlib.contextmanager
    def unscaled(self) -> Iterator[None]:
        """Show the user's rates while a file is written."""
        if not self._running:
            yield
            return
        ramp = self._ramp
        self.stop()
        try:
            yield
        finally:
            self.start()
            self._set_ramp(ramp)

    def _set_ramp(self, ramp: float) -> None:
        if self._running and ramp != self._ramp:
            for number in self._numbers:
                number.multiply(ramp / self._ramp)
            self._ramp = ramp


class _Number:
    """The rate of one optimizer, where it is a variable."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._written = self._multiplied = 0.0

    def start(self, factor: float) -> None:
        self._written = self._read()
        self.multiply(factor)

    def stop(self, factor: float) -> None:
        """Divide by all that it was multiplied by."""
        untouched = self._read() == self._multiplied
        # Exactly as written: multiplying and dividing would leave a rounding.
        self._write(self._written if untouched else self._read() / factor)

    def multiply(self, factor: float) -> None:
        self._write(self._read() * factor)
        self._multiplied = self._read()

    def _read(self) -> float:
        return float(keras.ops.convert_to_numpy(self._optimizer._learning_rate))

    def _write(self, rate: float) -> None:
        self._optimizer._learning_rate.assign(rate)


class _Schedule:
    """The rate of one optimizer, where it is a schedule."""

    def __init__(self, optimizer: Any, scaling: Scaling, stretch: int) -> None:
        self._optimizer = optimizer
        self._written = optimizer._learning_rate
        self._stretched = _Stretched(self._written, scaling, stretch)

    def start(self) -> None:
        self._optimizer._learning_rate = self._stretched

    def stop(self) -> None:
        self._optimizer._learning_rate = self._written


class _Stretched(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule as the steps of a larger batch need it: multiplied, stretched, warmed up."""

    def __init__(self, schedule: Any, scaling: Scaling, stretch: int) -> None:
        self._schedule = schedule
        self._scaling = scaling
        self._stretch = stretch

    def __call__(self, step: Any) -> Any:
        rate = self._schedule(keras.ops.cast(step, "int64") * self._stretch)
        factor = self._scaling.learning_rate_factor
        if self._scaling.warmup_steps:
            part = keras.ops.cast(step, rate.dtype) / self._scaling.warmup_steps
            return rate * (1.0 + (factor - 1.0) * keras.ops.minimum(part, 1.0))
        return rate * factor

    def get_config(self) -> dict[str, Any]:
        return dict(self._schedule.get_config())
