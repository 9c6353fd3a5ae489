"""Epochs, evaluation and prediction as the chief of parameter servers runs them.

The chief draws batches and schedules loops; up to two loops a worker wait or
run at a time, so that a free worker always finds work. A loop is done when its
result is here, and callbacks hear of loops in the order in which they were
scheduled: metrics that a batch callback sees hold all rows of the loops done
so far, and may hold rows of loops after them. At the end of an epoch
everything scheduled is done, and metrics are exact.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from autostrategy.errors import TrainingError
from autostrategy.training import callbacks as callback_rules
from autostrategy.training import data, keras_internals, outer_loop, prediction, server_steps
from autostrategy.training.feed import Feed
from autostrategy.training.learning_rate import ScaledLearningRate
from autostrategy.training.pace import Pace
from autostrategy.training.steps import Layout

_LOOPS_A_WORKER = 2
_TEST_STEPS_PER_LOOP = 16


class ServedFeed(Feed):
    """What the chief draws, with what a worker makes of it."""

    def __init__(
        self,
        given: data.Batches,
        layout: Layout,
        *,
        coordinator: Any,
        steps_per_epoch: int | None,
        restarts: bool = False,
    ) -> None:
        dataset, self.grab, arrays = data.for_workers(given)
        super().__init__(
            given, layout, steps_per_epoch=steps_per_epoch, restarts=restarts, dataset=dataset
        )
        self.spec = dataset.element_spec
        self.resident: Any = None
        if arrays is not None:
            # Each element is the same tensors, without a copy.
            self.resident = iter(
                coordinator.create_per_worker_dataset(
                    lambda: tf.data.Dataset.from_tensors(arrays).repeat()
                )
            )


class Servers:
    """Schedules loops of one model on the workers; see the module."""

    def __init__(self, model: keras.Model, strategy: tf.distribute.Strategy, workers: int) -> None:
        self._model = model
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
        logs: dict[str, Any] = {}

        def size(scheduled: int) -> int:
            first = counts["steps"] + scheduled
            rate.at_step(first)
            return 1 if rate.warming_up(first) else pace.steps

        step = 0
        with feed.epoch() as (iterator, wanted):
            begun = time.perf_counter()
            for done, own_logs in self._results(
                loop, feed, iterator, wanted, size, lambda: not model.stop_training
            ):
                done = int(done)
                seconds = time.perf_counter() - begun
                begun = time.perf_counter()
                hooks.on_train_batch_begin(step)
                step += done
                logs = self._logs(own_logs)
                counts["training"] += seconds
                counts["first"] = counts["first"] or seconds
                outer_loop.require_finite(logs, epoch, step, hooks)
                hooks.on_train_batch_end(step - 1, logs)
                pace.took(done, seconds * self._workers)
            if step:
                logs = self._logs(own_logs)
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
    ) -> Iterator[Any]:
        """Results of loops in the order of scheduling, until the epoch's steps are done.

        Args:
            function: what to schedule.
            wanted: steps of the epoch, None to the end of the data.
            size: steps of the next loop, of the steps scheduled so far.
            going: whether to schedule more; what was scheduled is always waited for.
        """
        pending: deque[Any] = deque()
        scheduled = 0
        ended = False
        while True:
            while going() and not ended and len(pending) < self._depth:
                most = size(scheduled)
                if wanted is not None:
                    most = min(most, wanted - scheduled)
                elements = list(itertools.islice(iterator, most))
                ended = len(elements) < most or most == 0
                if elements:
                    pending.append(self._schedule(function, feed, elements))
                    scheduled += len(elements)
            if not pending:
                return
            yield pending.popleft().get()

    def _schedule(self, function: Any, feed: ServedFeed, elements: list[Any]) -> Any:
        packed, sizes = server_steps.pack(elements)
        number = tf.constant(next(self._numbers), tf.int64)
        return self.coordinator.schedule(function, args=(packed, sizes, number, feed.resident))

    def _loop(self, feed: ServedFeed, *, training: bool) -> Any:
        key = (*keras_internals.compiled_state(self._model), training, id(feed.grab))
        if key not in self._functions:
            function = server_steps.make_loop(
                self._model, feed.layout, feed.spec, feed.grab, training=training
            )
            self._functions[key] = (function, feed.grab)  # its id must stay its own
        return self._functions[key][0]

    def _logs(self, own_logs: dict[str, Any]) -> dict[str, Any]:
        key = keras_internals.compiled_state(self._model)
        if key not in self._metrics:
            self._metrics[key] = tf.function(self._model.get_metrics_result, autograph=False)
        metrics = self._metrics[key]()
        return keras_internals.pythonify(
            keras_internals.logs_or_metrics(self._model, own_logs, metrics)
        )
