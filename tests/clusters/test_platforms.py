"""SageMaker, Vertex AI, Databricks, Ray."""

import json
import re

import pytest

from autostrategy.clusters import databricks, ray_train, sagemaker, vertex
from autostrategy.errors import ProbeError

SAGEMAKER = {"SM_HOSTS": '["algo-2", "algo-1"]', "SM_CURRENT_HOST": "algo-2"}
GROUPS = {
    "SM_DISTRIBUTION_INSTANCE_GROUPS": '["gpu"]',
    "SM_INSTANCE_GROUPS_DICT": '{"cpu": {"hosts": ["algo-1"]}, "gpu": {"hosts": ["algo-2"]}}',
}
CONFIGURATION = "opt/ml/input/config/resourceconfig.json"
RESOURCES = {"current_host": "algo-2", "hosts": ["algo-1", "algo-2"], "network": "eth0"}


def with_file(root, text):
    (root / CONFIGURATION).parent.mkdir(parents=True)
    (root / CONFIGURATION).write_text(text)
    return root


def test_hosts_of_sagemaker_train_on_one_port_in_the_order_of_text(tmp_path):
    cluster = sagemaker.from_env(SAGEMAKER, root=tmp_path)

    assert cluster.workers == ("algo-1:2222", "algo-2:2222")
    assert cluster.rank == 1
    assert sagemaker.notes(SAGEMAKER, tmp_path) == ()


def test_elsewhere_there_is_nothing_to_say(tmp_path):
    assert sagemaker.from_env({"SM_HOSTS": ""}, root=tmp_path) is None
    assert sagemaker.notes({}, tmp_path) == ()


def test_a_container_without_the_toolkit_has_the_file(tmp_path):
    root = with_file(tmp_path, json.dumps(RESOURCES))

    assert sagemaker.from_env({}, root=root) == sagemaker.from_env(SAGEMAKER, root=root)


def test_a_host_of_a_group_that_does_not_train_is_alone_and_told_so():
    env = SAGEMAKER | GROUPS | {"SM_CURRENT_HOST": "algo-1"}

    assert sagemaker.from_env(env) is None
    assert 'SM_DISTRIBUTION_INSTANCE_GROUPS=["gpu"]' in sagemaker.notes(env)[0]
    assert sagemaker.from_env(SAGEMAKER | GROUPS).workers == ("algo-2:2222",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SM_HOSTS": "[" * 9999}, "SM_HOSTS must be JSON. Received: '[[["),
        ({"SM_HOSTS": "{}"}, "SM_HOSTS must be a list of names. Received: '{}'. Let SageMaker's"),
        ({"SM_HOSTS": '["a", 1]'}, "SM_HOSTS must be a list of names"),
        ({"SM_HOSTS": '["a", ""]'}, "SM_HOSTS must be a list of names"),
        ({"SM_HOSTS": "[]"}, "SM_HOSTS must name at least one and each once. Received: '[]'"),
        ({"SM_HOSTS": '["a", "a"]'}, "SM_HOSTS must name at least one and each once"),
        ({"SM_CURRENT_HOST": ""}, "SM_CURRENT_HOST must be one of the 2 hosts of the job"),
        (
            {
                "SM_HOSTS": '["a b"]',
                "SM_CURRENT_HOST": "a b",
                "SM_DISTRIBUTION_INSTANCE_GROUPS": "",
            },
            "SM_HOSTS must name a host by letters, digits, '.', '-' and '_', or by its address. "
            "Received: 'a b'",
        ),
        ({"SM_DISTRIBUTION_INSTANCE_GROUPS": "gpu"}, "SM_DISTRIBUTION_INSTANCE_GROUPS must be JS"),
        ({"SM_INSTANCE_GROUPS_DICT": "[1]"}, "SM_INSTANCE_GROUPS_DICT must describe the group 'g"),
        (
            {"SM_INSTANCE_GROUPS_DICT": '{"gpu": {}}'},
            "\"hosts\" of 'gpu' in SM_INSTANCE_GROUPS_DICT must be a list of names",
        ),
    ],
)
def test_hosts_of_sagemaker_that_contradict_themselves_are_refused(changes, message):
    env = SAGEMAKER | GROUPS | changes

    with pytest.raises(ProbeError, match=re.escape(message)):
        sagemaker.from_env(env)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", f"/{CONFIGURATION} must be JSON"),
        ("[]", f"/{CONFIGURATION} must have an object. Received: '[]'"),
        ("{}", f"\"hosts\" in /{CONFIGURATION} must be a list of names. Received: 'None'"),
        ('{"hosts": ["a"]}', f'"current_host" in /{CONFIGURATION} must be one of the 1 hosts'),
    ],
)
def test_a_file_of_sagemaker_that_is_wrong_is_refused(text, message, tmp_path):
    with pytest.raises(ProbeError, match=re.escape(message)):
        sagemaker.from_env({}, root=with_file(tmp_path, text))


def spec(cluster, task):
    return {"CLUSTER_SPEC": json.dumps({"cluster": cluster, "task": task})}


PRIMARY = {"type": "workerpool0", "index": 0, "trial": ""}


def test_pools_are_jobs_and_an_evaluator_is_outside():
    env = spec(
        {"workerpool0": ["c:1"], "workerpool1": ["w:1"], "workerpool3": ["e:1"]},
        {"type": "workerpool3", "index": 0},
    )

    cluster = vertex.from_env(env)

    assert [job.name for job in cluster.jobs] == ["chief", "worker"]
    assert (cluster.source, cluster.task_type) == ("Vertex AI", "evaluator")
    assert vertex.notes(env) == ()


def test_the_second_pool_may_be_a_reduction_server_and_is_noted():
    env = spec({"workerpool0": ["c:1"], "workerpool1": ["w:1"], "workerpool2": ["p:1"]}, PRIMARY)

    assert vertex.from_env(env).addresses("ps") == ("p:1",)
    assert "Reduction Server" in vertex.notes(env)[0]


@pytest.mark.parametrize("text", ["", '{"worker": ["h:1"], "ps": ["h:2"]}', "anything"])
def test_a_variable_of_this_name_from_elsewhere_is_left_alone(text):
    assert vertex.from_env({"CLUSTER_SPEC": text}) is None


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"CLUSTER_SPEC": "{'workerpool0'"}, "it must be JSON"),
        ({"CLUSTER_SPEC": '["workerpool0"]'}, "it must be a JSON object"),
        (spec({"workerpool9": ["c:1"]}, PRIMARY), "must be one of workerpool0, .*'workerpool9'"),
        (spec({"workerpool0": ["c:1"]}, {}), "must be one of workerpool0, .*Received: 'None'"),
        (spec({"workerpool0": ["c"]}, PRIMARY), "TF_CONFIG must have host:port .*Add a port"),
    ],
)
def test_a_cluster_spec_that_is_no_cluster_is_refused(env, message):
    with pytest.raises(ProbeError, match=f"CLUSTER_SPEC must describe a cluster that .*{message}"):
        vertex.from_env(env)


@pytest.mark.parametrize("module", [databricks, ray_train])
def test_a_platform_without_its_variable_has_nothing_to_say(module):
    assert module.from_env({}) is None
    assert module.notes({}) == ()
