"""The cluster that TF_CONFIG describes, checked before TensorFlow reads it.

    TF_CONFIG={"cluster": {"worker": ["host1:12345", "host2:12345"]},
               "task": {"type": "worker", "index": 0}}

TensorFlow accepts much that later hangs or fails far from its cause: a task
index of 1.9 becomes 1, an address that is listed twice waits for ever, an
empty string breaks even MirroredStrategy. Here each of these is either mended,
with a note, or refused, with the way out. The rules are those of TensorFlow
2.21's tfconfig_cluster_resolver.py and multi_worker_util.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from autostrategy.errors import ProbeError
from autostrategy.facts import Cluster, Job

_TF_CONFIG = "TF_CONFIG"

_JobName = Literal["chief", "worker", "ps", "evaluator"]
_JOB_NAMES: tuple[_JobName, ...] = get_args(_JobName)

_EXAMPLE = (
    '{"cluster": {"worker": ["host1:12345", "host2:12345"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


def from_env(
    env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")
) -> Cluster | None:
    """The cluster in TF_CONFIG, None when it is unset, empty or names no cluster.

    All tasks of a cluster must be given the same "cluster"; only "task"
    differs. `hostname` and `root` are not needed here.

    Raises:
        ProbeError: TF_CONFIG is malformed or contradicts itself.
    """
    return _read(env)[0]


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """What `from_env` mended or left aside, one sentence each.

    Raises:
        ProbeError: as `from_env`.
    """
    return _read(env)[1]


def _read(env: Mapping[str, str]) -> tuple[Cluster | None, tuple[str, ...]]:
    text = env.get(_TF_CONFIG)
    if text is None:
        return None, ()
    if not text.strip():
        return None, ("TF_CONFIG is set but empty; it is taken as unset.",)
    config = _parse(text)
    _check_rpc_layer(config)
    found: list[str] = []
    jobs = _parse_jobs(config, found)
    if not jobs:
        if "task" in config:
            found.append("TF_CONFIG names a task but no cluster; it is taken as unset.")
        return None, tuple(found)
    task_type, task_index = _parse_task(config, jobs)
    _check_addresses(jobs)
    _check_roles(jobs, found)
    cluster = Cluster(
        source=_TF_CONFIG,
        # The evaluator runs no server, so whoever connects to a cluster that
        # lists it waits for ever (tensorflow/tensorflow#46169).
        jobs=tuple(
            Job(name=name, addresses=jobs[name])
            for name in _JOB_NAMES
            if name in jobs and name != "evaluator"
        ),
        task_type=task_type,
        task_index=task_index,
    )
    return cluster, tuple(found)


def _parse(text: str) -> dict[str, Any]:
    if text.startswith("\ufeff"):
        raise _error("be JSON without a byte order mark", text, "Save it as UTF-8 without BOM.")
    try:
        config = json.loads(text)
    # ValueError and not JSONDecodeError: a number of 5000 digits is a plain one.
    except (ValueError, RecursionError) as error:
        way_out = f"It should look like {_EXAMPLE}."
        if "'" in text and '"' not in text:
            way_out = "JSON wants double quotes: write it with json.dumps, not with str."
        elif ",]" in (squeezed := "".join(text.split())) or ",}" in squeezed:
            way_out = "JSON allows no trailing comma: remove the one before ']' or '}'."
        raise _error(f"be JSON ({error})", text, way_out) from None
    if isinstance(config, str):
        raise _error(
            "be a JSON object, but it is a string: it was encoded twice",
            text,
            "Call json.dumps once.",
        )
    if not isinstance(config, dict):
        raise _error("be a JSON object", text, f"It should look like {_EXAMPLE}, or be unset.")
    return config


def _check_rpc_layer(config: Mapping[str, Any]) -> None:
    rpc_layer = config.get("rpc_layer") or "grpc"
    if rpc_layer != "grpc":
        raise _error(
            'have "grpc" as its "rpc_layer", the only server that TensorFlow is built with',
            rpc_layer,
            "Remove rpc_layer.",
        )


def _parse_jobs(config: Mapping[str, Any], found: list[str]) -> dict[_JobName, tuple[str, ...]]:
    cluster = config.get("cluster", {})
    if not isinstance(cluster, dict):
        raise _error('have an object as its "cluster"', cluster, f"It should be as in {_EXAMPLE}.")
    jobs: dict[_JobName, tuple[str, ...]] = {}
    for given, tasks in cluster.items():
        name = _job_name(given)
        addresses = _parse_tasks(given, tasks)
        if not addresses:
            # TensorFlow would elect task 0 of an empty ps job as its leader.
            found.append(f"TF_CONFIG lists no task for the job {given!r}; the job is dropped.")
        elif name in jobs:
            raise _error(
                "have at most one chief; 'master' is the old name of 'chief'",
                sorted(cluster),
                "Remove the job 'master'.",
            )
        else:
            jobs[name] = addresses
            if given == "master":
                found.append("'master' in TF_CONFIG is read as 'chief', its name in TensorFlow 2.")
    return jobs


def _job_name(given: object) -> _JobName:
    """The job that `given` names; 'master' is what TensorFlow 1 called the chief."""
    renamed = "chief" if given == "master" else given
    for name in _JOB_NAMES:
        if name == renamed:
            return name
    lower = str(given).lower()
    meant = {name: name for name in _JOB_NAMES} | {"master": "chief"}
    raise _error(
        f"have as task type one of {', '.join(_JOB_NAMES)}",
        given,
        f"Write {meant[lower]!r}." if lower in meant else "Rename it in cluster and task.",
    )


def _parse_tasks(job: str, tasks: object) -> tuple[str, ...]:
    if isinstance(tasks, dict):
        tasks = _dense(job, tasks)
    if not isinstance(tasks, list):
        raise _error(
            f"have a list of addresses for the job {job!r}",
            tasks,
            'Write ["host1:12345", "host2:12345"].',
        )
    return tuple(_address(job, task) for task in tasks)


def _dense(job: str, tasks: Mapping[str, object]) -> list[object]:
    """Tasks given by index, such as {"0": ..., "1": ...}, as a list.

    A sparse one, as a TFJob with enableDynamicWorker writes, tells neither the
    number of tasks nor the other addresses.
    """
    wanted = [str(index) for index in range(len(tasks))]
    if set(tasks) != set(wanted):
        raise _error(
            f"number the tasks of the job {job!r} from 0 without a gap",
            sorted(tasks),
            "List the addresses of all tasks (TFJob: without enableDynamicWorker).",
        )
    return [tasks[index] for index in wanted]


def _address(job: str, task: object) -> str:
    what = f"have host:port with a port from 1 to 65535 for each task of the job {job!r}"
    if not isinstance(task, str):
        raise _error(what, task, 'Write "host1:12345".')
    host, colon, port = task.rpartition(":")
    if "/" in task or any(character.isspace() for character in task):
        raise _error(what, task, "Write host:port alone, without scheme, path or blank.")
    if not colon or not host:
        raise _error(what, task, 'Add a port that is free on that host, as in "host1:12345".')
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise _error(what, task, "Write an IPv6 address in brackets, as in [fd00::11]:12345.")
    # isdigit alone also holds for digits that int() does not take, such as '²'.
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise _error(what, task, "Give the task a port that is free on its host.")
    return task


def _parse_task(
    config: Mapping[str, Any], jobs: Mapping[_JobName, tuple[str, ...]]
) -> tuple[_JobName, int]:
    example = 'Add "task": {"type": "worker", "index": 0}, with this process\'s own index.'
    if "task" not in config:
        raise _error('say by "task" which task this process is', config, example)
    task = config["task"]
    if not isinstance(task, dict) or not isinstance(task.get("type"), str):
        raise _error('have a "task" with a "type"', task, example)
    name = _job_name(task["type"])
    # An evaluator outside the cluster is how Estimator and TFJob run it.
    if name not in jobs and name != "evaluator":
        raise _error(
            "have the task's type among the jobs of its cluster",
            task["type"],
            f"Jobs listed: {', '.join(jobs)}.",
        )
    index = task.get("index")
    if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) <= 9:
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise _error('have an integer from 0 as the task\'s "index"', index, example)
    count = len(jobs.get(name, ()))
    if name in jobs and index >= count:
        raise _error(
            f"have a task index below the {count} tasks of the job {name!r}",
            index,
            "List this task in the cluster, or correct its index.",
        )
    return name, index


def _check_addresses(jobs: Mapping[_JobName, tuple[str, ...]]) -> None:
    addresses = [address for each in jobs.values() for address in each]
    seen: set[str] = set()
    for address in addresses:
        if address in seen:
            raise _error(
                "list each address once, but one is there twice",
                address,
                "Give each task its own host or port.",
            )
        seen.add(address)
    loopback = [address for address in addresses if _is_loopback(address)]
    if loopback and len(loopback) < len(addresses):
        raise _error(
            "list addresses that all tasks can reach, so loopback for all tasks or for none",
            loopback[0],
            "Write the host's name in place of loopback.",
        )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].lower()
    return host in ("localhost", "[::1]") or host.startswith("127.")


def _check_roles(jobs: Mapping[_JobName, tuple[str, ...]], found: list[str]) -> None:
    single: tuple[_JobName, ...] = ("chief", "evaluator")
    for name in single:
        if len(jobs.get(name, ())) > 1:
            raise _error(f"have at most one {name}", list(jobs[name]), "Make the others workers.")
    if "ps" in jobs and "worker" not in jobs:
        raise _error(
            "have at least one worker beside its parameter servers", list(jobs), "Add a worker."
        )
    if "ps" in jobs and "chief" not in jobs:
        found.append(
            "TF_CONFIG lists parameter servers but no chief to coordinate them; "
            "TensorFlow 2 needs one."
        )


def _error(rule: str, received: object, way_out: str) -> ProbeError:
    try:
        text = repr(received) if isinstance(received, str) else json.dumps(received)
    except RecursionError:
        text = "values nested too deeply to show"
    if len(text) > 300:
        text = text[:300] + "..."
    return ProbeError(f"TF_CONFIG must {rule}. Received: {text}. {way_out}")
