"""Single calls of NVML, each guarded, and its answers in plain types."""

from __future__ import annotations

import ctypes
from typing import Any


def failures(nvml: Any) -> tuple[type[Exception], ...]:
    """Whatever a call may raise where it does not answer.

    Besides NVML's own errors: bytes that are no UTF-8 (driver 555.85 below
    WSL2), a call that an older binding lacks, and one that it declares otherwise.
    """
    return (
        nvml.NVMLError,
        UnicodeDecodeError,
        AttributeError,
        TypeError,
        ctypes.ArgumentError,
    )


def ask(nvml: Any, call: str, *arguments: Any, **keywords: Any) -> Any:
    """What NVML answers to one call, None where it does not answer."""
    try:
        return getattr(nvml, call)(*arguments, **keywords)
    except failures(nvml):
        return None


def is_error(nvml: Any, error: Any, name: str) -> bool:
    """Whether `error` is the one that nvml.h calls `name`."""
    return bool(getattr(error, "value", None) == getattr(nvml, name, object()))


def text(answer: Any) -> str | None:
    """An answer as text; bindings before 11.5 give bytes."""
    if isinstance(answer, bytes):
        return answer.decode(errors="replace")
    return answer if isinstance(answer, str) else None


def pci_address(answer: Any) -> str | None:
    """The address in a PCI answer as Linux writes it: '00000000:18:00.0' -> '0000:18:00.0'."""
    bus = text(getattr(answer, "busId", None))
    if not bus:
        return None
    domain, colon, rest = bus.lower().partition(":")
    return f"{domain[-4:]}{colon}{rest}"
