"""Every feature trains under every strategy with the numbers of one device.

The harness that makes docs/support.md (benchmarks/support_table.py) measures
the same cells for stock Keras and tf_keras too. Strategies of one process are
tested here in process, a test for each cell. Those of a cluster have a test
for each column, and so has the stand-in for a TPU, which is given other batches.
"""

from __future__ import annotations

import columns
import judge
import keras
import pytest
import systems
from features import FEATURES

pytestmark = [
    pytest.mark.support,
    pytest.mark.filterwarnings("default"),  # features warn of what they are about
]

APART = (*systems.CLUSTERS, "tpu_stand_in")
IN_PROCESS = [each for each in systems.STRATEGIES if each not in APART]
_plain = {}


def plain(name, job, folder):
    """What one device gives, once for this process."""
    if name not in _plain:
        _plain[name] = systems.run("keras", "plain", job, folder)
    return _plain[name]


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("strategy", IN_PROCESS)
def test_a_feature_trains_as_on_one_device(strategy, name, four_cpus, tmp_path):
    job = FEATURES[name].make(keras)
    expected = plain(name, FEATURES[name].make(keras), tmp_path / "plain")

    outcome = systems.run("autostrategy", strategy, job, tmp_path / strategy)

    replicas = systems.REPLICAS.get(strategy, 2)
    verdict = judge.judge(job, outcome, expected, replicas, synchronous=True)
    assert verdict.status == judge.RIGHT, verdict


@pytest.mark.parametrize("strategy", APART)
def test_every_feature_trains_in_processes_of_its_own(strategy, tmp_path):
    names, batches = list(FEATURES), columns.batches_of(strategy)
    expected = tmp_path / "expected"
    columns.measure_expected(["autostrategy"], names, expected, batches=batches)

    verdicts = columns.run_column(
        "autostrategy", strategy, names, expected=expected, batches=batches
    )

    fine = (judge.RIGHT, judge.REFUSED)
    wrong = {name: verdict for name, verdict, _ in verdicts if verdict.status not in fine}
    assert wrong == {}
