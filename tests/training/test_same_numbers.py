"""Weights, optimizer variables and history do not depend on the number of replicas.

Each case is trained for 20 steps on one device and on several replicas, with
shares that are uneven and a last batch that has fewer rows than replicas. One
device is also compared with `keras.Model.fit`.
"""

from __future__ import annotations

import pytest
from runs import assert_equal, counts, train, train_stock
from same_numbers import CASES, on_one_device


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.stock])
def test_one_device_trains_as_keras_does(name):
    case = CASES[name]

    stock = train_stock(case.model, case.data, **case.arguments)

    expected = on_one_device(name)
    assert_equal(expected, stock, rtol=case.rtol, atol=case.atol, slots=case.slots)


# Each count meets cases of every sort; tracing a replica is what takes the time.
ON = [
    (name, count)
    for number, name in enumerate(CASES)
    for count in counts((2, 2, 3, 2, 4)[number % 5])
]


@pytest.mark.parametrize(("name", "replicas"), ON)
def test_replicas_train_as_one_device_does(name, replicas):
    case = CASES[name]
    expected = on_one_device(name)

    ours = train(case.model, case.data, replicas, **case.arguments)

    assert_equal(ours, expected, rtol=case.rtol, atol=case.atol)
