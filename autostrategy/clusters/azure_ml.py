"""Processes that Azure ML starts with Open MPI.

    AZ_BATCH_MASTER_NODE=10.0.0.4:6105  OMPI_COMM_WORLD_RANK=5 ...

MicrosoftDocs/azure-docs, articles/machine-learning/how-to-train-distributed-gpu.md.
Azure ML's TensorFlow jobs have TF_CONFIG and its PyTorch jobs RANK and MASTER_ADDR,
which other modules read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from autostrategy.clusters import addresses, mpi
from autostrategy.facts import Launch

_MASTER = "AZ_BATCH_MASTER_NODE"


def from_env(
    env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")
) -> Launch | None:
    """What Open MPI tells, with the address of the first node; None elsewhere.

    Raises:
        ProbeError: as mpi.from_env, or the address is no host:port.
    """
    if not env.get(_MASTER):
        return None
    found = mpi.from_env(env, hostname, root)
    if found is None:
        return None
    meeting_point = addresses.parse(_MASTER, env[_MASTER])
    return dataclasses.replace(found, source="Azure ML", meeting_point=meeting_point)


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """A name of Open MPI that Azure ML's own page warns of."""
    if not env.get(_MASTER) or "OMPI_COMM_WORLD_NODE_RANK" not in env:
        return ()
    return (
        "OMPI_COMM_WORLD_NODE_RANK is not the number of the node, in spite of its name; it is "
        "not used.",
    )
