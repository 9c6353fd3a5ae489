"""Processes that torchrun started: ranks, sizes, and the address of the first host.

    RANK=5  WORLD_SIZE=8  LOCAL_RANK=1  LOCAL_WORLD_SIZE=4
    MASTER_ADDR=n1  MASTER_PORT=29400  TORCHELASTIC_RUN_ID=job7

docs.pytorch.org, "torchrun (Elastic Launch)". Only torchrun sets
TORCHELASTIC_RUN_ID, so the process is its child, whatever is around it. The same
names without it are read by pytorch_variables.py, later in the order.

Torchrun's own store may listen at MASTER_PORT: the address says where processes
can meet, and not where TensorFlow may listen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autostrategy.clusters import addresses, ranks, variables
from autostrategy.errors import ProbeError
from autostrategy.facts import Launch

_MARK = "TORCHELASTIC_RUN_ID"
RANK = "RANK"
SIZE = "WORLD_SIZE"
MASTER = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"


def from_env(
    env: Mapping[str, str], hostname: str | None = None, root: Path = Path("/")
) -> Launch | None:
    """The processes of torchrun, None outside one and where it started only one.

    Raises:
        ProbeError: as `launch`.
    """
    return launch(env) if _MARK in env else None


def notes(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Nothing to add."""
    return ()


def launch(env: Mapping[str, str]) -> Launch | None:
    """What RANK, WORLD_SIZE and the like say, whoever set them; None for one process.

    Raises:
        ProbeError: one of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT is
            missing, or two contradict each other.
    """
    names = ranks.RankVariables(
        source="torchrun",
        rank=RANK,
        size=SIZE,
        local_rank="LOCAL_RANK",
        local_size="LOCAL_WORLD_SIZE",
    )
    if (env.get(RANK), env.get(SIZE)) == ("0", "1"):
        return None
    missing = [name for name in (RANK, SIZE, MASTER, MASTER_PORT) if not env.get(name)]
    if missing:
        raise ProbeError(
            f"{RANK}, {SIZE}, {MASTER} and {MASTER_PORT} must be set together. Received no "
            f"{' and no '.join(missing)}. Start the script with torchrun, or unset the others."
        )
    return ranks.launch(
        env,
        names,
        way_out="Start the script with torchrun, or unset these variables to train alone.",
        meeting_point=master(env, MASTER, MASTER_PORT),
    )


def master(env: Mapping[str, str], host: str, port: str) -> str:
    """'host:port' of the first process, from two variables."""
    number = variables.number(
        env, port, least=1, most=65535, way_out=f"It belongs to {host}; set both in all processes."
    )
    return addresses.join(host, env[host], number)
