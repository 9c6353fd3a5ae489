"""Parts of training under parameter servers that need no servers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from runs import dense

from autostrategy.planner import Plan, StrategyKind
from autostrategy.scaling import Scaling
from autostrategy.training.drafts import Draft
from autostrategy.training.model_checks import warnings_about
from autostrategy.training.server_epochs import _evened

START = np.arange(8, dtype="float32").reshape(4, 2)


def rows():
    """Two changes to one row and one to another; made late, since tensors fix the devices."""
    values = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    return tf.IndexedSlices(values, tf.constant([2, 0, 2]), tf.constant([4, 2]))


def one_row():
    return tf.IndexedSlices(tf.constant([[1.0, 2.0]]), tf.constant([3]), tf.constant([4, 2]))


@pytest.mark.parametrize(
    "writes",
    [
        lambda slot: slot.assign_add(START),
        lambda slot: slot.assign_sub(START * 2),
        lambda slot: slot.assign(START + 5),
        lambda slot: slot.assign_add(START).assign(START - 1).assign_add(START),
        lambda slot: slot.scatter_add(rows()),
        lambda slot: slot.scatter_sub(rows()),
        lambda slot: slot.scatter_update(one_row()),
        lambda slot: slot.assign(tf.convert_to_tensor(slot) * 2 + slot[0]),
    ],
)
def test_a_draft_changes_as_a_variable_does(writes):
    variable = tf.Variable(START)
    draft = Draft(variable.read_value(), like=variable)

    writes(variable)
    writes(draft)

    np.testing.assert_array_equal(draft.read_value(), variable)
    np.testing.assert_array_equal(START + draft.change, variable)


def test_a_draft_that_is_only_read_changes_nothing():
    draft = Draft(tf.constant(START), like=tf.Variable(START))

    assert draft.change is None
    np.testing.assert_array_equal(tf.convert_to_tensor(draft), START)


@pytest.mark.parametrize(
    ("steps", "wanted", "workers", "sizes"),
    [
        (32, 256, 2, [32] * 8),
        (32, 80, 2, [20] * 4),
        (32, 81, 2, [21, 20, 20, 20]),
        (32, 5, 3, [2, 2, 1]),
        (32, 2, 3, [1, 1]),
        (1, 3, 2, [1, 1, 1]),
    ],
)
def test_loops_end_an_epoch_evenly(steps, wanted, workers, sizes):
    found = []
    while sum(found) < wanted:
        found.append(_evened(steps, sum(found), wanted, workers))

    assert found == sizes


def test_loops_that_grow_end_an_epoch_evenly_too():
    assert _evened(32, 10, 256, 2) == 31
    assert _evened(32, 256, 256, 2) == 32


@pytest.mark.parametrize(
    ("compiled", "words"),
    [
        ({"run_eagerly": True}, ["run_eagerly=True is not used"]),
        ({"jit_compile": True}, [r"XLA (jit_compile=True) is not used"]),
        ({}, []),
    ],
)
def test_what_parameter_servers_do_not_use_is_said(compiled, words):
    model = keras.Sequential([keras.Input((3,)), dense(1, 1)])
    model.compile("sgd", "mse", **compiled)
    plan = Plan(kind=StrategyKind.PARAMETER_SERVER, devices=(), replicas=1)

    told = warnings_about(model, Scaling(), plan)

    assert len(told) == len(words)
    assert all(word in each for word, each in zip(words, told, strict=True))
