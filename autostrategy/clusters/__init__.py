"""Clusters that an environment can describe, one module each.

A module answers with two functions of the environment: `from_env`, the cluster or
the launch, or None where it is not this kind of environment, and `notes`, what a
person should know about either answer. To support another environment, write such
a module and put it into `CLUSTER_PROBES` where its answer is to be believed.

`ranks`, `addresses`, `allocations`, `variables`, `hostlist` and `trainjob` are what
several of them share.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from autostrategy.clusters import (
    azure_ml,
    databricks,
    jax_variables,
    jsrun,
    kubernetes,
    lsf,
    mpi,
    pbs,
    pytorch_variables,
    ray_train,
    sagemaker,
    sge,
    slurm,
    tf_config,
    torchrun,
    vertex,
)
from autostrategy.facts import Cluster, Launch


class ClusterProbe(Protocol):
    """What a module in this folder offers."""

    def from_env(
        self, env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")
    ) -> Cluster | Launch | None:
        """The cluster in `env`; the launch where no more than ranks is known; else None.

        A launch of one process is None. `root` stands for / in the paths of
        files that `env` points to.

        Raises:
            ProbeError: the environment contradicts itself.
        """

    def notes(self, env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
        """What was mended or left aside in `env`, one sentence each."""


# The first probe that answers wins; docs/decisions/0009 has the reasons at length.
CLUSTER_PROBES: tuple[ClusterProbe, ...] = (
    # Somebody wrote it on purpose, and it says all there is to say.
    tf_config,
    # Launchers, from the inside out: the process is what its innermost launcher
    # says, and outer ones leave their variables in place. torchrun is started by
    # mpirun or srun and never starts them, jsrun sets variables of MPI and PMIx
    # too, and mpirun starts its daemons with srun.
    torchrun,
    jsrun,
    azure_ml,  # Open MPI, with an address
    mpi,
    slurm,
    # Platforms, which start one process in a container. Any launcher may have
    # been called in it.
    vertex,
    sagemaker,
    # Variables that a person may have exported long ago, after those of a platform.
    # Kubeflow sets them in pods that Kubernetes numbers but does not count.
    pytorch_variables,
    jax_variables,
    kubernetes,
    # These start nothing: hosts at best, and a note on how to use them.
    lsf,
    pbs,
    sge,
    databricks,
    ray_train,
)
