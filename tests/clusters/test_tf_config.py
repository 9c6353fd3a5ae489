import json

import pytest

from autostrategy.clusters import tf_config
from autostrategy.errors import ProbeError

TWO = {"worker": ["h1:2222", "h2:2222"]}


def env(cluster, task=None, **others):
    config = {"cluster": cluster, **({"task": task} if task is not None else {}), **others}
    return {"TF_CONFIG": json.dumps(config)}


def worker(index=0):
    return {"type": "worker", "index": index}


def test_unset_is_no_cluster_and_no_note():
    assert tf_config.from_env({}) is None
    assert tf_config.notes({}) == ()


@pytest.mark.parametrize("text", ["", " \n", "{}", '{"cluster": {}}', '{"cluster": {"ps": []}}'])
def test_nothing_named_is_no_cluster(text):
    assert tf_config.from_env({"TF_CONFIG": text}) is None


@pytest.mark.parametrize("text", ["", "  "])
def test_a_set_but_empty_variable_is_noted(text):
    assert tf_config.notes({"TF_CONFIG": text}) == (
        "TF_CONFIG is set but empty; it is taken as unset.",
    )


def test_master_becomes_chief_in_cluster_and_task():
    cluster = tf_config.from_env(
        env({"master": ["m:1"], "worker": ["w:1"]}, {"type": "master", "index": 0})
    )

    assert cluster.task_type == "chief"
    assert cluster.workers == ("m:1", "w:1")
    assert cluster.is_chief


def test_jobs_come_in_rank_order_whatever_the_order_in_the_text():
    cluster = tf_config.from_env(env({"worker": ["w:1"], "chief": ["c:1"]}, worker()))

    assert [job.name for job in cluster.jobs] == ["chief", "worker"]
    assert cluster.rank == 1


def test_an_evaluator_sees_the_training_cluster_without_itself():
    cluster = tf_config.from_env(
        env({"worker": ["w:1"], "evaluator": ["e:1"]}, {"type": "evaluator", "index": 0})
    )

    assert [job.name for job in cluster.jobs] == ["worker"]
    assert (cluster.world_size, cluster.rank, cluster.is_chief) == (1, 0, True)


def test_parameter_servers_without_a_chief_are_noted():
    environment = env({"worker": ["w:1"], "ps": ["p:1"]}, worker())

    assert "no chief to coordinate" in tf_config.notes(environment)[0]


def test_tf_config_of_a_cluster_reads_back_as_that_cluster():
    cluster = tf_config.from_env(env({"chief": ["c:1"], **TWO}, worker(1)))

    assert tf_config.from_env({"TF_CONFIG": cluster.tf_config}) == cluster


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'cluster': {'worker': ['h:1']}}", r"be JSON \(.*double quotes: write it with json.dump"),
        ("{cluster:", r"be JSON \(.*It should look like"),
        ('{"cluster": {"worker": ["h:1", ], }}', "allows no trailing comma"),
        ('{"a": 1,\n}', "allows no trailing comma"),
        ("null", r"be a JSON object\. Received: 'null'\. It should look like"),
        ("[]", r"be a JSON object\. Received: '\[\]'"),
        ("7", "be a JSON object"),
        ('"{}"', "encoded twice"),
        ("\ufeff{}", "byte order mark"),
        ('{"cluster": []}', 'have an object as its "cluster"'),
        ('{"cluster": null}', r'have an object as its "cluster"\. Received: null'),
        ("[" * 100_000, "be JSON"),
    ],
)
def test_text_that_is_no_tf_config_is_refused(text, message):
    with pytest.raises(ProbeError, match=f"TF_CONFIG must .*{message}"):
        tf_config.from_env({"TF_CONFIG": text})


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"worker": "h:1,h:2"}, "list of addresses for the job 'worker'"),
        ({"worker": ["h:1"], "ps": None}, r"list of addresses for the job 'ps'\. Received: null"),
        ({"worker": [1]}, r"host:port with a port from 1 to 65535.*Received: 1"),
        ({"worker": ["h"]}, "Add a port that is free"),
        ({"worker": [":1"]}, "Add a port that is free"),
        ({"worker": ["h:"]}, "Give the task a port"),
        ({"worker": ["h:0"]}, "port from 1 to 65535"),
        ({"worker": ["h:0000"]}, "port from 1 to 65535"),
        ({"worker": ["h:65536"]}, "port from 1 to 65535"),
        ({"worker": ["h:²"]}, "port from 1 to 65535"),
        ({"worker": ["grpc://h:1"]}, "without scheme, path or blank"),
        ({"worker": ["h:1 "]}, "without scheme, path or blank"),
        ({"worker": ["::1:2"]}, "IPv6 address in brackets"),
        ({"worker": ["h:1", "h:1"]}, r"one is there twice\. Received: 'h:1'"),
        ({"worker": ["h:1"], "ps": ["h:1"]}, "one is there twice"),
        ({"worker": ["localhost:1", "h:2"]}, "loopback for all tasks or for none"),
        ({"worker": ["h:2", "[::1]:1"]}, "loopback for all tasks or for none"),
        ({"worker": {"1": "h:1"}}, "from 0 without a gap.*enableDynamicWorker"),
        ({"WORKER": ["h:1"]}, "have as task type one of .*Write 'worker'"),
        ({"Master": ["h:1"]}, "Write 'chief'"),
        ({"boss": ["h:1"]}, "have as task type one of .*Rename it"),
        ({"worker": ["h:1"], "chief": ["c:1", "c:2"]}, "have at most one chief"),
        ({"worker": ["h:1"], "evaluator": ["c:1", "c:2"]}, "have at most one evaluator"),
        ({"worker": ["h:1"], "chief": ["c:1"], "master": ["m:1"]}, "old name of 'chief'"),
    ],
)
def test_a_cluster_that_cannot_run_is_refused(cluster, message):
    with pytest.raises(ProbeError, match=f"TF_CONFIG must .*{message}"):
        tf_config.from_env(env(cluster, worker()))


def test_parameter_servers_without_a_worker_are_refused():
    environment = env({"chief": ["c:1"], "ps": ["p:1"]}, {"type": "chief", "index": 0})

    with pytest.raises(ProbeError, match=r"have at least one worker beside its parameter servers"):
        tf_config.from_env(environment)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (None, 'say by "task" which task this process is'),
        ({}, 'have a "task" with a "type"'),
        ([], 'have a "task" with a "type"'),
        ({"type": None, "index": 0}, 'have a "task" with a "type"'),
        ({"type": "boss", "index": 0}, r"have as task type one of chief, worker, ps, evaluator"),
        ({"type": "chief", "index": 0}, "among the jobs of its cluster.*Jobs listed: worker"),
        ({"type": "worker"}, "an integer from 0"),
        ({"type": "worker", "index": -1}, "an integer from 0"),
        ({"type": "worker", "index": 1.9}, "an integer from 0"),
        ({"type": "worker", "index": True}, "an integer from 0"),
        ({"type": "worker", "index": "one"}, "an integer from 0"),
        ({"type": "worker", "index": 2}, "a task index below the 2 tasks of the job 'worker'"),
    ],
)
def test_a_task_that_is_not_in_the_cluster_is_refused(task, message):
    with pytest.raises(ProbeError, match=f"TF_CONFIG must .*{message}"):
        tf_config.from_env(env(TWO, task))


def test_a_server_that_tensorflow_does_not_have_is_refused():
    with pytest.raises(ProbeError, match=r"\"grpc\" as its \"rpc_layer\".*'grpc\+gdr'"):
        tf_config.from_env(env(TWO, worker(), rpc_layer="grpc+gdr"))


def test_a_long_value_is_quoted_in_part():
    with pytest.raises(ProbeError, match=r"Received: '{cluster:x+\.\.\.\. It should") as caught:
        tf_config.from_env({"TF_CONFIG": "{cluster:" + "x" * 5000})

    assert len(str(caught.value)) < 700
