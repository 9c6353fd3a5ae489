"""Medians with their spread, ratios within a round, and lines of Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

median = statistics.median


def line(values: Iterable[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, with the smallest and the largest."""
    if not values:
        return ""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def ratios(
    own: list[dict[str, Any]],
    measurements: list[dict[str, Any]],
    other: str,
    field: str,
    *,
    inverse: bool = False,
) -> list[float]:
    """A field of measurements by that of the contender `other` in the same round.

    Args:
        own: all measurements, among them the other contender's.
        measurements: those of the contender in question.
        other: whose value is 1.
        field: what to divide.
        inverse: divide the other's by this one's, as a speed from times.
    """
    by_round = {
        each["round"]: each[field]
        for each in own
        if each["contender"] == other and "raises" not in each
    }
    pairs = [
        (each[field], by_round[each["round"]]) for each in measurements if each["round"] in by_round
    ]
    return [theirs / mine if inverse else mine / theirs for mine, theirs in pairs]
