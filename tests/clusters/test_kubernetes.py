import re

import pytest

from autostrategy.clusters import kubernetes
from autostrategy.errors import ProbeError
from autostrategy.facts import Launch

INDEXED = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1", "AUTOSTRATEGY_WORKERS": "2"}
SERVICE = {"AUTOSTRATEGY_SERVICE": "train"}
JOBSET = {
    "JOB_COMPLETION_INDEX": "0",
    "HOSTNAME": "js-workers-1-0",
    "AUTOSTRATEGY_WORKERS": "4",
    "AUTOSTRATEGY_PODS_PER_JOB": "2",
    "AUTOSTRATEGY_SERVICE": "js",
}
STATEFUL = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "AUTOSTRATEGY_WORKERS": "2", **SERVICE}


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "trainer-3"},
        {"AUTOSTRATEGY_WORKERS": "4", "HOSTNAME": "train-1"},
        INDEXED | {"AUTOSTRATEGY_WORKERS": "1"},
        {"JOB_COMPLETION_INDEX": "1", "TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"},
    ],
)
def test_what_is_alone_or_another_modules_is_no_cluster(env):
    assert kubernetes.from_env(env) is None
    assert kubernetes.notes(env) == ()


def test_without_a_service_the_pods_are_a_launch_with_a_way_out():
    launch = kubernetes.from_env(INDEXED)

    assert launch == Launch(source="Kubernetes", rank=1, world_size=2)
    assert "AUTOSTRATEGY_SERVICE is not set" in kubernetes.notes(INDEXED)[0]
    assert kubernetes.notes(INDEXED | SERVICE) == ()


def test_the_name_may_come_from_the_system_and_with_its_domain():
    env = {name: value for name, value in (INDEXED | SERVICE).items() if name != "HOSTNAME"}

    cluster = kubernetes.from_env(env, "train-1.train.default.svc.cluster.local")

    assert cluster.workers == ("train-0.train:2222", "train-1.train:2222")


def test_the_port_can_be_given():
    cluster = kubernetes.from_env(INDEXED | SERVICE | {"AUTOSTRATEGY_PORT": "9"})

    assert cluster.workers[0] == "train-0.train:9"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (INDEXED | {"AUTOSTRATEGY_WORKERS": ""}, "{name: AUTOSTRATEGY_WORKERS, value: '4'}"),
        (INDEXED | {"AUTOSTRATEGY_WORKERS": "x"}, "AUTOSTRATEGY_WORKERS must be a whole number"),
        (
            INDEXED | {"AUTOSTRATEGY_WORKERS": "65537"},
            "AUTOSTRATEGY_WORKERS must be from 1 to 65536. Received: 65537",
        ),
        (
            INDEXED | {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2"},
            "The number of a pod must be below AUTOSTRATEGY_WORKERS, which is 2. Received: 2, in",
        ),
        (INDEXED | {"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX must be a whole number"),
        (
            INDEXED | SERVICE | {"HOSTNAME": "node-7"},
            "HOSTNAME must be the pod's own name, which ends in its number (in a JobSet, in those "
            "of its Job and of the pod). Received: 'node-7' with JOB_COMPLETION_INDEX='1'.",
        ),
        (
            INDEXED | {"AUTOSTRATEGY_SERVICE": "a b"},
            "HOSTNAME.AUTOSTRATEGY_SERVICE must name a host by letters, digits, '.', '-' and '_', "
            "or by its address. Received: 'train-1.a b'",
        ),
        (INDEXED | SERVICE | {"HOSTNAME": "a b-1"}, "Received: 'a b-1.train'"),
        (INDEXED | {"AUTOSTRATEGY_SERVICE": "fd00::1"}, "Received: 'train-1.fd00::1'"),
        (STATEFUL | {"HOSTNAME": "notebook-5d9c7b6f4-x2x9k"}, "HOSTNAME must be the pod's own"),
        (STATEFUL | {"HOSTNAME": "trainer-٣"}, "HOSTNAME must be the pod's own name"),
        (
            JOBSET | {"AUTOSTRATEGY_WORKERS": "5"},
            "AUTOSTRATEGY_WORKERS must be a multiple of AUTOSTRATEGY_PODS_PER_JOB, which is 2. "
            "Received: 5",
        ),
        (JOBSET | {"AUTOSTRATEGY_PODS_PER_JOB": "0"}, "AUTOSTRATEGY_PODS_PER_JOB must be from 1"),
        (JOBSET | {"HOSTNAME": "js-workers-1-2"}, "with JOB_COMPLETION_INDEX='0', AUTOSTRATEGY_P"),
        (JOBSET | {"HOSTNAME": "train-1"}, "HOSTNAME must be the pod's own name"),
    ],
)
def test_pods_that_are_not_told_enough_are_refused_with_what_to_write(env, message):
    with pytest.raises(ProbeError, match=re.escape(message)):
        kubernetes.from_env(env)
