"""The host lists that Slurm writes, as names.

The grammar is that of Slurm's src/common/hostlist.c, which is also what
`scontrol show hostnames` prints; asking it would need a reachable slurm.conf.
"""

from __future__ import annotations

import itertools
import math
import re

from autostrategy.errors import ProbeError

# Slurm's own limit for one range (MAX_RANGE in hostlist.c), applied to the list.
MAXIMUM_HOSTS = 65536

# Digits enough for any host number, and few enough that int() is never slow.
_MAXIMUM_DIGITS = 18


def expand(hostlist: str) -> tuple[str, ...]:
    """Hosts named by a Slurm list, in its order, which is the order of nodes.

        nid[00012-00015,00020]      nid00012 nid00013 nid00014 nid00015 nid00020
        gpu-a[1-2]b[01-02],login    gpu-a1b01 gpu-a1b02 gpu-a2b01 gpu-a2b02 login
        node[1-2]-ib                node1-ib node2-ib

    The width of a number is that of the lower end of its range. Of several
    brackets the first is the outer loop.

    Raises:
        ProbeError: the list does not follow this grammar, or names more hosts
            than Slurm allows.
    """
    hosts: list[str] = []
    for name in _split_names(hostlist):
        parts = _parse_name(name, hostlist)
        count = math.prod(len(part) for part in parts)
        if len(hosts) + count > MAXIMUM_HOSTS:
            raise _error(hostlist, f"name at most {MAXIMUM_HOSTS} hosts", name)
        hosts += ("".join(pieces) for pieces in itertools.product(*parts))
    if not hosts:
        raise _error(hostlist, "name at least one host", hostlist)
    return tuple(hosts)


def _split_names(hostlist: str) -> list[str]:
    """Parts between the commas and blanks that stand outside brackets."""
    names = [""]
    start = 0
    inside = False
    for match in re.finditer(r"[\[\],\s]", hostlist):
        mark = match.group()
        if mark in "[]":
            inside = mark == "["
        elif not inside:
            names.append(hostlist[start : match.start()])
            start = match.end()
    names.append(hostlist[start:])
    return [name for name in names if name]


def _parse_name(name: str, hostlist: str) -> list[list[str]]:
    """Choices for each part of a name: 'a[1-2]-ib' -> [['a'], ['1', '2'], ['-ib']]."""
    parts: list[list[str]] = []
    end = 0
    while (start := name.find("[", end)) >= 0:
        parts.append([_plain(name[end:start], hostlist)])
        end = name.find("]", start) + 1
        if not end:
            raise _error(hostlist, "close each '[' with a ']'", name)
        parts.append(_parse_numbers(name[start + 1 : end - 1], hostlist))
    parts.append([_plain(name[end:], hostlist)])
    return parts


def _plain(text: str, hostlist: str) -> str:
    if "]" in text:
        raise _error(hostlist, "open each ']' with a '['", text)
    return text


def _parse_numbers(inner: str, hostlist: str) -> list[str]:
    """What a bracket holds: '08-10,7' -> 08 09 10 7."""
    numbers: list[str] = []
    for part in inner.split(","):
        low, dash, high = part.partition("-")
        if not _is_number(low) or (dash and not _is_number(high)):
            raise _error(hostlist, "have only numbers and ranges such as 1-4 in brackets", part)
        first, last = int(low), int(high or low)
        if first > last:
            raise _error(hostlist, "have ranges that rise", part)
        if len(numbers) + last - first >= MAXIMUM_HOSTS:
            raise _error(hostlist, f"name at most {MAXIMUM_HOSTS} hosts", part)
        numbers += (f"{number:0{len(low)}d}" for number in range(first, last + 1))
    return numbers


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAXIMUM_DIGITS


def _error(hostlist: str, rule: str, part: str) -> ProbeError:
    return ProbeError(
        f"A Slurm node list must {rule}. Received: {_quote(part)} in {_quote(hostlist)}. "
        "Compare with what `scontrol show hostnames` says of it."
    )


def _quote(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "...")
