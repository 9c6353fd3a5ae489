"""How many steps go into one call of TensorFlow."""

from __future__ import annotations

from autostrategy.training import agreement
from autostrategy.training.layouts import Layout

# Long enough that launching a loop costs nothing beside it, short enough that
# the progress bar moves and Ctrl-C is heard.
_LOOP_SECONDS = 0.1
_MOST_STEPS = 128
_UNTOLD_LOOPS = 2
_FIRST_WINDOW = 2
_MOST_GROWTH = 16


class Pace:
    """Chooses the steps of each loop: what was wanted, or about a tenth of a second.

    All workers of a cluster choose alike: a loop ends with an exchange, so
    loops of different lengths would wait for each other for ever.
    """

    def __init__(self, layout: Layout, workers: int, wanted: int | None) -> None:
        self._layout = layout
        self._workers = workers
        self._wanted = wanted
        self._steps = wanted or 1
        self._loops = 0
        self._window = _FIRST_WINDOW
        self._seen: list[tuple[int, float]] = []

    @property
    def steps(self) -> int:
        """Steps of the next loop."""
        return self._steps

    @property
    def one_step(self) -> bool:
        """Whether every loop is one step long."""
        return self._wanted == 1

    def single(self, *, always: bool) -> None:
        """One step a loop, since somebody looks at each; a wanted number wins unless `always`."""
        if self._wanted is None or always:
            self._wanted = self._steps = 1

    def took(self, steps: int, seconds: float) -> None:
        """Note how long a loop took; the first two tell nothing yet (tracing, warm caches).

        The number changes after 2, 4, 8, ... further loops, by their average: a
        loop alone may have waited for something else. A short loop is mostly
        the cost of its launch, so its steps seem slow; hence the number grows
        in bounds, and is measured again.
        """
        self._loops += 1
        if self._wanted is not None or self._loops <= _UNTOLD_LOOPS:
            return
        self._seen.append((steps, seconds))
        if len(self._seen) < self._window:
            return
        each = sum(took for _, took in self._seen) / max(sum(done for done, _ in self._seen), 1)
        self._seen.clear()
        self._window *= 2
        if self._workers > 1:
            each = agreement.largest(self._layout, each)
        steps = int(_LOOP_SECONDS / max(each, 1e-9))
        steps = max(self._steps // 2, min(steps, self._steps * _MOST_GROWTH))
        self._steps = max(1, min(_MOST_STEPS, steps))
