"""Two runs on the same documents: how much faster, how much worse, and whether that can be said at all.

"Faster and not worse" is said only when both are decided, each by its own test (intersection-union). An open question
is called open, with the number of documents that would close it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isinf
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.stats import t as student

from dllm_audit.analysis.agreement import Agreement, no_agreement, token_agreement
from dllm_audit.analysis.baseline import Strength, strength_of
from dllm_audit.analysis.bounds import Decomposition, decompose
from dllm_audit.analysis.figures import Figure, ratio
from dllm_audit.analysis.labels import label
from dllm_audit.analysis.manifests import ManifestDifference, compare_manifests, resumed_words
from dllm_audit.analysis.references import control_of
from dllm_audit.analysis.repeats import (
    RepeatGroup,
    group_repeats,
    paired_repeats,
    repeated_characters,
    repeated_speed,
    repeated_time,
    repeats_of,
)
from dllm_audit.analysis.rows import speed_alone, stands_alone, without_damaged
from dllm_audit.analysis.sequential import (
    IN_TURNS,
    QualitySoFar,
    StoppedPair,
    audited_margin,
    in_order,
    quality_so_far,
    stopped_pair,
    stored_facts,
)
from dllm_audit.analysis.summary import SEED, Metric, RunSummary, draws_for, summarise
from dllm_audit.statistics.paired import PairedCounts, mcnemar_exact, non_inferiority, tango_interval
from dllm_audit.statistics.power import decidable_margin, required_documents
from dllm_audit.statistics.throughput import MINIMUM_CLUSTERS, Batch, speedup_interval

if TYPE_CHECKING:
    from dllm_audit.store.database import Store

DEFAULT_MARGIN = 0.02
"""Two points: what most papers mean by "within noise"."""

LENGTH_TOLERANCE = 0.10
"""Beyond this difference in answered characters a speed-up may be a shorter answer."""

SINGLE_RUN_NOISE = 1.10
"""What one run of a configuration was seen to differ from the next by on a quiet machine: 0.955x and 1.11x."""

FLOOR = 0.05
"""Below this rate of correct answers a baseline is no standard to be "not worse" than."""

#: Discordance that is assumed where too few documents were discordant to estimate it.
_ASSUMED_DISCORDANCE = 0.1

#: Why requests in flight together have no interval of their own.
_SHARED = (
    "interval unknown: requests share forwards or wait for one another, so it needs at least 5 interleaved repeats"
)

SCORED = "scored_requests"
"""Of a document whose given answers were scored: how many they are."""

QualityVerdict = Literal["not worse", "worse", "open", "unknown"]
SpeedVerdict = Literal["faster", "faster than a weak baseline", "slower", "open", "unknown"]


@dataclass(frozen=True)
class QualityComparison:
    """One metric of both runs on the same documents.

    difference: candidate minus baseline, in 0..1, with its 95 % interval (Tango's where answers are right or wrong).
    p_value: exact McNemar, two-sided; None where answers are not right or wrong.
    margin: the loss that was allowed beforehand. decidable: the margin that so many documents decide.
    needed: documents that the margin needs, for two decoders that are truly equal.
    """

    metric: str
    filter: str
    documents: int
    candidate: float | None
    baseline: float | None
    counts: PairedCounts | None
    difference: Figure
    p_value: float | None
    margin: float
    decidable: float | None
    needed: int | None
    verdict: QualityVerdict
    sentence: str

    @property
    def label(self) -> str:
        return self.metric if self.filter == "none" else f"{self.metric}, {self.filter}"


@dataclass(frozen=True)
class Comparison:
    """A candidate run against a baseline run, paired by document.

    speed: answered tokens per second, candidate over baseline; requests per second where given answers were scored.
    time: baseline seconds over candidate seconds for the same documents, which a shorter answer also improves.
    characters: the same as speed, in characters, which tokenizers do not touch. length: answered characters of the
    candidate over those of the baseline.
    control: speed of the same configuration against itself, where that was run; None otherwise.
    decomposition: where the speed comes from, over the whole runs that it was taken from.
    strength: how strong the baseline is, where it is autoregressive; None otherwise.
    stopped: what the pairs say in their order where the two are the sides of an audit that stops when it is decided; the
    intervals here are then those that hold whenever one stops. None for any other two runs.
    identical: whether both sides answered every common document with the same text. agreement: how far their tokens are the
    same, which means something for two decoders of one model.
    doubts: why its times are not reliable, as sentences; they are caveats too.
    caveats: what a reader must know before using the verdict, as sentences.
    """

    candidate: RunSummary
    baseline: RunSummary
    documents: int
    unpaired: int
    speed: Figure
    time: Figure
    characters: Figure
    speed_verdict: SpeedVerdict
    length: Figure
    length_parity: bool | None
    qualities: tuple[QualityComparison, ...]
    quality: QualityComparison | None
    manifests: ManifestDifference
    control: float | None
    decomposition: Decomposition
    strength: Strength | None
    stopped: StoppedPair | None
    identical: bool
    agreement: Agreement
    doubts: tuple[str, ...]
    caveats: tuple[str, ...]
    verdict: str

    @property
    def scored(self) -> bool:
        """Whether given answers were scored: then there are no tokens to count, and both sides have the same answers."""
        return self.candidate.likelihoods is not None

    @property
    def unfinished(self) -> bool:
        """Whether a side was not finished: what it lacks may be what it is bad at."""
        return bool(self.candidate.unfinished or self.baseline.unfinished)

    @property
    def unreliable(self) -> bool:
        """Whether the times of a side are so far off that no speed is concluded from them."""
        return any(isinf(side.doubt) for side in (self.candidate, self.baseline))

    @property
    def attributable(self) -> bool:
        """Whether only the treatment differs."""
        return not self.manifests.nuisance

    @property
    def baseline_fails(self) -> bool:
        """Whether the baseline hardly ever answers correctly: then nothing can be worse than it."""
        quality = self.quality
        return quality is not None and quality.counts is not None and (quality.baseline or 0.0) < FLOOR

    @property
    def faster_and_not_worse(self) -> bool:
        """True only when speed, quality, length parity and attribution are all decided that way."""
        return bool(
            self.attributable
            and not self.unfinished
            and self.speed_verdict == "faster"
            and self.length_parity
            and self.quality is not None
            and self.quality.verdict == "not worse"
            and not self.baseline_fails
        )


Pair = tuple[Mapping[str, Any], Mapping[str, Any]]
"""The request of a candidate and that of its baseline for one document."""


class Comparisons:
    """Comparisons of the runs of one store, each with the A/A control that was interleaved with it.

    A run is read once and a control worked out once, however many comparisons need them.
    runs: those that may be repeats or controls; by default all that are stored. known: summaries read before.
    """

    def __init__(
        self, store: Store, runs: Sequence[Mapping[str, Any]] | None = None, known: Iterable[RunSummary] = ()
    ) -> None:
        self._store = store
        self._runs = store.runs() if runs is None else runs
        self._summaries = {summary.run_id: summary for summary in known}
        self._groups: dict[str, RepeatGroup] = {}
        self._controls: dict[tuple[str, str], float | None] = {}

    def summary(self, run_id: str) -> RunSummary:
        """The figures of a run, by its id or an unambiguous beginning of it."""
        found = self._summaries.get(run_id) or summarise(self._store, run_id)
        return self._summaries.setdefault(found.run_id, found)

    def repeats(self, run_id: str) -> RepeatGroup:
        """The runs of the same configuration and command, that run itself included."""
        summary = self.summary(run_id)
        if summary.run_id not in self._groups:
            alike = [self.summary(str(run["run_id"])) for run in repeats_of(summary.run, self._runs)]
            # Of two runs with the same number only the later one is a repeat; the other stands for itself.
            groups = [*group_repeats(alike), *group_repeats([summary])]
            for group in groups:
                for member in group.summaries:
                    self._groups.setdefault(member.run_id, group)
        return self._groups[summary.run_id]

    def pairs(self, candidate: str, baseline: str) -> list[Pair]:
        """The requests of two runs, by their ids, that both answered."""
        return pair_requests(self._store.requests(candidate), self._store.requests(baseline))

    def control(self, run: Mapping[str, Any]) -> float | None:
        """Speed of the A/A control that was interleaved with `run` over its twin; None where no control was run."""
        found = control_of(run, self._runs)
        if found is None:
            return None
        key = str(found[0]["run_id"]), str(found[1]["run_id"])
        if key not in self._controls:
            self._controls[key] = self._compare(*key, DEFAULT_MARGIN, None).speed.value
        return self._controls[key]

    def compare(self, candidate: str, baseline: str, margin: float | None = None) -> Comparison:
        """Compare two runs by their ids, with what their repeats and the control say about speed.

        margin: the loss in quality that was allowed beforehand, 0.02 for two points; None: that of the audit which made
        the two, else two points. A control beside its own twin is what the machine makes up, so no control stands beside that.
        """
        ours, theirs = self.summary(candidate), self.summary(baseline)
        if margin is None:
            margin = audited_margin(ours.run, theirs.run) or DEFAULT_MARGIN
        pair = control_of(ours.run, self._runs)
        is_control = pair is not None and {str(run["run_id"]) for run in pair} == {ours.run_id, theirs.run_id}
        return self._compare(ours.run_id, theirs.run_id, margin, None if is_control else self.control(ours.run))

    def _compare(self, candidate: str, baseline: str, margin: float, control: float | None) -> Comparison:
        store = self._store
        return compare_rows(
            self.summary(candidate),
            self.summary(baseline),
            (store.requests(candidate), store.requests(baseline)),
            (store.answers(candidate), store.answers(baseline)),
            margin,
            control,
            (self.repeats(candidate).summaries, self.repeats(baseline).summaries),
        )


def compare(store: Store, candidate: str, baseline: str, margin: float | None = None) -> Comparison:
    """Compare two stored runs by their ids or unambiguous beginnings of them, as `Comparisons.compare` does."""
    return Comparisons(store).compare(candidate, baseline, margin)


def compare_rows(
    candidate: RunSummary,
    baseline: RunSummary,
    requests: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    answers: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    margin: float = DEFAULT_MARGIN,
    control: float | None = None,
    repeats: tuple[Sequence[RunSummary], Sequence[RunSummary]] | None = None,
) -> Comparison:
    """Compare two runs from their rows. Documents that failed on either side, or ran on one side only, are left out.

    repeats: all runs of the two configurations; where five or more pairs of them were made, or requests shared
    forwards, the speed is that of all of them together with an interval over repeats.
    """
    damaged = [row for side in requests for row in without_damaged(side)[1]]
    ours, theirs = (requests_by_document(side) for side in requests)
    pairs = pair_requests(*requests)
    unpaired = len(ours.keys() | theirs.keys()) - len(pairs)
    same_task = candidate.run["task"] == baseline.run["task"]
    if not same_task:
        pairs = []
    manifests = compare_manifests(candidate.run, baseline.run)
    scored = candidate.likelihoods is not None
    speed = _speed(candidate, baseline, pairs, *((SCORED, "requests") if scored else ("answered_tokens", "tokens")))
    over_repeats = repeated_speed(*repeats) if repeats and pairs else None
    timed = [candidate, baseline]
    decomposed: Sequence[tuple[RunSummary, RunSummary]] = [(candidate, baseline)]
    if repeats and over_repeats is not None and (over_repeats.has_interval or not speed.has_interval):
        speed = over_repeats
        timed = [side for group in repeats for side in group]
        decomposed = paired_repeats(*repeats)
    stopped = stopped_pair(candidate.run, baseline.run, requests, answers, margin) if pairs else None
    if stopped is not None:
        speed, timed, decomposed = stopped.speed, [candidate, baseline], [(candidate, baseline)]
    speed, doubts = with_doubt(speed, timed)
    given = Figure(None, "x", "derived", reason="not applicable: both sides scored the same given answers")
    characters = given
    if not scored:
        characters = _speed(candidate, baseline, pairs, "answered_characters", "characters")
        over_repeats = repeated_characters(*repeats) if repeats and pairs else None
        if over_repeats is not None and (over_repeats.has_interval or not characters.has_interval):
            characters = over_repeats
        characters, _ = with_doubt(characters if stopped is None else stopped.characters, timed)
    time = _time(candidate, baseline, pairs)
    over_repeats = repeated_time(*repeats) if repeats and pairs else None
    if over_repeats is not None and (over_repeats.has_interval or not time.has_interval):
        time = over_repeats
    time, _ = with_doubt(time if stopped is None else stopped.time, timed)
    length = given if scored else _length(pairs)
    parity = None if length.value is None else abs(length.value - 1) <= LENGTH_TOLERANCE
    if scored and pairs:
        parity = True
    failed = {row["doc_id"] for side in requests for row in side if row["error_type"] is not None}
    failed |= {row["doc_id"] for row in damaged}
    qualities = _qualities(candidate, baseline, failed, answers, margin, stopped is not None) if same_task else ()
    primary = candidate.primary_metric
    quality = next((q for q in qualities if primary and (q.metric, q.filter) == (primary.name, primary.filter)), None)
    strength = strength_of(baseline)
    speed_verdict = _speed_verdict(speed, control, strength, None if doubts else stopped)
    identical = bool(pairs) and all(a["text"] is not None and a["text"] == b["text"] for a, b in pairs)
    unfinished = _unfinished(candidate, baseline)
    caveats = [*doubts, *_undecided_choices(candidate, baseline), *_beside_lookup(strength, speed)]
    caveats += _other_tokenizer(candidate, baseline, characters)
    if speed_alone(candidate.run) or speed_alone(baseline.run):
        caveats.append("Speed alone: no quality was measured, so neither run can be called better.")
    caveats += _stopped_elsewhere(candidate, baseline) if stopped is None else stopped.sentences
    if unfinished:
        caveats.append(f"{unfinished[0].upper()}{unfinished[1:]}: what is missing is in no figure.")
    caveats += [
        f"{label(run)} was resumed: {words}" for run in (side.run for side in timed) if (words := resumed_words(run))
    ]
    if damaged:
        caveats.append(f"{len(damaged)} stored requests are left out: their times or counts cannot be true.")
    return Comparison(
        candidate=candidate,
        baseline=baseline,
        documents=len(pairs),
        unpaired=unpaired if same_task else len(ours) + len(theirs),
        speed=speed,
        time=time,
        characters=characters,
        speed_verdict=speed_verdict,
        length=length,
        length_parity=parity,
        qualities=qualities,
        quality=quality,
        manifests=manifests,
        control=control,
        decomposition=decompose([ours for ours, _ in decomposed], [theirs for _, theirs in decomposed]),
        strength=strength,
        stopped=stopped,
        identical=identical,
        agreement=_agreement(candidate, baseline, pairs),
        doubts=tuple(doubts),
        caveats=tuple(caveats),
        verdict=_verdict(
            speed, speed_verdict, quality, length, parity, manifests, len(pairs), control, same_task, identical,
            unfinished, [side for side in timed if isinf(side.doubt)],
        ),
    )  # fmt: skip


def _agreement(candidate: RunSummary, baseline: RunSummary, pairs: Sequence[Pair]) -> Agreement:
    if candidate.likelihoods is not None:
        return no_agreement("not applicable: given answers were scored, so no token was decoded")
    if candidate.run["model"] != baseline.run["model"]:
        return no_agreement("not applicable: two models answer in words of their own")
    return token_agreement(pairs)


def with_doubt(speed: Figure, timed: Sequence[RunSummary]) -> tuple[Figure, list[str]]:
    """(a speed, or a ratio of two, with the allowance that books which do not close ask for, what to say of it).

    Up to 5 % nothing happens; up to 25 % the interval is widened by how far each side is off; beyond, no interval is
    left, and so no verdict: the times describe something else than the work.
    """
    worst: dict[str, RunSummary] = {}
    for side in timed:
        name = label({**side.run, "repeat": 0})
        if side.doubt > 1 and (name not in worst or side.doubt > worst[name].doubt):
            worst[name] = side
    if not worst:
        return speed, []
    why = [f"the times of {name} are not reliable: {side.doubted}" for name, side in worst.items()]
    said = [f"{reason[0].upper()}{reason[1:]}." for reason in why]
    if any(isinf(side.doubt) for side in worst.values()):
        reason = "; ".join(w for w, side in zip(why, worst.values(), strict=True) if isinf(side.doubt))
        return replace(
            speed, low=None, high=None, basis="", reason=reason if speed.value is not None else speed.reason
        ), said
    factor = float(np.prod([side.doubt for side in worst.values()]))
    if speed.low is None or speed.high is None:
        return speed, said
    said[-1] += f" The interval of the speed is widened by {factor:.2f}x for that."
    basis = f"{speed.basis}, widened by {factor:.2f}x because the books do not close"
    return replace(speed, low=speed.low / factor, high=speed.high * factor, basis=basis), said


def _undecided_choices(*sides: RunSummary) -> list[str]:
    """What Monte Carlo noise there is in the choices of runs that scored given answers."""
    found = []
    for side in sides:
        metric = side.primary_metric
        share = side.likelihoods.undecided.get(metric.name) if side.likelihoods and metric else None
        if share is not None and share.value:
            found.append(
                f"In {share.value:.0%} of its documents the choice of {label(side.run)} is Monte Carlo noise: another answer "
                "lies within two standard errors."
            )
    return found


def _beside_lookup(strength: Strength | None, speed: Figure) -> list[str]:
    """What prompt lookup would make of the comparison, where it is faster than the baseline."""
    if strength is None or speed.value is None:
        return []
    lookup = strength.lookup
    if not lookup.value or lookup.high is None or lookup.high >= 1:
        return []
    return [
        f"transformers' prompt-lookup decoding, which needs nothing but the baseline's model, runs at {1 / lookup.value:.2f}x "
        f"the speed of the baseline: against that the candidate is at {speed.value * lookup.value:.2f}x."
    ]


def _other_tokenizer(candidate: RunSummary, baseline: RunSummary, characters: Figure) -> list[str]:
    """That a token is not the same amount of text on both sides, where their tokenizers differ."""
    ours, theirs = (side.model_facts.get("tokenizer_sha256") for side in (candidate, baseline))
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping) or characters.value is None:
        return []
    # Other files of a tokenizer dress prompts; these decide which ids a text becomes.
    names = [name for name in ("tokenizer.json", "vocab.json", "merges.txt") if name in ours or name in theirs]
    if all(ours.get(name) == theirs.get(name) for name in names):
        return []
    return [
        "The two models have different tokenizers, so a token is not the same amount of text on both sides: "
        f"in characters per second the candidate is at {characters.value:.2f}x."
    ]


def _unfinished(candidate: RunSummary, baseline: RunSummary) -> str:
    """Which side was not finished, in words; empty where both were."""
    sides = [side for side in (candidate, baseline) if side.unfinished]
    if not sides:
        return ""
    names = " and ".join(f"{label(side.run)}, {side.unfinished}" for side in sides)
    return f"{'one side is' if len(sides) == 1 else 'both sides are'} unfinished ({names})"


def pair_requests(candidate: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]]) -> list[Pair]:
    """The requests of both sides, by document, that both answered; damaged ones are left out."""
    ours, theirs = requests_by_document(candidate), requests_by_document(baseline)
    return [
        (row, theirs[key]) for key, row in ours.items() if key in theirs and row.get(SCORED) == theirs[key].get(SCORED)
    ]


def requests_by_document(requests: Sequence[Mapping[str, Any]]) -> dict[Any, Mapping[str, Any]]:
    """Answered requests by document; where the task gives no document, by its place in the task's order.

    The answers of a document that were scored are one row, with their seconds added up and their number; it is left
    out where one of them failed.
    """
    kept, damaged = without_damaged(requests)
    spoiled = {_document(row) for row in (*damaged, *(row for row in kept if row["error_type"] is not None))}
    found: dict[Any, Mapping[str, Any]] = {}
    for row in kept:
        key = _document(row)
        if row["error_type"] is not None:
            continue
        if row.get("loglikelihood") is None:
            found.setdefault(key, row)
        elif key not in spoiled:
            before = found.get(key, {**row, "total_seconds": 0.0, SCORED: 0})
            seconds = before["total_seconds"] + row["total_seconds"]
            found[key] = {**before, "total_seconds": seconds, SCORED: before[SCORED] + 1}
    return found


def _document(row: Mapping[str, Any]) -> tuple[str, Any]:
    return ("document", row["doc_id"]) if row["doc_id"] is not None else ("place", row["ordinal"])


def _speed(candidate: RunSummary, baseline: RunSummary, pairs: Sequence[Pair], column: str, what: str) -> Figure:
    """Rate of the candidate over that of the baseline, on the paired documents where requests stand alone."""
    if not pairs:
        return Figure(None, "x", "derived", reason="the two runs have no answered document in common")
    if not (stands_alone(candidate.run) and stands_alone(baseline.run)):
        return _shared_speed(candidate, baseline, column)
    try:
        ours, theirs = document_batches(pairs, column)
    except ValueError:
        return Figure(None, "x", "derived", reason=f"one side answered no {what}, or took no time")
    # Time between requests belongs to none of them: each bears its share, so that sums equal the makespan's.
    ours, theirs = scaled_to_makespan(ours, candidate), scaled_to_makespan(theirs, baseline)
    generator = np.random.default_rng(SEED)
    found = speedup_interval([ours], [theirs], level="batch", draws=draws_for(len(ours)), generator=generator)
    if found.low is None:
        reason = f"interval unknown: {found.clusters} of at least {MINIMUM_CLUSTERS} documents"
        return Figure(found.ratio, "x", "derived", reason=reason)
    return Figure(
        found.ratio, "x", "derived", found.low, found.high, basis=f"{len(pairs)} paired documents, one run each"
    )


def _shared_speed(candidate: RunSummary, baseline: RunSummary, column: str) -> Figure:
    ours, theirs = (
        (s.characters_per_second if column == "answered_characters" else s.pace).value for s in (candidate, baseline)
    )
    if not ours or not theirs:
        return Figure(None, "x", "derived", reason="the throughput of one side is not known")
    return Figure(ours / theirs, "x", "derived", reason=_SHARED)


def document_batches(documents: Sequence[Sequence[Mapping[str, Any]]], column: str) -> list[list[Batch]]:
    """For each side one batch a document; an empty answer has no rate, so its document joins the ones before it.

    documents: the request of every side for one document, each in the same order of sides.
    Raises ValueError when one side has no tokens or no seconds at all.
    """
    batches: list[list[tuple[float, ...]]] = []
    waiting: list[tuple[float, ...]] = []
    for requests in documents:
        amounts: list[tuple[float, ...]] = [(float(row[column] or 0), float(row["total_seconds"])) for row in requests]
        waiting = _added(waiting, amounts) if waiting else amounts
        if all(tokens > 0 and seconds > 0 for tokens, seconds in waiting):
            batches.append(waiting)
            waiting = []
    if not batches:
        raise ValueError("No document was answered on every side.")
    if waiting:
        batches[-1] = _added(batches[-1], waiting)
    return [[Batch(*amounts) for amounts in side] for side in zip(*batches, strict=True)]


def _added(some: Sequence[tuple[float, ...]], more: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """(tokens, seconds) of every side, added up."""
    return [tuple(map(sum, zip(*both, strict=True))) for both in zip(some, more, strict=True)]


def scaled_to_makespan(batches: Sequence[Batch], summary: RunSummary) -> list[Batch]:
    """Batches whose seconds add up to the makespan where they are all of a run's: the time between requests is shared out."""
    total, makespan = sum(share.seconds for share in summary.seconds), summary.makespan_seconds.value
    scale = makespan / total if makespan and total else 1.0
    return [Batch(b.tokens, b.seconds * scale) for b in batches]


def _time(candidate: RunSummary, baseline: RunSummary, pairs: Sequence[Pair]) -> Figure:
    """Seconds of the baseline over those of the candidate, for the paired documents."""
    kept = [pair for pair in pairs if all(row["total_seconds"] > 0 for row in pair)]
    if not kept:
        return Figure(None, "x", "derived", reason="the two runs have no answered document in common that took time")
    ours, theirs = ([Batch(1, pair[side]["total_seconds"]) for pair in kept] for side in (0, 1))
    generator = np.random.default_rng(SEED)
    found = speedup_interval([ours], [theirs], level="batch", draws=draws_for(len(kept)), generator=generator)
    if not (stands_alone(candidate.run) and stands_alone(baseline.run)):
        return Figure(found.ratio, "x", "derived", reason=_SHARED)
    if found.low is None:
        reason = f"interval unknown: {found.clusters} of at least {MINIMUM_CLUSTERS} documents"
        return Figure(found.ratio, "x", "derived", reason=reason)
    basis = f"{len(kept)} paired documents, one run each"
    return Figure(found.ratio, "x", "derived", found.low, found.high, basis=basis)


def _length(pairs: Sequence[Pair]) -> Figure:
    ours, theirs = (sum(pair[side]["answered_characters"] or 0 for pair in pairs) for side in (0, 1))
    return ratio(ours, theirs, "x", "measured", "the baseline answered no text")


def noise_bar(speed: Figure, control: float | None) -> float:
    """The factor by which a speed must differ before it says anything: the A/A control's, and for one run each at least
    SINGLE_RUN_NOISE. An interval over repeats holds what runs differ by already.
    """
    floor = 1.0 if "repeats" in speed.basis or IN_TURNS in speed.basis else SINGLE_RUN_NOISE
    return max(floor, control, 1 / control) if control else floor


def noise_words(speed: Figure, control: float | None) -> str:
    """What of a speed is noise, and why that much; empty where its interval holds what runs differ by."""
    bar = noise_bar(speed, control)
    if bar <= 1:
        return ""
    own = max(control, 1 / control) if control else 1.0
    if own >= bar:
        return f"a ratio within {bar:.2f}x of 1 is noise, since the A/A control differs from itself by that"
    beside = f" (here the A/A control by {own:.2f}x)" if control else ""
    return f"a ratio within {bar:.2f}x of 1 is noise, since single runs of one configuration were seen to differ by that{beside}"


def _speed_verdict(
    speed: Figure, control: float | None, strength: Strength | None, stopped: StoppedPair | None
) -> SpeedVerdict:
    """Faster or slower when the interval lies beyond 1, and beyond what single runs differ by anyway.

    Where a sequential rule watched, what it showed.
    """
    if speed.low is None or speed.high is None:
        return "unknown"
    noise = noise_bar(speed, control)
    # On the edge is not beyond it, whichever way the last digit was rounded.
    beyond = noise * (1 + 1e-9)
    faster, slower = speed.low > beyond, speed.high * beyond < 1
    if stopped is not None:
        faster, slower = stopped.pace == "faster", stopped.pace == "slower"
    if faster:
        weak = strength is not None and strength.verdict == "weak"
        return "faster than a weak baseline" if weak else "faster"
    return "slower" if slower else "open"


def _stopped_elsewhere(candidate: RunSummary, baseline: RunSummary) -> list[str]:
    """That a run of another audit was stopped when that was decided."""
    sides = [stored_facts(side.run) for side in (candidate, baseline)]
    if sides[0] and sides[1] and sides[0].get("audit") == sides[1].get("audit"):
        return []  # a control beside its twin: how many documents it has was fixed
    names = [label(side.run) for side, found in zip((candidate, baseline), sides, strict=True) if found]
    return [
        f"{name} was stopped when a comparison with another run was decided: these intervals suppose a number of documents "
        "that was fixed beforehand, and are too sure."
        for name in names
    ]


def _qualities(
    candidate: RunSummary,
    baseline: RunSummary,
    failed: set[Any],
    answers: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    margin: float,
    watched: bool,
) -> tuple[QualityComparison, ...]:
    """Every metric that both runs have. A document whose request failed on either side is in none of them."""
    theirs = {(m.name, m.filter): m for m in baseline.metrics}
    found = []
    for metric in candidate.metrics:
        other = theirs.get((metric.name, metric.filter))
        if other is not None:
            ours_by_doc, theirs_by_doc = (_values(side, metric, failed) for side in answers)
            documents = in_order(candidate.run, ours_by_doc) if watched else list(ours_by_doc)
            pairs = [(ours_by_doc[doc], theirs_by_doc[doc]) for doc in documents if doc in theirs_by_doc]
            found.append(_quality(metric, other, pairs, margin, watched))
    return tuple(found)


def _values(answers: Sequence[Mapping[str, Any]], metric: Metric, failed: set[Any]) -> dict[Any, float]:
    """The score of each document under one metric and filter."""
    return {
        row["doc_id"]: float(row["value"])
        for row in answers
        if (row["metric"], row["filter"]) == (metric.name, metric.filter)
        and row["value"] is not None
        and isfinite(row["value"])
        and row["doc_id"] not in failed
    }


def _quality(
    ours: Metric, theirs: Metric, pairs: Sequence[tuple[float, float]], margin: float, watched: bool
) -> QualityComparison:
    """watched: a sequential rule stopped the runs, and the pairs are in the order in which they came."""
    reason = "no document was scored on both sides"
    if pairs and ours.lower_is_better:
        reason = "less is better for this metric, and a margin in points means nothing"
    elif pairs and all(value in (0.0, 1.0) for pair in pairs for value in pair):
        so_far = quality_so_far([(a == 1, b == 1) for a, b in pairs], margin) if watched else None
        return _right_or_wrong(ours, pairs, margin, so_far)
    elif pairs and watched:
        reason = "a sequential rule stopped the runs, and it watched what is right or wrong, not this graded score"
    elif pairs:
        return _graded(ours, pairs, margin)
    return QualityComparison(
        metric=ours.name,
        filter=ours.filter,
        documents=len(pairs),
        candidate=ours.figure.value,
        baseline=theirs.figure.value,
        counts=None,
        difference=Figure(None, "points", "derived", reason=reason),
        p_value=None,
        margin=margin,
        decidable=None,
        needed=None,
        verdict="unknown",
        sentence=f"Not compared: {reason}.",
    )


def _right_or_wrong(
    metric: Metric, pairs: Sequence[tuple[float, float]], margin: float, so_far: QualitySoFar | None
) -> QualityComparison:
    """so_far: what the pairs say in their order where a sequential rule stopped the runs."""
    counts = PairedCounts.of((a == 1, b == 1) for a, b in pairs)
    n = counts.documents
    interval = tango_interval(counts)
    test = non_inferiority(counts, margin)
    discordant = counts.only_candidate + counts.only_baseline
    discordance = counts.discordance if discordant >= 5 else _ASSUMED_DISCORDANCE
    needed = required_documents(margin, discordance).documents
    decidable = decidable_margin(n, discordance).margin
    not_worse, worse = (test.non_inferior, test.inferior) if so_far is None else (so_far.not_worse, so_far.worse)
    verdict: QualityVerdict = "not worse" if not_worse else "worse" if worse else "open"
    points = f"{margin * 100:g} points"
    difference = Figure(
        interval.difference, "points", "derived", interval.low, interval.high, basis=f"{n} paired documents"
    )
    when = "" if so_far is None else ", whenever one stops"
    if verdict == "not worse":
        sentence = f"Not worse: a loss of {points} is excluded (one-sided 5 %{when})."
    elif verdict == "worse":
        sentence = f"Worse: a loss of more than {points} is shown (one-sided 5 %{when})."
    elif n < needed:
        origin = "observed" if discordant >= 5 else "assumed"
        sentence = (
            f"Open: {n:,} paired documents cannot decide a margin of {points}; about {needed:,} would be needed "
            f"({discordance * 100:.0f} % {origin} discordance, power 80 %). So many decide {decidable * 100:.1f} points."
        )
    else:
        sentence = f"Open: a loss of {points} is neither excluded nor shown."
    return QualityComparison(
        metric=metric.name,
        filter=metric.filter,
        documents=n,
        candidate=(counts.both + counts.only_candidate) / n,
        baseline=(counts.both + counts.only_baseline) / n,
        counts=counts,
        difference=difference if so_far is None else so_far.difference,
        # An exact test of a number of documents that nobody fixed would not be one.
        p_value=mcnemar_exact(counts).p_value if so_far is None else None,
        margin=margin,
        decidable=decidable,
        needed=needed,
        verdict=verdict,
        sentence=sentence,
    )


def _graded(metric: Metric, pairs: Sequence[tuple[float, float]], margin: float) -> QualityComparison:
    """A score per document that is not just right or wrong: Student's t of the paired differences."""
    differences = np.array([a - b for a, b in pairs])
    n, mean = len(pairs), float(differences.mean())
    figure = Figure(mean, "points", "derived", reason=f"interval unknown: {n} of at least 5 documents")
    verdict: QualityVerdict = "unknown"
    sentence = "Unknown: too few documents for an interval of a graded score."
    if n >= 5:
        error = float(differences.std(ddof=1) / np.sqrt(n))
        half, bound = (float(student.isf(alpha, n - 1)) * error for alpha in (0.025, 0.05))
        figure = Figure(mean, "points", "derived", mean - half, mean + half, basis=f"{n} paired documents")
        verdict = "not worse" if mean - bound > -margin else "worse" if mean + bound < -margin else "open"
        sentence = {
            "not worse": f"Not worse: a loss of {margin:g} is excluded (one-sided 5 %, Student's t).",
            "worse": f"Worse: a loss of more than {margin:g} is shown (one-sided 5 %, Student's t).",
            "open": f"Open: a loss of {margin:g} is neither excluded nor shown.",
        }[verdict]
    ours, theirs = (float(np.mean([pair[side] for pair in pairs])) for side in (0, 1))
    return QualityComparison(
        metric.name, metric.filter, n, ours, theirs, None, figure, None, margin, None, None, verdict, sentence
    )


def _verdict(
    speed: Figure,
    speed_verdict: SpeedVerdict,
    quality: QualityComparison | None,
    length: Figure,
    parity: bool | None,
    manifests: ManifestDifference,
    documents: int,
    control: float | None,
    same_task: bool,
    identical: bool,
    unfinished: str,
    unreliable: Sequence[RunSummary],
) -> str:
    """One sentence."""
    if not same_task:
        return "Not comparable: the two runs did different tasks."
    if not documents or speed.value is None:
        return f"Not comparable: {speed.reason}."
    pace = {
        "faster": f"faster ({_times(speed)})",
        "faster than a weak baseline": f"faster than a weak baseline ({_times(speed)}), which is not faster,",
        "slower": f"slower ({_times(speed)})",
        "open": f"neither faster nor slower as far as {documents:,} documents tell ({_times(speed)})",
        "unknown": f"at {speed.value:.2f}x the speed, without an interval",
    }[speed_verdict]
    if unreliable:
        pace = f"of unknown speed ({speed.reason})"
    if speed_verdict == "open":
        bar = noise_bar(speed, control)
        pace += f", where a ratio within {bar:.2f}x of 1 is noise," if bar > 1 else ""
    worth = {
        "not worse": "not worse",
        "worse": "worse",
        "open": "of a quality that is not decided",
        "unknown": "of unknown quality",
    }[quality.verdict if quality else "unknown"]
    if identical and (quality is None or quality.verdict in ("open", "unknown")):
        worth = "with identical answers"
    if quality and quality.verdict == "worse" and quality.difference.value is not None:
        worth += f" by {abs(quality.difference.value) * 100:.1f} points"
    sentence = f"{pace} and {worth}"
    if quality and quality.counts and quality.baseline is not None and quality.baseline < FLOOR:
        sentence += f" (the baseline itself answers {quality.baseline * 100:.0f} % correctly, which is no standard)"
    if parity is False and length.value is not None:
        amount = abs(length.value - 1) * 100
        sentence += (
            f"; the answers are {amount:.0f} % {'shorter' if length.value < 1 else 'longer'}, so speeds compare badly"
        )
    if unfinished:
        sentence += f"; {unfinished}"
    if manifests.nuisance:
        names = [difference.name.rpartition(".")[2].replace("_", " ") for difference in manifests.nuisance]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return f"Not attributable, because {shown} differ{'s' if len(names) == 1 else ''} too: {sentence}."
    return sentence[0].upper() + sentence[1:] + "."


def _times(speed: Figure) -> str:
    assert speed.value is not None
    return f"{speed.value:.2f}x, {speed.low:.2f} to {speed.high:.2f}" if speed.has_interval else f"{speed.value:.2f}x"
