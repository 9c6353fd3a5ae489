"""Variables in JAX's manner: rank, size, and the address of the first process.

    JAX_PROCESS_ID=1  JAX_NUM_PROCESSES=2  JAX_COORDINATOR_ADDRESS=tj-node-0-0.tj:29500
    PROCESS_ID=1  NUM_PROCESSES=2  COORDINATOR_ADDRESS=jj-worker-0  COORDINATOR_PORT=6666

The first are those of jax.distributed.initialize and of a TrainJob (kubeflow/
trainer, plugins/jax/jax.go), the second those of a JAXJob (training-operator
release-1.9). The second are plain words, so all four must be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autostrategy.clusters import addresses, ranks, torchrun, trainjob, variables
from autostrategy.facts import Cluster, Launch

_JAX = ranks.RankVariables(source="JAX", rank="JAX_PROCESS_ID", size="JAX_NUM_PROCESSES")
_COORDINATOR = "JAX_COORDINATOR_ADDRESS"
_JAXJOB = ranks.RankVariables(source="JAXJob", rank="PROCESS_ID", size="NUM_PROCESSES")
_JAXJOB_COORDINATOR = ("COORDINATOR_ADDRESS", "COORDINATOR_PORT")

_WAY_OUT = "Set the variables in all processes alike, or unset them to train alone."


def from_env(
    env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")
) -> Cluster | Launch | None:
    """The pods of a TrainJob as a cluster, other processes by rank, None without either.

    Raises:
        ProbeError: the variables contradict each other.
    """
    if all(env.get(name) for name in (_JAX.rank, _JAX.size, _COORDINATOR)):
        meeting_point = addresses.parse(_COORDINATOR, env[_COORDINATOR])
        launch = ranks.launch(env, _JAX, way_out=_WAY_OUT, meeting_point=meeting_point)
        host, _, port = meeting_point.rpartition(":")
        cluster = trainjob.cluster(
            first_host=host,
            port=addresses.port_of_one_task(env, given=int(port)),
            index=launch.rank if launch else 0,
            count=variables.number(
                env, _JAX.size, least=1, most=addresses.MAXIMUM_HOSTS, way_out=_WAY_OUT
            ),
        )
        return cluster or launch
    if all(env.get(name) for name in (_JAXJOB.rank, _JAXJOB.size, *_JAXJOB_COORDINATOR)):
        meeting_point = torchrun.master(env, *_JAXJOB_COORDINATOR)
        return ranks.launch(env, _JAXJOB, way_out=_WAY_OUT, meeting_point=meeting_point)
    return None


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Nothing to add."""
    return ()
