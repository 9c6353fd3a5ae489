"""`fit`: probe, plan, build and train in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from autostrategy import builder, exchange, rendezvous, tensorflow_internals
from autostrategy.facts import Facts
from autostrategy.planner import Plan, StrategyKind
from autostrategy.planner import plan as make_plan
from autostrategy.prober import probe
from autostrategy.training import (
    carrying,
    evaluator,
    model_checks,
)
from autostrategy.training.trainer import Trainer


def fit(
    model: keras.Model | Callable[[], keras.Model],
    x: Any = None,
    y: Any = None,
    *,
    strategy: str | Plan = "auto",
    devices: int | list[str] | tuple[str, ...] | None = None,
    batch_size: int | None = None,
    batch_scaling: str = "auto",
    warmup_steps: int | None = None,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Any = None,
    steps_per_loop: int | str = "auto",
    jit_compile: bool | str = "auto",
    facts: Facts | None = None,
    **fit_arguments: Any,
) -> keras.callbacks.History:
    """Train a Keras 3 model on whatever hardware is there.

    In a cluster every task makes the same call. `x` and `y` are those of one
    device, whole on every worker; each worker trains on its rows of every
    global batch. With parameter servers the chief comes back from the call;
    workers and servers serve it until its process ends, and an evaluator
    evaluates its checkpoints: their processes end within the call.

    Args:
        model: a function that returns a `keras.Model`, or a `keras.Model`;
            compiled, or compiled here with `optimizer`, `loss`, `metrics`.
        x, y: as in `keras.Model.fit`. A tuple without `y` is (x, y) or
            (x, y, sample_weight), as an element of a dataset would be. A function
            of one argument gets a `tf.distribute.InputContext` and returns a
            dataset of batches: under parameter servers one for each worker,
            else one of global batches.
        strategy: "auto", the name of a kind ("one_device", "mirrored",
            "multi_worker_mirrored", "central_storage", "parameter_server", "tpu"), or
            a `Plan`.
        devices: how many devices, or their names ("GPU:0", "CPU:1").
        batch_size: rows of a batch as written for one device.
        batch_scaling: "auto", "linear", "sqrt" grow batch and learning rate
            with the replicas; "off" keeps both exactly.
        warmup_steps: steps until the scaled rate is reached.
        steps_per_loop: steps in one call of TensorFlow; "auto" measures.
        jit_compile: whether to compile with XLA; "auto" begins as the model was
            compiled, and tries the other way once in a long run on one device.
        facts: what to plan on; by default what `probe()` finds here.
        **fit_arguments: the other arguments of `keras.Model.fit`.

    Returns:
        Keras's `History` with `.model`, `.plan`, `.report`, `.strategy`.

    Raises:
        ProbeError: the environment contradicts itself.
        PlanError: the request cannot be met here, or workers disagree.
        LaunchError: another worker did not appear in time.
        TrainingError: data or model cannot be trained as given.
        SystemExit: on a task that serves the chief, when the chief ends.
    """
    model_checks.require_supported()
    model_checks.require_positive(batch_size=batch_size)
    if y is None and isinstance(x, tuple) and len(x) in (2, 3):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(x)
        if sample_weight is not None:
            fit_arguments["sample_weight"] = sample_weight
    chosen = strategy
    if not isinstance(chosen, Plan):
        chosen = make_plan(
            exchange.introduced(facts or probe(), timeout=rendezvous.start_timeout_or()),
            strategy=strategy,
            devices=tuple(devices) if isinstance(devices, list) else devices,
            batch_size=batch_size,
            batch_scaling=batch_scaling,
            epochs=fit_arguments.get("epochs", 1),
        )
    served = chosen.kind is StrategyKind.PARAMETER_SERVER
    if served and chosen.cluster is not None and not chosen.cluster.is_chief:
        builder.build(chosen)  # serves the chief, and ends this process
    arguments = _started(chosen, {"x": x, "y": y, **fit_arguments})

    def compiled() -> Any:
        made = model_checks.model_from(model)
        if optimizer is not None or loss is not None or metrics is not None:
            made.compile(
                optimizer=optimizer or made.optimizer or "rmsprop",
                loss=loss if loss is not None else made.loss,
                metrics=metrics,
            )
        return made

    trainer = Trainer(
        compiled,
        chosen,
        batch_scaling=batch_scaling,
        warmup_steps=warmup_steps,
        steps_per_loop=steps_per_loop,
        jit_compile=jit_compile,
    )
    if chosen.cluster is not None and chosen.cluster.task_type == "evaluator":
        evaluator.run(
            trainer,
            arguments.get("validation_data"),
            arguments.get("callbacks"),
            cluster=chosen.cluster,
            timeout=rendezvous.start_timeout_or(),
            batch_size=arguments.get("validation_batch_size") or batch_size,
            steps=arguments.get("validation_steps"),
        )
    return trainer.fit(batch_size=batch_size, **arguments)


def _started(plan: Plan, arguments: dict[str, Any]) -> dict[str, Any]:
    """Start the strategy of a cluster although data or model were made before it.

    Most scripts make their dataset first, and TensorFlow then refuses the
    strategy. So datasets, variables and lookup tables are taken out, and put
    back after.
    """
    alone = plan.workers == 1 and plan.kind is not StrategyKind.PARAMETER_SERVER
    if alone or not tensorflow_internals.is_initialized():
        return arguments
    put_back = carrying.take_out()
    packed = keras.tree.map_structure(carrying.packed, arguments)
    builder.build(plan, late=True)
    put_back()
    return keras.tree.map_structure(carrying.unpacked, packed)
