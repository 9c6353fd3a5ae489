"""Global batch, learning rate and warm-up are arithmetic on what the user wrote."""

import math

import pytest

from autostrategy.errors import PlanError
from autostrategy.scaling import (
    Scaling,
    block,
    learning_rate_at,
    learning_rate_factor_at,
    scale,
)


@pytest.mark.parametrize(
    ("rule", "global_batch_size", "learning_rate"),
    [("off", 32, 0.01), ("linear", 128, 0.04), ("sqrt", 128, 0.02)],
)
def test_a_rule_keeps_the_batch_of_a_replica_and_moves_the_rate(
    rule, global_batch_size, learning_rate
):
    scaling = scale(replicas=4, batch_size=32, batch_scaling=rule, learning_rate=0.01)

    assert scaling.rule == rule
    assert scaling.global_batch_size == global_batch_size
    assert scaling.per_replica_batch_size == global_batch_size // 4
    assert scaling.learning_rate == pytest.approx(learning_rate)
    assert scaling.base_learning_rate == 0.01


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        ("SGD", "linear"),
        ("sgd", "linear"),
        *((name, "sqrt") for name in ("Adam", "AdamW", "Adamax", "Nadam", "RMSprop")),
        *((name, "sqrt") for name in ("Adagrad", "Adadelta", "Adafactor", "Ftrl")),
        *((name, "sqrt") for name in ("Lamb", "Lion", "Muon", "MyOwnOptimizer")),
        (None, "sqrt"),
    ],
)
def test_auto_is_linear_for_sgd_and_square_root_for_everything_else(optimizer, rule):
    scaling = scale(replicas=4, batch_size=32, optimizer=optimizer)

    assert scaling.rule == rule
    assert any("rule, since" in note for note in scaling.notes)


@pytest.mark.parametrize("rule", ["auto", "linear", "sqrt", "off"])
def test_one_replica_changes_nothing(rule):
    scaling = scale(replicas=1, batch_size=32, batch_scaling=rule, learning_rate=0.1, rows=640)

    assert scaling == Scaling(
        global_batch_size=32,
        per_replica_batch_size=32,
        learning_rate=0.1,
        base_learning_rate=0.1,
        steps_per_epoch=20,
    )


@pytest.mark.parametrize("rule", ["auto", "off"])
def test_without_a_batch_size_the_batches_of_the_data_are_kept(rule):
    scaling = scale(replicas=4, batch_scaling=rule, learning_rate=0.01, steps_per_epoch=7)

    assert scaling.global_batch_size is None
    assert scaling.per_replica_batch_size is None
    assert scaling.learning_rate == 0.01
    assert scaling.steps_per_epoch == 7
    assert "batches of the data are kept" in scaling.notes[0]
    assert "as the data comes" in block(scaling, replicas=4)


def test_an_unknown_rule_is_refused_with_the_valid_ones():
    with pytest.raises(PlanError, match=r"must be one of 'auto', 'linear'.*Received: 'cubic'"):
        scale(replicas=2, batch_size=8, batch_scaling="cubic")


@pytest.mark.parametrize("rule", ["linear", "sqrt"])
def test_a_named_rule_needs_a_batch(rule):
    with pytest.raises(PlanError, match=r"must know the batch .*Pass batch_size="):
        scale(replicas=2, batch_scaling=rule)


def test_the_batch_grows_no_further_than_the_rows_of_an_epoch():
    """100 rows hold three batches of 32, so 8 replicas share 96 rows and the rate triples."""
    scaling = scale(replicas=8, batch_size=32, batch_scaling="linear", learning_rate=0.1, rows=100)

    assert scaling.global_batch_size == 96
    assert scaling.per_replica_batch_size == 12
    assert scaling.learning_rate == pytest.approx(0.3)
    assert scaling.steps_per_epoch == 2
    assert "grows 3 times instead of 8" in scaling.notes[0]


def test_fewer_rows_than_one_batch_leave_batch_and_rate_as_written():
    scaling = scale(replicas=4, batch_size=32, batch_scaling="linear", learning_rate=0.1, rows=5)

    assert scaling.global_batch_size == 32
    assert scaling.learning_rate == 0.1
    assert scaling.warmup_steps == 0


def test_an_uneven_batch_is_a_note_and_no_error():
    scaling = scale(replicas=8, batch_size=250, batch_scaling="off")

    assert scaling.per_replica_batch_size == 32
    assert scaling.notes == (
        "the 250 rows of a step are no multiple of 8 replicas: "
        "2 get 32, the others 31; the result is the same",
    )
    assert "at most 32" in block(scaling, replicas=8)


@pytest.mark.parametrize(
    ("epochs", "warmup_steps"),
    [
        (None, 5 * 25),  # Goyal's five epochs
        (100, 5 * 25),
        (10, 25),  # a tenth of the run
        (1, 3),
    ],
)
def test_the_default_warmup_is_five_epochs_but_at_most_a_tenth_of_the_run(epochs, warmup_steps):
    scaling = scale(replicas=4, batch_size=32, steps_per_epoch=100, epochs=epochs)

    assert scaling.steps_per_epoch == 25
    assert scaling.warmup_steps == warmup_steps


@pytest.mark.parametrize("warmup_steps", [0, 10])
def test_a_given_warmup_wins(warmup_steps):
    scaling = scale(replicas=4, batch_size=32, steps_per_epoch=100, warmup_steps=warmup_steps)

    assert scaling.warmup_steps == warmup_steps


def test_no_warmup_without_the_length_of_an_epoch_is_said():
    scaling = scale(replicas=4, batch_size=32)

    assert scaling.warmup_steps == 0
    assert any("pass warmup_steps=" in note for note in scaling.notes)


def test_the_rate_rises_from_the_written_one_to_the_scaled_one_and_stays():
    scaling = scale(
        replicas=4, batch_size=32, batch_scaling="linear", learning_rate=0.01, warmup_steps=10
    )

    rates = [learning_rate_at(step, scaling) for step in range(16)]

    assert rates[0] == 0.01
    assert rates == sorted(rates)
    assert rates[5] == pytest.approx(0.025)
    assert set(rates[10:]) == {0.04}
    assert learning_rate_at(10**9, scaling) == scaling.learning_rate


def test_no_warmup_starts_at_the_scaled_rate():
    scaling = scale(
        replicas=4, batch_size=32, batch_scaling="sqrt", learning_rate=0.01, warmup_steps=0
    )

    assert learning_rate_at(0, scaling) == 0.02


def test_an_unknown_rate_has_a_factor_and_no_value():
    scaling = scale(replicas=9, batch_size=32, batch_scaling="sqrt", warmup_steps=4)

    assert scaling.learning_rate is None
    assert [learning_rate_factor_at(step, scaling) for step in (0, 2, 4)] == [1, 2, 3]
    with pytest.raises(PlanError, match=r"must know the base learning rate.*Plan with"):
        learning_rate_at(0, scaling)


def test_scaling_a_run_again_from_its_base_rate_changes_nothing():
    """A second fit scales what the user wrote, never what the first fit scaled."""
    wishes = {"replicas": 4, "batch_size": 32, "batch_scaling": "linear", "rows": 512}
    first = scale(learning_rate=0.01, **wishes)

    assert first == scale(learning_rate=first.base_learning_rate, **wishes)


def test_the_block_says_everything_that_was_done():
    scaling = scale(
        replicas=4,
        batch_size=32,
        learning_rate=0.01,
        optimizer="SGD",
        rows=512,
        epochs=20,
    )

    assert block(scaling, replicas=4) == (
        "global batch            128 rows over 4 replicas\n"
        "per replica             32\n"
        "learning rate           0.04 = 0.01 x 4 (linear)\n"
        "warm-up                 8 steps\n"
        "steps per epoch         4\n"
        "note                    linear rule, since SGD is SGD-like (arXiv:1706.02677)"
    )


@pytest.mark.parametrize(
    ("wishes", "line"),
    [
        ({"learning_rate": 0.1, "batch_scaling": "off"}, "learning rate           0.1, not scaled"),
        ({"batch_scaling": "off"}, "learning rate           the optimizer's own"),
        ({"batch_scaling": "linear"}, "learning rate           the optimizer's own x 2 (linear)"),
        ({"batch_scaling": "off"}, "global batch            16 rows over 2 replicas"),
    ],
)
def test_the_block_says_what_is_left_alone(wishes, line):
    assert line in block(scale(replicas=2, batch_size=16, **wishes), replicas=2).splitlines()


@pytest.mark.parametrize("replicas", range(1, 20))
@pytest.mark.parametrize("rows", [None, 0, 1, 31, 32, 500])
@pytest.mark.parametrize("rule", ["auto", "linear", "sqrt", "off"])
def test_shares_cover_the_batch_and_the_factor_follows_the_batch(replicas, rows, rule):
    scaling = scale(replicas=replicas, batch_size=32, batch_scaling=rule, rows=rows)

    growth = scaling.global_batch_size / 32
    assert 1 <= growth <= replicas
    assert scaling.per_replica_batch_size * replicas >= scaling.global_batch_size
    assert scaling.learning_rate_factor == pytest.approx(
        {"off": 1, "linear": growth, "sqrt": math.sqrt(growth)}[scaling.rule]
    )
