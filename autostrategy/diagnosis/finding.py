"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that stands between a machine and training on all its devices.

    "blocked": training cannot start, or a device that is there cannot be used.
    "warning": it works, but slower, with less, or not as somebody may think.
    `what` is one sentence, `evidence` what shows it, and `remedy` the command,
    or the line of a job's description, that mends it.
    """

    severity: Literal["blocked", "warning"]
    what: str
    evidence: str
    remedy: str
