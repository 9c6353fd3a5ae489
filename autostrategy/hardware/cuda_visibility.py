"""Which GPUs CUDA will show this process, and as which number.

CUDA_VISIBLE_DEVICES by the CUDA programming guide: unset shows all, empty
shows none, a list shows its entries in its order up to the first invalid one.
An entry is a number or the unique beginning of a UUID. What the guide leaves
open (an entry twice, numbers among UUIDs, blanks, '1gpu') is read as PyTorch
reads it, whose `_parse_visible_devices` in torch/cuda/__init__.py follows the
driver, and is noted.

    2,0     GPU-8932f937     MIG-5d1f2b34-0aa1-5c11-9f00-0123456789ab     MIG-GPU-8932f937-.../7/0

A process can use one MIG instance at most, and not together with whole cards.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from autostrategy.errors import ProbeError
from autostrategy.facts import Device

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_DEVICE_ORDER = "CUDA_DEVICE_ORDER"

# Entries that people and schedulers write when they mean no GPU at all.
_MEANT_AS_NONE = ("", "-1", "none", "void", "nodevfiles")


def number(
    devices: Sequence[Device], env: Mapping[str, str]
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """`devices` with `visible_index` set as CUDA would by `env`, and notes on odd input.

    Raises:
        ProbeError: an entry is the beginning of more than one UUID.
    """
    if not devices:
        return (), ()
    notes: list[str] = []
    ordered = _in_cuda_order(devices, env, notes)
    value = env.get(VISIBLE_DEVICES)
    if value is None:
        chosen = ordered
    else:
        chosen = _chosen(value, ordered, devices, notes)
    shown = _at_most_one_instance([_instance_of(each, devices) for each in chosen], notes)
    positions = {device.index: position for position, device in enumerate(shown)}
    return (
        tuple(
            dataclasses.replace(each, visible_index=positions.get(each.index)) for each in devices
        ),
        tuple(notes),
    )


def _in_cuda_order(
    devices: Sequence[Device], env: Mapping[str, str], notes: list[str]
) -> list[Device]:
    """Whole cards in the order of CUDA's own numbers, which is not always NVML's."""
    cards = [device for device in devices if device.mig != "instance"]
    if env.get(_DEVICE_ORDER) == "PCI_BUS_ID" or len({card.name for card in cards}) < 2:
        return cards
    notes.append(
        "GPUs differ and CUDA_DEVICE_ORDER is not PCI_BUS_ID, so CUDA numbers them from the "
        "fastest on by a rule of its own, taken here to be compute capability, then memory. "
        "Set CUDA_DEVICE_ORDER=PCI_BUS_ID to be certain."
    )
    return sorted(cards, key=_speed, reverse=True)


def _speed(card: Device) -> tuple[tuple[int, ...], int]:
    capability = tuple(int(part) for part in (card.compute_capability or "0").split("."))
    return capability, card.memory_bytes or 0


def _chosen(
    value: str, ordered: Sequence[Device], devices: Sequence[Device], notes: list[str]
) -> list[Device]:
    entries = value.split(",")
    by_uuid = entries[0].strip().startswith(("GPU-", "MIG-"))
    if any(entry != entry.strip() for entry in entries):
        notes.append(f"{VISIBLE_DEVICES}={value!r} has blanks; write it without.")
    chosen: list[Device] = []
    for position, entry in enumerate(entries):
        device = (_by_uuid if by_uuid else _by_number)(entry.strip(), ordered, devices, notes)
        if device is None:
            _note_end(value, entries, position, notes)
            break
        if device in chosen:
            notes.append(
                f"{VISIBLE_DEVICES}={value!r} names GPU {device.index} twice, and then CUDA shows "
                "none at all. Name each once."
            )
            return []
        chosen.append(device)
    return chosen


def _note_end(value: str, entries: Sequence[str], position: int, notes: list[str]) -> None:
    """Say that an invalid entry hides itself and what follows, unless it was meant to."""
    entry = entries[position].strip()
    is_last = position == len(entries) - 1
    if is_last and entry.lower() in _MEANT_AS_NONE:
        return
    hidden = "every GPU" if position == 0 else f"it and what follows {entries[position - 1]!r}"
    if position and is_last:
        hidden = "it alone"
    also = " 'all' is a value of NVIDIA_VISIBLE_DEVICES." if entry == "all" else ""
    notes.append(
        f"{VISIBLE_DEVICES}={value!r}: no GPU of this process is {entry!r}, which hides {hidden}."
        f"{also} Unset it to see all GPUs."
    )


def _by_number(
    entry: str, ordered: Sequence[Device], devices: Sequence[Device], notes: list[str]
) -> Device | None:
    match = re.match(r"\+?([0-9]{1,9})", entry)
    if match is None:
        return None
    if match.group() != entry:
        notes.append(f"{VISIBLE_DEVICES} has {entry!r}, which CUDA reads as {int(match[1])}.")
    position = int(match[1])
    return ordered[position] if position < len(ordered) else None


def _by_uuid(
    entry: str, ordered: Sequence[Device], devices: Sequence[Device], notes: list[str]
) -> Device | None:
    # Before driver 470: MIG-GPU-<uuid of the card>/<GPU instance>/<compute instance>.
    if match := re.fullmatch(r"MIG-(GPU-[^/]+)/([0-9]+)/([0-9]+)", entry):
        card = _by_uuid(match[1], ordered, devices, notes)
        place = None if card is None else (card.index, match[2], match[3])
        return next((each for each in devices if _place(each) == place), None) if place else None
    if not entry.startswith(("GPU-", "MIG-")) or len(entry) == 4:
        return None
    matches = [device for device in devices if device.uuid and device.uuid.startswith(entry)]
    if len(matches) > 1:
        raise ProbeError(
            f"{VISIBLE_DEVICES} must name each GPU by a beginning of its UUID that no other "
            f"shares. Received: {entry!r}, which fits GPUs "
            f"{' and '.join(str(device.index) for device in matches)}. Write more of the UUID, "
            "as nvidia-smi -L prints it."
        )
    return matches[0] if matches else None


def _place(device: Device) -> tuple[int | None, str, str]:
    return device.parent_index, str(device.gpu_instance), str(device.compute_instance)


def _instance_of(device: Device, devices: Sequence[Device]) -> Device | None:
    """The device itself, or of a card in MIG mode the instance that CUDA takes: its first."""
    if device.mig != "parent":
        return device
    return next((each for each in devices if each.parent_index == device.index), None)


def _at_most_one_instance(chosen: Sequence[Device | None], notes: list[str]) -> list[Device]:
    usable = [device for device in chosen if device is not None]
    if len(usable) < 2 or all(device.mig == "off" for device in usable):
        return usable
    # Which of both CUDA prefers is not documented; the first named is a guess.
    kept = [each for each in usable if each.mig == "off"] if usable[0].mig == "off" else usable[:1]
    notes.append(
        f"A process can use one MIG instance and no other GPU beside it; of {len(usable)} GPUs "
        f"only {', '.join(str(device.index) for device in kept)} can be used by this process."
    )
    return kept
