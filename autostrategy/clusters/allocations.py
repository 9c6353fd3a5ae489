"""Hosts that a batch system has given to a job in which nothing was started yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Hosts that a note names before it only counts them.
_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Hosts of a job in its own order, each once, with the slots of each."""

    source: str
    hosts: tuple[str, ...]
    slots: tuple[int, ...]
    how_to_start: str


def one_line_per_slot(hosts: Iterable[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Hosts in the order in which they first appear, and how often each does."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host] = slots.get(host, 0) + 1
    return tuple(slots), tuple(slots.values())


def mpirun(hosts: int) -> str:
    """The command that starts one process on each host, as Open MPI spells it."""
    return f"mpirun -np {hosts} --map-by ppr:1:node autostrategy run train.py"


def notes(allocation: Allocation) -> tuple[str, ...]:
    """What the other hosts are waiting for; nothing to say of a single host."""
    count = len(allocation.hosts)
    if count < 2:
        return ()
    pairs = zip(allocation.hosts, allocation.slots, strict=True)
    named = [f"{host} ({slots})" for host, slots in pairs][:_NAMED]
    more = f" and {count - _NAMED} more" if count > _NAMED else ""
    return (
        f"{allocation.source} names {count} hosts, with their slots: {', '.join(named)}{more}. "
        "This process has no rank among them and would train on its own host alone. "
        f"{allocation.how_to_start}",
    )
