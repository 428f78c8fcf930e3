"""Untrusted text made safe to look at: what a model wrote must not steer a terminal or turn a line around.

Prompts, answers, task names and claims come from anybody. Escaping for HTML is the template's work; this is about
characters that are invisible or that act: control characters, bidirectional overrides, lone surrogates.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

#: Categories of Unicode that show nothing of themselves: control, format, surrogate, private use, unassigned;
#: line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str, keep: str = "\n\t") -> str:
    """`text` with every invisible or acting character spelled out as its code; those in `keep` stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or unicodedata.category(c) not in _HIDDEN else _code(c) for c in text)


def one_line(text: str, limit: int = 200) -> str:
    """`text` on one line of at most `limit` characters, safe for a terminal."""
    line = visible(text.replace("\r\n", "\n").replace("\n", "⏎").replace("\t", " "), keep="")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def short_value(value: Any) -> str:
    """A value of a manifest in a few words."""
    if value is None:
        return "not recorded"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, dict):
        return ", ".join(f"{k}: {short_value(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(short_value(v) for v in value) or "none"
    text = str(value)
    is_hash = len(text) >= 40 and all(c in "0123456789abcdef" for c in text)
    return text[:12] + "…" if is_hash else text


def fact_value(name: str, value: Any) -> str:
    """A fact, by the name that it is stored under, in a few words: bytes become MB or GB, a cache of the kernel's MiB."""
    if fact_words(name) != name and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.1f} MB"
    if name == "last_level_cache" and str(value)[-1:] == "K" and str(value)[:-1].isdigit():
        return f"{int(str(value)[:-1]) / 1024:g} MiB"
    return short_value(value)


def fact_words(name: str) -> str:
    """The name of a fact without the unit that `fact_value` gives it."""
    return re.sub(r"_bytes(?=$|_before$|_after$)", "", name)


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
