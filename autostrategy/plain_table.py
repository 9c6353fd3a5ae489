"""Two columns as plain text, the second one wrapped: what `print` shows of a value."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

WIDTH = 100
COLUMN = 24


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Each name with its text beside it; a name that is too long pushes its text along."""
    return "\n".join(
        textwrap.fill(
            text,
            width=WIDTH,
            initial_indent=name.ljust(COLUMN - 1) + " ",
            subsequent_indent=" " * COLUMN,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, text in rows
    )
