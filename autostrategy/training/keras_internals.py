"""What only Keras knows about a model: its state, its build, its logs. Touched here alone.

Tested with Keras 3.12 and 3.15; tests/training/test_keras_internals.py fails
loudly when one of these parts changes.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state as keras_global_state
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers.trainer import Trainer as KerasTrainer
from keras.src.utils import python_utils

from autostrategy import tensorflow_internals

# Attribute of a compile config, which is a new one after each `compile`.
_ASKED = "_autostrategy_jit_compile"


def optimizers_of(model: keras.Model) -> list[Any]:
    """Every optimizer that the model holds, inner ones too, each once."""
    found: dict[int, Any] = {}
    held = [getattr(model, "optimizer", None)]
    for layer in model._flatten_layers():
        for item in vars(layer).values():
            members = item.values() if isinstance(item, dict) else item
            held.extend(members if isinstance(item, (list, tuple, dict)) else [item])
    waiting = held[::-1]
    while waiting:
        optimizer = waiting.pop()
        if isinstance(optimizer, BaseOptimizer) and id(optimizer) not in found:
            found[id(optimizer)] = optimizer
            waiting += inner_optimizers(optimizer)
    return list(found.values())


def inner_optimizers(optimizer: Any) -> list[Any]:
    """What an optimizer hands gradients to: LossScaleOptimizer to one, MultiOptimizer to several.

    Empty for one that updates variables itself.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    return list(getattr(optimizer, "_inner_optimizers", ())) if inner is None else [inner]


def updating(optimizer: Any) -> list[Any]:
    """The optimizers that update variables when `optimizer`, which may be None, applies."""
    if optimizer is None:
        return []
    inner = inner_optimizers(optimizer)
    return [found for each in inner for found in updating(each)] or [optimizer]


def metrics_of(model: keras.Model) -> list[Any]:
    """Every metric of the model that holds state of its own, inner ones too, each once."""
    found: dict[int, Any] = {}
    waiting = list(model.metrics)
    for layer in model._flatten_layers():
        waiting.extend(getattr(layer, "_metrics", ()))
    while waiting:
        metric = waiting.pop(0)
        if id(metric) not in found:
            found[id(metric)] = metric
            waiting.extend(getattr(metric, "metrics", ()))
            waiting.extend(metric._metrics)
            # Metric objects given to `compile` are not among `metrics` before
            # they are built.
            given = (vars(metric).get(name) for name in ("_user_metrics", "_user_weighted_metrics"))
            waiting.extend(
                each
                for each in keras.tree.flatten(list(given))
                if isinstance(each, keras.metrics.Metric)
            )
    return [metric for metric in found.values() if metric._variables]


def metric_variables_of(model: keras.Model) -> list[Any]:
    """Keras variables that hold the state of the model's metrics, each once."""
    return _unique(variable for metric in metrics_of(model) for variable in metric._variables)


def momenta_of(model: keras.Model) -> dict[int, float]:
    """Momentum of each statistic that a BatchNormalization moves, by id of its Keras variable.

    Subclasses are left out, since they may do something else with the state.
    """
    return {
        id(variable): float(layer.momentum)
        for layer in model._flatten_layers()
        if type(layer) is keras.layers.BatchNormalization
        for variable in (layer.moving_mean, layer.moving_variance)
    }


def state_of(model: keras.Model) -> list[Any]:
    """Every Keras variable that training the model may read or write, each once."""
    own = list(model.variables)
    for optimizer in optimizers_of(model):
        own.extend(optimizer._variables)
    own.extend(metric_variables_of(model))
    generator = keras_global_state.get_global_attribute("global_seed_generator")
    if generator is not None:
        own.append(generator.state)
    return _unique(own)


def written_in_steps(model: keras.Model, *, kernels: bool = True) -> tuple[Any, ...]:
    """Every Keras variable of the model that its step may write itself, not an optimizer.

    Metrics, seeds and the state of layers; and with `kernels` those that
    SpectralNormalization rescales in each forward pass.
    """
    updated = {id(each) for optimizer in optimizers_of(model) for each in optimizer._variables}
    rescaled = {
        id(layer.kernel)
        for layer in model._flatten_layers()
        if kernels and isinstance(layer, keras.layers.SpectralNormalization) and layer.built
    }
    return tuple(
        variable
        for variable in state_of(model)
        if id(variable) in rescaled or not (id(variable) in updated or variable._value.trainable)
    )


def is_seed(variable: Any) -> bool:
    """Whether the variable is the state of a `keras.random.SeedGenerator`."""
    return variable.name == "seed_generator_state" and tuple(variable.shape) == (2,)


def _unique(variables: Any) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())


def set_value(variable: Any, value: tf.Variable) -> None:
    """Put another TensorFlow variable behind a Keras variable."""
    variable._value = value


def forget_strategy(model: keras.Model) -> None:
    """Make `Model.evaluate` and `predict` run as on one device, which reads any variable.

    A model made in a scope would otherwise take Keras's own distributed path.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, KerasTrainer):
            layer._distribute_strategy = None
            layer.train_function = layer.test_function = layer.predict_function = None


def reindex(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Let an optimizer find its slots by the variables that there are now, in `strategy`."""
    optimizer._distribution_strategy = strategy if optimizer.built else tf.distribute.get_strategy()
    if not optimizer.built:
        return
    places = optimizer._trainable_variables_indices
    chosen = getattr(optimizer, "_var_to_optimizer_idx", None)  # of a MultiOptimizer
    chosen_at = {places[key]: number for key, number in (chosen or {}).items()}
    in_parts = chosen is None  # a MultiOptimizer has a gradient for each place
    optimizer._trainable_variables_indices = {
        optimizer._var_key(part): index
        for index, variable in enumerate(optimizer._trainable_variables)
        for part in (in_parts and getattr(variable._value, "parts", None)) or (variable,)
    }
    if chosen is not None:
        optimizer._var_to_optimizer_idx = {
            key: chosen_at[index] for key, index in optimizer._trainable_variables_indices.items()
        }


def slots_of(optimizer: Any) -> list[tuple[Any, list[Any]]]:
    """Each variable that an optimizer updates, with those it keeps of the same shape for it."""
    trained = optimizer._trainable_variables
    lists = [
        each
        for each in vars(optimizer).values()
        if isinstance(each, (list, tuple)) and len(each) == len(trained) and each is not trained
    ]
    return [
        (
            variable,
            [
                each[index]
                for each in lists
                if isinstance(each[index], backend.Variable)
                and each[index] is not variable
                and tuple(each[index].shape) == tuple(variable.shape)
            ],
        )
        for index, variable in enumerate(trained)
    ]


def accumulating(model: keras.Model) -> list[Any]:
    """Optimizers with `gradient_accumulation_steps`."""
    return [
        optimizer
        for optimizer in optimizers_of(model)
        if getattr(optimizer, "gradient_accumulation_steps", None)
    ]


def accumulated_steps(model: keras.Model) -> int:
    """Steps that accumulating optimizers have done, updates or not; 0 without any."""
    counters = [each._iterations for each in accumulating(model)]
    return max((int(each._value.numpy()) for each in counters), default=0)


def accumulators_of(optimizer: Any) -> tuple[Any, list[Any]]:
    """The counter of steps of an accumulating optimizer, and the gradients of a round so far."""
    return optimizer._iterations, list(optimizer._accumulated_gradients)


def slots_at(optimizer: Any, variable: tf.Variable) -> list[Any]:
    """What an optimizer keeps for one TensorFlow variable, or for one part of one, in its order."""
    index = optimizer._trainable_variables_indices.get(optimizer._var_key(variable))
    return [] if index is None else slots_of(optimizer)[index][1]


def has_own(model: keras.Model, step: str) -> bool:
    """Whether the model's class overrides `train_step`, `test_step` or `predict_step`."""
    return getattr(type(model), step) is not getattr(keras.Model, step)


def returns_own_logs(model: keras.Model, step: str) -> bool:
    """Whether the step's logs are made by the user's code and may be other than the metrics."""
    return any(has_own(model, name) for name in (step, "compute_metrics", "get_metrics_result"))


def build(model: keras.Model, spec: Any, *, predicting: bool = False) -> None:
    """Make every variable of a model, from the spec of its batches.

    No data is drawn. Follows `Trainer._symbolic_build` (keras/src/trainers/
    trainer.py), with ragged, sparse and string inputs as well.

    Args:
        model: compiled, unless `predicting`.
        spec: `tf.TypeSpec` structure of a batch.
        predicting: the batches have no targets, so only the model is built.
    """
    for optimizer in optimizers_of(model):
        if not optimizer.built:  # it may have been made in the scope of another strategy
            optimizer._distribution_strategy = tf.distribute.get_strategy()
    composite = (tf.RaggedTensorSpec, tf.SparseTensorSpec)
    traced = any(isinstance(leaf, composite) for leaf in tf.nest.flatten(spec))
    built = all(layer.built for layer in model._flatten_layers())
    if predicting:
        if not built and traced:
            _trace(model.predict_step, spec)
        elif not built:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(tf.nest.map_structure(_symbolic, spec))
            backend.compute_output_spec(model, x, training=False)
        return
    metrics, loss = model._compile_metrics, model._compile_loss
    unbuilt = [each for each in (metrics, loss) if each is not None and not each.built]
    if traced and (unbuilt or not built):
        _trace(model.test_step, spec)
    elif unbuilt or not built:
        _build_symbolically(model, tf.nest.map_structure(_symbolic, spec), unbuilt)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    if has_own(model, "train_step") and not all(each.built for each in optimizers_of(model)):
        # Only the step knows which optimizer has which variables.
        _trace(model.train_step, spec)


def _build_symbolically(model: keras.Model, batch: Any, unbuilt: list[Any]) -> None:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    y_pred = backend.compute_output_spec(model, x, training=False)
    if model._compile_metrics in unbuilt:
        backend.compute_output_spec(
            model.compute_metrics, x, y, y_pred, sample_weight=sample_weight
        )
    if model._compile_loss in unbuilt:
        backend.compute_output_spec(
            model._compute_loss, x, y, y_pred, sample_weight=sample_weight, training=False
        )


def _trace(step: Any, spec: Any) -> None:
    """Trace a step once on one device: nothing runs, and what is lazy gets made."""
    tf.function(step, autograph=False).get_concrete_function(spec)


def _symbolic(spec: Any) -> Any:
    if spec is None or isinstance(spec, (tensorflow_internals.NoneTensorSpec, tf.OptionalSpec)):
        return None
    return keras.KerasTensor(
        spec.shape,
        backend.standardize_dtype(spec.dtype),
        sparse=isinstance(spec, tf.SparseTensorSpec),
        ragged=isinstance(spec, tf.RaggedTensorSpec),
    )


def logs_or_metrics(model: keras.Model, logs: dict[str, Any], metrics: dict[str, Any]) -> Any:
    """What Keras reports for an epoch: the metrics, or the step's own logs.

    As in `Trainer._get_metrics_result_or_logs`: a custom step that returns
    other keys than the model's metrics is taken at its word.
    """
    return metrics if not logs or set(logs) == set(metrics) else logs


def pythonify(logs: dict[str, Any]) -> dict[str, Any]:
    """Logs with Python numbers instead of tensors."""
    return python_utils.pythonify_logs(logs)


def metrics_in_order(model: keras.Model, logs: dict[str, Any]) -> Any:
    """Logs as the number or list that `Model.evaluate` returns."""
    return model._flatten_metrics_in_order(logs)


def initial_epoch_of(model: keras.Model) -> int | None:
    """The epoch at which `BackupAndRestore` wants training to go on, None without a backup."""
    return model._initial_epoch


def layers_of(model: keras.Model) -> list[Any]:
    """The model and every layer in it, however deep."""
    return list(model._flatten_layers())


def constant_learning_rate(optimizer: Any) -> float | None:
    """The rate of an optimizer whose rate is a number, None for a schedule or no optimizer.

    None for a MultiOptimizer too, whose own rate nobody uses.
    """
    rate = getattr(optimizer, "_learning_rate", None)
    if not isinstance(rate, backend.Variable) or hasattr(optimizer, "_inner_optimizers"):
        return None
    return float(keras.ops.convert_to_numpy(rate))


def compiled_state(model: keras.Model) -> tuple[int, ...]:
    """Changes whenever `compile` is called, so that a traced step is not used beyond it."""
    return (id(model._compile_config), id(model.optimizer))


def asks_for_xla(model: keras.Model) -> bool:
    """Whether the user wrote jit_compile=True, rather than that Keras's "auto" came to it.

    Keras keeps only what came of it. So where "auto" means yes (with a GPU), only what
    `set_jit_compile` noted counts.
    """
    if not model.jit_compile:
        return False
    return hasattr(model._compile_config, _ASKED) or not model._resolve_auto_jit_compile()


def set_jit_compile(model: keras.Model, value: bool) -> None:
    """Compile the model's steps with XLA or not, until its next `compile`."""
    model.jit_compile = value
    if model.compiled:
        setattr(model._compile_config, _ASKED, True)


def scope_of(optimizer: Any) -> Any:
    """The scope of the strategy that holds the optimizer's variables."""
    return updating(optimizer)[0]._distribution_strategy.scope()
