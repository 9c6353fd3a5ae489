"""A wish is met, or refused with the way out."""

import pytest
from planning import BUSY, SERVERS, TWO_WORKERS, cluster, facts, gpu, tpu

from autostrategy.errors import PlanError
from autostrategy.planner import plan


@pytest.mark.parametrize(
    ("found", "wishes", "kind"),
    [
        (facts(gpu(0), gpu(1)), {"strategy": "central_storage"}, "central_storage"),
        (facts(), {"strategy": "central_storage", "devices": 2}, "central_storage"),
        (facts(gpu(0)), {"strategy": "mirrored", "devices": 1}, "mirrored"),
        (facts(gpu(0), gpu(1)), {"devices": ["GPU:1"]}, "one_device"),
        (facts(gpu(0), gpu(1)), {"devices": ["CPU:0"]}, "one_device"),
        (facts(tpu(0), tpu(1)), {"devices": ["CPU:0"]}, "one_device"),
        (facts(tpu(0), tpu(1)), {"devices": 2}, "tpu"),
        (
            facts(gpu(0), cluster=cluster(**TWO_WORKERS)),
            {"devices": ["CPU:0"]},
            "multi_worker_mirrored",
        ),
    ],
)
def test_a_wish_that_can_be_met_is_met(found, wishes, kind):
    assert plan(found, **wishes).kind.value == kind


@pytest.mark.parametrize(
    ("found", "wishes", "message"),
    [
        (facts(), {"strategy": "fast"}, r"must be one of 'auto', 'one_device'.*'fast'.*Use 'auto'"),
        (
            facts(),
            {"strategy": "multi_worker_mirrored"},
            r"needs a cluster of 2 or more workers; found no cluster\. Start each .*TF_CONFIG",
        ),
        (
            facts(cluster=cluster(worker="h:1")),
            {"strategy": "multi_worker_mirrored"},
            r"found 1, which is a single machine",
        ),
        (
            facts(cluster=cluster(task_type="chief", **SERVERS)),
            {"strategy": "multi_worker_mirrored"},
            r"the ps tasks are for workers that do not",
        ),
        (
            facts(cluster=cluster(**TWO_WORKERS)),
            {"strategy": "multi_worker_mirrored", "devices": 2},
            r"uses only GPUs or only CPU:0 in each worker; asked for CPU:0, CPU:1",
        ),
        (
            facts(tpu(0), cluster=cluster(**TWO_WORKERS)),
            {"strategy": "multi_worker_mirrored"},
            r"the TPU hosts of a pod are one TPUStrategy",
        ),
        (
            facts(cluster=cluster(**TWO_WORKERS)),
            {"strategy": "parameter_server"},
            r"needs a cluster with chief, worker and ps tasks; found worker=2\. .*TF_CONFIG",
        ),
        (
            facts(cluster=cluster(task_type="evaluator", **SERVERS)),
            {"strategy": "parameter_server"},
            r"this one is the evaluator",
        ),
        (
            facts(cluster=cluster(task_type="evaluator", **TWO_WORKERS)),
            {"strategy": "multi_worker_mirrored"},
            r"this one is the evaluator",
        ),
        (facts(), {"strategy": "tpu"}, r"needs TPU devices; found none\. Start the program on"),
        (
            facts(cluster=cluster(**TWO_WORKERS)),
            {"strategy": "tpu", "devices": ["CPU:0", "CPU:1"]},
            r"would train a copy of its own in each task of the cluster",
        ),
        (
            facts(tpu(0), cluster=cluster(task_type="chief", **SERVERS)),
            {"strategy": "tpu"},
            r"the ps tasks are for",
        ),
        (
            facts(tpu(0), tpu(1)),
            {"strategy": "tpu", "devices": 1},
            r"uses all 2 TPU devices; asked for TPU:0",
        ),
        (facts(tpu(0), tpu(1)), {"strategy": "mirrored"}, r"cannot compute on TPU devices"),
        (
            facts(),
            {"strategy": "mirrored"},
            r"needs 2 or more GPUs on one host; found 0\. Rehearse .*devices=\['CPU:0', 'CPU:1'\]",
        ),
        (
            facts(gpu(0), gpu(1, **BUSY)),
            {"strategy": "mirrored"},
            r"needs 2 or more devices; uses GPU:0 of GPU:0, GPU:1",
        ),
        *(
            (
                facts(cluster=cluster(**TWO_WORKERS)),
                {"strategy": strategy},
                r"would train a copy of its own in each task of the cluster \(worker=2\)",
            )
            for strategy in ("one_device", "mirrored", "central_storage")
        ),
        (
            facts(gpu(0), gpu(1)),
            {"strategy": "one_device", "devices": 2},
            r"would use only one of GPU:0, GPU:1\. Name one GPU or CPU",
        ),
        (
            facts(cluster=cluster(worker="w:1", ps="p:1")),
            {},
            r"A strategy must fit the facts and the wishes\. Received what none fits: "
            r"parameter_server needs .*found worker=1 ps=1.*Change devices=",
        ),
        (
            facts(gpu(0), gpu(1)),
            {"devices": 3},
            r"at most the 2 .*\(GPU:0, GPU:1\)\. Received: 3\. Use devices=2, or reh.*'CPU:2'",
        ),
        (
            facts(gpu(0)),
            {"devices": ["GPU:5"]},
            r"must name devices of this host: GPU:0, CPU:0\. Received: 'GPU:5'\. Name some",
        ),
        (facts(), {"devices": ["fpga"]}, r"Received: 'fpga'"),
        (
            facts(gpu(0)),
            {"devices": ["GPU:0", "gpu:0"]},
            r"must name each device once\. Received: GPU:0 twice\. Use devices=\['GPU:0'\]",
        ),
        (facts(), {"devices": 0}, r"devices must be a whole number, at least 1\. Received: 0"),
        (facts(), {"devices": True}, r"Received: True"),
        *(
            (facts(), {"devices": devices}, r"must be a count or a list of names\. .*Use for ex")
            for devices in ("GPU:0", [], [0, 1], 2.0)
        ),
        *(
            (
                facts(),
                {"batch_size": batch},
                r"batch_size must be a whole number, at least 1.*Leave",
            )
            for batch in (0, -1, True, 32.0, "auto", float("nan"))
        ),
        (facts(), {"warmup_steps": -1}, r"warmup_steps must be a whole number, at least 0"),
        *(
            (facts(), {"learning_rate": rate}, r"learning_rate must be a finite number.*Leave it")
            for rate in (-0.1, float("nan"), float("inf"), True, "fast")
        ),
        (facts(), {"batch_size": 8, "batch_scaling": "half"}, r"batch_scaling must be one of"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_with_the_way_out(found, wishes, message):
    with pytest.raises(PlanError, match=message):
        plan(found, **wishes)
