"""Values that launchers write into the environment, and files that they point to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autostrategy.errors import ProbeError

# Room for 65536 hosts of a hundred letters on several lines each, and an end to
# a path that points anywhere.
_MAXIMUM_CHARACTERS = 1 << 26


def number(
    env: Mapping[str, str],
    name: str,
    *,
    way_out: str,
    least: int = 0,
    most: int | None = None,
) -> int:
    """The whole number in the variable `name`.

    Raises:
        ProbeError: it is unset, no whole number, or not from `least` to `most`.
            `way_out` ends the message.
    """
    text = env.get(name)
    # isdigit alone also holds for digits that int() does not take, such as '²'.
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 12):
        said = "nothing" if text is None else quote(text)
        raise ProbeError(f"{name} must be a whole number from {least}. Received: {said}. {way_out}")
    value = int(text)
    if value < least or (most is not None and value > most):
        to = "" if most is None else f" to {most}"
        raise ProbeError(f"{name} must be from {least}{to}. Received: {value}. {way_out}")
    return value


def read_file(root: Path, path: str) -> str | None:
    """The file at `path` below `root`, which stands for /; None where it cannot be read."""
    try:
        file = root / path.lstrip("/") if path.startswith("/") else Path(path)
        if not file.is_file():  # a pipe would wait for a writer
            return None
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_MAXIMUM_CHARACTERS)
    except (OSError, ValueError):  # ValueError: a path with a null character
        return None


def quote(text: str) -> str:
    """`text` as a message shows it: in quotes, and not without end."""
    return repr(text if len(text) <= 200 else text[:200] + "...")
