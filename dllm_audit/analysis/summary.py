"""Everything about one run, each number with its status: what was answered, how fast, how well, at what cost.

A throughput is a ratio of sums, never a mean of ratios. Requests that failed are a category of their own: they are
neither a wrong answer nor a zero time, and they are never silently gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from dllm_audit.analysis.asked import choice_notes
from dllm_audit.analysis.bounds import BoundShares, shares_of_bound
from dllm_audit.analysis.consumption import Consumption, consumption_of
from dllm_audit.analysis.conventions import Convention, conventions
from dllm_audit.analysis.figures import Figure, ratio
from dllm_audit.analysis.likelihoods import Likelihoods, likelihood_notes, likelihoods_of_rows
from dllm_audit.analysis.load import LoadFigures, Streaming, load_figures, percentiles, streaming
from dllm_audit.analysis.manifests import resumed_words
from dllm_audit.analysis.pooled import SEED, draws_for, rate
from dllm_audit.analysis.rows import asks_for_likelihoods, sound, stands_alone, without_damaged
from dllm_audit.analysis.sequential import stopped_note
from dllm_audit.analysis.text_quality import TextQuality, text_quality_of_rows
from dllm_audit.analysis.words import count, listed
from dllm_audit.records import FORWARD_KINDS, TIME_ITEMS, ForwardShape
from dllm_audit.statistics.throughput import Batch, throughput_interval

if TYPE_CHECKING:
    from dllm_audit.store.database import Store

BOOKS_TOLERANCE = 0.05
"""Parts measured separately predict the wall time within this share, or the times should not be relied on."""

BOOKS_LIMIT = 0.25
"""Beyond this share no speed is concluded from a run: its times describe something else than its forwards."""

#: What lm-eval's filters put where they found nothing.
_NOT_EXTRACTED = ("", "[invalid]")

_LOWER_IS_BETTER = ("perplexity", "ppl", "bits_per_byte", "brier", "loss", "error_rate")

#: Filters by preference when one metric has to decide; the rest is shown beside it.
_PREFERRED_FILTERS = ("strict-match", "none", "flexible-extract")


@dataclass(frozen=True)
class TimeShare:
    """Seconds of one item, summed over the answered requests, and their share of all of it in 0..1."""

    item: str
    seconds: float
    share: float


@dataclass(frozen=True)
class Distribution:
    """How a figure spreads over requests: the value that 5, 25, 50, 75 and 95 % of them do not exceed."""

    p5: float
    p25: float
    p50: float
    p75: float
    p95: float
    values: tuple[float, ...]


@dataclass(frozen=True)
class Metric:
    """One metric under one answer filter. `extraction_failures`: how often the filter found no answer, or None."""

    name: str
    filter: str
    figure: Figure
    documents: int
    binary: bool
    extraction_failures: Figure | None

    @property
    def label(self) -> str:
        return self.name if self.filter == "none" else f"{self.name}, {self.filter}"

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller value is the better one, by the metric's name in lm-eval."""
        return any(word in self.name.lower() for word in _LOWER_IS_BETTER)


@dataclass(frozen=True)
class FailureKind:
    """Requests that failed in the same way, with the first message."""

    type: str
    count: int
    message: str


class DocumentShare(NamedTuple):
    """A document's share of a run: what `RunSummary.done_work` counts of it, answered characters, seconds, and forwards."""

    work: float
    characters: float
    seconds: float
    forwards: float


@dataclass(frozen=True)
class RunSummary:
    """One run in figures. `run` is its row of the store, with settings and manifest parsed.

    likelihoods: of a run that scored given answers, else None. Such a run answers no token, so what counts tokens is unknown,
    and it has no text.
    documents: what each document took; empty where requests did not stand alone.
    """

    run: Mapping[str, Any]
    stored: int
    answered: int
    failures: tuple[FailureKind, ...]
    prompt_tokens: int
    answered_tokens: int
    answered_characters: int
    committed_tokens: int
    residual_masks: int
    makespan_seconds: Figure
    throughput: Figure
    requests_per_second: Figure
    characters_per_second: Figure
    correct_per_second: Figure
    latency: Mapping[float, Figure]
    ttft: Mapping[float, Figure]
    streaming: Streaming
    load: LoadFigures
    committed_per_forward: Figure
    committed_per_forward_spread: Distribution | None
    tokens_per_forward: Figure
    positions_per_forward: Figure
    batch_tax: Figure
    forwards: Mapping[str, int]
    committing_forwards: int
    query_positions: int
    guaranteed_share: Figure
    spared_forwards: Figure
    seconds: tuple[TimeShare, ...]
    bound: BoundShares
    truncation_rate: Figure
    metrics: tuple[Metric, ...]
    text: TextQuality | None
    consumption: Consumption
    conventions: tuple[Convention, ...]
    notes: tuple[str, ...]
    likelihoods: Likelihoods | None
    documents: Mapping[Any, DocumentShare]

    @property
    def pace(self) -> Figure:
        """The speed of a run in its own unit: answered tokens a second, or requests where given answers were scored."""
        return self.throughput if self.likelihoods is None else self.requests_per_second

    @property
    def done_work(self) -> int:
        """What its pace counts: answered tokens, or requests."""
        return self.answered_tokens if self.likelihoods is None else self.answered

    @property
    def run_id(self) -> str:
        return str(self.run["run_id"])

    @property
    def failed(self) -> int:
        return sum(kind.count for kind in self.failures)

    @property
    def nfe(self) -> int:
        return sum(self.forwards.values())

    @property
    def model_facts(self) -> Mapping[str, Any]:
        return _group(self.run, "model")

    @property
    def environment(self) -> Mapping[str, Any]:
        return _group(self.run, "environment")

    @property
    def outside_seconds(self) -> dict[str, float]:
        """Seconds that the run took outside every clock, by what went on meanwhile; what was not recorded is left out."""
        found = {"loading": self.run["manifest"].get("load_seconds"), **_group(self.run, "outside_seconds")}
        return {
            name.replace("_", "-"): float(seconds)
            for name, seconds in found.items()
            if name != "sitting" and sound(seconds)
        }

    @property
    def books_close(self) -> bool | None:
        """Whether separately measured parts predict the wall time; None where that was not checked."""
        return None if self.discrepancy is None else abs(self.discrepancy) <= BOOKS_TOLERANCE

    @property
    def discrepancy(self) -> float | None:
        """(what the parts say - wall time) / wall time; None where that was not checked."""
        found = _group(self.run, "books").get("discrepancy")
        if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
            return None
        return float(found)

    @property
    def doubt(self) -> float:
        """How far off the times may be, as a factor: 1 where the books close, infinite beyond `BOOKS_LIMIT`."""
        off = self.discrepancy or 0.0
        if abs(off) <= BOOKS_TOLERANCE:
            return 1.0
        return float("inf") if abs(off) > BOOKS_LIMIT else max(1 + off, 1 / (1 + off))

    @property
    def doubted(self) -> str:
        """Why the times are not reliable, to follow the name of the run; empty where they are."""
        if self.doubt == 1.0 or self.discrepancy is None:
            return ""
        share = (1 + self.discrepancy) * 100
        return f"its parts add up to {share:.3g} % of its wall time"

    @property
    def unfinished(self) -> str:
        """How far a run came that was not finished, for example "3 of 6 requests"; empty for a finished one."""
        if self.run["status"] == "complete":
            return ""
        return f"{self.answered} of {self.run['planned_requests']} requests"

    @property
    def is_embedded(self) -> bool:
        """Whether the model ships with this package: evidence about mechanisms and quality, not about GPU speed."""
        return self.model_facts.get("provenance") == "embedded"

    @property
    def primary_metric(self) -> Metric | None:
        """The metric that decides where one has to: chosen by its filter's name, not by its value."""
        return deciding_metric(self.metrics)


def deciding_metric(metrics: Sequence[Metric]) -> Metric | None:
    """The metric that decides where one has to: by its kind and its filter's name, not by its value."""
    known = [m for m in metrics if m.figure.value is not None]
    order = {name: n for n, name in enumerate(_PREFERRED_FILTERS)}
    return min(known, key=lambda m: (m.lower_is_better, not m.binary, order.get(m.filter, len(order))), default=None)


def summarise(store: Store, run_id: str) -> RunSummary:
    """The figures of a stored run, by its id or an unambiguous beginning of it."""
    run = store.run(run_id)
    key = run["run_id"]
    logged = {r["sitting"] for r in store.query("SELECT DISTINCT sitting FROM forward_shapes WHERE run_id = ?", [key])}
    return summarise_rows(
        run,
        store.requests(key),
        store.shapes(key),
        store.answers(key),
        store.metrics(key),
        logged,
        store.text_likelihoods(key),
        store.sittings(key),
    )


def summarise_rows(
    run: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    shapes: Sequence[ForwardShape],
    answers: Sequence[Mapping[str, Any]],
    metrics: Sequence[Mapping[str, Any]],
    logged_sittings: set[int],
    text_likelihoods: Sequence[Mapping[str, Any]] = (),
    sittings: Sequence[Mapping[str, Any]] = (),
) -> RunSummary:
    """The figures of one run from its rows. `logged_sittings`: those whose engine log was stored; `sittings`: what it says.

    text_likelihoods: its answers under other models, where that was asked.
    """
    stored = len(requests)
    requests, damaged = without_damaged(requests)
    done = [r for r in requests if r["error_type"] is None]
    failures = _failures(requests)
    shapes = [shape for shape in shapes if sound(shape.count) and sound(shape.rows)]
    makespan = _makespan(run, done)
    answered_tokens = _sum(done, "answered_tokens")
    characters = _sum(done, "answered_characters")
    committed = _sum(done, "committed_tokens")
    committing = _sum(done, "committing_forwards")
    forwards = {kind: n for kind in FORWARD_KINDS if (n := _sum(done, f"{kind}_forwards"))}
    positions = _sum(done, "query_positions")
    none = "no request was answered"
    scored = metrics_of_rows(answers, metrics, requests, {r["doc_id"] for r in damaged})
    load = load_figures(run, done, shapes, sittings, makespan)
    summary = RunSummary(
        run=run,
        stored=stored,
        answered=len(done),
        failures=failures,
        prompt_tokens=_sum(done, "prompt_tokens"),
        answered_tokens=answered_tokens,
        answered_characters=characters,
        committed_tokens=committed,
        residual_masks=_sum(done, "residual_masks"),
        makespan_seconds=makespan,
        throughput=_throughput(run, done, "answered_tokens", "tokens/s", makespan),
        requests_per_second=_throughput(run, done, None, "requests/s", makespan),
        characters_per_second=_throughput(run, done, "answered_characters", "characters/s", makespan),
        correct_per_second=Figure(
            None, "correct answers/s", "derived", reason="no metric is right or wrong per document"
        ),
        latency=percentiles(run, [r["total_seconds"] for r in done], "total"),
        ttft=percentiles(run, [r["ttft_seconds"] for r in done if r["ttft_seconds"] is not None], "first token"),
        streaming=streaming(run, done, makespan),
        load=load,
        committed_per_forward=ratio(committed, committing, "tokens/forward", "measured", none),
        committed_per_forward_spread=_spread(
            [r["committed_tokens"] / r["committing_forwards"] for r in done if r["committing_forwards"]]
        ),
        tokens_per_forward=ratio(answered_tokens, sum(forwards.values()), "tokens/forward", "measured", none),
        positions_per_forward=ratio(positions, sum(forwards.values()), "positions/forward", "measured", none),
        batch_tax=_batch_tax(shapes, done, logged_sittings),
        forwards=forwards,
        committing_forwards=committing,
        query_positions=positions,
        guaranteed_share=_guaranteed(run, done, committed),
        spared_forwards=_spared(run, done, committed),
        seconds=_time_shares(done),
        bound=shares_of_bound(run, shapes, complete={r["sitting"] for r in done} <= logged_sittings),
        truncation_rate=rate(sum(r["stop"] == "length" for r in done), len(done), "answered requests"),
        metrics=scored,
        text=text_quality_of_rows(requests, answers, text_likelihoods),
        consumption=consumption_of(run, answered_tokens, _correct(scored), len({r["sitting"] for r in done})),
        conventions=conventions(done, makespan.value, run["kind"] == "diffusion"),
        notes=(*_notes(run, requests, stored, damaged, makespan, failures), *load.notes),
        likelihoods=None,
        documents=_documents(run, done) if stands_alone(run) else {},
    )
    if asks_for_likelihoods(run):
        summary = _as_scored(summary, likelihoods_of_rows(done, [metric.name for metric in scored]))
    left_out = {r["doc_id"] for r in requests if r["error_type"] is not None} | {r["doc_id"] for r in damaged}
    return _with_correct_per_second(summary, done, [a for a in answers if a["doc_id"] not in left_out])


def _as_scored(summary: RunSummary, found: Likelihoods) -> RunSummary:
    """A summary without the figures that count tokens of its own."""
    reason = "not applicable: given answers were scored, so no token was decoded"

    def unknown(figure: Figure) -> Figure:
        return Figure(None, figure.unit, figure.status, reason=reason)

    return replace(
        summary,
        throughput=unknown(summary.throughput),
        characters_per_second=unknown(summary.characters_per_second),
        committed_per_forward=unknown(summary.committed_per_forward),
        tokens_per_forward=unknown(summary.tokens_per_forward),
        guaranteed_share=unknown(summary.guaranteed_share),
        spared_forwards=unknown(summary.spared_forwards),
        truncation_rate=unknown(summary.truncation_rate),
        ttft={p: unknown(figure) for p, figure in summary.ttft.items()},
        text=None,
        conventions=(),
        notes=(*summary.notes, *likelihood_notes(summary.run, found)),
        likelihoods=found,
    )


def _group(run: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = run["manifest"].get(name)
    return found if isinstance(found, dict) else {}


def _warm_ups(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Of every sitting, as far as it was stored."""
    later = run["manifest"].get("resumed_with")
    found = [
        sitting.get("warm_up") for sitting in (later if isinstance(later, list) else []) if isinstance(sitting, dict)
    ]
    return [_group(run, "warm_up"), *(warm_up for warm_up in found if isinstance(warm_up, dict))]


def _failures(requests: Sequence[Mapping[str, Any]]) -> tuple[FailureKind, ...]:
    failed = [r for r in requests if r["error_type"] is not None]
    counts = Counter(r["error_type"] for r in failed)
    first = {r["error_type"]: r["error_message"] or "" for r in reversed(failed)}
    return tuple(FailureKind(kind, n, first[kind]) for kind, n in counts.most_common())


def _makespan(run: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> Figure:
    """From the first hand-over to the last answer. A run that was killed is as long as its last stored answer says."""
    stored = run["makespan_seconds"]
    last: dict[int, float] = {}
    for row in done:
        if row["elapsed_seconds"] is not None:
            last[row["sitting"]] = max(last.get(row["sitting"], 0.0), row["elapsed_seconds"])
    # No answer can have ended after all had.
    if sound(stored) and (not last or stored > 0.99 * sum(last.values())):
        return Figure(stored, "s", "measured")
    if last:
        cause = "the run has not ended" if run["makespan_seconds"] is None else "the stored time cannot be true"
        reason = f"{cause}; its time is that of the last answer stored"
        return Figure(sum(last.values()), "s", "derived", reason=reason)
    return Figure(None, "s", "measured", reason="no request was answered")


def _throughput(
    run: Mapping[str, Any], done: Sequence[Mapping[str, Any]], column: str | None, unit: str, makespan: Figure
) -> Figure:
    """Sum of `column` over the makespan, with a bootstrap interval over requests where they stand alone.

    column: None counts the requests.
    """
    if not makespan.value:
        return Figure(None, unit, "measured", reason=makespan.reason or "no time was measured")
    value = (_sum(done, column) if column else len(done)) / makespan.value
    status = makespan.status
    if not stands_alone(run):
        shared = f"{run['concurrency']} requests share forwards" if run["concurrency"] > 1 else "requests queue"
        reason = f"interval unknown: {shared}, so they are not independent; it needs at least 5 repeats"
        return Figure(value, unit, status, reason=reason)
    total = _total(done, "total_seconds")
    timed = [r for r in done if r["total_seconds"] > 0]
    if not timed:
        return Figure(value, unit, status, reason="interval unknown: no request took any time")
    # Between the requests lies a little time that belongs to none of them: each bears its share.
    scale = makespan.value / total
    units, what = [[r] for r in timed], "requests"
    if asks_for_likelihoods(run):
        # The answers of a document follow the same prompt: together they are one draw.
        by_document: dict[Any, list[Mapping[str, Any]]] = {}
        for r in timed:
            by_document.setdefault(r["doc_id"], []).append(r)
        units, what = list(by_document.values()), "documents"
    batches = [
        Batch(_sum(rows, column) if column else len(rows), _total(rows, "total_seconds") * scale) for rows in units
    ]
    generator = np.random.default_rng(SEED)
    interval = throughput_interval([batches], level="batch", draws=draws_for(len(batches)), generator=generator)
    if interval.low is None:
        reason = f"interval unknown: {len(units)} of at least 5 {what}"
        return Figure(value, unit, status, reason=reason)
    return Figure(value, unit, status, interval.low, interval.high, basis=f"{len(units)} {what} of this run")


def _documents(run: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> dict[Any, DocumentShare]:
    found: dict[Any, DocumentShare] = {}
    for row in done:
        key = ("document", row["doc_id"]) if row["doc_id"] is not None else ("place", row["ordinal"])
        before = found.get(key, DocumentShare(0.0, 0.0, 0.0, 0))
        work = 1 if asks_for_likelihoods(run) else row["answered_tokens"] or 0
        forwards = sum(row.get(f"{kind}_forwards") or 0 for kind in FORWARD_KINDS)
        more = DocumentShare(work, row["answered_characters"] or 0, row["total_seconds"], forwards)
        found[key] = DocumentShare(*map(sum, zip(before, more, strict=True)))
    return found


def _spread(values: Sequence[float]) -> Distribution | None:
    if not values:
        return None
    quantiles = np.percentile(np.asarray(values), [5, 25, 50, 75, 95], method="inverted_cdf")
    p5, p25, p50, p75, p95 = (float(q) for q in quantiles)
    return Distribution(p5, p25, p50, p75, p95, tuple(sorted(values)))


def _batch_tax(
    shapes: Sequence[ForwardShape],
    done: Sequence[Mapping[str, Any]],
    logged: set[int],
) -> Figure:
    """1 - row forwards / (forwards x rows in flight at each): what rows in flight wait for one another."""
    if not shapes:
        return Figure(None, "share", "derived", reason="the engine stored no log of its forwards")
    if any(shape.in_flight is None for shape in shapes):
        return Figure(None, "share", "derived", reason="the rows in flight were not recorded when this was run")
    if {r["sitting"] for r in done} - logged:
        return Figure(None, "share", "derived", reason="a sitting was killed before its log was stored")
    taken = sum(shape.count * shape.rows for shape in shapes)
    slots = sum(shape.in_flight or 0 for shape in shapes)
    if not 0 < taken <= slots:
        return Figure(None, "share", "derived", reason="the stored forwards cannot be true")
    return Figure(1 - taken / slots, "share", "derived")


def _guaranteed(run: Mapping[str, Any], done: Sequence[Mapping[str, Any]], committed: int) -> Figure:
    """Share of the commits for which parallel greedy decoding provably equals one token per step."""
    if run["kind"] != "diffusion":
        return Figure(None, "share", "derived", reason="not applicable: one token at a time")
    if committed and committed == _sum(done, "committing_forwards"):
        return Figure(None, "share", "derived", reason="not applicable: one token per forward")
    return ratio(_sum(done, "guaranteed_commits"), committed, "share", "derived", "nothing was committed")


def _spared(run: Mapping[str, Any], done: Sequence[Mapping[str, Any]], committed: int) -> Figure:
    """Forwards that were not run because rows ended at end-of-text or a stop string: what they would have taken.

    An autoregressive decoder takes one per position. For the others it is the run's own forwards per committed token,
    refreshes and write-backs included.
    """
    length = run["settings"].get("gen_length")
    if not isinstance(length, int):
        return Figure(None, "forwards", "estimated", reason="unknown: the run states no gen_length")
    left = sum(max(0, length - len(r["output_ids"] or ())) for r in done)
    if run["kind"] != "diffusion":
        return Figure(float(left), "forwards", "derived")
    if not committed:
        return Figure(None, "forwards", "estimated", reason="nothing was committed")
    ran = sum(_sum(done, f"{kind}_forwards") for kind in ("denoise", "refresh", "commit", "cfg"))
    return Figure(left * ran / committed, "forwards", "estimated")


def _time_shares(done: Sequence[Mapping[str, Any]]) -> tuple[TimeShare, ...]:
    total = _total(done, "total_seconds")
    items = [(item, _total(done, f"{item}_seconds")) for item in TIME_ITEMS]
    return tuple(TimeShare(item, seconds, seconds / total if total else 0.0) for item, seconds in items)


def metrics_of_rows(
    answers: Sequence[Mapping[str, Any]],
    metrics: Sequence[Mapping[str, Any]],
    requests: Sequence[Mapping[str, Any]],
    damaged: set[Any],
) -> tuple[Metric, ...]:
    """Every metric and filter; documents whose request failed are left out of both numerator and denominator."""
    failed = ({r["doc_id"] for r in requests if r["error_type"] is not None} | damaged) - {None}
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in answers:
        if row["doc_id"] not in failed and row["value"] is not None and isfinite(row["value"]):
            grouped.setdefault((row["metric"], row["filter"]), []).append(row)
    names = dict.fromkeys([*((m["metric"], m["filter"]) for m in metrics), *grouped])
    aggregated = {(m["metric"], m["filter"]): m for m in metrics}
    return tuple(
        _metric(name, filter, grouped.get((name, filter), []), aggregated.get((name, filter))) for name, filter in names
    )


def _metric(name: str, filter: str, rows: Sequence[Mapping[str, Any]], aggregate: Mapping[str, Any] | None) -> Metric:
    values = [float(row["value"]) for row in rows]
    if aggregate is not None and name.endswith("perplexity"):
        # What lm-eval keeps of a document is its log-likelihood, and the metric is no mean of those.
        values = []
    binary = bool(values) and set(values) <= {0.0, 1.0}
    extraction = _extraction_failures(filter, rows)
    if binary:
        figure = rate(int(sum(values)), len(values), "documents")
        return Metric(name, filter, figure, len(values), True, extraction)
    if values:
        return Metric(name, filter, _mean(values), len(values), False, extraction)
    assert aggregate is not None
    value, error = aggregate["value"], aggregate["stderr"]
    if value is None or not isfinite(value):
        figure = Figure(None, "score", "measured", reason="the task gave no value")
    elif error is None or not isfinite(error):
        figure = Figure(value, "score", "measured", reason="interval unknown: the task gives no standard error")
    else:
        low, high = value - 1.96 * error, value + 1.96 * error
        figure = Figure(value, "score", "measured", low, high, basis="the task's own standard error")
    return Metric(name, filter, figure, aggregate["documents"], False, extraction)


def _mean(values: Sequence[float]) -> Figure:
    mean = float(np.mean(values))
    if len(values) < 5:
        return Figure(mean, "score", "measured", reason=f"interval unknown: {len(values)} of at least 5 documents")
    half = float(student.isf(0.025, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return Figure(mean, "score", "measured", mean - half, mean + half, basis=f"{len(values)} documents")


def _extraction_failures(filter: str, rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """How often an answer filter found nothing. None where there is no filter or its output was not stored."""
    responses = [row["response"] for row in rows if row["response"] is not None]
    if filter == "none" or not responses:
        return None
    return rate(sum(r.strip() in _NOT_EXTRACTED for r in responses), len(responses), "documents")


def _correct(metrics: Sequence[Metric]) -> float | None:
    """How many documents the deciding metric calls right; None where it does not call them right or wrong."""
    metric = deciding_metric(metrics)
    if metric is None or not metric.binary or metric.figure.value is None:
        return None
    return metric.figure.value * metric.documents


def _with_correct_per_second(
    summary: RunSummary, done: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> RunSummary:
    """The summary with the rate of documents that the deciding metric calls right, of `answers` of requests that are `done`."""
    metric, makespan = deciding_metric(summary.metrics), summary.makespan_seconds
    if metric is None or not metric.binary or not makespan.value:
        return summary
    right = {
        row["doc_id"]
        for row in answers
        if (row["metric"], row["filter"]) == (metric.name, metric.filter) and row["value"] == 1
    }
    correct = len(right)
    rows = []
    for row in done:
        # Where given answers were scored, a document is several requests and counts once.
        rows.append({**row, "correct": int(row["doc_id"] in right)})
        right.discard(row["doc_id"])
    found = _throughput(summary.run, rows, "correct", "correct answers/s", makespan)
    if found.has_interval and correct in (0, metric.documents):
        alike = f"interval unknown: {'every' if correct else 'no'} answer is correct, and of others that may not be so"
        found = replace(found, low=None, high=None, basis="", reason=alike)
    return replace(summary, correct_per_second=replace(found, status="derived"))


def _notes(
    run: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    stored: int,
    damaged: Sequence[Mapping[str, Any]],
    makespan: Figure,
    failures: Sequence[FailureKind],
) -> tuple[str, ...]:
    """What a reader must know before using the figures of this run."""
    notes = []
    if run["status"] != "complete":
        notes.append(f"The run is {run['status']}: {stored} of {run['planned_requests']} requests are stored.")
    if stopped := stopped_note(run):
        notes.append(stopped)
    notes += choice_notes(run)
    if damaged:
        which = ", ".join(str(row["ordinal"]) for row in damaged[:10]) + (", …" if len(damaged) > 10 else "")
        notes.append(
            f"{len(damaged)} of {stored} stored requests are in no figure, because a time or a count of theirs is missing "
            f"or cannot be true (request {which}): the results file is damaged there."
        )
    if resumed := resumed_words(run):
        notes.append(f"The run was resumed: {resumed}")
    if makespan.status == "derived":
        notes.append(f"{makespan.reason[0].upper()}{makespan.reason[1:]}.")
    if failures:
        failed = sum(kind.count for kind in failures)
        notes.append(
            f"{failed} of {stored} requests failed. They are in no figure below: neither a wrong answer nor a time."
        )
    if any(warm_up.get("stationary") is False for warm_up in _warm_ups(run)):
        notes.append("The times were not stationary when warm-up ended, so the first requests may be too slow.")
    residual = sum(r["residual_masks"] or 0 for r in requests)
    if residual:
        notes.append(f"{residual} positions stayed masks; the program that is reproduced leaves them.")
    notes += [note] if (note := books_note([run])) else []
    for name, form in (("waivers", "Not proven by this backend: {}"), ("notes", "{}")):
        found = run["manifest"].get(name)
        if isinstance(found, list):
            notes += [form.format(note) for note in found]
    return tuple(notes)


def books_note(runs: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> str:
    """What it means that the books of `runs` do not close, and what to do next; empty where those of any do.

    The runs are alike in whether they are so far off that no speed is concluded. names: of the runs, where there are several.
    """
    offs = [_group(run, "books").get("discrepancy") for run in runs]
    known = [off for off in offs if isinstance(off, float) and isfinite(off) and abs(off) > BOOKS_TOLERANCE]
    if len(known) < len(offs) or not known:
        return ""
    shares = [f"{(1 + off) * 100:.3g} %" for off in known]
    if names:
        shares = [f"{share} ({name})" for share, name in zip(shares, names, strict=True)]
    so = (
        "no speed is concluded from them"
        if abs(known[0]) > BOOKS_LIMIT
        else "speeds are compared with that much allowance"
    )
    why = next(filter(None, map(_disturbed, runs)), "")
    why = why or "the machine changed meanwhile (other work, another clock) or something is not measured"
    return (
        f"The books do not close within 5 %: separately measured forwards and host items add up to {listed(shares)} of the wall "
        f"time. Do not rely on these times: {why}; {so}. Next: end what dllm-audit doctor warns of, then run again with --repeats 5."
    )


def _disturbed(run: Mapping[str, Any]) -> str:
    """That other work kept the cores busy beside a run, where the load that was recorded with it says so; else empty."""
    facts = _group(run, "environment")
    loads = [facts.get(f"load_average_1min_{moment}") for moment in ("before", "after")]
    load = max((float(load) for load in loads if isinstance(load, int | float)), default=0.0)
    cores, threads = facts.get("cores_usable"), facts.get("threads")
    if not isinstance(cores, int) or not isinstance(threads, int) or load <= max(cores, threads) + 0.5:
        return ""
    return f"other work was running, since the load average was {load:.1f} on {cores} cores ({count(threads, 'thread')} of torch among it)"


def _sum(rows: Sequence[Mapping[str, Any]], column: str) -> int:
    return sum(row[column] or 0 for row in rows)


def _total(rows: Sequence[Mapping[str, Any]], column: str) -> float:
    return float(sum(row[column] or 0.0 for row in rows))
