"""Variables in PyTorch's manner that a platform or a person set, and not torchrun.

    by hand       RANK=5  WORLD_SIZE=8  LOCAL_RANK=1  MASTER_ADDR=n1  MASTER_PORT=29500
    TrainJob      PET_NNODES=3  PET_NODE_RANK=1  PET_NPROC_PER_NODE=auto
                  PET_MASTER_ADDR=tj-node-0-0.tj  PET_MASTER_PORT=29500
    PyTorchJob    RANK=1  WORLD_SIZE=8  MASTER_ADDR=pj-master-0  MASTER_PORT=23456
                  PET_NNODES=2  PET_NODE_RANK=1  PET_NPROC_PER_NODE=4

PET_* are torchrun's options as variables; a process that has them and no
LOCAL_RANK was started by the pod and not by torchrun, so it is the only one there.
In a PyTorchJob, RANK is then the pod's index although WORLD_SIZE counts what
torchrun would start (training-operator release-1.9, pkg/controller.v1/pytorch/
envvar.go, setPodEnv): the world is that of the pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autostrategy.clusters import addresses, ranks, torchrun, trainjob, variables
from autostrategy.facts import Cluster, Launch

_PODS = ranks.RankVariables(source="PyTorchJob", rank="PET_NODE_RANK", size="PET_NNODES")
_POD_MASTER = "PET_MASTER_ADDR"
_POD_MASTER_PORT = "PET_MASTER_PORT"

_WAY_OUT = (
    "PET_* must be as Kubeflow sets them for a fixed number of pods; unset them to train alone."
)


def from_env(
    env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")
) -> Cluster | Launch | None:
    """The pods of a TrainJob as a cluster, other processes by rank, None without either.

    Raises:
        ProbeError: the variables contradict each other, or one is missing.
    """
    if _is_one_of_its_pod(env):
        return _pods(env)
    if torchrun.RANK in env and (torchrun.SIZE in env or torchrun.MASTER in env):
        return torchrun.launch(env)
    return None


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """A size without a rank, and what counts as a process in a PyTorchJob."""
    size = env.get(torchrun.SIZE, "")
    if _is_one_of_its_pod(env):
        if size in ("", env[_PODS.size]):
            return ()
        return (
            f"{torchrun.RANK} is this pod's index, although {torchrun.SIZE}={size} counts the "
            f"processes that torchrun would start. One process in each of the {env[_PODS.size]} "
            "pods is taken.",
        )
    if torchrun.RANK not in env and size not in ("", "1"):
        return (
            f"{torchrun.SIZE}={size} is set and {torchrun.RANK} is not; alone it proves nothing "
            "and is not used.",
        )
    return ()


def _is_one_of_its_pod(env: Mapping[str, str]) -> bool:
    return _PODS.rank in env and _PODS.size in env and "LOCAL_RANK" not in env


def _pods(env: Mapping[str, str]) -> Cluster | Launch | None:
    names = (_POD_MASTER, _POD_MASTER_PORT)
    if not all(env.get(name) for name in names):
        names = (torchrun.MASTER, torchrun.MASTER_PORT)
    known = all(env.get(name) for name in names)
    launch = ranks.launch(
        env,
        _PODS,
        way_out=_WAY_OUT,
        meeting_point=torchrun.master(env, *names) if known else None,
    )
    if not known:
        return launch
    count = variables.number(
        env, _PODS.size, least=1, most=addresses.MAXIMUM_HOSTS, way_out=_WAY_OUT
    )
    cluster = trainjob.cluster(
        first_host=env[names[0]],
        port=addresses.port_of_one_task(env, given=int(env[names[1]])),
        index=launch.rank if launch else 0,
        count=count,
    )
    return cluster or launch
