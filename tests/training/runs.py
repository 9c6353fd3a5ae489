"""Train the same case on several replica counts and compare everything that came out."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import autostrategy

# 22 rows in batches of 7: no count of replicas divides them, and the last batch
# has fewer rows than any count has replicas. 5 epochs are 20 steps.
ROWS, BATCH, EPOCHS = 22, 7, 5
# Set it to try every case on 2, 3 and 4 replicas, which takes three times as long.
ALL = os.environ.get("AUTOSTRATEGY_TEST_ALL_REPLICAS")


def counts(*usual):
    """The replica counts of a test."""
    return [2, 3, 4] if ALL else list(usual)


def cpus(count):
    return [f"CPU:{index}" for index in range(count)]


def fit(model, *data, replicas=1, **arguments):
    """`autostrategy.fit` on virtual CPUs, with the user's numbers kept."""
    arguments = {"batch_scaling": "off", "verbose": 0, **arguments}
    return autostrategy.fit(model, *data, devices=cpus(replicas), **arguments)


@dataclass
class Trained:
    """What a run leaves behind, as plain numbers."""

    weights: list[np.ndarray]
    optimizer: list[np.ndarray]
    history: dict[str, list[float]]
    model: Any = field(repr=False)
    result: Any = field(repr=False, default=None)


def trained(model, history, result=None) -> Trained:
    optimizers = {
        id(item): item
        for item in [model.optimizer, *vars(model).values()]
        if isinstance(item, keras.optimizers.Optimizer)
    }
    return Trained(
        weights=model.get_weights(),
        optimizer=[
            keras.ops.convert_to_numpy(variable)
            for optimizer in optimizers.values()
            for variable in optimizer.variables
        ],
        history=history.history,
        model=model,
        result=result,
    )


def _made(arguments):
    return {
        name: value() if name == "validation_data" and callable(value) else value
        for name, value in arguments.items()
    }


def train(model_fn, data, replicas, **arguments) -> Trained:
    """Through autostrategy; `data` is a function that makes the positional arguments.

    `validation_data` may be a function too.
    """
    keras.utils.clear_session(free_memory=False)  # names count from the start again
    keras.utils.set_random_seed(0)  # whatever ran before in this process
    arguments = {"epochs": EPOCHS, **_made(arguments)}
    result = fit(model_fn, *data(), replicas=replicas, **arguments)
    return trained(result.model, result, result)


def train_stock(model_fn, data, **arguments) -> Trained:
    """Through `keras.Model.fit`, on one device."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    model = model_fn()
    history = model.fit(
        *data(), **{"epochs": EPOCHS, "verbose": 0, "shuffle": False, **_made(arguments)}
    )
    return trained(model, history)


def assert_equal(ours: Trained, expected: Trained, *, rtol=1e-5, atol=1e-6, slots=True):
    """Same weights, optimizer variables, and history."""
    assert ours.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        np.testing.assert_allclose(
            ours.history[name], values, rtol=rtol, atol=atol, err_msg=f"history[{name!r}]"
        )
    for part in ("weights", "optimizer") if slots else ("weights",):
        pairs = zip(getattr(ours, part), getattr(expected, part), strict=True)
        for index, (got, wanted) in enumerate(pairs):
            np.testing.assert_allclose(
                np.asarray(got, "float64"),
                np.asarray(wanted, "float64"),
                rtol=rtol,
                atol=atol,
                err_msg=f"{part}[{index}]",
            )


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def dataset(*arrays, batch=BATCH):
    """A dataset in the given order, never shuffled."""
    structure = arrays if len(arrays) > 1 else arrays[0]
    return tf.data.Dataset.from_tensor_slices(structure).batch(batch)


def kernel(seed):
    return keras.initializers.RandomNormal(stddev=0.5, seed=seed)


def dense(units, seed, *arguments, **keywords):
    return keras.layers.Dense(units, *arguments, kernel_initializer=kernel(seed), **keywords)
