"""Launchers that tell a process its rank and the number of processes, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autostrategy.clusters import variables
from autostrategy.errors import ProbeError
from autostrategy.facts import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVariables:
    """The names under which one launcher tells ranks; `local` is within a host."""

    source: str
    rank: str
    size: str
    local_rank: str | None = None
    local_size: str | None = None


def launch(
    env: Mapping[str, str],
    names: RankVariables,
    *,
    way_out: str,
    meeting_point: str | None = None,
    hosts: tuple[str, ...] = (),
) -> Launch | None:
    """The launch that `names` tell of, None for a world of one.

    Raises:
        ProbeError: the rank is there without the size or not below it, or a
            local number is not within its bounds.
    """
    size = variables.number(env, names.size, least=1, way_out=way_out)
    rank = _below(env, names.rank, size, names.size, way_out)
    local_size = local_rank = None
    if names.local_size and names.local_size in env:
        local_size = variables.number(env, names.local_size, least=1, most=size, way_out=way_out)
    if names.local_rank and names.local_rank in env:
        bound, bound_name = (local_size, names.local_size) if local_size else (size, names.size)
        local_rank = _below(env, names.local_rank, bound, bound_name or names.size, way_out)
    if size == 1:
        return None
    return Launch(
        source=names.source,
        rank=rank,
        world_size=size,
        local_rank=local_rank,
        local_size=local_size,
        meeting_point=meeting_point,
        hosts=hosts,
    )


def _below(env: Mapping[str, str], name: str, size: int, size_name: str, way_out: str) -> int:
    rank = variables.number(env, name, way_out=way_out)
    if rank >= size:
        raise ProbeError(
            f"{name} must be below {size_name}, which is {size}. Received: {rank}. {way_out}"
        )
    return rank
