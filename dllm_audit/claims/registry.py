"""A folder of claim files. A bad file is refused with its line and a sentence; the rest loads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os.path import realpath
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from dllm_audit.claims.document import Document, DocumentError, FieldPath, read_document
from dllm_audit.claims.schema import Claim, Gap
from dllm_audit.errors import ClaimError, did_you_mean
from dllm_audit.resources import resource_folder


@dataclass(frozen=True)
class ClaimProblem:
    """Why a file, or something in it, was refused. `line` counts from 1."""

    file: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass(frozen=True)
class ClaimFile:
    """What one file holds: a claim and no problems, or problems and no claim."""

    file: Path
    claim: Claim | None
    problems: list[ClaimProblem]
    lines: dict[FieldPath, int]

    def problem(self, path: FieldPath, message: str) -> ClaimProblem:
        """A problem at the line of the field `path`."""
        return ClaimProblem(self.file, _line_of(path, self.lines), message)


@dataclass(frozen=True)
class Registry:
    """The valid claims in the order of their files, and everything that was refused."""

    claims: list[Claim]
    problems: list[ClaimProblem]

    def get(self, claim_id: str) -> Claim:
        """The claim with that id. Raises ClaimError with the nearest ids."""
        by_id = {claim.id: claim for claim in self.claims}
        if claim_id not in by_id:
            raise ClaimError(f"There is no claim {claim_id!r}. {nearest_claims(claim_id, by_id)}")
        return by_id[claim_id]


def nearest_claims(claim_id: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown id: the nearest ones, or where to look. All of them would fill a screen."""
    hint = did_you_mean(claim_id, known)
    return hint if hint.startswith("Did you mean") else "See: dllm-audit claims list"


def load_claims(folder: Path | None = None) -> Registry:
    """Every claim in `folder` and the folders inside it; by default the claims that ship with the package.

    Raises ClaimError when there is no such folder, or no claim file in it. Problems of single files are in the result.
    """
    return _together([read_claim(path) for path in _claim_files(folder)], [])


def check_files(paths: Sequence[Path], folder: Path | None = None) -> Registry:
    """The claims of just these files, and what is wrong with them, also beside the other claims of `folder`.

    Raises ClaimError when there is no such folder.
    """
    # Not Path.resolve, which raises for links that go round in a circle.
    given = {realpath(path) for path in paths}
    others = [read_claim(path) for path in _claim_files(folder) if realpath(path) not in given]
    return _together([read_claim(path) for path in dict.fromkeys(paths)], others)


def _claim_files(folder: Path | None) -> list[Path]:
    folder = folder or resource_folder("claims")
    if not folder.is_dir():
        raise ClaimError(f"There is no folder of claims at {folder}. Give a folder that holds claim files.")
    paths = sorted(path for path in folder.rglob("*.y*ml") if path.suffix in (".yaml", ".yml"))
    if not paths:
        raise ClaimError(f"There is no claim file in {folder}: their names end in .yaml. Start one with: {_START}")
    return paths


_START = "dllm-audit claims new my-claim"


def _together(files: Sequence[ClaimFile], others: Sequence[ClaimFile]) -> Registry:
    """The claims of `files` that can stand beside one another and beside those of `others`, which are not in the result."""
    everything = [*others, *files]
    # Files are named after their claims, so a claim may contradict one whose own file is bad.
    known = {file.file.stem for file in everything} | {file.claim.id for file in everything if file.claim}
    taken: dict[str, Path] = {}
    claims: dict[str, Claim] = {}
    problems = [problem for file in files for problem in file.problems]
    accepted = []
    for number, file in enumerate(everything):
        if file.claim is None:
            continue
        complaints = list(_conflicts(file, file.claim, taken, claims, known))
        taken.setdefault(file.claim.id, file.file)
        if not complaints:
            claims[file.claim.id] = file.claim
        if number >= len(others):
            problems += complaints
            accepted += [] if complaints else [file.claim]
    return Registry(accepted, sorted(problems, key=lambda p: (p.file, p.line)))


def read_claim(path: Path) -> ClaimFile:
    """Read and check one file. Never raises for what is in it: the problems are in the result."""
    try:
        document = read_document(path)
    except DocumentError as error:
        return ClaimFile(path, None, [ClaimProblem(path, error.line, str(error))], {})
    try:
        return ClaimFile(path, Claim.model_validate(document.data), [], document.lines)
    except ValidationError as error:
        return ClaimFile(path, None, list(_explain(path, document, error)), document.lines)


def _conflicts(
    file: ClaimFile, claim: Claim, taken: dict[str, Path], claims: dict[str, Claim], known: set[str]
) -> Iterator[ClaimProblem]:
    """What sets this claim against the ones read before it."""
    if claim.id in taken:
        yield file.problem(("id",), f"id: {claim.id!r} is already the id of {taken[claim.id]}; ids are unique.")
    for index, contradiction in enumerate(claim.contradicts):
        sentence = _contradiction_problem(claim.id, contradiction.claim, claims, known)
        if sentence:
            yield file.problem(("contradicts", index, "claim"), f"contradicts: {sentence}")


def _contradiction_problem(claim: str, other: str, claims: dict[str, Claim], known: set[str]) -> str:
    """Why the claim cannot name the other as one that it contradicts, by their ids; empty where it can."""
    if other not in known:
        return f"there is no claim {other!r}. {nearest_claims(other, known)}"
    if other == claim:
        return (
            "a claim cannot contradict itself; put another figure of the same source into 'figures', with the relation "
            "'same'."
        )
    way = _way(other, claim, claims)
    if len(way) == 2:
        return f"{other!r} contradicts {claim!r} already; write a contradiction on one of the two claims only."
    if way:
        return f"the contradictions go round in a circle, {' > '.join([claim, *way])}; write this one into {other!r} instead."
    return ""


def _way(start: str, end: str, claims: dict[str, Claim]) -> list[str]:
    """The ids from `start` to `end`, both included, that contradictions lead along; empty where none do."""
    ways = {start: [start]}
    waiting = [start]
    while waiting:
        here = waiting.pop(0)
        claim = claims.get(here)
        for target in [c.claim for c in claim.contradicts] if claim else []:
            if target == end:
                return [*ways[here], end]
            if target not in ways:
                ways[target] = [*ways[here], target]
                waiting.append(target)
    return []


def _explain(path: Path, document: Document, error: ValidationError) -> Iterator[ClaimProblem]:
    for item in error.errors(include_url=False):
        named = item.get("ctx", {}).get("field")
        place = tuple(named.split(".")) if named else _place_in_file(item["loc"], document.lines)
        kind = item["type"]
        where = ".".join(map(str, place[:-1] if kind in ("missing", "extra_forbidden") else place))
        line = _line_of(place, document.lines)
        sentence = f"{where or 'claim'}: {_sentence(item, place)}"
        yield ClaimProblem(path, line, sentence if sentence.endswith(("?", ".")) else f"{sentence}.")


def _place_in_file(location: FieldPath, lines: dict[FieldPath, int]) -> FieldPath:
    """A location of pydantic without the tags of unions ("number", "stated", "gap"), which no file has."""
    place: FieldPath = ()
    for step in location:
        if (*place, step) in lines or step not in ("number", "stated", "gap"):
            place = (*place, step)
    return place


def _sentence(item: Any, place: FieldPath) -> str:
    """The end of a sentence about one thing that pydantic found; a full stop may be missing."""
    kind, value = item["type"], item["input"]
    if kind == "extra_forbidden":
        return f"unknown field {place[-1]!r}. {did_you_mean(str(place[-1]), _fields_at(place[:-1]))}"
    if kind == "missing" and place[-1] in ("qualifier", "wording"):
        return f"the field {place[-1]!r} is missing; a value that is not one plain number needs it"
    if kind == "missing":
        return f"the field {place[-1]!r} is missing; where there is no answer, write which of {_gaps()} it is"
    if kind == "value_error":
        return str(item["ctx"]["error"])
    if kind == "claim":
        return item["msg"]
    if value is None:
        return f"is empty; where there is no answer, write which of {_gaps()} it is"
    if kind == "enum":
        return _not_a_quantity(value)
    if kind == "literal_error":
        return f"is {value!r}; expected {item['ctx']['expected']}"
    if kind == "string_type" and isinstance(value, bool):
        return f"is {str(value).lower()}; write 'yes' or 'no'"
    if kind == "string_type" and isinstance(value, (int, float)):
        return f"is the number {value}, but a text belongs here; put it in quotes"
    if kind in ("greater_than", "greater_than_equal"):
        least = item["ctx"].get("ge", item["ctx"].get("gt"))
        return f"is {value}; it must be {'at least' if kind.endswith('equal') else 'more than'} {least:g}"
    if kind == "string_pattern_mismatch":
        return f"is {value!r}; an id has small letters, digits, hyphens and full stops only"
    return _PLAIN.get(kind) or item["msg"][0].lower() + item["msg"][1:]


_PLAIN = {
    "model_type": "must be a group of fields",
    "dict_type": "must be a group of named numbers",
    "list_type": "must be a list, each item on a line that starts with a hyphen",
    "string_type": "must be a text",
    "string_too_short": "is empty",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
}


def _not_a_quantity(value: Any) -> str:
    number = re.fullmatch(r"\s*~?\s*([0-9][0-9.,]*)\s*([^0-9\s].*)", str(value))
    if number:
        return f"is the text {value!r}; write the number {number[1]} alone and put {number[2]!r} into the unit"
    return (
        f"is {value!r}; write a number, a group with qualifier and wording, or one of {_gaps()}. "
        f"{did_you_mean(str(value), list(Gap))}"
    )


def _gaps() -> str:
    return ", ".join(repr(str(gap)) for gap in Gap)


def _fields_at(place: FieldPath) -> list[str]:
    """The fields that the schema knows in the group at `place`."""
    model: type[BaseModel] = Claim
    for step in place:
        field = next((f for name, f in model.model_fields.items() if step in (name, f.alias)), None)
        model = (_model_in(field.annotation) if field else None) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def _line_of(place: FieldPath, lines: dict[FieldPath, int]) -> int:
    """The line of the nearest enclosing field that the file has."""
    return next(lines[place[:end]] for end in range(len(place), -1, -1) if place[:end] in lines)
