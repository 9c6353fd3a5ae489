"""Epochs, evaluation and prediction as the chief of parameter servers runs them.

The chief schedules loops, on batches that it draws or on workers that read by
themselves; up to two loops a worker wait or run at a time, so that a free
worker always finds work. A loop is done when its
result is here, and callbacks hear of loops in the order in which they were
scheduled: metrics that a batch callback sees hold all rows of the loops done
so far, and may hold rows of loops after them. At the end of an epoch
everything scheduled is done, and metrics are exact.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from autostrategy import rendezvous, tensorflow_internals
from autostrategy.errors import TrainingError
from autostrategy.facts import Cluster
from autostrategy.training import callbacks as callback_rules
from autostrategy.training import keras_internals, outer_loop, prediction, server_steps
from autostrategy.training.feed import Feed
from autostrategy.training.learning_rate import ScaledLearningRate
from autostrategy.training.pace import Pace
from autostrategy.training.server_feed import ServedFeed

_LOOPS_A_WORKER = 2
_TEST_STEPS_PER_LOOP = 16
# Between calls that found a worker without data while others still have some.
_IDLE_SECONDS = 0.005
# How often to look for workers while none answers, and for how long.
_LOOK_SECONDS = 5.0
_ALONE_SECONDS = 30.0


class Servers:
    """Schedules loops of one model on the workers; see the module."""

    def __init__(
        self, model: keras.Model, strategy: tf.distribute.Strategy, cluster: Cluster
    ) -> None:
        self._model = model
        self._cluster = cluster
        workers = len(cluster.addresses("worker"))
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._depth = _LOOPS_A_WORKER * workers
        self._workers = workers
        self._numbers = itertools.count(1)
        self._functions: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self._metrics: dict[tuple[int, ...], Callable[[], Any]] = {}

    def train_epoch(
        self,
        model: keras.Model,
        feed: Feed,
        rate: ScaledLearningRate,
        pace: Pace,
        hooks: keras.callbacks.CallbackList,
        counts: dict[str, Any],
        epoch: int,
        agreeing: int,
    ) -> dict[str, Any]:
        """One epoch's loops; the logs after the last. Arguments as `outer_loop.in_process`."""
        assert isinstance(feed, ServedFeed)
        loop = self._loop(feed, training=True)
        watched = callback_rules.see_batches(hooks.callbacks)
        logs: dict[str, Any] = {}
        whole = math.lcm(
            *(each.gradient_accumulation_steps for each in keras_internals.accumulating(model))
        )

        # Steps of a round of accumulation that the epoch before left behind.
        carried = keras_internals.accumulated_steps(model) % whole

        def size(scheduled: int) -> int:
            first = counts["steps"] + scheduled
            rate.at_step(first)
            steps = 1 if rate.warming_up(first) else pace.steps
            if wanted is not None:
                steps = _evened(steps, scheduled, wanted, self._workers)
            return -(-steps // whole) * whole - (0 if scheduled else carried)

        step = 0
        with feed.epoch() as (iterator, wanted):
            _require_whole_rounds(feed, whole)
            begun = time.perf_counter()
            for done, own_logs in self._results(
                loop, feed, iterator, wanted, size, lambda: not model.stop_training, carried
            ):
                done = int(done)
                seconds = time.perf_counter() - begun
                begun = time.perf_counter()
                hooks.on_train_batch_begin(step)
                step += done
                counts["training"] += seconds
                counts["first"] = counts["first"] or seconds
                if watched:
                    # Reading metrics asks every server, so not for nobody.
                    logs = self._logs(own_logs)
                    outer_loop.require_finite(logs, epoch, step, hooks)
                hooks.on_train_batch_end(step - 1, logs)
                pace.took(done, seconds * self._workers)
            if step:
                logs = self._logs(own_logs)
                outer_loop.require_finite(logs, epoch, step, hooks)
            if not model.stop_training:
                feed.finished(step, wanted)
        counts["steps"] += step
        counts["epochs"] += bool(step)
        rows = feed.rows(step)
        counts["examples"] = None if rows is None else (counts["examples"] or 0) + rows
        return logs

    def evaluate(self, feed: Feed, callbacks: Any, verbose: Any) -> dict[str, Any]:
        """Loss and metrics over one pass of `feed`; as `outer_loop.evaluate`.

        Raises:
            TrainingError: there is no data.
        """
        assert isinstance(feed, ServedFeed)
        model = self._model
        hooks = callback_rules.listed(callbacks, model, verbose=verbose, steps=feed.steps)
        every = callback_rules.need_every_batch(hooks.callbacks, "test")
        own = keras_internals.returns_own_logs(model, "test_step")
        size = 1 if every or own else max(_TEST_STEPS_PER_LOOP, model.steps_per_execution)
        model.stop_evaluating = False
        hooks.on_test_begin()
        model.reset_metrics()
        logs: dict[str, Any] = {}
        step = 0
        with feed.epoch() as (iterator, wanted):
            for done, own_logs in self._results(
                self._loop(feed, training=False),
                feed,
                iterator,
                wanted,
                lambda scheduled: size,
                lambda: not model.stop_evaluating,
            ):
                done = int(done)
                hooks.on_test_batch_begin(step)
                step += done
                logs = self._logs(own_logs)
                hooks.on_test_batch_end(step - 1, logs)
            if step:
                logs = self._logs(own_logs)
            if not model.stop_evaluating:
                feed.finished(step, wanted)
        hooks.on_test_end(logs)
        return logs

    def predict(self, feed: Feed, callbacks: Any, verbose: Any) -> Any:
        """Outputs for one pass of `feed` in input order; as `prediction.run`.

        Raises:
            TrainingError: there is no data.
        """
        assert isinstance(feed, ServedFeed)
        model = self._model
        hooks = callback_rules.listed(callbacks, model, verbose=verbose, steps=feed.steps)
        model.stop_predicting = False
        hooks.on_predict_begin()
        function = server_steps.make_predict(model, feed.layout, feed.spec, feed.grab)
        outputs: list[Any] = []
        with feed.epoch() as (iterator, wanted):
            for output in self._results(
                function, feed, iterator, wanted, lambda _: 1, lambda: not model.stop_predicting
            ):
                hooks.on_predict_batch_begin(len(outputs))
                outputs.append(output)
                hooks.on_predict_batch_end(len(outputs) - 1, {"outputs": output})
        hooks.on_predict_end()
        if not outputs:
            raise TrainingError("x must have at least 1 batch. Received: an empty dataset.")
        return prediction.concatenated(outputs)

    def _results(
        self,
        function: Any,
        feed: ServedFeed,
        iterator: Iterator[Any],
        wanted: int | None,
        size: Callable[[int], int],
        going: Callable[[], bool],
        carried: int = 0,
    ) -> Iterator[Any]:
        """Results of loops in the order of scheduling, until the epoch's steps are done.

        Args:
            function: what to schedule.
            wanted: steps of the epoch, None to the end of the data.
            size: steps of the next loop, of the steps scheduled so far.
            going: whether to schedule more; what was scheduled is always waited for.
            carried: steps of accumulation that the first loop goes on from.
        """
        pending: deque[tuple[int, Any]] = deque()
        scheduled = 0
        ended = False
        drained: set[int] = set()
        while True:
            while going() and not ended and len(pending) < self._depth:
                most = size(scheduled)
                if wanted is not None:
                    most = min(most, wanted - scheduled)
                count, arguments = feed.draw(iterator, most)
                ended = count < most or most == 0
                if count:
                    number = tf.constant(next(self._numbers), tf.int64)
                    left = tf.constant(0 if scheduled else carried)
                    with self._telling():
                        remote = self.coordinator.schedule(
                            function, args=(*arguments, number, left)
                        )
                    pending.append((count, remote))
                    scheduled += count
            if not pending:
                return
            count, remote = pending.popleft()
            with self._telling():
                self._wait(remote)
                result = remote.get()
            if feed.workers_read:
                done, worker, logs = int(result[0]), int(result[1]), result[2]
                if done < count:
                    # This worker has read all of its part; others may have more.
                    drained.add(worker)
                    scheduled -= count - done
                    ended = len(drained) == self._workers
                if done == 0:
                    time.sleep(_IDLE_SECONDS)
                    continue
                result = done, logs
            yield result

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Say clearly what went wrong on a worker; it is told when a loop is fetched or scheduled.

        Raises:
            TrainingError: data ended early, or a server was lost, and the
                variables that it held with it.
        """
        try:
            yield
        except TrainingError:
            raise  # nobody is there to wait for
        except Exception as error:
            # What else is under way must not reach a later call.
            with contextlib.suppress(Exception):
                self.coordinator.join()
            if outer_loop.ended_early(error):
                raise TrainingError(outer_loop.ENDED_EARLY) from None
            lost = re.search(r"/job:ps/\S*task:(\d+)", str(error))
            if isinstance(error, tf.errors.UnavailableError) and lost:
                raise TrainingError(
                    "Every server must stay alive while it holds variables. Received: no answer "
                    f"from ps {lost[1]}. Start all tasks again, from the last checkpoint."
                ) from None
            raise

    def _wait(self, remote: Any) -> None:
        """Wait for a loop, for as long as a worker is there to run it."""
        alone_since: float | None = None
        while not tensorflow_internals.is_there(remote, within=_LOOK_SECONDS):
            workers = self._cluster.addresses("worker")
            if any(rendezvous.knock(each) is None for each in workers):
                alone_since = None
                continue
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since > _ALONE_SECONDS:
                raise TrainingError(
                    "At least one worker must stay alive. Received: no answer from "
                    f"{', '.join(workers)} for {_ALONE_SECONDS:g} s. Start all tasks again, from "
                    "the last checkpoint."
                )

    def _loop(self, feed: ServedFeed, *, training: bool) -> Any:
        form = tuple(tf.nest.flatten(feed.spec))  # a loop is traced for batches of one form
        key = (*keras_internals.compiled_state(self._model), training, id(feed.grab), form)
        if key not in self._functions:
            make = server_steps.make_reading_loop if feed.workers_read else server_steps.make_loop
            function = make(self._model, feed.layout, feed.spec, feed.grab, training=training)
            self._functions[key] = (function, feed.grab)  # its id must stay its own
        return self._functions[key][0]

    def _logs(self, own_logs: dict[str, Any]) -> dict[str, Any]:
        key = keras_internals.compiled_state(self._model)
        if key not in self._metrics:
            # A function of its own each time: TensorFlow warns of one method traced often.
            read = self._model.get_metrics_result
            self._metrics[key] = tf.function(lambda: read(), autograph=False)
        metrics = self._metrics[key]()
        return keras_internals.pythonify(
            keras_internals.logs_or_metrics(self._model, own_logs, metrics)
        )


def _evened(steps: int, scheduled: int, wanted: int, workers: int) -> int:
    """Steps of the next loop, at most `steps`, so that all workers end an epoch at about once.

    Args:
        steps: of a loop.
        scheduled: steps of the epoch so far.
        wanted: steps of the epoch.
        workers: how many run loops.
    """
    if scheduled >= wanted:
        return steps
    loops = workers * math.ceil(wanted / (steps * workers))
    done = scheduled * loops // wanted
    return math.ceil((wanted - scheduled) / (loops - done))


def _require_whole_rounds(feed: ServedFeed, whole: int) -> None:
    """Check that loops can hold whole rounds of gradient accumulation.

    Raises:
        TrainingError: workers read by themselves, and may stop anywhere.
    """
    if whole > 1 and feed.workers_read:
        raise TrainingError(
            "Under parameter servers gradient accumulation needs data that the chief reads. "
            "Received: a function of InputContext. Give the dataset itself."
        )
