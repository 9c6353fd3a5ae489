"""The scaled learning rate, in force while training runs and never written to a file.

The optimizer's own rate is multiplied when training starts and divided again
when it ends, so a second `fit` or a loaded model starts from the rate that the
user wrote, and nothing is scaled twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from autostrategy.scaling import Scaling, learning_rate_factor_at


class ScaledLearningRate:
    """Multiplies the rate of one optimizer; see `start`, `at_step`, `unscaled`.

    A rate that is a variable is set from outside, so callbacks such as
    `ReduceLROnPlateau` see and change the scaled rate. A schedule is wrapped:
    its values are multiplied, and it is stretched, so that it ends when the
    run of one device would have ended it.
    """

    def __init__(self, optimizer: Any, scaling: Scaling, *, stretch: int) -> None:
        self._optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._scaling = scaling
        self._stretch = stretch
        self._schedule: Any = None
        self._ramp = 1.0
        self._running = False
        self._written = self._multiplied = 0.0

    @property
    def active(self) -> bool:
        """Whether there is anything to do."""
        return self._scaling.learning_rate_factor != 1.0 or self._stretch != 1

    def warming_up(self, step: int) -> bool:
        """Whether the rate still changes with each step, so that steps must be taken one by one."""
        return self._running and self._schedule is None and step < self._scaling.warmup_steps

    def start(self) -> None:
        """Scale the rate."""
        if not self.active or self._optimizer is None:
            return
        rate = self._optimizer._learning_rate
        self._running = True
        if callable(rate) and not isinstance(rate, keras.Variable):
            self._schedule = rate
            self._optimizer._learning_rate = _Stretched(rate, self._scaling, self._stretch)
        else:
            self._written = self._read()
            self._multiply(self._scaling.learning_rate_factor)

    def stop(self) -> None:
        """Give back the user's rate, with what callbacks made of it meanwhile."""
        if not self._running:
            return
        self._running = False
        if self._schedule is not None:
            self._optimizer._learning_rate = self._schedule
            self._schedule = None
            return
        untouched = self._read() == self._multiplied
        self._multiply(1.0 / (self._scaling.learning_rate_factor * self._ramp))
        self._ramp = 1.0
        if untouched:
            # Exactly as written: multiplying and dividing would leave a rounding.
            self._optimizer._learning_rate.assign(self._written)

    def at_step(self, step: int) -> None:
        """Set the warm-up's rate for `step`, counted from the start of the run."""
        if not self._running or self._schedule is not None:
            return
        factor = self._scaling.learning_rate_factor
        self._set_ramp(learning_rate_factor_at(step, self._scaling) / factor)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Show the rate without warm-up while callbacks look at it or change it."""
        ramp = self._ramp
        self._set_ramp(1.0)
        try:
            yield
        finally:
            self._set_ramp(ramp)

    @contextlib.contextmanager
    def unscaled(self) -> Iterator[None]:
        """Show the user's rate while a file is written."""
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
        if self._running and self._schedule is None and ramp != self._ramp:
            self._multiply(ramp / self._ramp)
            self._ramp = ramp

    def _multiply(self, factor: float) -> None:
        self._optimizer._learning_rate.assign(self._read() * factor)
        self._multiplied = self._read()

    def _read(self) -> float:
        return float(keras.ops.convert_to_numpy(self._optimizer._learning_rate))


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
