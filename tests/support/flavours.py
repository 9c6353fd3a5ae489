"""Where Keras 3 and tf_keras name the same thing differently."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np


def is_keras_3(k: Any) -> bool:
    """Whether `k` is Keras 3, and not tf_keras."""
    return k.__name__ == "keras"


def load_model(k: Any, path: Any) -> Any:
    """A saved model."""
    return (k.saving if is_keras_3(k) else k.models).load_model(path)


def data_set_class(k: Any) -> Any:
    """The base class of a user's indexed batches."""
    return k.utils.PyDataset if is_keras_3(k) else k.utils.Sequence


def loss_scale(k: Any, inner: Any, *, initial_scale: float, growth_steps: int) -> Any:
    """An optimizer that scales the loss."""
    home = k.optimizers if is_keras_3(k) else k.mixed_precision
    return home.LossScaleOptimizer(
        inner, initial_scale=initial_scale, dynamic_growth_steps=growth_steps
    )


def scale_loss(k: Any, optimizer: Any, loss: Any) -> Any:
    """The loss as an optimizer that scales it wants it."""
    return optimizer.scale_loss(loss) if is_keras_3(k) else loss


def counting_variable(layer: Any, k: Any) -> Any:
    """A layer's number that every replica counts for itself, and that is read as the mean."""
    import tensorflow as tf

    mean = "mean" if is_keras_3(k) else tf.VariableAggregation.MEAN
    return layer.add_weight(
        name="count", shape=(), initializer="zeros", trainable=False, aggregation=mean
    )


@contextlib.contextmanager
def policy(k: Any, name: str) -> Iterator[None]:
    """Layers made here have this dtype policy."""
    k.mixed_precision.set_global_policy(name)
    try:
        yield
    finally:
        k.mixed_precision.set_global_policy("float32")


@contextlib.contextmanager
def float64(k: Any) -> Iterator[None]:
    """Layers made here compute in double precision."""
    k.backend.set_floatx("float64")
    if not is_keras_3(k):
        k.mixed_precision.set_global_policy("float64")
    try:
        yield
    finally:
        k.backend.set_floatx("float32")
        if not is_keras_3(k):
            k.mixed_precision.set_global_policy("float32")


def number(variable: Any) -> np.ndarray:
    """What a variable holds, whichever class it is of."""
    for read in (
        lambda: variable.numpy(),
        lambda: variable.read_value().numpy(),
        lambda: variable.value.numpy(),
    ):
        with contextlib.suppress(AttributeError, NotImplementedError, TypeError):
            return np.asarray(read())
    return np.asarray(variable)


def optimizers_of(k: Any, model: Any) -> list[Any]:
    """The model's own optimizers, each once."""
    kind = k.optimizers.Optimizer
    candidates = [getattr(model, "optimizer", None), *vars(model).values()]
    return list({id(each): each for each in candidates if isinstance(each, kind)}.values())


def variables_of(optimizer: Any) -> list[Any]:
    """All its numbers."""
    variables = optimizer.variables
    return list(
        variables() if callable(variables) and not isinstance(variables, list) else variables
    )
