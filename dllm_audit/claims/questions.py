"""The four questions to ask of "N times faster", put to one claim.

Each question looks at a few fields. A field that a source left silent counts against the source; one that
could not be read, was not recorded, or does not apply counts neither way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dllm_audit.claims.schema import Claim, Gap, Stated


class Status(StrEnum):
    """How far a source answers. The last four are the four non-answers of a field."""

    ANSWERED = "answered"
    PARTLY = "partly"
    NOT_STATED = "not stated"
    UNREADABLE = "unreadable"
    NOT_RECORDED = "not recorded"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Part:
    """One field that a question looks at, by its path in the claim file."""

    field: str
    status: Status


@dataclass(frozen=True)
class Answer:
    """`reason` is one sentence; `parts` are the fields it rests on."""

    question: str
    label: str
    status: Status
    reason: str
    parts: tuple[Part, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(part.field for part in self.parts)


@dataclass(frozen=True)
class DisclosureScore:
    """How much of what could be judged the source discloses.

    `share` is in 0..1, or None when nothing could be judged. It says little where most fields are unknown,
    so show it together with the counts: `judged_fields` went into it, `unknown_fields` were unreadable or
    not recorded.
    """

    share: float | None
    judged_fields: int
    unknown_fields: int


_CREDIT = {Status.ANSWERED: 1.0, Status.PARTLY: 0.5, Status.NOT_STATED: 0.0}


def ask(claim: Claim) -> list[Answer]:
    """The four questions in their order."""
    return [_concurrency(claim), _baseline(claim), _quality(claim), _time(claim)]


def disclosure_score(answers: Sequence[Answer]) -> DisclosureScore:
    """The mean over the questions of the share of their fields that the source fills.

    A full answer counts 1, half an answer 0.5 and silence 0. What is unreadable, not recorded or not
    applicable is left out, so that a source nobody could open is never ranked below one that was read and
    found silent.
    """
    shares = []
    for answer in answers:
        credits = [_CREDIT[part.status] for part in answer.parts if part.status in _CREDIT]
        if credits:
            shares.append(sum(credits) / len(credits))
    statuses = [part.status for answer in answers for part in answer.parts]
    return DisclosureScore(
        share=sum(shares) / len(shares) if shares else None,
        judged_fields=sum(status in _CREDIT for status in statuses),
        unknown_fields=sum(status in (Status.UNREADABLE, Status.NOT_RECORDED) for status in statuses),
    )


def _concurrency(claim: Claim) -> Answer:
    question = "At what concurrency was it measured?"
    part = _part(claim, "concurrency")
    if not claim.about_speed and part.status is not Status.ANSWERED:
        return _does_not_arise(question, "concurrency", part)
    reasons = {
        Status.ANSWERED: f"Concurrency {describe(claim.concurrency)}.",
        Status.PARTLY: f"Only in words: {describe(claim.concurrency)}.",
    }
    return Answer(question, "concurrency", part.status, reasons.get(part.status, _gap_reason(part)), (part,))


def _baseline(claim: Claim) -> Answer:
    question = "Against which baseline, on the same GPU and the same engine?"
    if claim.baseline is None:
        part = Part("baseline", Status.NOT_APPLICABLE)
        return Answer(question, "baseline", part.status, "The claim makes no comparison.", (part,))
    names = ["baseline.model", "baseline.value"]
    names += ["baseline.same_gpu", "baseline.same_engine"] if claim.about_speed else []
    return _combine(question, "baseline", claim, names)


def _quality(claim: Claim) -> Answer:
    question = "With what quality at that speed, and with which threshold?"
    if claim.quality is None:
        part = Part("quality", Status.NOT_STATED)
        return Answer(question, "quality", part.status, "No quality was measured at this speed.", (part,))
    if claim.quality.at_speed is Gap.NOT_APPLICABLE:
        return _does_not_arise(question, "quality", _part(claim, "quality.at_speed"))
    # With a schedule fixed beforehand the number of steps is what a threshold is otherwise.
    knob = "decode.steps" if claim.decode.schedule == "fixed" else "decode.threshold"
    answer = _combine(question, "quality", claim, ["quality.benchmark", "quality.at_speed", knob])
    if claim.quality.same_runs != "no":
        return answer
    # A score from elsewhere is not the quality at that speed; one that nobody could read says nothing of the source.
    parts = tuple(
        Part(part.field, Status.NOT_STATED) if part.field == "quality.at_speed" and part.status in _TOLD else part
        for part in answer.parts
    )
    reason = "The quality given belongs to other settings or tasks than the speed."
    return Answer(question, "quality", _summary(parts), reason, (*parts, _part(claim, "quality.same_runs")))


def _time(claim: Claim) -> Answer:
    question = "Does the time include prefill, the commit pass of each block, and fixed overheads?"
    names = ["time_includes.prefill", "time_includes.commit_pass", "time_includes.fixed_overhead"]
    parts = tuple(_part(claim, name) for name in names)
    if not claim.about_speed and not any(part.status is Status.ANSWERED for part in parts):
        return _does_not_arise(question, "time", *parts)
    return _combine(question, "time", claim, names)


def _combine(question: str, label: str, claim: Claim, names: Sequence[str]) -> Answer:
    parts = tuple(_part(claim, name) for name in names)
    answered = [f"{_words(p.field)} {describe(field_of(claim, p.field))}" for p in parts if p.status in _TOLD]
    missing = [f"{_words(p.field)} {p.status}" for p in parts if p.status in _UNTOLD]
    if not answered and not missing:
        return _does_not_arise(question, label, *parts)
    return Answer(question, label, _summary(parts), _sentence([*answered, *missing]), parts)


_TOLD = (Status.ANSWERED, Status.PARTLY)
_UNTOLD = (Status.NOT_STATED, Status.UNREADABLE, Status.NOT_RECORDED)


def _summary(parts: Sequence[Part]) -> Status:
    """The status of a question from those of its fields; what does not apply has no say."""
    found = {part.status for part in parts} - {Status.NOT_APPLICABLE}
    if not found:
        return Status.NOT_APPLICABLE
    if len(found) == 1:
        return next(iter(found))
    if found & set(_TOLD):
        return Status.PARTLY
    # Nothing is answered and the reasons differ: the one that blames the source least.
    return Status.UNREADABLE if Status.UNREADABLE in found else Status.NOT_RECORDED


def _part(claim: Claim, name: str) -> Part:
    value = field_of(claim, name)
    if isinstance(value, Gap):
        return Part(name, Status(str(value)))
    return Part(name, Status.PARTLY if isinstance(value, Stated) and value.qualifier == "words" else Status.ANSWERED)


def field_of(claim: Claim, name: str) -> Any:
    """The value of the field with that dotted path."""
    value: Any = claim
    for step in name.split("."):
        value = getattr(value, step)
    return value


def describe(value: Any) -> str:
    """A field's value in a few words: a number, the source's wording, or the gap."""
    if isinstance(value, Stated):
        return f"{value.wording!r}" if value.qualifier == "words" else value.wording
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _does_not_arise(question: str, label: str, *parts: Part) -> Answer:
    reason = "The question does not arise for this kind of claim."
    return Answer(
        question,
        label,
        Status.NOT_APPLICABLE,
        reason,
        tuple(Part(p.field, Status.NOT_APPLICABLE) for p in parts),
    )


def _gap_reason(part: Part) -> str:
    return _sentence([f"{_words(part.field)} {part.status}"])


def _words(field: str) -> str:
    return field.rsplit(".", 1)[-1].replace("_", " ").replace("gpu", "GPU")


def _sentence(clauses: Sequence[str]) -> str:
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."
