"""How the GPUs of one host reach each other: NVLink, NVSwitch, or which part of PCIe."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from autostrategy.facts import Device, Link
from autostrategy.hardware.nvml_calls import ask, pci_address

# More than any card has (36 in the newest nvml.h). Links that a card lacks end
# the search before.
_MAXIMUM_LINKS = 64

_REMOTE_IS_SWITCH = 2  # nvmlIntNvLinkDeviceType_t

# nvmlGpuTopologyLevel_t: the nearest thing on PCIe that two cards share.
_ANCESTORS: dict[int, Literal["same_board", "pcie_switch", "host_bridge", "numa", "system"]] = {
    0: "same_board",
    10: "pcie_switch",
    20: "pcie_switch",  # several switches, no host bridge
    30: "host_bridge",
    40: "numa",
    50: "system",
}

# nvmlGpuP2PCapsIndex_t READ and WRITE. Written out because pynvml defines
# NVML_P2P_CAPS_INDEX_READ as the tuple (0,).
_P2P_READ_AND_WRITE = (0, 1)


@dataclass
class _NvLinks:
    """Active links of one card: into a switch, and to each PCI address."""

    to_switch: int = 0
    to_card: dict[str, int] = field(default_factory=dict)


def between(nvml: Any, handles: Mapping[int, Any], cards: Sequence[Device]) -> tuple[Link, ...]:
    """The best path between each two cards, none for pairs of which nothing is known."""
    if len(cards) < 2:
        return ()
    nvlinks = {card.index: _nvlinks(nvml, handles[card.index]) for card in cards}
    links: list[Link] = []
    for first, second in itertools.combinations(cards, 2):
        one, other = nvlinks[first.index], nvlinks[second.index]
        direct = one.to_card.get(second.pci_address or "", 0)
        switched = min(one.to_switch, other.to_switch)
        pair = handles[first.index], handles[second.index]
        ancestor = _ANCESTORS.get(ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", *pair))
        if not (direct or switched or ancestor):
            continue
        links.append(
            Link(
                first=first.index,
                second=second.index,
                kind="nvlink" if direct else "nvswitch" if switched else ancestor or "system",
                nvlinks=direct or switched,
                peer_access=_peer_access(nvml, *pair),
            )
        )
    return tuple(links)


def _nvlinks(nvml: Any, handle: Any) -> _NvLinks:
    found = _NvLinks()
    for link in range(_MAXIMUM_LINKS):
        active = ask(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if active is None:
            break
        if not active:
            continue
        if ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _REMOTE_IS_SWITCH:
            found.to_switch += 1
            continue
        remote = pci_address(ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
        if remote is not None:
            found.to_card[remote] = found.to_card.get(remote, 0) + 1
    return found


def _peer_access(nvml: Any, first: Any, second: Any) -> bool | None:
    """Whether each may read and write the other's memory; no consumer RTX 40 may."""
    answers = [
        ask(nvml, "nvmlDeviceGetP2PStatus", first, second, capability)
        for capability in _P2P_READ_AND_WRITE
    ]
    return None if None in answers else all(answer == 0 for answer in answers)
