"""Clusters that an environment can describe, one module each.

A module answers with two functions of the environment: `from_env`, the cluster
or None where it is not this kind of environment, and `notes`, what a person
should know about either answer. To support another environment, write such a
module and put it into `CLUSTER_PROBES` where its answer is to be believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from autostrategy.clusters import slurm, tf_config
from autostrategy.facts import Cluster


class ClusterProbe(Protocol):
    """What a module in this folder offers."""

    def from_env(self, env: Mapping[str, str], hostname: str | None = None) -> Cluster | None:
        """The cluster in `env`, None where it does not describe one.

        Raises:
            ProbeError: the environment contradicts itself.
        """

    def notes(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """What was mended or left aside in `env`, one sentence each."""


# The first probe that answers wins. TF_CONFIG is first because somebody wrote
# it on purpose. Slurm is last because other launchers work inside a Slurm job
# and leave its variables in place; it steps back itself below mpirun.
CLUSTER_PROBES: tuple[ClusterProbe, ...] = (
    tf_config,
    slurm,
)
