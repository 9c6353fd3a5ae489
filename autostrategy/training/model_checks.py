"""What a model must be before it is trained, and what to mind about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from autostrategy import versions
from autostrategy.errors import TrainingError
from autostrategy.planner import Plan, StrategyKind
from autostrategy.scaling import Scaling
from autostrategy.training import keras_internals


def require_supported() -> None:
    """Check backend and versions.

    Raises:
        TrainingError: Keras runs on another backend than TensorFlow, or a
            version is outside the tested range.
    """
    if keras.backend.backend() != "tensorflow":
        raise TrainingError(
            "Keras must run on TensorFlow to be trained by tf.distribute. Received: backend "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow before Keras is imported."
        )
    for package, version in (("keras", keras.__version__), ("tensorflow", _tensorflow_version())):
        if refusal := versions.refusal(package, version):
            raise TrainingError(refusal)


def _tensorflow_version() -> str:
    import tensorflow as tf

    return str(tf.__version__)


def model_from(model: keras.Model | Callable[[], keras.Model]) -> keras.Model:
    """The model itself, or what the function makes.

    Raises:
        TrainingError: neither is a `keras.Model`.
    """
    made = model if isinstance(model, keras.Model) or not callable(model) else model()
    if isinstance(made, keras.Model):
        return made
    what = "a function that returned " if made is not model else ""
    kind = f"{type(made).__module__}.{type(made).__qualname__}"
    raise TrainingError(
        f"model must be a keras.Model or a function that returns one. Received: {what}{kind}. "
        "Does the function end with `return model`?"
    )


def require_compiled(model: keras.Model) -> None:
    """Check that there is something to minimise.

    Raises:
        TrainingError: the model is not compiled, or has neither a loss nor a
            train_step of its own.
    """
    if not model.compiled:
        raise TrainingError(
            "The model must be compiled. Received: a model without optimizer and loss. Call "
            "model.compile(...), or pass optimizer= and loss= to fit."
        )
    own = keras_internals.has_own(model, "train_step") or keras_internals.has_own(
        model, "compute_loss"
    )
    if model.loss is None and not own and not model.losses and model.built:
        raise TrainingError(
            "The model must have a loss. Received: compile() without loss=, no add_loss and no "
            "train_step of its own. Pass loss= to compile or to fit."
        )


def require_positive(**values: Any) -> None:
    """Check whole numbers of at least 1; None passes.

    Raises:
        TrainingError: naming the first that is none.
    """
    for name, value in values.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and value >= 1):
            raise TrainingError(
                f"{name} must be a whole number of at least 1. Received: {value!r}."
            )


def warnings_about(model: keras.Model, scaling: Scaling, plan: Plan) -> tuple[str, ...]:
    """What differs by nature from one device, for the plan's warnings."""
    found = []
    if plan.kind is StrategyKind.PARAMETER_SERVER:
        if model.run_eagerly:
            found.append(
                "run_eagerly=True is not used: workers of parameter servers run whole loops of "
                "steps as TensorFlow graphs. Debug on one device."
            )
        elif keras_internals.asks_for_xla(model):
            found.append(
                "XLA (jit_compile=True) is not used: a step of parameter servers reads and writes "
                "variables of other processes."
            )
    if plan.replicas == 1:
        return tuple(found)
    replicas, global_batch = plan.replicas, scaling.global_batch_size
    unsynchronized = [
        layer.name
        for layer in keras_internals.layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
    ]
    if unsynchronized:
        rows = "its" if global_batch is None else f"about {max(1, global_batch // replicas)}"
        found.append(
            f"BatchNormalization ({', '.join(unsynchronized[:3])}"
            f"{', ...' if len(unsynchronized) > 3 else ''}) normalises over {rows} rows of its own "
            "replica; its moving statistics are the mean over replicas. "
            "synchronized=True gives exactly the statistics of one device."
        )
    if keras_internals.has_own(model, "train_step"):
        found.append(
            f"{type(model).__name__} has its own train_step: each replica runs it on its own rows, "
            "and gradients and logs are averaged over rows. A loss in it must be a mean over rows "
            "and not be divided by the number of replicas; clip in the optimizer (clipnorm, "
            "global_clipnorm), since a step that clips sees one replica's gradients."
        )
    return tuple(found)


def warnings_about_metrics(model: keras.Model, not_sums: dict[int, Any]) -> tuple[str, ...]:
    """A warning for each metric of the user's whose state is not a sum over rows.

    Args:
        model: the model.
        not_sums: Keras variables, by id, that a step wrote something else to
            than what they held plus or minus something.
    """
    found = []
    for metric in keras_internals.metrics_of(model):
        ours = type(metric).__module__.startswith("keras.")
        if not ours and any(id(variable) in not_sums for variable in metric.variables):
            found.append(
                f"The metric {metric.name!r} ({type(metric).__name__}) keeps something that is not "
                "a sum over rows, so its value over several replicas is not that of one device. "
                "Keep sums in update_state and combine them in result."
            )
    return tuple(found)
