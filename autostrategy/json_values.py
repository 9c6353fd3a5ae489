"""JSON round trip for frozen dataclasses.

One codec serves `Facts` and `Plan`: a bug report is one file, and a plan made
on a laptop from a cluster's facts is the plan the cluster would make.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from autostrategy.errors import ProbeError

Value = TypeVar("Value")


def to_plain(value: Any) -> Any:
    """`value` as dicts, lists, strings, numbers, booleans and None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    return value


def encode(value: Any) -> str:
    """`value` as indented JSON with the fields in their written order."""
    return json.dumps(to_plain(value), indent=2)


def decode(kind: type[Value], text: str) -> Value:
    """The `kind` that `encode` wrote as `text`.

    Unknown fields are refused: a file from a newer version must not be read
    as if it said less than it does.

    Raises:
        ProbeError: the text is no JSON, or does not describe a `kind`.
    """
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProbeError(
            f"{kind.__name__} must be JSON. Received text that fails at line {error.lineno}, "
            f"column {error.colno}: {error.msg}."
        ) from None
    return typing.cast(Value, _build(kind, plain, kind.__name__))


def _build(kind: Any, plain: Any, path: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        if plain is None and type(None) in typing.get_args(kind):
            return None
        (inner,) = (member for member in typing.get_args(kind) if member is not type(None))
        return _build(inner, plain, path)
    if origin is tuple:
        _require(isinstance(plain, list), path, "a list", plain)
        item_kind = typing.get_args(kind)[0]
        return tuple(_build(item_kind, item, f"{path}[{i}]") for i, item in enumerate(plain))
    if origin is typing.Literal:
        _require(plain in typing.get_args(kind), path, f"one of {typing.get_args(kind)}", plain)
        return plain
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        _require(
            plain in {member.value for member in kind},
            path,
            f"one of {[member.value for member in kind]}",
            plain,
        )
        return kind(plain)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, plain, path)
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    _require(type(plain) is kind, path, f"of type {kind.__name__}", plain)
    return plain


def _build_dataclass(kind: Any, plain: Any, path: str) -> Any:
    _require(isinstance(plain, dict), path, "an object", plain)
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(plain) - set(fields))
    if unknown:
        raise ProbeError(
            f"{path} must have only the fields {sorted(fields)}. Received also: {unknown}. "
            "Was the file written by a newer autostrategy?"
        )
    missing = [
        name
        for name, field in fields.items()
        if name not in plain
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ProbeError(f"{path} must have the field {missing[0]!r}. Received: {sorted(plain)}.")
    return kind(
        **{name: _build(hints[name], item, f"{path}.{name}") for name, item in plain.items()}
    )


def _require(holds: bool, path: str, what: str, plain: Any) -> None:
    if not holds:
        raise ProbeError(f"{path} must be {what}. Received: {plain!r}.")
