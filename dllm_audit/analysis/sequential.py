"""Two runs that a sequential rule stopped: what was decided, with intervals that hold whenever one stops.

An interval for a number of documents that was fixed beforehand is wrong after "stop as soon as it is decided": one looks
again and again and stops at a moment of one's choice. For the two runs of one audit the evidence is therefore taken
from the stored pairs in the order in which they came, by `statistics.sequential`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.rows import asks_for_likelihoods, without_damaged
from dllm_audit.analysis.words import count
from dllm_audit.statistics.sequential import MINIMUM_PAIRS, AuditPair, SequentialAudit

ALPHA = 0.05
"""The chance of a false "faster and not worse", as everywhere here one-sided."""

IN_TURNS = "decoded in turns, whenever one stops"
"""What an always-valid interval of speed is over, after the number of pairs."""

WHENEVER = "paired documents, whenever one stops"

What = Literal["work", "characters", "requests"]
"""What speed counts: answered tokens (requests where given answers were scored), their characters, or requests."""


@dataclass(frozen=True)
class DocumentCost:
    """All requests of a document together: their seconds, and what was made in them."""

    seconds: float
    tokens: float
    characters: float
    requests: int

    def made(self, what: What, scored: bool) -> float:
        if what == "characters":
            return self.characters
        return float(self.requests if what == "requests" or scored else self.tokens)


@dataclass(frozen=True)
class StoppedPair:
    """What the pairs of an audit say at a margin of one's choice, in the order in which they came.

    audit: decides, at `ALPHA`. speed, characters, time: ratios with always-valid 95 % intervals, as in a `Comparison`.
    sentences: what a reader must know of how the runs ended.
    """

    audit: SequentialAudit
    speed: Figure
    characters: Figure
    time: Figure
    sentences: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        audit = self.audit
        return {
            "decision": audit.decision,
            "decided_after": audit.decided_after,
            "pairs": audit.pairs,
            "margin": audit.margin,
            "faster_than": audit.faster_than,
        }

    @property
    def pace(self) -> Literal["faster", "slower", "open", "unknown"]:
        """What was shown of speed."""
        if self.audit.faster_after is not None:
            return "faster"
        if self.audit.slower_after is not None:
            return "slower"
        return "unknown" if self.audit.pairs < MINIMUM_PAIRS else "open"


@dataclass(frozen=True)
class QualitySoFar:
    """The difference of a right-or-wrong metric with its always-valid 95 % interval, and what was shown of the margin."""

    difference: Figure
    not_worse: bool
    worse: bool


def stored_facts(run: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a run keeps of the audit that it was a side of; None for any other run."""
    found = run["manifest"].get("sequential")
    return found if isinstance(found, dict) and isinstance(found.get("margin"), int | float) else None


def audited_margin(candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> float | None:
    """The margin of the audit whose two sides these runs are, as a share; None where they are of none."""
    ours, theirs = stored_facts(candidate), stored_facts(baseline)
    if ours is None or theirs is None or not _order(ours) or ours.get("audit") != theirs.get("audit"):
        return None
    if {ours.get("side"), theirs.get("side")} != {"candidate", "baseline"}:
        return None
    return float(ours["margin"])


def stopped_words(run: Mapping[str, Any]) -> str:
    """Why a run has fewer documents than planned, in a few words; empty for a run that no sequential rule ended."""
    facts = stored_facts(run)
    if facts is None or not facts.get("stopped"):
        return ""
    if facts.get("side") == "control":
        return "control of an audit"
    return f"decided: {facts.get('decision')}" if facts["stopped"] == "decided" else ""


def stopped_note(run: Mapping[str, Any]) -> str:
    """How a sequential rule ended a run, as a sentence; empty for a run that none ended."""
    facts = stored_facts(run)
    if facts is None or not facts.get("stopped"):
        return ""
    if facts.get("side") == "control":
        return (
            "The run is the A/A control of an audit that stops when it is decided: it has only the first documents of its "
            "random order."
        )
    done = len(_order(facts))
    planned = facts.get("documents_planned")
    how = f"decided ({facts.get('decision')})" if facts.get("stopped") == "decided" else "that the documents ran out"
    return (
        f"A sequential rule ended the run after {done} of {planned} documents in random order, for the reason {how}. "
        "Intervals of this run alone suppose that their number was fixed; `compare` with the other side gives those that "
        "hold whenever one stops."
    )


def stopped_pair(
    candidate: Mapping[str, Any],
    baseline: Mapping[str, Any],
    requests: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    answers: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    margin: float,
) -> StoppedPair | None:
    """What two runs of one audit say at `margin`; None where they are no such pair."""
    if audited_margin(candidate, baseline) is None:
        return None
    facts = stored_facts(candidate) or {}
    scored = asks_for_likelihoods(candidate)
    costs = tuple(document_costs(side) for side in requests)
    metric, filter = str(facts.get("metric")), str(facts.get("filter"))
    right = tuple(
        {row["doc_id"]: row["value"] == 1 for row in side if (row["metric"], row["filter"]) == (metric, filter)}
        for side in answers
    )
    order = _order(facts)
    bar = facts.get("faster_than")
    start = SequentialAudit(margin, ALPHA, float(bar) if isinstance(bar, int | float) and bar >= 1 else 1.0)
    pairs: dict[What, list[AuditPair]] = {
        what: audit_pairs(order, costs, right, what, scored) for what in ("work", "characters", "requests")
    }
    shown = {what: speed_figure(shown_audit(margin).update_all(found)) for what, found in pairs.items()}
    return StoppedPair(
        start.update_all(pairs["work"]),
        shown["work"],
        shown["characters"],
        # Less time for a request is more requests in a time.
        shown["requests"],
        (_stopped_sentence(facts, margin),),
    )


def shown_audit(margin: float) -> SequentialAudit:
    """An audit whose intervals are those that are shown: 95 %, as everywhere."""
    return SequentialAudit(margin, ALPHA / 2)


def _stopped_sentence(facts: Mapping[str, Any], margin: float) -> str:
    done, planned = len(_order(facts)), facts.get("documents_planned")
    if facts.get("stopped") == "decided":
        how = f"was stopped by a sequential rule after {done} of {planned} documents, when it was decided: {facts.get('decision')}"
    else:
        how = f"was watched by a sequential rule until the {planned} documents ran out, undecided"
    allowed = f" (margin {facts['margin'] * 100:g} points)"
    own = f" This comparison allows {margin * 100:g}." if abs(margin - facts["margin"]) > 1e-12 else ""
    return f"This pair {how}{allowed}.{own} Its intervals hold whenever one stops (95 %, always-valid)."


def audit_pairs(
    order: Sequence[Any],
    costs: Sequence[Mapping[Any, DocumentCost]],
    right: Sequence[Mapping[Any, bool]],
    what: What,
    scored: bool,
) -> list[AuditPair]:
    """The pairs of the documents in `order` that both sides answered and that were judged on both, in that order.

    costs, right: by document, of the candidate and of the baseline. scored: given answers were scored, nothing decoded.
    """
    pairs = []
    for doc in order:
        if all(doc in side for side in (*costs, *right)) and all(side[doc].seconds > 0 for side in costs):
            ours, theirs = (side[doc] for side in costs)
            made = (ours.made(what, scored), theirs.made(what, scored))
            pairs.append(AuditPair(ours.seconds, theirs.seconds, right[0][doc], right[1][doc], *made))
    return pairs


def document_costs(requests: Sequence[Mapping[str, Any]]) -> dict[Any, DocumentCost]:
    """What each document cost, of those whose every stored request was answered; damaged rows spoil their document."""
    kept, damaged = without_damaged(requests)
    spoiled = {row["doc_id"] for row in (*damaged, *(row for row in kept if row["error_type"] is not None))}
    found: dict[Any, DocumentCost] = {}
    for row in kept:
        doc = row["doc_id"]
        if doc in spoiled or doc is None:
            continue
        before = found.get(doc, DocumentCost(0.0, 0.0, 0.0, 0))
        found[doc] = DocumentCost(
            before.seconds + row["total_seconds"],
            before.tokens + (row["answered_tokens"] or 0),
            before.characters + (row["answered_characters"] or 0),
            before.requests + 1,
        )
    return found


def speed_figure(audit: SequentialAudit) -> Figure:
    """The ratio of speeds of an audit with its interval."""
    found = audit.speed
    if found.ratio is None:
        return Figure(None, "x", "derived", reason="one side made nothing" if audit.pairs else "no document is paired")
    if found.low is None or found.high is None:
        reason = f"interval unknown: {count(found.pairs, 'pair')} of at least {MINIMUM_PAIRS}"
        return Figure(found.ratio, "x", "derived", reason=reason)
    return Figure(found.ratio, "x", "derived", found.low, found.high, basis=f"{found.pairs} pairs {IN_TURNS}")


def quality_figure(audit: SequentialAudit) -> Figure:
    """The difference in quality of an audit with its interval."""
    if not audit.pairs:
        return Figure(None, "points", "derived", reason="no document is paired")
    found = audit.quality
    basis = f"{found.documents} {WHENEVER}"
    return Figure(found.difference, "points", "derived", found.low, found.high, basis=basis)


def quality_so_far(pairs: Sequence[tuple[bool, bool]], margin: float) -> QualitySoFar:
    """Of (candidate right, baseline right) in the order in which they came: the difference, and what was shown of it."""
    # Seconds have no part in it.
    listed = [AuditPair(1.0, 1.0, ours, theirs) for ours, theirs in pairs]
    audit = SequentialAudit(margin, ALPHA).update_all(listed)
    shown = quality_figure(shown_audit(margin).update_all(listed))
    return QualitySoFar(shown, audit.not_worse_after is not None, audit.worse_after is not None)


def in_order(run: Mapping[str, Any], values: Mapping[Any, Any]) -> list[Any]:
    """The documents of `values`, those of an audit in the order in which they came."""
    facts = stored_facts(run)
    place = {doc: n for n, doc in enumerate(_order(facts))} if facts is not None else {}
    return sorted(values, key=lambda doc: place.get(doc, len(place)))


def _order(facts: Mapping[str, Any]) -> list[Any]:
    found = facts.get("documents")
    return list(found) if isinstance(found, list) else []
