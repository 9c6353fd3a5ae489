"""From each kind of plan to its strategy, or to a text that says what is in the way."""

import atexit
import dataclasses
import subprocess
import sys
import textwrap
import threading

import pytest
import tensorflow as tf

import autostrategy
from autostrategy import LaunchError, Plan, PlanError, StrategyKind, builder, rendezvous
from autostrategy.facts import Cluster, Job


@pytest.fixture(autouse=True)
def _devices(four_cpus):
    pass


def plan(kind, *devices, **fields):
    fields = {"replicas": len(devices), **fields}
    return Plan(kind=StrategyKind(kind), devices=devices, **fields)


def cluster(task_type="worker", task_index=0, **jobs):
    return Cluster(
        source="TF_CONFIG",
        jobs=tuple(Job(name=name, addresses=tuple(each)) for name, each in jobs.items()),
        task_type=task_type,
        task_index=task_index,
    )


def fresh(code):
    """`code` in an interpreter that has not used TensorFlow; its output."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_device_that_tensorflow_uses_anyway_needs_no_strategy():
    assert builder.build(plan("one_device", "CPU:0")) is tf.distribute.get_strategy()


def test_another_device_is_named_to_a_strategy():
    strategy = builder.build(plan("one_device", "CPU:2"))

    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
    with strategy.scope():
        assert tf.Variable(1.0).device.endswith("CPU:2")


def test_mirrored_has_the_devices_of_the_plan_and_is_made_once():
    strategy = builder.build(plan("mirrored", "CPU:1", "CPU:3"))

    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    workers = strategy.extended.worker_devices
    assert [device.rpartition("device:")[2] for device in workers] == ["CPU:1", "CPU:3"]
    assert builder.build(plan("mirrored", "CPU:1", "CPU:3")) is strategy
    assert builder.build(plan("mirrored", "CPU:1", "CPU:2")) is not strategy


def test_central_storage_keeps_variables_on_the_cpu():
    strategy = builder.build(plan("central_storage", "CPU:0", "CPU:1"))

    assert isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)
    assert strategy.num_replicas_in_sync == 2


@pytest.mark.parametrize("kind", ["one_device", "mirrored", "central_storage"])
def test_a_device_that_is_not_there_is_refused(kind):
    devices = ("GPU:7",) if kind == "one_device" else ("GPU:6", "GPU:7")

    with pytest.raises(PlanError, match=r"must see the planned devices \['GPU:.*pip install"):
        builder.build(plan(kind, *devices))


def test_virtual_cpus_after_the_fact_are_refused():
    wanted = tuple(f"CPU:{index}" for index in range(6))

    with pytest.raises(PlanError, match="6 virtual CPU devices must be made before TensorFlow"):
        builder.build(plan("mirrored", *wanted, virtual_cpus=6))


def test_virtual_cpus_are_made_in_a_fresh_process():
    out = fresh(
        """
        import autostrategy
        strategy = autostrategy.build(autostrategy.plan(autostrategy.probe(), devices=3))
        print(strategy.num_replicas_in_sync)
        """
    )

    assert out.split()[-1] == "3"


@pytest.mark.parametrize("kind", ["multi_worker_mirrored", "parameter_server"])
def test_a_plan_without_its_cluster_is_refused(kind):
    with pytest.raises(PlanError, match=rf"{kind} needs a cluster of .* Set TF_CONFIG"):
        builder.build(plan(kind, "CPU:0"))


def two_workers(index=0):
    workers = cluster(worker=["127.0.0.1:1", "127.0.0.1:2"], task_index=index)
    return plan("multi_worker_mirrored", "CPU:0", replicas=2, workers=2, cluster=workers)


def test_a_multi_worker_strategy_after_the_first_tensor_is_refused_with_the_order_to_use():
    tf.constant(1)

    with pytest.raises(PlanError, match="must be made before TensorFlow is used") as caught:
        builder.build(two_workers())

    assert "Call autostrategy.fit (or build) first" in str(caught.value)
    assert "autostrategy run" in str(caught.value)


MULTI_WORKER = """
    import json, os, socket, sys
    ports = []
    for _ in range(2):
        with socket.socket() as each:
            each.bind(("127.0.0.1", 0)); ports.append(each.getsockname()[1])
    workers = [f"127.0.0.1:{port}" for port in ports]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}}
    )
    import autostrategy
    plan = autostrategy.plan(autostrategy.probe())
"""


def test_a_worker_that_never_started_is_named_in_time():
    out = fresh(
        MULTI_WORKER
        + """
    try:
        autostrategy.build(plan, start_timeout=1)
    except autostrategy.LaunchError as error:
        print(workers[1], "|", error)
    """
    )

    missing, _, text = out.splitlines()[-1].partition(" | ")
    assert missing in text
    assert "must start within 1 s" in text


def test_a_rehearsal_of_a_tpu_is_the_mirrored_strategy_of_its_cpus(four_cpus):
    rehearsed = builder.build(plan("tpu", "CPU:0", "CPU:1", virtual_cpus=2))

    assert rehearsed is builder.build(plan("mirrored", "CPU:0", "CPU:1", virtual_cpus=2))
    assert builder.build(plan("tpu", "CPU:0")) is tf.distribute.get_strategy()


def test_a_tpu_is_connected_through_the_seam(monkeypatch):
    resolver, strategy = object(), object()
    monkeypatch.setattr(builder, "connect_tpu", lambda: resolver)
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda given: (strategy, given))

    assert builder.build(plan("tpu", "TPU:0", "TPU:1")) == (strategy, resolver)


def test_a_tpu_that_does_not_answer_is_said_in_time(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(builder, "connect_tpu", release.wait)

    with pytest.raises(LaunchError, match=r"The TPU must answer within .* no answer"):
        builder.build(plan("tpu", "TPU:0"), start_timeout=0.1)

    release.set()


def test_the_reason_why_a_tpu_fails_comes_out(monkeypatch):
    def fail():
        raise tf.errors.NotFoundError(None, None, "no TPU system")

    monkeypatch.setattr(builder, "connect_tpu", fail)

    with pytest.raises((tf.errors.NotFoundError, LaunchError), match="no TPU system"):
        builder.build(plan("tpu", "TPU:0"))


def test_a_parameter_server_strategy_gets_the_planned_cluster(monkeypatch):
    made, met = [], []
    monkeypatch.setattr(tf.distribute, "ParameterServerStrategy", made.append)
    monkeypatch.setattr(rendezvous, "meet", lambda cluster, **how: met.append(how))
    monkeypatch.setattr(atexit, "register", lambda act: None)
    monkeypatch.setenv("TF_CONFIG", "")
    jobs = {"chief": ["h0:1"], "worker": ["h1:1"], "ps": ["h2:1"]}
    wanted = plan("parameter_server", "CPU:0", cluster=cluster("chief", **jobs))

    with pytest.raises(PlanError, match="A parameter-server strategy must be made before Tensor"):
        builder.build(wanted)
    builder.build(wanted, start_timeout=7, late=True)

    (resolver,) = made
    assert resolver.cluster_spec().as_dict() == jobs
    assert (resolver.task_type, resolver.task_id) == ("chief", 0)
    assert met == [{"timeout": 7, "jobs": ("worker", "ps")}]


def test_only_plans_for_clusters_are_prepared(monkeypatch):
    built = []
    monkeypatch.setattr(builder, "build", built.append)

    builder.prepare(plan("mirrored", "CPU:0", "CPU:1"))
    assert built == []
    wanted = [two_workers(), plan("parameter_server", "CPU:0")]
    for each in wanted:
        builder.prepare(each)

    assert built == wanted


def test_gpus_that_the_plan_leaves_out_are_hidden(monkeypatch):
    gpus, hidden = ["gpu0", "gpu1", "gpu2"], []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *given: hidden.append(given))

    builder._limit_to_plan(dataclasses.replace(two_workers(), devices=("GPU:0", "GPU:2")))
    builder._limit_to_plan(dataclasses.replace(two_workers(), devices=("GPU:0", "GPU:1", "GPU:2")))

    assert hidden == [(["gpu0", "gpu2"], "GPU")]


def test_the_builder_is_public():
    assert autostrategy.build is builder.build
