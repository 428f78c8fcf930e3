"""Published claims, gathered by system: the four questions, traps, disputes and checks of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dllm_audit.claims.dossier import Dossier, amount, disclosure, examine
from dllm_audit.claims.questions import Status
from dllm_audit.report.sections.checks import CheckCard, ChecksSection

if TYPE_CHECKING:
    from dllm_audit.claims.registry import Registry
    from dllm_audit.claims.schema import Claim
    from dllm_audit.claims.traps import Trap, TrapFinding

#: Characters of a claim's figure that have room beside its statement.
LONGEST_FIGURE = 36


@dataclass(frozen=True)
class ClaimRow:
    """One published claim: what can be said of it without measuring, and what these runs say.

    disclosed: how much the source discloses, in words. disputed: ids of the contradicting claims that are in the page.
    """

    dossier: Dossier
    figure: str
    link: str | None
    disclosed: str
    disputed: frozenset[str]
    checks: tuple[CheckCard, ...]


@dataclass(frozen=True)
class SystemRow:
    """The claims about one system. `counts`: for each of the four questions, how many claims have which status."""

    name: str
    claims: tuple[ClaimRow, ...]
    counts: tuple[tuple[tuple[str, int], ...], ...]
    traps: int


@dataclass(frozen=True)
class ClaimsSection:
    systems: tuple[SystemRow, ...]
    claims: int
    traps: int
    problems: int


def claims_section(registry: Registry, traps: Sequence[Trap] | None, checks: ChecksSection) -> ClaimsSection:
    by_system: dict[str, list[ClaimRow]] = {}
    known = frozenset(claim.id for claim in registry.claims)
    for claim in registry.claims:
        row = _claim(examine(claim, registry, traps), known, checks.of(claim.id))
        by_system.setdefault(claim.system, []).append(row)
    systems = tuple(
        _system(name, by_system[name]) for name in sorted(by_system, key=lambda name: (-len(by_system[name]), name))
    )
    return ClaimsSection(systems, len(registry.claims), sum(system.traps for system in systems), len(registry.problems))


def _system(name: str, rows: Sequence[ClaimRow]) -> SystemRow:
    counts = []
    for question in range(4):
        found = Counter(str(row.dossier.answers[question].status) for row in rows)
        counts.append(tuple((str(status), found[str(status)]) for status in Status if found[str(status)]))
    return SystemRow(name, tuple(rows), tuple(counts), sum(len(row.dossier.traps) for row in rows))


def _claim(dossier: Dossier, known: frozenset[str], checks: tuple[CheckCard, ...]) -> ClaimRow:
    import re

    claim = dossier.claim
    value = amount(claim.value, claim.unit)
    arxiv = re.fullmatch(r"arXiv:(\d{4}\.\d{4,5})(?:v\d+)?", claim.source.identifier)
    return ClaimRow(
        dossier=dossier,
        figure="in words" if len(value) > LONGEST_FIGURE else value,
        link=f"https://arxiv.org/abs/{arxiv[1]}" if arxiv else None,
        disclosed=disclosure(dossier.score),
        disputed=known.intersection(dispute.claim for dispute in dossier.disputes),
        checks=checks,
    )


def seen_in(trap: TrapFinding, claim: Claim) -> str:
    """Where else a trap was met, or why its rule holds; empty where that is the claim's own paper."""
    import re

    papers = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
    own = papers.search(claim.source.identifier)
    parts = [part.strip() for part in trap.source.split(";")]
    others = [part for part in parts if own is None or own[1] not in papers.findall(part)]
    if not others:
        return ""
    # A place names a paper; anything else is the reference of a rule.
    word = "Also seen in" if any(papers.search(part) for part in others) else "Why"
    return f"{word}: {'; '.join(others)}."
