"""The one file that touches private parts of TensorFlow.

Tested with TensorFlow 2.20 and 2.21; tests/test_tensorflow_internals.py fails
loudly when one of these parts changes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.util.structure import NoneTensorSpec as NoneTensorSpec
from tensorflow.python.distribute import values
from tensorflow.python.eager import context as eager_context
from tensorflow.python.ops import resource_variable_ops, script_ops


def _is_news(record: logging.LogRecord) -> bool:
    """Drop the two warnings about what `late_collectives` takes care of."""
    return not record.getMessage().startswith(
        ("Enabling collective ops after program startup", "Configuring coordination service type")
    )


def is_initialized() -> bool:
    """Whether TensorFlow has fixed its devices: any tensor, variable or dataset does that."""
    return eager_context.context()._context_handle is not None


@contextlib.contextmanager
def late_collectives() -> Iterator[None]:
    """Let a multi-worker strategy start although TensorFlow is already in use.

    `Context.configure_collective_ops` refuses once the context exists, while
    `Context.enable_collective_ops` copes with one and re-reads the devices
    (tensorflow/python/eager/context.py, TODO b/129298253). What was made
    before lives on a device that has lost its name: variables and datasets
    must be taken out first and put back afterwards. The block may go when
    TensorFlow closes that TODO.
    """
    context = eager_context.context()
    handle = context._context_handle
    enable = context.enable_collective_ops

    def enable_with_context(server_def: Any) -> None:
        context._context_handle = handle
        enable(server_def)
        # "CPU:0" is remembered with the name of the job that devices have lost.
        eager_context._device_parsing_cache.clear()

    context._context_handle = None
    context.enable_collective_ops = enable_with_context
    logger = logging.getLogger("absl")
    logger.addFilter(_is_news)
    try:
        yield
    finally:
        logger.removeFilter(_is_news)
        context._context_handle = handle
        del context.enable_collective_ops


def let_distributed_variables_be_numbers() -> None:
    """Give distributed variables the conversions that plain ones have: float() and int().

    `float(model.optimizer.learning_rate)` in a callback is ordinary code, and
    TensorFlow forgot it here. Methods that a later version brings are kept.
    Not bool(): code that asks `if variable:` relies on it being true.
    """
    for name, convert in (("__float__", float), ("__int__", int)):
        if name not in vars(values.DistributedVariable):
            setattr(
                values.DistributedVariable,
                name,
                lambda variable, convert=convert: convert(variable.numpy()),
            )


def temporary_variable(value: tf.Tensor, *, like: tf.Variable) -> tf.Variable:
    """A new variable that holds `value`, and is gone when the function that makes it returns.

    `tf.Variable` cannot be made anew in each call of a `tf.function`; this one
    is made where the operation runs, on whichever device or worker that is.
    The object must be kept for as long as the function.
    """
    graph = not tf.executing_eagerly()
    handle = resource_variable_ops.eager_safe_variable_handle(
        value,
        value.shape,
        shared_name=eager_context.anonymous_name() if graph else None,
        name="temporary",
        graph_mode=graph,
    )
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    def variable(trainable: bool) -> tf.Variable:
        return resource_variable_ops.BaseResourceVariable(
            trainable=trainable,
            shape=value.shape,
            dtype=value.dtype,
            handle=handle,
            handle_name="temporary:0",
            unique_id=f"temporary_{id(handle)}",
            in_graph_mode=False,
        )

    if graph:
        # `tf.custom_gradient` looks every variable of its graph up here.
        tf.compat.v1.add_to_collection("variables", variable(False))
    return variable(like.trainable)


_answers: dict[str, Callable[[Any], Any]] = {}


def answer_to(name: str, function: Callable[[int], int]) -> None:
    """Let another process of the cluster call `function` here by `name`; see `ask`.

    `tf.numpy_function` keeps its functions in this table, weakly, under names
    of its own.
    """
    _answers[name] = lambda number: np.int32(function(int(number)))
    script_ops._py_funcs._funcs[name] = _answers[name]


def ask(name: str, number: int) -> int:
    """Call the function that the process of the current device answers with."""
    return int(_call(name, tf.constant(number)))


def ask_here(name: str) -> tf.Tensor:
    """The answer of whichever process runs this operation, scalar int32."""
    answer = _call(name, tf.constant(0))
    answer.set_shape([])
    return answer


def _call(name: str, number: tf.Tensor) -> tf.Tensor:
    (answer,) = tf.raw_ops.PyFunc(input=[number], token=name, Tout=[tf.int32])
    return answer


def is_there(remote: Any, *, within: float) -> bool:
    """Whether the result of a scheduled function comes within some seconds."""
    return bool(remote._status_available_event.wait(within))
