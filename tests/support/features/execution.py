"""Precision, and how steps are executed."""

from __future__ import annotations

from typing import Any

import numpy as np
from flavours import float64, policy
from jobs import Feature, Job
from parts import X, Y, dense, in_order, net, rows, sequential, slow


def precise(name: str, rtol: float, atol: float) -> Any:
    """Under a mixed policy; rows are summed in another order, in few digits."""

    def make(k: Any) -> Job:
        def layers() -> list[Any]:
            return [
                k.Input((3,)),
                dense(k, 4, 1, "tanh"),
                dense(k, 1, 2, dtype="float32"),
            ]

        compiled = lambda: {"optimizer": slow(k), "loss": "mse"}  # noqa: E731
        return Job(
            sequential(k, layers, compiled),
            rows(X, Y),
            around=lambda: policy(k, name),
            rtol=rtol,
            atol=atol,
        )

    return make


def double(k: Any) -> Job:
    x, y = X.astype("float64"), Y.astype("float64")
    return Job(net(k), rows(x, y), around=lambda: float64(k), rtol=1e-12, atol=1e-13)


def executed(arguments: dict[str, Any]) -> Any:
    """With these arguments of `compile`."""

    def make(k: Any) -> Job:
        model = net(k, lambda: {"metrics": ["mae"], **arguments})
        return Job(model, rows(X, Y))

    return make


def several_steps_arrays(k: Any) -> Job:
    model = net(k, lambda: {"metrics": ["mae"], "steps_per_execution": 4})
    y = np.concatenate([Y, Y])
    return Job(model, lambda: (np.concatenate([X, X]), y), in_order(epochs=3))


EXECUTION = (
    Feature("mixed_float16", precise("mixed_float16", 2e-3, 2e-3)),
    Feature("mixed_bfloat16", precise("mixed_bfloat16", 2e-2, 1e-2)),
    Feature("float64", double),
    Feature("jit_compile", executed({"jit_compile": True})),
    Feature("jit_compile off", executed({"jit_compile": False})),
    Feature("steps_per_execution, with a remainder", executed({"steps_per_execution": 3})),
    Feature("steps_per_execution, arrays", several_steps_arrays),
    Feature(
        "run_eagerly",
        executed({"run_eagerly": True}),
        refused_on_tpu="must not run as Python under TPU rules",
    ),
)
