"""Code answers, read and never executed: does it parse, and is every name that it uses defined somewhere?"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: lm-eval's names of metrics that execute what the model wrote.
_EXECUTED = re.compile(r"pass(@|_at_)")

#: A longer answer is no program that a person would read, and parsing it may take long.
_LONGEST = 200_000


@dataclass(frozen=True)
class CodeReading:
    """What reading one program found. undefined: names that it uses and that nothing defines, in order of their names.

    syntax_error: why it does not parse; None where it does, and then only `undefined` means something.
    """

    syntax_error: str | None
    undefined: tuple[str, ...] = ()


def read_code(source: str) -> CodeReading:
    """Parse Python `source` and look for undefined names, as pyflakes sees them. Nothing of it is executed."""
    from pyflakes.checker import Checker
    from pyflakes.messages import UndefinedLocal, UndefinedName

    if len(source) > _LONGEST:
        return CodeReading(f"longer than {_LONGEST:,} characters")
    try:
        with warnings.catch_warnings():
            # Python warns of "\d" in a string; that is the model's business.
            warnings.simplefilter("ignore")
            found = Checker(ast.parse(source), filename="answer").messages
    except SyntaxError as error:
        return CodeReading(str(error.msg or "invalid syntax"))
    except (ValueError, RecursionError, MemoryError) as error:
        # A null character, half a surrogate pair, or brackets nested beyond what the parser holds.
        return CodeReading(f"{type(error).__name__}: it cannot be parsed")
    names = {str(message.message_args[0]) for message in found if isinstance(message, UndefinedName | UndefinedLocal)}
    return CodeReading(None, tuple(sorted(names)))


def programs_of(answers: Sequence[Mapping[str, Any]]) -> dict[Any, str]:
    """The program of each document that a task executed: what its filter made of the answer. Empty for other tasks.

    answers: rows of the table of that name. A metric of a task that executes code is called pass@k or pass_at_k.
    """
    found: dict[Any, str] = {}
    for row in answers:
        if _EXECUTED.match(row["metric"]) and row["response"] is not None:
            found.setdefault(row["doc_id"], row["response"])
    return found
