"""The hosts of a SageMaker training job, one worker on each.

    SM_HOSTS=["algo-1","algo-2"]  SM_CURRENT_HOST=algo-2
    /opt/ml/input/config/resourceconfig.json  {"current_host": "algo-2", "hosts": [...]}

The variables are those of aws/sagemaker-training-toolkit (environment.py); the
file is in any training container. Ranks follow the hosts in the order of text, so
algo-10 comes before algo-2, as in TensorFlow's sagemaker_cluster_resolver.py.

Of a heterogeneous cluster only the groups in SM_DISTRIBUTION_INSTANCE_GROUPS train
together (environment.py, get_distribution_hosts).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autostrategy.clusters import addresses, variables
from autostrategy.errors import ProbeError
from autostrategy.facts import Cluster, Job

_HOSTS = "SM_HOSTS"
_CURRENT = "SM_CURRENT_HOST"
_TRAINING_GROUPS = "SM_DISTRIBUTION_INSTANCE_GROUPS"
_GROUPS = "SM_INSTANCE_GROUPS_DICT"
_FILE = "/opt/ml/input/config/resourceconfig.json"

_WAY_OUT = "Let SageMaker's toolkit set the SM_ variables, or set TF_CONFIG in each host."


def from_env(
    env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")
) -> Cluster | None:
    """One worker on each host that trains, None outside SageMaker and on other hosts.

    Raises:
        ProbeError: the hosts are no list of names, or this one is not among them.
    """
    found = _hosts(env, root)
    if found is None:
        return None
    hosts, current = found
    training = _training_hosts(env, hosts)
    if current not in training:
        return None
    port = addresses.port_of_one_task(env)
    ordered = sorted(training)
    return Cluster(
        source="SageMaker",
        jobs=(
            Job(
                name="worker",
                addresses=tuple(addresses.join(_HOSTS, host, port) for host in ordered),
            ),
        ),
        task_type="worker",
        task_index=ordered.index(current),
    )


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Why this host takes no part in training.

    Raises:
        ProbeError: as `from_env`.
    """
    found = _hosts(env, root)
    if found is None or found[1] in _training_hosts(env, found[0]):
        return ()
    return (
        f"This host, {found[1]}, is in none of the instance groups that train together "
        f"({_TRAINING_GROUPS}={env[_TRAINING_GROUPS]}), so it works alone.",
    )


def _hosts(env: Mapping[str, str], root: Path) -> tuple[set[str], str] | None:
    """All hosts of the job, and this one; None outside SageMaker."""
    if env.get(_HOSTS):
        hosts, current = _parse(_HOSTS, env[_HOSTS]), env.get(_CURRENT)
        name = _CURRENT
    elif text := variables.read_file(root, _FILE):
        config = _parse(_FILE, text)
        if not isinstance(config, dict):
            raise _error(_FILE, "have an object", text)
        hosts, current = config.get("hosts"), config.get("current_host")
        name = f'"current_host" in {_FILE}'
    else:
        return None
    names = _names(_HOSTS if env.get(_HOSTS) else f'"hosts" in {_FILE}', hosts)
    if not isinstance(current, str) or current not in names:
        raise ProbeError(
            f"{name} must be one of the {len(names)} hosts of the job. "
            f"Received: {variables.quote(str(current))}. {_WAY_OUT}"
        )
    return names, current


def _training_hosts(env: Mapping[str, str], hosts: set[str]) -> set[str]:
    if not env.get(_TRAINING_GROUPS) or not env.get(_GROUPS):
        return hosts
    wanted = _names(_TRAINING_GROUPS, _parse(_TRAINING_GROUPS, env[_TRAINING_GROUPS]))
    groups = _parse(_GROUPS, env[_GROUPS])
    chosen: set[str] = set()
    for name in wanted:
        group = groups.get(name) if isinstance(groups, dict) else None
        if not isinstance(group, dict):
            raise _error(_GROUPS, f"describe the group {name!r}", env[_GROUPS])
        chosen |= _names(f'"hosts" of {name!r} in {_GROUPS}', group.get("hosts"))
    return chosen


def _parse(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # ValueError also for a number of 5000 digits
        raise _error(name, "be JSON", text) from None


def _names(name: str, value: object) -> set[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise _error(name, "be a list of names", str(value))
    if not value or len(set(value)) < len(value):
        raise _error(name, "name at least one and each once", str(value))
    return set(value)


def _error(name: str, rule: str, received: str) -> ProbeError:
    return ProbeError(f"{name} must {rule}. Received: {variables.quote(received)}. {_WAY_OUT}")
