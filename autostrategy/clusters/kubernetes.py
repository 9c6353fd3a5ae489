"""Pods that Kubernetes numbers: of a JobSet, an Indexed Job, a StatefulSet.

    Indexed Job    JOB_COMPLETION_INDEX=2  HOSTNAME=train-2         train-2.<service>
    JobSet         JOB_COMPLETION_INDEX=1  HOSTNAME=js-workers-0-1  js-workers-0-1.<service>
    StatefulSet                            HOSTNAME=trainer-3       trainer-3.<service>

Names: kubernetes.io, "Jobs" (completion mode) and "StatefulSets" (stable network
identity); kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go, whose
headless service has the JobSet's name unless its network says otherwise.

A pod is not told how many there are, nor their service, so the pod's template
must: AUTOSTRATEGY_WORKERS and AUTOSTRATEGY_SERVICE, and in a JobSet of several
Jobs AUTOSTRATEGY_PODS_PER_JOB, since its JOB_COMPLETION_INDEX begins at 0 in each
of them. No API server is asked: that takes a service account that may list pods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from autostrategy.clusters import addresses, variables
from autostrategy.errors import ProbeError
from autostrategy.facts import Cluster, Job, Launch

_INDEX = "JOB_COMPLETION_INDEX"
_POD = "HOSTNAME"
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_WORKERS = "AUTOSTRATEGY_WORKERS"
_SERVICE = "AUTOSTRATEGY_SERVICE"
_PODS_PER_JOB = "AUTOSTRATEGY_PODS_PER_JOB"

# GKE gives the pods of a TPU slice their hosts; hardware/tpu.py reads them.
_TPU_HOSTS = "TPU_WORKER_HOSTNAMES"

_WAY_OUT = (
    f"Write into the container's env {{name: {_WORKERS}, value: '4'}} for 4 pods that train "
    f"together and {{name: {_SERVICE}, value: train}} for their headless service (spec.subdomain); "
    f"in a JobSet {_PODS_PER_JOB} too. With {_WORKERS} '1' each pod trains alone."
)


def from_env(
    env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")
) -> Cluster | Launch | None:
    """The pods as a cluster of workers, by rank without a service, None for one alone.

    Raises:
        ProbeError: a pod of an Indexed Job is not told how many train together,
            or its name or number does not agree with what it is told.
    """
    if not _is_numbered(env):
        return None
    if not env.get(_WORKERS):
        raise ProbeError(
            "A pod of an Indexed Job must be told how many pods train together, for nothing in it "
            f"says so. Received: {_INDEX}={variables.quote(env[_INDEX])} without {_WORKERS}. "
            f"{_WAY_OUT}"
        )
    count = variables.number(env, _WORKERS, least=1, most=addresses.MAXIMUM_HOSTS, way_out=_WAY_OUT)
    if count == 1:
        return None
    pod = (env.get(_POD) or hostname or "").partition(".")[0]
    per_job = _pods_per_job(env, count)
    rank, stem = _place(env, pod, per_job)
    if rank >= count:
        raise ProbeError(
            f"The number of a pod must be below {_WORKERS}, which is {count}. Received: {rank}, "
            f"in {pod!r}. {_WAY_OUT}"
        )
    if not env.get(_SERVICE):
        return Launch(source="Kubernetes", rank=rank, world_size=count)
    if stem is None:
        raise _error_of_name(env, pod)
    port = addresses.port_of_one_task(env)
    # One name stands for all: it refuses what cannot be part of any.
    addresses.join(f"{_POD}.{_SERVICE}", f"{pod}.{env[_SERVICE]}", port)
    names = (f"{stem}-{_number_in_name(each, per_job)}.{env[_SERVICE]}" for each in range(count))
    return Cluster(
        source="Kubernetes",
        jobs=(Job(name="worker", addresses=tuple(f"{name}:{port}" for name in names)),),
        task_type="worker",
        task_index=rank,
    )


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """What would make a cluster of pods whose number is known."""
    if not _is_numbered(env) or env.get(_WORKERS, "1") in ("", "1") or env.get(_SERVICE):
        return ()
    return (
        f"{_SERVICE} is not set. With the pods' headless service (spec.subdomain) there, the "
        "addresses of all pods are known.",
    )


def _is_numbered(env: Mapping[str, str]) -> bool:
    if env.get(_TPU_HOSTS):
        return False
    return _INDEX in env or (_IN_CLUSTER in env and bool(env.get(_WORKERS)))


def _pods_per_job(env: Mapping[str, str], count: int) -> int | None:
    if not env.get(_PODS_PER_JOB):
        return None
    per_job = variables.number(env, _PODS_PER_JOB, least=1, way_out=_WAY_OUT)
    if count % per_job:
        raise ProbeError(
            f"{_WORKERS} must be a multiple of {_PODS_PER_JOB}, which is {per_job}. "
            f"Received: {count}. {_WAY_OUT}"
        )
    return per_job


def _place(env: Mapping[str, str], pod: str, per_job: int | None) -> tuple[int, str | None]:
    """This pod's rank, and its name without its numbers; None where it has none."""
    pattern = r"(.+)-([0-9]{1,9})" if per_job is None else r"(.+)-([0-9]{1,9})-([0-9]{1,9})"
    match = re.fullmatch(pattern, pod, re.ASCII)
    if per_job is None:
        if _INDEX not in env:
            if match is None:
                raise _error_of_name(env, pod)
            return int(match[2]), match[1]
        index = variables.number(env, _INDEX, way_out=_WAY_OUT)
        return index, match[1] if match and int(match[2]) == index else None
    if match is None or int(match[3]) >= per_job:
        raise _error_of_name(env, pod)
    return int(match[2]) * per_job + int(match[3]), match[1]


def _number_in_name(rank: int, per_job: int | None) -> str:
    return str(rank) if per_job is None else f"{rank // per_job}-{rank % per_job}"


def _error_of_name(env: Mapping[str, str], pod: str) -> ProbeError:
    told = ", ".join(f"{name}={env[name]!r}" for name in (_INDEX, _PODS_PER_JOB) if name in env)
    return ProbeError(
        f"{_POD} must be the pod's own name, which ends in its number (in a JobSet, in those of "
        f"its Job and of the pod). Received: {variables.quote(pod)}{told and ' with ' + told}. "
        "Without hostNetwork and spec.hostname it is; or set TF_CONFIG."
    )
