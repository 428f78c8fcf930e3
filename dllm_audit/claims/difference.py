"""Two claims side by side: the fields in which they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dllm_audit.claims.schema import Claim, Stated


@dataclass(frozen=True)
class FieldDifference:
    """One field by its dotted path. None: the file has no such field."""

    field: str
    first: Any
    second: Any


def differences(first: Claim, second: Claim) -> list[FieldDifference]:
    """Every field in which two claims differ, in the order of the schema; the id is left out."""
    ours, theirs = _flat(first), _flat(second)
    return [
        FieldDifference(name, ours.get(name), theirs.get(name))
        for name in dict.fromkeys([*ours, *theirs])
        if name != "id" and ours.get(name) != theirs.get(name)
    ]


def _flat(model: Any, prefix: str = "") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        path = prefix + name
        if isinstance(value, Stated):
            fields[path] = value.wording
        elif hasattr(type(value), "model_fields"):
            fields |= _flat(value, path + ".")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                fields[f"{path}.{index}"] = _line(item)
        elif value is None and name in ("baseline", "quality"):
            fields[path] = "none"
        elif value is not None:
            fields[path] = str(value) if isinstance(value, str) else value
    return fields


def _line(item: Any) -> Any:
    """An item of a list on one line."""
    return (
        ", ".join(f"{name} {value}" for name, value in _flat(item).items())
        if hasattr(type(item), "model_fields")
        else item
    )
