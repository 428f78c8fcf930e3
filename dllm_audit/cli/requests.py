"""Files of requests: one JSON object a line. A line that is no request fails alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from dllm_audit.errors import RequestError, UsageError
from dllm_audit.files import refuse_special
from dllm_audit.records import Failure

T = TypeVar("T")


def read_requests(path: Path, parse: Callable[[dict[str, Any]], T]) -> Iterator[tuple[Any, T | Failure]]:
    """(id as given, what `parse` makes of the line or the reason why it is no request) for every line of the file.

    parse(fields) raises RequestError with the middle of a sentence: "it is no JSON object".
    """
    refuse_special(path, UsageError)
    try:
        # Some editors put a byte-order mark first. Only "\n" ends a line: a JSON text may hold other separators.
        with click.open_file(str(path), encoding="utf-8-sig") as file:
            lines = file.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read: {why}. Give a UTF-8 file with one JSON object per line.") from error
    if not any(line.strip() for line in lines):
        raise UsageError(
            f'{path} holds no request. Each line is a JSON object such as {{"id": "1", "prompt_ids": [1, 2]}}.'
        )
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        id: Any = f"line {number}"
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise RequestError("it is no JSON object")
            id = _id_of(fields, id)
            yield id, parse(fields)
        except RecursionError:
            yield (
                id,
                Failure(
                    str(id), "RequestError", f"Line {number} of {path.name} is no request: it is nested too deeply."
                ),
            )
        except (ValueError, RequestError) as error:
            yield (
                id,
                Failure(str(id), "RequestError", f"Line {number} of {path.name} is no request: {error}."),
            )


def _id_of(fields: dict[str, Any], default: str) -> Any:
    """The id as given, whatever it is; it comes back in the JSON of the answer, so it must be JSON itself."""
    id = fields.get("id", default)
    try:
        json.dumps(id, allow_nan=False)
    except ValueError:
        raise RequestError("its id holds NaN or Infinity, which are no JSON") from None
    return id


def text_of(fields: dict[str, Any], name: str) -> str | None:
    """The text in field `name`, or None where the line has none."""
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestError(f"{name} is no text")
    return value


def ids_of(fields: dict[str, Any], name: str) -> tuple[int, ...] | None:
    """The token ids in field `name`, or None where the line has none."""
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        raise RequestError(f"{name} is no list of whole numbers")
    return tuple(value)
