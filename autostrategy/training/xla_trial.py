"""`jit_compile="auto"`: whether XLA makes this model's steps faster, by trying it once.

XLA makes some nets much faster and others much slower (on CPUs often 4 to 15
times), and nothing but a measurement tells. So a long run of one replica takes
a few steps the other way, once, and keeps the faster. Each way computes the
same numbers, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from autostrategy.planner import Plan, StrategyKind
from autostrategy.training import compiled_steps
from autostrategy.training.feed import Feed

# A trial costs a compilation, so what is left of the run must be worth it.
_LEAST_SECONDS_LEFT = 120.0
# Loops before a trial, so that the usual way has settled; steps of one trial loop.
_SETTLED_LOOPS = 8
_TRIAL_STEPS = 8
# The other way must be faster by this much to be kept.
_FASTER = 0.95


class XlaTrial:
    """Which way the next loop goes; see `compiled`, `steps`, `took`.

    Args:
        now: whether steps are compiled as things are.
        can: whether steps could be compiled; asked once, before the trial.
        steps: of the whole run, None when unknown: then nothing is tried.
    """

    def __init__(self, *, now: bool, can: Callable[[], bool], steps: int | None) -> None:
        self.compiled = now
        self._now = now
        self._can = can
        self._left = steps
        self._loops = 0
        self._usual = float("inf")
        self._tried = 0  # loops of the trial so far; the first compiles
        self.over = steps is None

    def steps(self, most: int) -> int:
        """Up to `most` steps for the next loop: few in a trial."""
        return min(most, _TRIAL_STEPS) if self._tried else most

    def took(self, steps: int, seconds: float) -> None:
        """Note how long a loop took, and decide about the next."""
        if self.over or self._left is None:
            return
        self._left -= steps
        each = seconds / max(steps, 1)
        if self._tried == 1:
            self._tried = 2
        elif self._tried:
            self.over = True
            if each > self._usual * _FASTER:
                self.compiled = self._now
            self._tried = 0
        else:
            self._loops += 1
            # The best of the loops: the first trace, and others may work on this machine.
            self._usual = min(self._usual, each)
            if self._loops < _SETTLED_LOOPS:
                return
            if self._left * self._usual < _LEAST_SECONDS_LEFT:
                self.over = True
            elif self._loops >= _SETTLED_LOOPS:
                self.over = not (self._now or self._can())
                self._tried = 0 if self.over else 1
                self.compiled = self.compiled if self.over else not self._now


def of(model: keras.Model, plan: Plan, feed: Feed, *, epochs: int, wanted: Any) -> XlaTrial | None:
    """The trial of one training; None where XLA is settled, or not for one device to try.

    Args:
        model: built.
        plan: of the training.
        feed: its data.
        epochs: as in `keras.Model.fit`.
        wanted: `jit_compile` as the user gave it.
    """
    if wanted != "auto" or plan.kind is not StrategyKind.ONE_DEVICE or model.run_eagerly:
        return None
    return XlaTrial(
        now=bool(model.jit_compile),
        can=lambda: compiled_steps.can_compile(model, feed.spec),
        steps=None if feed.steps is None else feed.steps * epochs,
    )
