import enum
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from autostrategy import json_values
from autostrategy.errors import AutoStrategyError, ProbeError
from autostrategy.facts import (
    Cluster,
    Device,
    DeviceProcess,
    Facts,
    Host,
    Job,
    Launch,
    Link,
    TpuSlice,
)

RECORDED = sorted((Path(__file__).parent / "facts").glob("*.json"))


def host(**others):
    return Host(
        name="h",
        platform="linux",
        logical_cores=8,
        usable_cores=1.5,
        memory_bytes=2**34,
        memory_available_bytes=2**33,
        **others,
    )


def cluster(task_type, task_index=0, **jobs):
    return Cluster(
        source="TF_CONFIG",
        jobs=tuple(
            Job(name=name, addresses=tuple(f"{name}{index}:1" for index in range(count)))
            for name, count in jobs.items()
        ),
        task_type=task_type,
        task_index=task_index,
    )


FULL = Facts(
    host=host(
        devices=(
            Device(
                kind="gpu",
                index=0,
                name="NVIDIA H100",
                visible_index=0,
                mig="parent",
                processes=(DeviceProcess(pid=1, memory_bytes=2, name="python"),),
                throttle_reasons=("power cap",),
            ),
            Device(kind="tpu", index=0, name="TPU v3", cores=2),
        ),
        links=(Link(first=0, second=1, kind="nvlink", nvlinks=4, peer_access=True),),
    ),
    cluster=cluster("worker", 1, chief=1, worker=2),
    tpu=TpuSlice(address="local", hosts=("a", "b"), host_index=1),
    visible_devices="0",
    notes=("a note",),
)


LAUNCHED = Facts(
    host=host(),
    launch=Launch(
        source="jsrun",
        rank=1,
        world_size=2,
        local_rank=0,
        local_size=1,
        meeting_point="a:1",
        hosts=("a", "b"),
    ),
)


@pytest.mark.parametrize(
    "facts", [FULL, LAUNCHED, Facts(host=host())], ids=["full", "launched", "least"]
)
def test_facts_come_back_from_json_as_they_were(facts):
    assert Facts.from_json(facts.to_json()) == facts


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
def test_recorded_machines_come_back_as_they_were(path):
    text = path.read_text()

    assert text == Facts.from_json(text).to_json() + "\n"


def test_a_recording_without_later_fields_is_read():
    plain = json.loads(Facts(host=host()).to_json())
    del plain["launch"], plain["tpu"], plain["notes"], plain["host"]["links"]

    assert Facts.from_json(json.dumps(plain)) == Facts(host=host())


def test_a_whole_number_of_cores_is_read():
    plain = json.loads(Facts(host=host()).to_json())
    plain["host"]["usable_cores"] = 2

    cores = Facts.from_json(json.dumps(plain)).host.usable_cores

    assert (cores, type(cores)) == (2.0, float)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((), [], r"Facts must be an object\. Received: \[\]\."),
        (("host",), None, r"Facts\.host must be an object\. Received: None\."),
        (("host", "platform"), "beos", r"host\.platform must be one of \('linux', .*'beos'"),
        (("host", "devices"), {}, r"Facts\.host\.devices must be a list\. Received: {}"),
        (("host", "devices", 0, "index"), "0", r"devices\[0\]\.index must be of type int.*'0'"),
        (("host", "devices", 0, "index"), True, r"devices\[0\]\.index must be of type int.*True"),
        (("host", "devices", 0, "cores"), 1.0, r"devices\[0\]\.cores must be of type int.*1\.0"),
        (("host", "usable_cores"), True, r"usable_cores must be of type float\. Received: True"),
        (("notes",), [1], r"Facts\.notes\[0\] must be of type str\. Received: 1\."),
        (
            ("surprise",),
            1,
            r"Facts must have only the fields \['cluster'.*Received also: \['surprise'\]\. "
            "Was the file written by a newer autostrategy",
        ),
    ],
)
def test_json_of_another_form_is_refused_by_its_place(path, value, message):
    plain = json.loads(FULL.to_json())
    if path:
        target = plain
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = value
    else:
        plain = value

    with pytest.raises(ProbeError, match=message):
        Facts.from_json(json.dumps(plain))


def test_a_missing_field_is_named():
    plain = json.loads(FULL.to_json())
    del plain["host"]["name"]

    with pytest.raises(ProbeError, match=r"Facts\.host must have the field 'name'\. Received: \["):
        Facts.from_json(json.dumps(plain))


def test_text_that_is_no_json_is_refused_by_line_and_column():
    with pytest.raises(ProbeError, match=r"Facts must be JSON\..*fails at line 2, column 1"):
        Facts.from_json("{\n")


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Paint:
    colour: Colour


def test_an_enum_is_read_by_its_value():
    assert json_values.decode(Paint, '{"colour": "red"}') == Paint(Colour.RED)
    assert json_values.encode(Paint(Colour.RED)) == '{\n  "colour": "red"\n}'


def test_a_value_that_no_enum_member_has_is_refused():
    with pytest.raises(ProbeError, match=r"Paint\.colour must be one of \['red'\]\. Rec.*'blue'"):
        json_values.decode(Paint, '{"colour": "blue"}')


def test_errors_of_the_package_are_value_errors():
    assert issubclass(ProbeError, AutoStrategyError)
    assert issubclass(AutoStrategyError, ValueError)


@pytest.mark.parametrize(
    ("task", "world_size", "rank", "is_chief"),
    [
        (cluster("worker", 0, worker=2), 2, 0, True),
        (cluster("worker", 1, worker=2), 2, 1, False),
        (cluster("chief", 0, chief=1, worker=2), 3, 0, True),
        (cluster("worker", 0, chief=1, worker=2), 3, 1, False),
        (cluster("worker", 1, chief=1, worker=2), 3, 2, False),
        (cluster("chief", 0, chief=1, worker=2, ps=1), 2, None, True),
        (cluster("worker", 1, chief=1, worker=2, ps=1), 2, 1, False),
        (cluster("ps", 0, chief=1, worker=2, ps=1), 2, None, False),
        (cluster("evaluator", 0, chief=1, worker=2), 1, 0, True),
    ],
)
def test_world_size_rank_and_chief_follow_from_jobs_and_task(task, world_size, rank, is_chief):
    assert (task.world_size, task.rank, task.is_chief) == (world_size, rank, is_chief)


def test_tf_config_names_jobs_and_this_task():
    assert json.loads(cluster("worker", 1, worker=2).tf_config) == {
        "cluster": {"worker": ["worker0:1", "worker1:1"]},
        "task": {"type": "worker", "index": 1},
    }


def test_a_job_that_is_not_there_has_no_addresses():
    assert cluster("worker", 0, worker=1).addresses("ps") == ()
