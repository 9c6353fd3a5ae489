"""`Trainer`: one model under one plan; fit, evaluate, predict, save.

fit
  scale batch and rate, agree with the other workers on plan and seed
  build the model from the data's spec, move its state into the strategy
  outer loop (outer_loop.py)
    inner loops (loops.py)
      one step on every replica (steps.py)
"""

from __future__ import annotations

import dataclasses
import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from autostrategy import builder, plan_text
from autostrategy.planner import Plan, StrategyKind
from autostrategy.report import Report
from autostrategy.scaling import Scaling, block, scale
from autostrategy.training import (
    agreement,
    data,
    keras_data,
    keras_internals,
    learning_rate,
    loops,
    model_checks,
    outer_loop,
    prediction,
    relocation,
    server_epochs,
    server_feed,
    tpu_rules,
    xla_trial,
)
from autostrategy.training.batches import Batches, may_be_scarce
from autostrategy.training.compiled_steps import CompiledSteps
from autostrategy.training.feed import Feed
from autostrategy.training.layouts import layout_of
from autostrategy.training.pace import Pace


class Trainer:
    """Trains, evaluates and predicts with one model under one plan.

    Args:
        model: a compiled `keras.Model`, or a function that returns one.
        plan: what `autostrategy.plan` returned.
        batch_scaling: "auto", "linear", "sqrt" or "off"; see `scaling`.
        warmup_steps: steps of the run until the scaled rate is reached; None
            for the rule's own.
        steps_per_loop: steps in one call of TensorFlow; "auto" measures. A
            callback that looks at batches makes loops one step long, unless a
            number is given here or as `steps_per_execution` in `compile`.
        jit_compile: whether to compile steps with XLA; "auto" begins as the
            model was compiled, and tries the other way once in a long run of
            one replica.

    Raises:
        PlanError: the plan's strategy cannot be built here.
        TrainingError: the model cannot be trained, or not under this plan.
    """

    def __init__(
        self,
        model: keras.Model | Callable[[], keras.Model],
        plan: Plan,
        *,
        batch_scaling: str = "auto",
        warmup_steps: int | None = None,
        steps_per_loop: int | str = "auto",
        jit_compile: bool | str = "auto",
    ) -> None:
        model_checks.require_supported()
        if steps_per_loop != "auto":
            model_checks.require_positive(steps_per_loop=steps_per_loop)
        self.plan = plan
        self.strategy = builder.build(plan)
        self.model = model_checks.model_from(model)
        self._jit_compile = jit_compile
        if isinstance(jit_compile, bool):
            keras_internals.set_jit_compile(self.model, jit_compile)
        self._batch_scaling = batch_scaling
        self._warmup_steps = warmup_steps
        self._steps_per_loop = steps_per_loop
        self._layout = layout_of(self.strategy, plan)
        self._loop = loops.Loops(self.model)
        self._compiled_steps = CompiledSteps(plan)
        self._servers: server_epochs.Servers | None = None
        if plan.kind is StrategyKind.PARAMETER_SERVER:
            assert plan.cluster is not None
            self._servers = server_epochs.Servers(self.model, self.strategy, plan.cluster)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and speaks for the cluster."""
        return self._layout.first == 0

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: Any = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> keras.callbacks.History:
        """Train; arguments as in `keras.Model.fit`.

        `batch_size` (for arrays) and `steps_per_epoch` are as for one device;
        the scaling turns them into those of the run.

        Returns:
            Keras's `History` with `.model`, `.plan`, `.report`, `.strategy`.

        Raises:
            TrainingError: data or model cannot be trained, or a loss is not
                finite.
            PlanError: workers made different plans.
        """
        model_checks.require_compiled(self.model)
        model_checks.require_positive(
            batch_size=batch_size, steps_per_epoch=steps_per_epoch, epochs=epochs
        )
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = keras_data.split_for_validation(
                (x, y, sample_weight), validation_split
            )
        seed = self._agreed_seed()
        given = data.source(
            self._read(x, seed),
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            class_weight=class_weight,
        )
        scaling, growth = self._scale(given, steps_per_epoch, epochs)
        steps = None if steps_per_epoch is None else -(-steps_per_epoch // growth)

        def feed(first_epoch: int) -> Feed:
            made = data.batches(
                given, growth=growth, shuffle=shuffle, seed=seed, first_epoch=first_epoch
            )
            return self._feed(made, steps, training=True)

        first = feed(initial_epoch)
        validate = self._validator(
            validation_data,
            batch_size=validation_batch_size or scaling.global_batch_size,
            steps=validation_steps,
        )
        self._warn(learning_rate.warnings_about(self.model.optimizer, scaling, growth))
        self._warn(model_checks.warnings_about(self.model, scaling, self.plan))
        if verbose != 0 and self.is_chief:
            sys.stdout.write(f"{plan_text.heading(self.plan)}\n")
            sys.stdout.write(f"{block(scaling, replicas=self._layout.replicas)}\n")
        history, counts = outer_loop.train(
            self.model,
            first,
            # BackupAndRestore may choose another epoch to go on from; a
            # generator goes on from where it is, whatever the epoch.
            refeed=None if keras_data.is_generator(given.adapter) else feed,
            train_epoch=functools.partial(
                outer_loop.in_process,
                loop=self._loop,
                trial=xla_trial.of(
                    self.model, self.plan, first, epochs=epochs, wanted=self._jit_compile
                ),
            )
            if self._servers is None
            else self._servers.train_epoch,
            rate=learning_rate.ScaledLearningRate(self.model.optimizer, scaling, stretch=growth),
            pace=Pace(self._layout, self._layout.workers, self._wanted_steps_per_loop()),
            callbacks=callbacks,
            epochs=epochs,
            initial_epoch=initial_epoch,
            verbose=verbose if self.is_chief else 0,
            validate=validate,
            validation_freq=validation_freq,
            is_chief=self.is_chief,
            workers=self._layout.workers,
        )
        self._warn(model_checks.warnings_about_metrics(self.model, self._layout.not_sums))
        self._warn(self._compiled_steps.warnings)
        history.plan, history.strategy = self.plan, self.strategy  # it has .model already
        history.report = Report(
            strategy=self.plan.kind,
            replicas=self.plan.replicas,
            workers=self.plan.workers,
            global_batch=scaling.global_batch_size,
            **counts,
        )
        return history

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Loss and metrics over all rows; arguments and result as in `keras.Model.evaluate`.

        Raises:
            TrainingError: the data cannot be read, or the model has no loss.
        """
        model_checks.require_compiled(self.model)
        model_checks.require_positive(batch_size=batch_size, steps=steps)
        validate = self._validator((x, y, sample_weight), batch_size=batch_size, steps=steps)
        assert validate is not None
        logs = validate(callbacks, verbose if self.is_chief else 0)
        return logs if return_dict else keras_internals.metrics_in_order(self.model, logs)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Outputs for all rows in input order; arguments and result as in `keras.Model.predict`.

        Every worker of a cluster gets all rows.

        Raises:
            TrainingError: the data holds nothing, or outputs of several
                workers cannot be put together.
        """
        model_checks.require_positive(batch_size=batch_size, steps=steps)
        if data.is_input_function(x):
            x = data.read(x, self._layout, seed=0)
        given = data.source(x, batch_size=batch_size, steps_per_epoch=steps)
        self._require_agreement(given)
        made = data.batches(given)
        feed = self._feed(made, steps, predicting=True)
        verbose = verbose if self.is_chief else 0
        if self._servers is not None:
            return self._servers.predict(feed, callbacks, verbose)
        function = prediction.make_predict(self.model, feed.layout, workers=self._layout.workers)
        return prediction.run(self.model, function, feed, callbacks, verbose)

    def prepare(self, x: Any, y: Any = None, *, sample_weight: Any = None) -> None:
        """Build the model for this data, so that weights can be loaded into it."""
        made = data.batches(data.source(self._read(x, seed=0), y, sample_weight=sample_weight))
        keras_internals.build(self.model, made.spec)

    def save(self, path: Any) -> None:
        """`model.save(path)` on the chief; nothing on other workers."""
        if self.is_chief:
            self.model.save(path)

    def _scale(
        self, given: data.Source, steps_per_epoch: int | None, epochs: int
    ) -> tuple[Scaling, int]:
        """Batch and rate for this data and optimizer, and how often the user's batch grows."""
        rate, kind = learning_rate.written(self.model.optimizer)
        scaling = scale(
            replicas=self._layout.replicas,
            batch_size=given.batch_size,
            batch_scaling=self._batch_scaling,
            learning_rate=rate,
            optimizer=kind,
            warmup_steps=self._warmup_steps,
            steps_per_epoch=steps_per_epoch or given.steps,
            epochs=epochs,
            rows=given.rows,
        )
        growth = 1
        if scaling.global_batch_size and given.batch_size:
            growth = scaling.global_batch_size // given.batch_size
        self.plan = dataclasses.replace(self.plan, scaling=scaling)
        self._require_agreement(given)
        return scaling, growth

    def _warn(self, texts: tuple[str, ...]) -> None:
        warnings = tuple(dict.fromkeys((*self.plan.warnings, *texts)))
        self.plan = dataclasses.replace(self.plan, warnings=warnings)

    def _require_agreement(self, given: data.Source) -> None:
        """Compare plan and data with the other workers before the first step of each call."""
        if self._layout.has_peers:
            agreement.require_same_plan(
                self._layout, self.plan, batches=given.steps, rows=given.rows
            )

    def _agreed_seed(self) -> int:
        """The seed of the order of rows: the chief's draw from Python's generator.

        `keras.utils.set_random_seed` fixes it.
        """
        seed = random.randrange(2**31)  # noqa: S311  (an order of rows is no secret)
        if self._layout.has_peers:
            seed = int(agreement.exchange(self._layout, str(seed))[0])
        return seed

    def _read(self, x: Any, seed: int, *, steps: int | None = None) -> Any:
        """What is read of `x`, in the same order by all workers; see `data.read`."""
        if self._servers is None:
            return data.read(x, self._layout, seed=seed)
        if isinstance(x, tf.data.Dataset):
            if keras_internals.accumulating(self.model):
                return x  # rounds must be whole, which only the chief can see to
            x = x if steps is None else x.take(steps)
        return server_feed.shards(x, self.plan.workers, seed=seed)

    def _feed(
        self,
        made: Batches,
        steps: int | None,
        *,
        restarts: bool = False,
        training: bool = False,
        predicting: bool = False,
    ) -> Feed:
        """Build the model for these batches, move it into the strategy, lay the data out."""
        tpu_rules.require_allowed(self.model, made, self.plan)
        keras_internals.build(self.model, made.spec, predicting=predicting)
        relocation.relocate(self.model, self.strategy, first_replica=self._layout.first)
        layout = dataclasses.replace(
            self._layout,
            scarce=may_be_scarce(made, self._layout.replicas),
            metric_ids=frozenset(map(id, keras_internals.metric_variables_of(self.model))),
            momenta=keras_internals.momenta_of(self.model),
            runner=self._compiled_steps.runner(self.model),
        )
        if self._servers is not None:
            layout.own_state = keras_internals.written_in_steps(self.model, kernels=False)
            return server_feed.ServedFeed(
                made,
                layout,
                coordinator=self._servers.coordinator,
                steps_per_epoch=steps,
                restarts=restarts,
            )
        if layout.central:
            layout.own_state = keras_internals.written_in_steps(self.model)
        layout = tpu_rules.laid_out(
            self.model, layout, made, self.plan, training=training, predicting=predicting
        )
        return Feed(made, layout, steps_per_epoch=steps, restarts=restarts)

    def _validator(
        self, validation: Any, *, batch_size: int | None, steps: int | None
    ) -> outer_loop.Validate | None:
        """A function of callbacks and verbosity that evaluates this data; None without data."""
        if validation is None:
            return None
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(validation)
        given = data.source(
            self._read(x, seed=0, steps=steps),
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps,
        )
        self._require_agreement(given)
        feed = self._feed(data.batches(given), steps, restarts=True)

        if self._servers is not None:
            return functools.partial(self._servers.evaluate, feed)
        return functools.partial(outer_loop.evaluate, self.model, feed, self._loop)

    def _wanted_steps_per_loop(self) -> int | None:
        """What the user asked for here or in `compile`; None to measure."""
        if isinstance(self._steps_per_loop, int):
            return self._steps_per_loop
        compiled = self.model.steps_per_execution
        return compiled if compiled > 1 else None
