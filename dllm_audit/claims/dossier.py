"""Everything that can be said of one claim without measuring: answers, disclosure, traps, contradictions, physics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dllm_audit.claims.physics import PhysicsCheck, check_physics
from dllm_audit.claims.questions import Answer, DisclosureScore, ask, describe, disclosure_score
from dllm_audit.claims.registry import Registry
from dllm_audit.claims.schema import Claim, Gap, Quantity, Stated
from dllm_audit.claims.traps import Trap, TrapFinding, find_traps


@dataclass(frozen=True)
class Dispute:
    """Another claim that this one cannot be true beside."""

    claim: str
    finding: str


@dataclass(frozen=True)
class Dossier:
    """`disputes`: contradictions with other claims of the registry, whichever of the two files has them."""

    claim: Claim
    answers: tuple[Answer, ...]
    score: DisclosureScore
    traps: tuple[TrapFinding, ...]
    disputes: tuple[Dispute, ...]
    physics: PhysicsCheck


def examine(claim: Claim, registry: Registry, traps: Sequence[Trap] | None = None) -> Dossier:
    """The dossier of a claim; `traps` are those of the package by default."""
    answers = tuple(ask(claim))
    disputes = [Dispute(c.claim, c.finding) for c in claim.contradicts]
    disputes += [
        Dispute(other.id, c.finding) for other in registry.claims for c in other.contradicts if c.claim == claim.id
    ]
    return Dossier(
        claim,
        answers,
        disclosure_score(answers),
        tuple(find_traps(claim, traps)),
        tuple(disputes),
        check_physics(claim),
    )


def amount(value: Quantity, unit: str) -> str:
    """A value with its unit, in the source's own wording where it is no plain number."""
    if isinstance(value, Stated):
        return value.wording
    if isinstance(value, Gap):
        return str(value)
    return f"{describe(value)}{'' if unit == 'x' else ' '}{unit}"


def disclosure(score: DisclosureScore) -> str:
    """The disclosure share with its two counts, in words."""
    unknown = f"{score.unknown_fields} could not be read or were not noted"
    if score.share is None:
        return f"not judged: {unknown}"
    return f"{score.share * 100:.0f} % of {score.judged_fields} fields that can be judged; {unknown}"


def as_facts(dossier: Dossier) -> dict[str, Any]:
    """The dossier as plain JSON values. `claim` is the file as it stands."""
    claim = dossier.claim
    return {
        **summary_facts(dossier),
        "questions": [
            {
                "question": answer.question,
                "label": answer.label,
                "status": str(answer.status),
                "reason": answer.reason,
                "fields": {part.field: str(part.status) for part in answer.parts},
            }
            for answer in dossier.answers
        ],
        "traps": [asdict(finding) for finding in dossier.traps],
        "disputes": [asdict(dispute) for dispute in dossier.disputes],
        "physics": dossier.physics.as_dict(),
        "claim": claim.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


def summary_facts(dossier: Dossier) -> dict[str, Any]:
    """One line's worth of facts, as `claims list --json` prints them."""
    claim = dossier.claim
    return {
        "id": claim.id,
        "statement": claim.statement,
        "system": claim.system,
        "vendor": claim.vendor,
        "kind": claim.kind,
        "reported_by": claim.reported_by,
        "date": claim.date,
        "value": claim.model_dump(mode="json")["value"],
        "unit": claim.unit,
        "value_text": amount(claim.value, claim.unit),
        "disclosure": asdict(dossier.score),
        "traps": [finding.id for finding in dossier.traps],
        "physics": str(dossier.physics.verdict),
        "recipe": claim.recipe is not None,
        "mechanisms": len(claim.mechanisms),
    }
