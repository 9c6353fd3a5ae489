"""XLA on several replicas: a step in two compiled parts, with the exchange between them.

XLA cannot compile a whole step of one replica, since gradients cross replicas
in the middle of it. So Keras's own step is cut where its optimizer is asked
to apply gradients, which is the last thing that it does with them:

    forward, backward, metrics     compiled
    gradients cross replicas       as ever
    the optimizer's update         compiled

Only Keras's own steps are cut: one of the user's may do more after `apply`.
What crosses replicas earlier (synchronised statistics, a loss over the whole
batch, the divisor of a masked mean) keeps a step from being compiled; it then
runs as it would without XLA, with the same numbers, and a warning says why.

A TPU compiles the whole step, exchange and all, so nothing is cut there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from autostrategy import device_selection, tensorflow_internals
from autostrategy.errors import TrainingError
from autostrategy.planner import Plan, StrategyKind
from autostrategy.training import keras_internals
from autostrategy.training import share as shares
from autostrategy.training.layouts import Runner

# With one replica there is nothing to cut, and their variables cannot be written to in a function.
_WITHOUT_XLA_ALONE = (StrategyKind.MIRRORED, StrategyKind.CENTRAL_STORAGE)

_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


class CompiledSteps:
    """Runs steps of a replica compiled, and notes why when it cannot.

    Args:
        plan: of the training; on CPUs that rehearse a TPU, every step is compiled
            that can be, and what a TPU could not run is refused.
    """

    def __init__(self, plan: Plan) -> None:
        self._tpu = plan.kind is StrategyKind.TPU
        self._strict = self._tpu and device_selection.are_cpus(plan.devices)
        self._several = plan.replicas > 1
        self._kind = plan.kind
        self._reason: str | None = None

    def runner(self, model: keras.Model) -> Runner | None:
        """What runs the model's steps: this, or nothing where they are not to be compiled.

        As in Keras, jit_compile="auto" means no XLA where there are several replicas.
        """
        wanted = self._strict if self._tpu else keras_internals.asks_for_xla(model)
        if wanted and not self._several and self._kind in _WITHOUT_XLA_ALONE:
            self._reason = f"{self._kind.value} with one replica; one_device compiles"
        return self if wanted and self._several and not model.run_eagerly else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to say when steps were to be compiled and were not."""
        if self._reason is None:
            return ()
        return (f"XLA (jit_compile=True) is not used: {self._reason}.",)

    def __call__(
        self, model: keras.Model, share: shares.Share, step: Callable[[], Any]
    ) -> dict[str, Any]:
        """One step of the replica that is being traced; its logs, where it is the user's."""
        self._reason = self._reason or reason_against(model, training=share.training)
        if self._reason:
            return step()
        local, share.local = share.local, {**share.local, **_copies(model, share)}
        share.compiled = True
        places: list[tuple[Any, list[Any], Any]] = []

        def first_part() -> list[Any]:
            share.taken = []
            step()
            places[:] = share.taken
            return [gradients for _, gradients, _ in places]

        function = tf.function(first_part, jit_compile=True, autograph=False)
        try:
            taken = function()
        except Exception as error:
            if not _crosses_replicas(error):
                raise
            self._reason = "values cross replicas inside the step, not only at its end"
        finally:
            copied, share.local, share.taken = share.local.keys() - local.keys(), local, None
        if self._reason or not copied.isdisjoint(share.assigned):  # the latter is refused there
            share.compiled, share.weighted = False, False
            return step()
        if self._strict:
            require_no_python(function.get_concrete_function().graph)
        for (optimizer, _, variables), gradients in zip(places, taken, strict=True):
            optimizer.apply(gradients, variables)
        return {}


def _copies(model: keras.Model, share: shares.Share) -> dict[int, tf.Variable]:
    """Copies, on the replica's device, of the variables that all replicas share.

    XLA reads no variable of another device, where central storage keeps them.
    """
    if not share.central:
        return {}
    scalars = [
        variable
        for optimizer in keras_internals.optimizers_of(model)
        for variable in optimizer._variables
        if variable._value.shape.rank == 0  # such as the scale of a loss
    ]
    return {
        id(variable): tensorflow_internals.temporary_variable(
            variable._value.read_value(), like=variable._value
        )
        for variable in [*model.variables, *scalars]
        if id(variable) not in share.local
    }


def whole(step: Callable[..., Any]) -> Callable[..., Any]:
    """A replica's step that crosses no replicas, such as one that predicts, compiled whole."""

    def compiled(*arguments: Any) -> Any:
        return tf.function(lambda: step(*arguments), jit_compile=True, autograph=False)()

    return compiled


def reason_against(model: keras.Model, *, training: bool) -> str | None:
    """Why a model's step cannot be compiled on several replicas, as far as its parts tell.

    The end of a sentence; None when it can.
    """
    name = "train_step" if training else "test_step"
    if keras_internals.has_own(model, name):
        return f"{type(model).__name__} has its own {name}"
    if keras_internals.returns_own_logs(model, name):
        return f"{type(model).__name__} makes its own logs"
    for layer in keras_internals.layers_of(model):
        if getattr(layer, "synchronized", False):
            return f"{layer.name} synchronises its statistics inside the step"
        if not layer.supports_jit:
            return f"{layer.name} does not support it"
    return None


def require_no_python(graph: Any) -> None:
    """Check that a traced step calls no Python and has no strings.

    Raises:
        TrainingError: naming the operation.
    """
    for operation in _operations(graph):
        if operation.type in _PYTHON:
            raise TrainingError(
                "The step must not call Python under TPU rules. Received: a tf.py_function or "
                f"tf.numpy_function, operation {operation.name!r}. Use TensorFlow's or Keras's "
                "operations, or call it in the dataset."
            )
        if any(output.dtype == tf.string for output in operation.outputs):
            raise TrainingError(
                "The step must have no strings under TPU rules. Received: operation "
                f"{operation.name!r} ({operation.type}). Look strings up in the dataset."
            )


def _operations(graph: Any) -> Iterator[Any]:
    """Operations of a graph and of every branch, loop and call in it."""
    waiting, seen = [graph], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield from each.get_operations()
        waiting.extend(inner.graph for inner in each._functions.values() if hasattr(inner, "graph"))


def _crosses_replicas(error: BaseException) -> bool:
    """Whether an error says so: ours, or TensorFlow's about a `merge_call` in a function."""
    return isinstance(error, shares.CannotCompile) or "`merge_call` called while" in str(error)


def can_compile(model: keras.Model, spec: Any) -> bool:
    """Whether XLA takes the training step of one replica; nothing runs.

    Args:
        model: built.
        spec: `tf.TypeSpec` structure of its batches.
    """

    leaves = tf.nest.flatten(spec)
    dense = [isinstance(leaf, tf.TensorSpec) for leaf in leaves]

    def step(*tensors: tf.Tensor) -> Any:
        given = iter(tensors)
        batch = [next(given) if each else None for each in dense]
        return model.train_step(tf.nest.pack_sequence_as(spec, batch))

    empty = (tf.OptionalSpec, tensorflow_internals.NoneTensorSpec)
    if not all(
        is_dense or isinstance(leaf, empty) for leaf, is_dense in zip(leaves, dense, strict=True)
    ):
        return False
    specs = [leaf for leaf, is_dense in zip(leaves, dense, strict=True) if is_dense]
    try:
        function = tf.function(step, jit_compile=True, autograph=False)
        function.experimental_get_compiler_ir(*specs)(stage="hlo")
    except Exception:  # whatever XLA, TensorFlow or a layer says against it
        return False
    return True
