"""The versions of Keras and TensorFlow that the suite runs against, and what it says of others."""

from __future__ import annotations

import re

# docs/decisions/0002-supported-versions.md: at least, below.
SUPPORTED = {"keras": ((3, 12), (3, 16)), "tensorflow": ((2, 20), (2, 22))}


def refusal(package: str, version: str) -> str | None:
    """Why this version is refused and the command that mends it, None when it is supported."""
    least, below = SUPPORTED[package]
    if least <= _number(version) < below:
        return None
    return (
        f"{package} must be at least {_text(least)} and below {_text(below)}. Received: "
        f"{version}. Run: {command(package)}."
    )


def command(package: str) -> str:
    """How to install a supported version: pip install 'keras>=3.12,<3.16'."""
    least, below = SUPPORTED[package]
    return f"pip install '{package}>={_text(least)},<{_text(below)}'"


def _number(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
