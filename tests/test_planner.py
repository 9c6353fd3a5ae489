"""A plan is a function of facts and wishes, and says why not for every other kind."""

import dataclasses

import numpy as np
import pytest
from planning import BUSY, GIB, SERVERS, TWO_WORKERS, cluster, facts, gpu, reason, tpu

from autostrategy.errors import PlanError
from autostrategy.facts import DeviceProcess, TpuSlice
from autostrategy.planner import RULES, StrategyKind, Workload, plan


@pytest.mark.parametrize(
    ("found", "kind", "words"),
    [
        (facts(), "one_device", "CPU:0"),
        (facts(gpu(0)), "one_device", "GPU:0"),
        (facts(gpu(0), gpu(1)), "mirrored", "GPU:0, GPU:1"),
        (facts(gpu(0), gpu(1), platform="windows"), "mirrored", "not NCCL"),
        (
            facts(gpu(0, visible_index=None), gpu(1, visible_index=None), visible_devices=""),
            "one_device",
            "CUDA_VISIBLE_DEVICES='' hides 2",
        ),
        (
            facts(gpu(0, visible_index=None), gpu(1, visible_index=0), visible_devices="1"),
            "one_device",
            "CUDA_VISIBLE_DEVICES='1' hides 1",
        ),
        (facts(notes=("libcuda.so.1 was not found",)), "one_device", "libcuda.so.1"),
        (facts(gpu(0), cluster=cluster(**TWO_WORKERS)), "multi_worker_mirrored", "chief=True"),
        (
            facts(gpu(0), cluster=cluster(task_index=1, **TWO_WORKERS)),
            "multi_worker_mirrored",
            "worker 1, chief=False; worker h1:2222 h2:2222",
        ),
        (
            facts(cluster=cluster(task_type="chief", chief="m:1", worker="w:1")),
            "multi_worker_mirrored",
            "chief=True",
        ),
        (facts(gpu(0), gpu(1), cluster=cluster(worker="h1:1")), "mirrored", "found 1, which is"),
        (facts(cluster=cluster(worker="h1:1")), "one_device", "single machine"),
        (facts(cluster=cluster(task_type="chief", **SERVERS)), "parameter_server", "coordinator"),
        (facts(cluster=cluster(task_type="worker", **SERVERS)), "parameter_server", "is worker 0"),
        (facts(cluster=cluster(task_type="ps", **SERVERS)), "parameter_server", "is ps 0"),
        (
            facts(cluster=cluster(task_type="evaluator", chief="c:1", worker="w:1")),
            "one_device",
            "evaluator: not in cluster",
        ),
        (
            facts(gpu(0), gpu(1), cluster=cluster(task_type="evaluator", **SERVERS)),
            "mirrored",
            "evaluator: not in cluster",
        ),
        (
            facts(cluster=cluster(source="Slurm", task_index=1, worker="n01:1 n02:1")),
            "multi_worker_mirrored",
            "Slurm: this is worker 1, chief=False; worker n01:1 n02:1",
        ),
        (facts(), "one_device", "needs TPU devices; found none"),
        (facts(tpu(0), tpu(1)), "tpu", "a replica on each of TPU:0, TPU:1"),
        (facts(tpu(0), cluster=cluster(**TWO_WORKERS)), "tpu", "2 workers that step together"),
    ],
)
def test_facts_choose_a_kind_and_the_text_says_why(found, kind, words):
    chosen = plan(found)

    assert chosen.kind.value == kind
    assert words in " ".join(chosen.explain().split())
    assert str(chosen) == chosen.explain()


def test_each_kind_has_one_reason_and_the_chosen_is_first():
    chosen = plan(facts(gpu(0), gpu(1)))

    assert {each.kind for each in chosen.reasons} == set(StrategyKind)
    assert len(chosen.reasons) == len(StrategyKind) == len(RULES)
    assert [each.chosen for each in chosen.reasons] == [True] + [False] * 5
    assert chosen.reasons[0].kind is chosen.kind
    assert all(each.text for each in chosen.reasons)


def test_two_gpus_share_the_grown_batch():
    chosen = plan(facts(gpu(0), gpu(1)), batch_size=256, optimizer="SGD", learning_rate=0.1)

    assert chosen.devices == ("GPU:0", "GPU:1")
    assert (chosen.replicas, chosen.workers, chosen.virtual_cpus) == (2, 1, 0)
    assert chosen.global_batch == 512
    assert chosen.scaling.learning_rate == pytest.approx(0.2)


def test_replicas_of_a_cluster_count_over_all_workers():
    found = facts(gpu(0), gpu(1), cluster=cluster(worker="a:1 b:1 c:1"))

    chosen = plan(found, batch_size=8, batch_scaling="linear")

    assert (chosen.replicas, chosen.workers) == (6, 3)
    assert chosen.devices == ("GPU:0", "GPU:1")
    assert chosen.global_batch == 48
    assert any("assumed to use as many devices" in text for text in chosen.warnings)


def test_parameter_servers_scale_nothing_since_an_update_has_the_rows_of_one_worker():
    found = facts(gpu(0), cluster=cluster(task_type="chief", **SERVERS))

    chosen = plan(found, batch_size=32, learning_rate=0.1, batch_scaling="linear")

    assert (chosen.replicas, chosen.workers) == (2, 2)
    assert chosen.devices == ("CPU:0",)  # the coordinator does not compute
    assert (chosen.global_batch, chosen.scaling.learning_rate) == (32, 0.1)
    assert "each update uses the batch of one worker, so nothing is scaled" in chosen.warnings


def test_a_workload_and_wishes_say_the_same():
    found = facts(gpu(0), gpu(1))

    assert plan(found, Workload(batch_size=8)) == plan(found, batch_size=8)
    assert plan(found, Workload(batch_size=9), batch_size=8) == plan(found, batch_size=8)
    assert plan(found, strategy=StrategyKind.MIRRORED) == plan(found, strategy="mirrored")
    assert plan(found, devices=["gpu:0", "/device:GPU:1"]) == plan(found, devices=np.int64(2))


# Which devices


@pytest.mark.parametrize(
    ("devices", "kind", "names", "virtual_cpus"),
    [
        (1, "one_device", ("CPU:0",), 0),
        (3, "mirrored", ("CPU:0", "CPU:1", "CPU:2"), 3),
        (["CPU:0"], "one_device", ("CPU:0",), 0),
        (["CPU:0", "CPU:1"], "mirrored", ("CPU:0", "CPU:1"), 2),
        (["CPU:2", "CPU:0"], "mirrored", ("CPU:2", "CPU:0"), 3),
    ],
)
def test_devices_of_a_cpu_are_virtual(devices, kind, names, virtual_cpus):
    chosen = plan(facts(), devices=devices)

    assert (chosen.kind.value, chosen.devices) == (kind, names)
    assert chosen.virtual_cpus == virtual_cpus
    assert any("a rehearsal" in text for text in chosen.warnings) == (len(names) > 1)


def test_a_cpu_beside_gpus_is_used_when_it_is_named_and_slows_every_step():
    chosen = plan(facts(gpu(0)), devices=["GPU:0", "CPU:0"])

    assert (chosen.kind, chosen.devices) == (StrategyKind.MIRRORED, ("GPU:0", "CPU:0"))
    assert any("waits for the slowest" in text for text in chosen.warnings)


@pytest.mark.parametrize(
    ("devices", "used", "words"),
    [
        (
            (gpu(0), gpu(1, **BUSY), gpu(2)),
            "GPU:0 GPU:2",
            "GPU:1 is left out: other processes hold",
        ),
        ((gpu(0), gpu(1, **BUSY), gpu(2)), "GPU:0 GPU:2", "75% of its memory (process 4321)"),
        (
            (gpu(0), gpu(1, processes=(DeviceProcess(pid=7, memory_bytes=60 * GIB),))),
            "GPU:0",
            "GPU:1 is left out: other processes hold 75%",
        ),
        (
            (gpu(0, utilization_percent=97), gpu(1)),
            "GPU:1",
            "GPU:0 is left out: it is in use, 97 %",
        ),
        (
            (gpu(0, memory_bytes=2 * GIB), gpu(1), gpu(2)),
            "GPU:1 GPU:2",
            "GPU:0 is left out: its memory, 2 GiB, is less than half of the largest, 80 GiB",
        ),
        (
            (gpu(0, name="T4"), gpu(1), gpu(2)),
            "GPU:1 GPU:2",
            "GPU:0 is left out: T4 is another model than H100, and a step waits for the slowest",
        ),
        ((gpu(0, name="T4", memory_bytes=48 * GIB), gpu(1)), "GPU:1", "T4 is another model"),
        ((gpu(0, **BUSY), gpu(1, **BUSY | {"memory_free_bytes": GIB})), "GPU:0", "GPU:1 is left"),
        ((gpu(0, **BUSY),), "GPU:0", "GPU:0 is used although other processes hold 75%"),
    ],
)
def test_a_doubtful_gpu_is_left_out_by_name(devices, used, words):
    chosen = plan(facts(*devices))

    assert chosen.devices == tuple(used.split())
    assert words in " ".join(chosen.warnings)


def test_unified_memory_says_nothing_about_who_uses_the_gpu():
    chosen = plan(facts(gpu(0), gpu(1, unified_memory=True, memory_free_bytes=GIB)))

    assert chosen.devices == ("GPU:0", "GPU:1")


def test_unknown_memory_leaves_no_gpu_out():
    assert plan(facts(gpu(0, memory_bytes=None), gpu(1))).devices == ("GPU:0", "GPU:1")


@pytest.mark.parametrize("devices", [2, ["GPU:0", "GPU:1"]])
def test_a_wish_overrides_doubts_and_repeats_them(devices):
    chosen = plan(facts(gpu(0), gpu(1, **BUSY)), devices=devices)

    assert chosen.devices == ("GPU:0", "GPU:1")
    assert "GPU:1 is used although other processes hold 75%" in chosen.warnings[0]


def test_a_count_takes_the_gpus_without_doubts_first():
    assert plan(facts(gpu(0, **BUSY), gpu(1), gpu(2)), devices=2).devices == ("GPU:1", "GPU:2")


def test_one_device_takes_the_gpu_without_doubts():
    chosen = plan(facts(gpu(0, **BUSY), gpu(1), gpu(2)), strategy="one_device")

    assert chosen.devices == ("GPU:1",)
    assert reason(chosen, "one_device").startswith("asked for with strategy='one_device'")


def test_in_a_cluster_no_gpu_is_left_out_since_workers_must_choose_alike():
    chosen = plan(facts(gpu(0), gpu(1, **BUSY), cluster=cluster(**TWO_WORKERS)))

    assert chosen.devices == ("GPU:0", "GPU:1")
    assert "GPU:1 is used although" in chosen.warnings[0]


def test_gpus_are_named_by_their_visible_index():
    found = facts(
        gpu(0, visible_index=1), gpu(1, visible_index=None), gpu(2, visible_index=0), **{}
    )

    assert plan(found).devices == ("GPU:0", "GPU:1")


def test_of_several_mig_instances_a_process_uses_one():
    parent = gpu(0, mig="parent", visible_index=None)
    chosen = plan(facts(parent, gpu(1, mig="instance"), gpu(2, mig="instance")))

    assert (chosen.kind, chosen.devices) == (StrategyKind.ONE_DEVICE, ("GPU:1",))
    assert "2 MIG instances, and a process can use one" in reason(chosen, "mirrored")


def test_mig_instances_that_cuda_does_not_show_count_as_found():
    """CUDA shows a process the first instance and hides the others without being asked to."""
    others = (gpu(index, mig="instance", visible_index=None) for index in (2, 3))
    parent = gpu(0, mig="parent", visible_index=None)
    chosen = plan(facts(parent, gpu(1, mig="instance", visible_index=0), *others))

    assert chosen.devices == ("GPU:0",)
    assert reason(chosen, "mirrored") == (
        "needs whole GPUs; found 3 MIG instances, and a process can use one"
    )


def test_one_gpu_of_two_that_differ_computes_and_is_told_as_one_of_them():
    chosen = plan(facts(gpu(0), gpu(1, name="T4", memory_bytes=16 * GIB)))

    assert chosen.reasons[0].text == "GPU:0 computes, one of GPU:0, GPU:1"


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"task_type": "worker", "task_index": 1}, "this task is worker 1"),
        ({"task_type": "ps"}, "this task is ps 0"),
        ({"task_type": "chief"}, "this task is the coordinator (chief)"),
    ],
)
def test_a_task_of_a_parameter_server_cluster_is_told_by_its_index(task, said):
    assert plan(facts(cluster=cluster(**task, **SERVERS))).reasons[0].text.endswith(said)


def test_whole_gpus_are_used_before_mig_instances():
    assert plan(facts(gpu(0, mig="instance"), gpu(1), gpu(2))).devices == ("GPU:1", "GPU:2")


THREE_OF_WHICH_TWO_ARE_HERE = "h1:1 h2:1 h1:2"


@pytest.mark.parametrize(("index", "devices"), [(0, ("GPU:0", "GPU:1")), (2, ("GPU:2", "GPU:3"))])
def test_workers_on_one_host_share_out_its_gpus(index, devices):
    where = cluster(worker=THREE_OF_WHICH_TWO_ARE_HERE, task_index=index)

    chosen = plan(facts(*map(gpu, range(5)), cluster=where))

    assert chosen.devices == devices
    assert "the 2 workers on h1 share out its GPUs in order of their ranks" in chosen.warnings
    assert plan(facts(*map(gpu, range(5)), cluster=where), devices=1).devices == devices[:1]


def test_gpus_that_the_environment_gave_a_worker_are_its_own():
    where = cluster(worker=THREE_OF_WHICH_TWO_ARE_HERE)
    chosen = plan(facts(gpu(0), gpu(1), cluster=where, visible_devices="2,3"))

    assert chosen.devices == ("GPU:0", "GPU:1")
    assert any(text.startswith("2 workers are on h1: each must see") for text in chosen.warnings)


def test_more_workers_than_gpus_on_a_host_are_refused():
    found = facts(gpu(0), cluster=cluster(worker=THREE_OF_WHICH_TWO_ARE_HERE))

    with pytest.raises(PlanError, match=r"Each of the 2 workers .* Received: 1 \(GPU:0\)"):
        plan(found)
    assert not any(
        "workers" in text and "h1" in text for text in plan(found, devices=["CPU:0"]).warnings
    )


def test_a_model_that_cannot_fit_is_said():
    chosen = plan(facts(gpu(0), gpu(1)), parameter_bytes=60 * GIB)

    assert (
        "GPU:0 has 80.0 GiB, but variables and gradients alone need 120.0 GiB on each device"
        in chosen.warnings
    )


def test_a_tpu_chip_with_two_cores_is_two_devices():
    found = facts(dataclasses.replace(tpu(0), cores=2))

    assert plan(found).devices == ("TPU:0", "TPU:1")


@pytest.mark.parametrize(("accelerator_type", "cores"), [("v3-8", 8), ("v2-32", 32), (None, 8)])
def test_a_tpu_that_is_only_named_is_used_only_when_asked_for(accelerator_type, cores):
    found = facts(tpu=TpuSlice(address="grpc://10.0.0.2:8470", accelerator_type=accelerator_type))

    assert plan(found).kind is StrategyKind.ONE_DEVICE
    assert "grpc://10.0.0.2:8470 is not in this host" in reason(plan(found), "tpu")
    assert plan(found, strategy="tpu").replicas == cores


@pytest.mark.parametrize("found", [facts(), facts(gpu(0)), facts(tpu(0), tpu(1))])
def test_tpu_rules_are_rehearsed_on_cpus_that_are_named(found):
    made = plan(found, strategy="tpu", devices=["CPU:0", "CPU:1"])

    assert (made.kind.value, made.devices, made.virtual_cpus) == ("tpu", ("CPU:0", "CPU:1"), 2)
    assert (made.replicas, made.workers) == (2, 1)
    assert "a rehearsal of the TPU rules, XLA and static shapes" in reason(made, "tpu")
    assert any("no TPU computes" in text for text in made.warnings)


def test_a_part_of_a_tpu_slice_is_said():
    found = facts(tpu(0), tpu=TpuSlice(address="local", hosts=("a", "b"), host_index=0))

    assert any("TPU slice of 2 hosts" in text for text in plan(found).warnings)
