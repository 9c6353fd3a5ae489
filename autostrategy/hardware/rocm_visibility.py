"""Which AMD GPUs ROCm leaves to this process.

Two layers, each numbering what the one below it left: ROCR_VISIBLE_DEVICES
(numbers or UUIDs), then HIP_VISIBLE_DEVICES, in whose place CUDA_VISIBLE_DEVICES
is read too (rocm.docs.amd.com, "GPU isolation techniques").

    ROCR_VISIBLE_DEVICES=1,2 HIP_VISIBLE_DEVICES=1      of four GPUs the third
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_LOWER = "ROCR_VISIBLE_DEVICES"
_UPPER = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")

VARIABLES = (_LOWER, *_UPPER)


def visible(gpus: Sequence[str], env: Mapping[str, str]) -> tuple[int, ...]:
    """Positions in `gpus`, which holds the UUID of each ("" if unknown), in HIP's order."""
    left = tuple(range(len(gpus)))
    upper = next((name for name in _UPPER if name in env), None)
    for name in (_LOWER, upper):
        if name is not None and name in env:
            left = _chosen(env[name], left, gpus)
    return left


def _chosen(value: str, left: Sequence[int], gpus: Sequence[str]) -> tuple[int, ...]:
    """As with CUDA, only the entries before the first invalid one count."""
    chosen: list[int] = []
    for entry in (part.strip() for part in value.split(",")):
        named = [position for position in left if entry and gpus[position] == entry]
        if entry.isascii() and entry.isdigit() and len(entry) <= 9 and int(entry) < len(left):
            named = [left[int(entry)]]
        if not named:
            break
        chosen += named
    return tuple(chosen)
