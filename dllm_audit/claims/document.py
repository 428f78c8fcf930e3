"""YAML text to plain data with line numbers.

A claim file may come from anybody, so only the core of YAML is understood: mappings, lists, text, numbers,
true, false and null. Tags that construct objects, anchors, repeated keys, large files and characters that act on a
terminal or turn a line round are refused, also where an escape such as "\\e" spells them. Unlike
in YAML 1.1, `yes` and `no` are words and dates stay text, so that the schema can say what is wrong with them.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAXIMUM_BYTES = 64 * 1024
"""A claim takes about 3 kB."""

_ACTING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but line end and tab, line separators, what sets the direction of writing, halves of characters."""

_TOO_DEEP = "Lists or mappings are nested too deeply."

FieldPath = tuple[str | int, ...]

_CORE = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Document:
    """`lines` has the line, counted from 1, of every key and list item by its path; () is the whole file."""

    data: dict[str, Any]
    lines: dict[FieldPath, int]


class DocumentError(Exception):
    """A file that cannot be understood. `line` counts from 1."""

    def __init__(self, message: str, line: int = 1):
        super().__init__(message)
        self.line = line


class _PlainParser(yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser):
    """Text to events in Python, for installations of PyYAML without libyaml."""

    def __init__(self, text: str):
        yaml.reader.Reader.__init__(self, text)
        yaml.scanner.Scanner.__init__(self)
        yaml.parser.Parser.__init__(self)


# libyaml reads the registry in a tenth of the time. Events are composed in Python either way: that can be stopped.
_Parser: Any = yaml.cyaml.CParser if yaml.__with_libyaml__ else _PlainParser  # type: ignore[attr-defined]


class _CoreLoader(yaml.composer.Composer, _Parser, yaml.resolver.Resolver):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def __init__(self, text: str):
        _Parser.__init__(self, text)
        yaml.composer.Composer.__init__(self)
        yaml.resolver.Resolver.__init__(self)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise DocumentError("Anchors and aliases (&name, *name) are not allowed.", self._line())
        return super().compose_node(parent, index)

    def _line(self) -> int:
        return int(self.peek_event().start_mark.line) + 1


_CoreLoader.add_implicit_resolver(_CORE + "null", re.compile(r"(?:~|null|)$"), ["~", "n", ""])
_CoreLoader.add_implicit_resolver(_CORE + "bool", re.compile(r"(?:true|false)$"), ["t", "f"])
_CoreLoader.add_implicit_resolver(_CORE + "int", re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))
_CoreLoader.add_implicit_resolver(
    _CORE + "float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def read_document(path: Path) -> Document:
    """The one mapping that a file holds. Raises DocumentError with the line and a sentence."""
    try:
        # A pipe would be waited for without end, and a device has none.
        if not stat.S_ISREG(path.stat().st_mode):
            raise DocumentError("This is no file but a folder, a pipe or a device.")
        with path.open("rb") as file:
            content = file.read(MAXIMUM_BYTES + 1)
    except OSError as error:
        raise DocumentError(f"The file cannot be read: {error.strerror}.") from error
    if len(content) > MAXIMUM_BYTES:
        raise DocumentError(f"The file is larger than {MAXIMUM_BYTES // 1024} kB; a claim takes about 3 kB.")
    try:
        return parse_document(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DocumentError("The file is not UTF-8 text.", line) from error


def parse_document(text: str) -> Document:
    """The one mapping in `text`. Raises DocumentError with the line and a sentence."""
    lines: dict[FieldPath, int] = {(): 1}
    try:
        loader = _CoreLoader(text)
        node = loader.get_single_node()
        data = None if node is None else _value(node, (), lines)
    except yaml.MarkedYAMLError as error:
        if "nesting" in str(error.problem):
            raise DocumentError(_TOO_DEEP) from error
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DocumentError(f"This is not valid YAML: {error.problem}.", line) from error
    except yaml.reader.ReaderError as error:
        # libyaml counts bytes where the other counts characters: the character itself is found in any case.
        found = chr(error.character)
        raise DocumentError(_acting(found), text.partition(found)[0].count("\n") + 1) from error
    except RecursionError as error:
        raise DocumentError(_TOO_DEEP) from error
    if not isinstance(data, dict):
        found = "empty" if data is None else f"a {'list' if isinstance(data, list) else 'single value'}"
        raise DocumentError(f"A claim file holds one mapping of fields, but this one is {found}.")
    return Document(data, lines)


def _value(node: yaml.Node, path: FieldPath, lines: dict[FieldPath, int]) -> Any:
    line = node.start_mark.line + 1
    tag = node.tag.removeprefix(_CORE)
    if isinstance(node, yaml.MappingNode) and tag == "map":
        return _mapping(node, path, lines)
    if isinstance(node, yaml.SequenceNode) and tag == "seq":
        items = []
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            items.append(_value(item, (*path, index), lines))
        return items
    if isinstance(node, yaml.ScalarNode) and tag in _SCALARS:
        _refuse_acting(node)
        try:
            return _SCALARS[tag](node.value)
        except (ValueError, KeyError):
            raise DocumentError(f"{_shorten(node.value)!r} is not {_KINDS[tag]}.", line) from None
    raise DocumentError(f"The tag {node.tag!r} is not allowed: a claim file holds text and numbers only.", line)


def _mapping(node: yaml.MappingNode, path: FieldPath, lines: dict[FieldPath, int]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise DocumentError("A field name must be a word.", line)
        _refuse_acting(key_node)
        key = key_node.value  # the text as written: a field named 1 or true is still a name
        if key in fields:
            raise DocumentError(f"The field {key!r} is given twice, first on line {lines[(*path, key)]}.", line)
        lines[(*path, key)] = line
        fields[key] = _value(value_node, (*path, key), lines)
    return fields


def _refuse_acting(node: yaml.ScalarNode) -> None:
    found = _ACTING.search(node.value)
    if found:
        raise DocumentError(_acting(found[0]), node.start_mark.line + 1)


def _acting(character: str) -> str:
    return f"The character U+{ord(character):04X} acts on a terminal or turns a line round; a claim is plain text."


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "..."


#: What the tag of a scalar asks for; int() refuses more digits than a computer's number has any use for.
_KINDS = {
    "null": "null",
    "bool": "true or false",
    "int": "a whole number of usual length",
    "float": "a number",
    "str": "a text",
}

_SCALARS: dict[str, Any] = {
    "null": lambda _: None,
    "bool": {"true": True, "false": False}.__getitem__,
    "int": int,
    "float": float,
    "str": str,
}
