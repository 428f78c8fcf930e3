"""What each section of the report shows, one dataclass a section; templates only lay it out.

Everything that came from a run or a claim is hostile text: it stays text here and is escaped by the templates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.labels import label
from dllm_audit.analysis.manifests import difference_value, is_reading
from dllm_audit.analysis.pairing import DEFAULT_MARGIN, Comparison, compare_rows
from dllm_audit.analysis.plain import short_value
from dllm_audit.analysis.references import (
    autoregressive_reference,
    control_of,
    one_token_reference,
)
from dllm_audit.analysis.repeats import RepeatGroup, group_repeats
from dllm_audit.analysis.summary import Metric, RunSummary, summarise
from dllm_audit.claims.dossier import Dossier, amount, disclosure, examine
from dllm_audit.claims.questions import Status
from dllm_audit.claims.verdicts import check_claims
from dllm_audit.records import FORWARD_KINDS, TIME_ITEMS
from dllm_audit.report.charts import Chart, SpeedPoint, TimeBar, speed_and_quality, where_time_goes
from dllm_audit.report.checks import CheckCard, ChecksSection, checks_section
from dllm_audit.report.formats import interval, number, points
from dllm_audit.statistics.throughput import MINIMUM_CLUSTERS

if TYPE_CHECKING:
    from dllm_audit.claims.registry import Registry
    from dllm_audit.claims.schema import Claim
    from dllm_audit.claims.traps import Trap, TrapFinding
    from dllm_audit.store.database import Store

#: Text of single tokens of a model, or None where no tokenizer is at hand. Called with the run's row.
TokenTexts = Callable[[Mapping[str, Any], Sequence[int]], "list[str] | None"]

_TRACED = """
SELECT * FROM requests
WHERE run_id = $1 AND error_type IS NULL AND ordinal IN (SELECT ordinal FROM trace_forwards WHERE run_id = $1)
ORDER BY ordinal
"""

AGAINST_AR = "the autoregressive model"
AGAINST_ONE_TOKEN = "one token per step, same model"

#: Characters of a claim's figure that have room beside its statement.
LONGEST_FIGURE = 36

#: Steps of a trace that are shown; a longer one says how many were left out.
SHOWN_STEPS = 160


@dataclass(frozen=True)
class RunRow:
    """One run with its number in the report."""

    number: int
    label: str
    summary: RunSummary
    group: RepeatGroup

    @property
    def model(self) -> str:
        return str(self.summary.run["model"])

    @property
    def leads(self) -> bool:
        """Whether this run stands for its repeats in charts, comparisons and sentences."""
        return self.group.summaries[0] is self.summary

    @property
    def doubt(self) -> float:
        """How far off the times may be, as a factor: the worst of all repeats for the run that leads them."""
        return max(s.doubt for s in (self.group.summaries if self.leads else (self.summary,)))

    @property
    def doubted(self) -> str:
        """Why, after the name of the run."""
        return max(self.group.summaries if self.leads else (self.summary,), key=lambda s: s.doubt).doubted

    @property
    def throughput(self) -> Figure:
        """Speed of all repeats together for the run that leads them, else its own."""
        return self.group.throughput if self.leads else self.summary.throughput


@dataclass(frozen=True)
class PairRow:
    """A comparison and what the baseline stands for."""

    candidate: RunRow
    baseline: RunRow
    against: str
    comparison: Comparison
    differences: tuple[DifferenceRow, ...]


@dataclass(frozen=True)
class DifferenceRow:
    """One difference of two manifests in words; `role` is treatment, nuisance or drift."""

    role: str
    name: str
    candidate: str
    baseline: str


@dataclass(frozen=True)
class TraceToken:
    """A committed token: where, in which forward, how sure. `shade` is 0 (first) to 5 (last of the forwards).

    count: so many of the same token in a row, from `position` on. end_step: the last forward among them.
    confidence: the smallest among them.
    """

    text: str
    step: int
    position: int
    confidence: float
    shade: int
    count: int = 1
    end_step: int | None = None


@dataclass(frozen=True)
class TraceStep:
    """One forward and what it committed."""

    number: int
    kind: str
    width: int
    block: int
    tokens: tuple[TraceToken, ...]


@dataclass(frozen=True)
class TraceRow:
    """One run's decoding of the example request. `tokens`: the committed window in reading order."""

    run: RunRow
    text: str
    stop: str
    forwards: int
    committed: int
    tokens: tuple[TraceToken, ...]
    steps: tuple[TraceStep, ...]
    left_out: int
    has_text: bool
    tokens_per_forward: float


@dataclass(frozen=True)
class TraceSection:
    """One request of a task, decoded by several runs. `opened`: numbers of the runs that a reader sees at once."""

    prompt: str
    document: int | None
    rows: tuple[TraceRow, ...]
    opened: tuple[int, ...]


@dataclass(frozen=True)
class TaskSection:
    """Everything about one task: runs, charts, comparisons, example. `shown`: of repeats only the first."""

    name: str
    runs: tuple[RunRow, ...]
    shown: tuple[RunRow, ...]
    metric: str
    speed_chart: Chart | None
    time_chart: Chart | None
    pairs: tuple[PairRow, ...]
    controls: tuple[ControlRow, ...]
    repeated: tuple[RunRow, ...]
    trace: TraceSection | None
    sentences: tuple[str, ...]
    headline: str
    notes: tuple[NoteRow, ...]
    forward_kinds: tuple[str, ...]
    time_items: tuple[str, ...]


@dataclass(frozen=True)
class NoteRow:
    """A sentence that holds for some runs."""

    runs: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class ControlRow:
    """The same configuration against itself: the difference that the machine makes up."""

    control: RunRow
    twin: RunRow
    documents: int
    speed: Figure

    @property
    def factor(self) -> float:
        """How far from 1 the machine makes a difference by itself, as a factor of at least 1."""
        value = self.speed.value
        return max(value, 1 / value) if value else 1.0


@dataclass(frozen=True)
class VerdictSection:
    """What was run and what follows, in words."""

    headline: str
    ran: str
    may: tuple[str, ...]
    may_not: tuple[str, ...]
    has_embedded: bool
    only_embedded: bool


@dataclass(frozen=True)
class SettingRow:
    name: str
    value: str
    source: str


@dataclass(frozen=True)
class EnvironmentColumn:
    """Facts of one machine and the runs that they hold for."""

    runs: tuple[RunRow, ...]
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RunDetails:
    """Settings, model, engine, prompts and warm-up of one run."""

    row: RunRow
    settings: tuple[SettingRow, ...]
    facts: tuple[tuple[str, str], ...]


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


@dataclass(frozen=True)
class Habit:
    """A way to count and what it hides, over all runs of the report."""

    name: str
    formula: str
    hides: str


@dataclass(frozen=True)
class Report:
    """The whole page."""

    version: str
    made_at: str
    database: str
    verdict: VerdictSection
    tasks: tuple[TaskSection, ...]
    checks: ChecksSection
    claims: ClaimsSection
    environments: tuple[EnvironmentColumn, ...]
    details: tuple[RunDetails, ...]
    commands: tuple[str, ...]
    margin_points: float
    left_out: int
    habits: tuple[Habit, ...]
    references: tuple[str, str] = (AGAINST_AR, AGAINST_ONE_TOKEN)

    @property
    def rows(self) -> tuple[RunRow, ...]:
        return tuple(row for task in self.tasks for row in task.runs)


def report_context(
    store: Store,
    registry: Registry,
    runs: Sequence[Mapping[str, Any]],
    token_texts: TokenTexts,
    *,
    version: str,
    made_at: str,
    margin: float = DEFAULT_MARGIN,
    left_out: int = 0,
    traps: Sequence[Trap] | None = None,
    checked_runs: Sequence[Mapping[str, Any]] | None = None,
) -> Report:
    """Gather every section from the stored `runs` and the registry of claims.

    traps: those of the package by default. checked_runs: those that verdicts on claims may use, `runs` by default.
    """
    rows = _numbered(store, runs)
    checks = checks_section(
        # The name alone, as everywhere in the page: a folder says whose machine this is.
        check_claims(
            registry.claims, store, Path(store.path.name), runs=runs if checked_runs is None else checked_runs
        ),
        registry.claims,
        {row.summary.run_id: row for row in rows},
    )
    tasks = tuple(
        _task(store, name, tuple(row for row in rows if row.summary.run["task"] == name), token_texts, margin)
        for name in dict.fromkeys(str(row.summary.run["task"]) for row in rows)
    )
    return Report(
        version=version,
        made_at=made_at,
        database=store.path.name,
        verdict=_verdict(rows, tasks, margin),
        tasks=tasks,
        checks=checks,
        claims=_claims(registry, traps, checks),
        environments=_environments(rows),
        details=tuple(_details(row) for row in rows),
        commands=tuple(
            dict.fromkeys(
                _again(str(c), store.path.name)
                for run in runs
                if (c := run["manifest"].get("command") or run["invocation"])
            )
        ),
        margin_points=margin * 100,
        left_out=left_out,
        habits=_habits(rows),
    )


def _again(command: str, database: str) -> str:
    """A command as it is given from the folder of the results: into that file, from the start."""
    import shlex

    try:
        words = shlex.split(command)
    except ValueError:
        return command
    if words[:2] != ["dllm-audit", "run"]:
        return command
    kept: list[str] = []
    for n, word in enumerate(words):
        after_db = n > 0 and words[n - 1] == "--db"
        if not after_db and word not in ("--db", "--resume") and not word.startswith("--db="):
            kept.append(word)
    return shlex.join([*kept, "--db", database])


def newest_runs(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The newest run of each content, role and repeat: an older one of the same was superseded.

    It stays where other runs of its command stay: they were interleaved with it, and nothing compares better with them.
    """
    newest: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for run in runs:  # oldest first
        key = (run["content_key"], run["role"], run["repeat"])
        # A run that was broken off does not replace one that was finished.
        if key not in newest or run["status"] == "complete" or newest[key]["status"] != "complete":
            newest[key] = run
    kept = {run["run_id"] for run in newest.values()}
    commands = {run["invocation"] for run in newest.values()}
    return [
        run for run in runs if run["run_id"] in kept or (run["invocation"] in commands and run["role"] != "candidate")
    ]


def _numbered(store: Store, runs: Sequence[Mapping[str, Any]]) -> list[RunRow]:
    by_task = list(dict.fromkeys(run["task"] for run in runs))
    ordered = sorted(runs, key=lambda run: (by_task.index(run["task"]), run["role"] == "control"))
    summaries = [summarise(store, run["run_id"]) for run in ordered]
    groups = {s.run_id: group for group in group_repeats(summaries) for s in group.summaries}
    # Of two runs with the same number only the later one is a repeat; the other stands for itself.
    groups |= {s.run_id: group_repeats([s])[0] for s in summaries if s.run_id not in groups}
    return [RunRow(number, label(s.run), s, groups[s.run_id]) for number, s in enumerate(summaries, 1)]


def _task(store: Store, name: str, rows: tuple[RunRow, ...], token_texts: TokenTexts, margin: float) -> TaskSection:
    shown = tuple(row for row in rows if row.summary.run["role"] != "control" and row.leads)
    metric = next((m for row in shown if (m := row.summary.primary_metric)), None)
    pairs = _pairs(store, shown, rows, margin)
    controls = _controls(store, rows)
    headline, sentences = _task_words(shown, pairs, metric, controls)
    return TaskSection(
        name=name,
        runs=rows,
        shown=tuple(row for row in rows if row.leads),
        metric=metric.label if metric else "",
        speed_chart=_speed_chart(shown, metric),
        time_chart=_time_chart(shown),
        pairs=pairs,
        controls=controls,
        repeated=tuple(row for row in rows if row.leads and len(row.group.summaries) > 1),
        trace=_trace(store, shown, token_texts),
        sentences=sentences,
        headline=headline,
        notes=_notes([row for row in rows if row.leads]),
        forward_kinds=tuple(k for k in FORWARD_KINDS if any(row.summary.forwards.get(k) for row in rows)),
        time_items=tuple(
            item for n, item in enumerate(TIME_ITEMS) if any(row.summary.seconds[n].seconds > 0 for row in rows)
        ),
    )


def _notes(rows: Sequence[RunRow]) -> tuple[NoteRow, ...]:
    """Every note once, with the runs that it holds for."""
    found: dict[str, list[int]] = {}
    for row in rows:
        failures = [f"{kind.count} × {kind.type}: {kind.message}" for kind in row.summary.failures]
        speed = row.throughput
        unknown = [f"Speed: {speed.reason}."] if speed.value is not None and not speed.has_interval else []
        for text in (*row.summary.notes, *failures, *unknown):
            found.setdefault(text, []).append(row.number)
    return tuple(NoteRow(tuple(numbers), text) for text, numbers in found.items())


def same_metric(summary: RunSummary, metric: Metric | None) -> Metric | None:
    """The metric of this run with the name and filter of `metric`."""
    if metric is None:
        return None
    return next((m for m in summary.metrics if (m.name, m.filter) == (metric.name, metric.filter)), None)


def _speed_chart(rows: Sequence[RunRow], metric: Metric | None) -> Chart | None:
    points = []
    for row in rows:
        speed, quality = row.throughput, same_metric(row.summary, metric)
        if quality is not None and quality.figure.value is not None and speed.value:
            points.append(
                SpeedPoint(
                    row.number, str(row.summary.run["backend"]), speed.value, speed.low, speed.high,
                    quality.figure.value, quality.figure.low, quality.figure.high,
                )
            )  # fmt: skip
    if not points or metric is None:
        return None
    return speed_and_quality(points, metric.label, metric.binary)


def _time_chart(rows: Sequence[RunRow]) -> Chart | None:
    bars = [
        TimeBar(row.number, row.label, {s.item: s.seconds / row.summary.answered for s in row.summary.seconds})
        for row in rows
        if row.summary.answered
    ]
    return where_time_goes(bars) if bars else None


def _habits(rows: Sequence[RunRow]) -> tuple[Habit, ...]:
    """Each habit once; where what it hides depends on the decoder, every sentence that applies."""
    found: dict[str, tuple[str, str, list[str]]] = {}
    for row in rows:
        for habit in row.summary.conventions:
            sentences = found.setdefault(habit.id, (habit.name, habit.formula, []))[2]
            if habit.hides not in sentences:
                sentences.append(habit.hides)
    return tuple(Habit(name, formula, " ".join(sentences)) for name, formula, sentences in found.values())


# -- comparisons --


def _pairs(store: Store, rows: Sequence[RunRow], all_rows: Sequence[RunRow], margin: float) -> tuple[PairRow, ...]:
    runs = [row.summary.run for row in all_rows]
    leading = [row.summary.run for row in rows]
    by_id = {row.summary.run_id: row for row in all_rows}
    noise: dict[tuple[str, str], float | None] = {}
    found = []
    for row in rows:
        run = row.summary.run
        references = (
            (AGAINST_AR, autoregressive_reference(run, leading)),
            (AGAINST_ONE_TOKEN, one_token_reference(run, leading)),
        )
        for against, reference in references:
            if reference is None or reference["run_id"] not in by_id:
                continue
            baseline = by_id[reference["run_id"]]
            comparison = _compare(store, row, baseline, margin, _noise(store, run, runs, by_id, noise))
            found.append(PairRow(row, baseline, against, comparison, _differences(comparison)))
    return tuple(found)


def _compare(store: Store, ours: RunRow, theirs: RunRow, margin: float, control: float | None) -> Comparison:
    ids = ours.summary.run_id, theirs.summary.run_id
    return compare_rows(
        ours.summary,
        theirs.summary,
        (store.requests(ids[0]), store.requests(ids[1])),
        (store.answers(ids[0]), store.answers(ids[1])),
        margin,
        control,
        (ours.group.summaries, theirs.group.summaries),
    )


def _noise(
    store: Store,
    run: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    by_id: Mapping[str, RunRow],
    known: dict[tuple[str, str], float | None],
) -> float | None:
    """Speed of the A/A control that was interleaved with `run`, each worked out once."""
    found = control_of(run, runs)
    if found is None:
        return None
    key = found[0]["run_id"], found[1]["run_id"]
    if key not in known:
        known[key] = _compare(store, by_id[key[0]], by_id[key[1]], DEFAULT_MARGIN, None).speed.value
    return known[key]


def _controls(store: Store, rows: Sequence[RunRow]) -> tuple[ControlRow, ...]:
    runs = [row.summary.run for row in rows]
    by_id = {row.summary.run_id: row for row in rows}
    found = []
    for row in rows:
        if row.summary.run["role"] != "control" or not row.leads:
            continue
        pair = control_of(row.summary.run, [r for r in runs if r["role"] != "control"] + [row.summary.run])
        if pair:
            twin = by_id[pair[1]["run_id"]]
            comparison = _compare(store, row, twin, DEFAULT_MARGIN, None)
            found.append(ControlRow(row, twin, comparison.documents, comparison.speed))
    return tuple(found)


def _differences(comparison: Comparison) -> tuple[DifferenceRow, ...]:
    manifests = comparison.manifests
    return tuple(
        DifferenceRow(role, d.name.replace("_", " "), difference_value(d, d.candidate), difference_value(d, d.baseline))
        for role, found in (
            ("treatment", manifests.treatment),
            ("nuisance", manifests.nuisance),
            ("drift", manifests.drift),
        )
        for d in found
    )


# -- words --


def _task_words(
    rows: Sequence[RunRow], pairs: Sequence[PairRow], metric: Metric | None, controls: Sequence[ControlRow]
) -> tuple[str, tuple[str, ...]]:
    """(the headline of a task, the sentences under it)."""
    timed = [row for row in rows if row.throughput.value]
    if not timed:
        return "Nothing was timed.", ()
    # Only runs under the same conditions have a fastest among them.
    groups: dict[tuple[str, int], list[RunRow]] = {}
    for row in timed:
        run = row.summary.run
        groups.setdefault((str(run["provenance"]), int(run["concurrency"])), []).append(row)
    several = len({provenance for provenance, _ in groups}) > 1
    sentences: list[str] = []
    for (provenance, concurrency), among in sorted(groups.items()):
        where = "" if len(groups) == 1 else " with " + _count(concurrency, "request") + " in flight"
        where += f", {provenance}" if several else ""
        alike = [c for c in controls if _conditions(c.twin) == (provenance, concurrency)]
        sentences += _group_sentences(among, where, metric, max((c.factor for c in alike), default=1.0))
    for control in controls:
        if control.speed.value is not None:
            sentences.append(f"{_same_twice(control)}; smaller differences mean nothing.")
    unfinished = [f"{row.label} ({row.summary.unfinished})" for row in rows if row.summary.unfinished]
    if unfinished:
        sentences.append(f"Unfinished: {_listed(unfinished)}. What is missing is in no figure.")
    if any(row.throughput.has_interval and len(row.group.summaries) == 1 for row in timed):
        sentences.append(
            "Intervals of speed are over the requests of one run each: they cover which requests were drawn, not how "
            "speed varies from run to run."
        )
    return _task_headline(pairs, rows), tuple(sentences)


def _conditions(row: RunRow) -> tuple[str, int]:
    return str(row.summary.run["provenance"]), int(row.summary.run["concurrency"])


def _same_twice(control: ControlRow) -> str:
    ends = f" ({interval(control.speed, number)})" if control.speed.has_interval else ""
    return f"The same configuration twice ({control.twin.label}): {number(control.speed.value)}x{ends}"


def _group_sentences(rows: Sequence[RunRow], where: str, metric: Metric | None, noise: float) -> list[str]:
    """The fastest, the fastest diffusion run and the best of runs under the same conditions."""
    reliable = [row for row in rows if not isinf(row.doubt)]
    sentences = []
    if reliable:
        fastest = _fastest(reliable, "", where, metric, noise)
        sentences.append(fastest)
        diffusion = [row for row in reliable if row.summary.run["kind"] == "diffusion"]
        if diffusion and len(diffusion) < len(reliable) and max(reliable, key=_speed) not in diffusion:
            sentences.append(_fastest(diffusion, " diffusion run", where, metric, noise))
    for row in rows:
        if isinf(row.doubt):
            sentences.append(f"No speed is concluded from {row.label}: its times are not reliable ({row.doubted}).")
    rated = [row for row in rows if _quality(row, metric) is not None]
    if len(rated) > 1:
        best = max(rated, key=lambda row: (_quality(row, metric) or 0.0, _speed(row)))
        if not sentences[0].startswith("Fastest") or best is not max(reliable, key=_speed):
            sentences.append(f"Highest quality observed{where}: {_described(best, metric)}.")
    return sentences


def _fastest(rows: Sequence[RunRow], what: str, where: str, metric: Metric | None, noise: float) -> str:
    """Which run is the fastest, if its interval lies beyond those of every other configuration."""
    first = max(rows, key=_speed)
    others = [row for row in rows if _configuration(row) != _configuration(first)]
    if not others:
        return f"The only{what or ' configuration'}{where}: {_described(first, metric)}."
    for row in (first, *others):
        if not row.throughput.has_interval:
            return (
                f"No fastest{what} can be named{where}: the interval of {row.label} is unknown. "
                f"Highest speed observed: {_described(first, metric)}."
            )
    next_one = max(others, key=lambda row: _ends(row)[1])
    if _ends(first)[0] > _ends(next_one)[1] * noise:
        return f"Fastest{what}{where}: {_described(first, metric)}."
    between = " and ".join(
        f"{row.label} ({number(_ends(row)[0])} to {number(_ends(row)[1])} tokens/s)" for row in (first, next_one)
    )
    how = "overlap"
    if _ends(first)[0] > _ends(next_one)[1]:
        how += f" within the {number(noise)}x that the same configuration differs from itself"
    return f"No fastest{what} can be named{where}: the intervals of {between} {how}."


def _ends(row: RunRow) -> tuple[float, float]:
    """The interval of a speed, widened by how far the books of the run are off."""
    speed = row.throughput
    return (speed.low or 0.0) / row.doubt, (speed.high or 0.0) * row.doubt


def _configuration(row: RunRow) -> tuple[str, ...]:
    """What runs of one configuration share, whatever their role: a baseline may be a candidate again."""
    run = row.summary.run
    return (*(str(run[name]) for name in ("backend", "model", "fidelity")), repr(sorted(run["settings"].items())))


def _task_headline(pairs: Sequence[PairRow], rows: Sequence[RunRow]) -> str:
    against_ar = [pair for pair in pairs if pair.against == AGAINST_AR]
    if not any(row.summary.run["kind"] == "diffusion" for row in rows):
        return "No diffusion run here, so there is nothing to compare."
    if not against_ar:
        return "No autoregressive run here, so nothing can be said about being faster than one."
    winners = [pair for pair in against_ar if pair.comparison.faster_and_not_worse]
    if winners:
        best = max(winners, key=lambda pair: pair.comparison.speed.value or 0.0)
        names = f"{best.candidate.label} was faster than {best.baseline.label} and not worse"
        more = f"; so were {len(winners) - 1} more" if len(winners) > 1 else ""
        return f"{names} ({best.comparison.speed.value:.2f}x){more}."
    faster = [pair for pair in against_ar if pair.comparison.speed_verdict == "faster"]
    if not faster:
        if all(pair.comparison.unreliable for pair in against_ar):
            return f"No speed can be compared: {against_ar[0].comparison.speed.reason}."
        if all(pair.comparison.speed_verdict == "slower" for pair in against_ar):
            return "Every diffusion run was slower than autoregressive decoding."
        return "No diffusion run was shown to be faster than autoregressive decoding."
    if not any(pair.comparison.attributable for pair in faster):
        return "Some diffusion runs were faster, but the runs differ in more than what is compared."
    verdicts = {pair.comparison.quality.verdict if pair.comparison.quality else "unknown" for pair in faster}
    if verdicts == {"worse"}:
        return "Some diffusion runs were faster than autoregressive decoding, and every one of those was worse."
    return "Some diffusion runs were faster than autoregressive decoding; none was shown to be faster and not worse."


def _described(row: RunRow, metric: Metric | None) -> str:
    quality = same_metric(row.summary, metric)
    text = f"{row.label} on {row.model}, {number(_speed(row))} tokens/s"
    if row.throughput.has_interval:
        text += f" ({interval(row.throughput, number)})"
    if row.summary.unfinished:
        text += f", unfinished ({row.summary.unfinished})"
    if quality is None or quality.figure.value is None:
        return text
    if quality.binary:
        return text + f" at {quality.figure.value * 100:.0f} % {quality.name.replace('_', ' ')}"
    return text + f" at {quality.name.replace('_', ' ')} {quality.figure.value:.3g}"


def _speed(row: RunRow) -> float:
    return row.throughput.value or 0.0


def _quality(row: RunRow, metric: Metric | None) -> float | None:
    found = same_metric(row.summary, metric)
    return found.figure.value if found else None


def _verdict(rows: Sequence[RunRow], tasks: Sequence[TaskSection], margin: float) -> VerdictSection:
    shown = [row for row in rows if row.summary.run["role"] != "control"]
    embedded = [row for row in shown if row.summary.is_embedded]
    backends = list(dict.fromkeys(str(row.summary.run["backend"]) for row in shown))
    models = list(dict.fromkeys(row.model for row in shown))
    devices = list(dict.fromkeys(_device(row) for row in shown))
    controls = len(rows) - len(shown)
    answered = sum(row.summary.answered for row in rows)
    among = f" ({_count(controls, 'control')} among them)" if controls else ""
    ran = (
        f"{_count(len(rows), 'run')}{among} of {_count(len(backends), 'backend')} ({_listed(backends)}) with "
        f"{_count(len(models), 'model')} ({_listed(models)}) on {_count(len(tasks), 'task')} "
        f"({_listed([task.name for task in tasks])}), {answered:,} requests answered, on {_listed(devices)}."
    )
    headline = tasks[0].headline if len(tasks) == 1 else _overall(tasks)
    return VerdictSection(
        headline=headline,
        ran=ran,
        may=tuple(_may(shown, tasks)),
        may_not=tuple(_may_not(shown, tasks, margin, controls)),
        has_embedded=bool(embedded),
        only_embedded=len(embedded) == len(shown),
    )


def _overall(tasks: Sequence[TaskSection]) -> str:
    pairs = [pair for task in tasks for pair in task.pairs if pair.against == AGAINST_AR]
    if not pairs:
        return "Nothing was compared with autoregressive decoding yet."
    winning = [
        task.name
        for task in tasks
        if any(p.comparison.faster_and_not_worse for p in task.pairs if p.against == AGAINST_AR)
    ]
    if winning:
        return (
            f"On {len(winning)} of {len(tasks)} tasks ({_listed(winning)}) a diffusion run was faster than "
            "autoregressive decoding and not worse."
        )
    if all(pair.comparison.speed_verdict == "slower" for pair in pairs):
        return "On every task every diffusion run was slower than autoregressive decoding."
    return "On no task was a diffusion run shown to be faster than autoregressive decoding and not worse."


def _may(rows: Sequence[RunRow], tasks: Sequence[TaskSection]) -> list[str]:
    """Every decided and attributable comparison, gathered by outcome."""
    outcomes: dict[tuple[str, str, str], list[str]] = {}
    for task in tasks:
        for pair in task.pairs:
            outcome, said = _decided(pair)
            if outcome:
                outcomes.setdefault((task.name, pair.against, outcome), []).append(said)
    found = [
        f"On {task}, {outcome} against {against}: {_listed(runs)}."
        for (task, against, outcome), runs in outcomes.items()
    ]
    if any(row.summary.answered for row in rows):
        found.append(
            "Counts of tokens and forwards do not hang on a machine's speed: they hold wherever kernels and number format "
            "give the same tokens."
        )
    return found


def _decided(pair: PairRow) -> tuple[str, str]:
    """(what a comparison decided, the run with its numbers); empty where nothing is decided or attributable."""
    comparison, quality = pair.comparison, pair.comparison.quality
    # Where the answers differ in length, tokens per second alone decide nothing.
    comparable = comparison.length_parity is not False
    pace = comparison.speed_verdict if comparison.speed_verdict in ("faster", "slower") and comparable else ""
    judged = quality is not None and quality.verdict in ("not worse", "worse") and not comparison.baseline_fails
    if not comparison.attributable or not (pace or judged):
        return "", ""
    numbers = []
    if pace:
        numbers.append(f"{number(comparison.speed.value)}x, {interval(comparison.speed, number)}")
    outcome: str = pace
    if judged:
        assert quality is not None
        lost = quality.difference
        ends = f", {points(lost.low)} to {points(lost.high)}" if lost.has_interval else ""
        numbers.append(f"{points(lost.value)} points{ends}")
        joined = ("but " if (pace, quality.verdict) == ("faster", "worse") else "and ") if pace else ""
        outcome = f"{pace} {joined}{quality.verdict}".strip()
        if not comparable:
            outcome += ", with answers of another length"
    elif comparison.identical:
        outcome += " (identical answers)"
    else:
        outcome += " (quality not decided)"
    if comparison.unfinished:
        outcome += ", as far as unfinished runs tell"
    return outcome, f"{pair.candidate.label} ({'; '.join(numbers)})"


def _may_not(rows: Sequence[RunRow], tasks: Sequence[TaskSection], margin: float, controls: int = 0) -> list[str]:
    found = []
    if any(row.summary.is_embedded for row in rows):
        found.append(
            "How fast a diffusion model of practical size is on a GPU: the embedded models have a few million parameters. "
            "They show mechanisms and what parallel decoding does to quality."
        )
    if any(_device(row) == "cpu" or row.summary.environment.get("device") == "cpu" for row in rows):
        found.append(
            "Speeds elsewhere: these times were taken on a CPU, and a time does not travel to another machine."
        )
    pairs = [pair for task in tasks for pair in task.pairs]
    undecided = [p for p in pairs if p.comparison.quality and p.comparison.quality.verdict == "open"]
    if undecided:
        most = max(p.comparison.quality.documents for p in undecided if p.comparison.quality)
        needed = max(p.comparison.quality.needed or 0 for p in undecided if p.comparison.quality)
        found.append(
            f"That quality is equal within {margin * 100:g} points in {_count(len(undecided), 'comparison')}: "
            f"up to {most:,} documents were paired, about {needed:,} would be needed at most."
        )
    spoiled = [p for p in pairs if not p.comparison.attributable]
    if spoiled:
        found.append(
            f"What caused the difference in {_count(len(spoiled), 'comparison')}: something else differs too (see there)."
        )
    if any(pair.against == AGAINST_AR for pair in pairs):
        bound = "How strong the autoregressive baseline is: its share of what the hardware allows was not measured"
        if all(row.summary.is_embedded for row in rows):
            bound += ", and does not apply to models that live in the processor's cache"
        found.append(bound + ".")
    failing = [p for p in pairs if p.comparison.baseline_fails]
    if failing:
        found.append(
            f"That quality is kept in {_count(len(failing), 'comparison')}: the reference itself hardly ever answers "
            "correctly there."
        )
    unreliable = [row for row in rows if isinf(row.doubt)]
    if unreliable:
        names = _listed([f"{row.label} ({row.doubted})" for row in unreliable])
        found.append(f"Any speed of {names}: the times are not reliable.")
    unfinished = [row for row in rows if row.summary.unfinished]
    if unfinished:
        names = _listed([f"{row.label} ({row.summary.unfinished})" for row in unfinished])
        found.append(f"What the missing requests of unfinished runs would have shown: {names}.")
    loose = [row for row in rows if row.summary.books_close is False and not isinf(row.doubt)]
    if loose:
        found.append(
            f"Exact times of {_count(len(loose), 'run')} of {len(rows)}: separately measured parts do not add up to the "
            "wall time within 5 %, so the machine was not steady or something is not measured."
        )
    lengths = [p for p in pairs if p.comparison.length_parity is False]
    if lengths:
        found.append(
            f"Tokens per second alone in {_count(len(lengths), 'comparison')}: the answers differ in length by more than 10 %."
        )
    if rows and all(row.summary.run["repeat"] == 0 for row in rows):
        found.append(
            "How much a speed varies from run to run: every configuration was run once"
            + (", but for what the control repeated" if controls else "")
            + ", so intervals are over the requests of one run only."
        )
    elif any(row.leads and len(row.group.summaries) < MINIMUM_CLUSTERS for row in rows):
        found.append(
            "How much a speed varies from run to run where fewer than five repeats were made: no interval is known there."
        )
    concurrencies = sorted({row.summary.run["concurrency"] for row in rows})
    if concurrencies == [1]:
        found.append("What happens with several requests at once: only one was in flight, where compute is idle.")
    failed = sum(row.summary.failed for row in rows)
    if failed:
        found.append(f"Anything about the {_count(failed, 'request')} that failed: they are counted, and in no figure.")
    return found


def _device(row: RunRow) -> str:
    environment = row.summary.environment
    device = str(environment.get("device") or "an unrecorded device")
    name = environment.get("cpu") if device == "cpu" else environment.get("gpu")
    cores = environment.get("cores_usable") or environment.get("cores")
    if not name:
        return device
    return f"{name} ({_count(cores, 'core')})" if device == "cpu" and cores else str(name)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)


# -- example request --


def _trace(store: Store, rows: Sequence[RunRow], token_texts: TokenTexts) -> TraceSection | None:
    """The request that most runs have a trace of; the first in the task's order among those."""
    by_request: dict[Any, list[tuple[RunRow, Mapping[str, Any]]]] = {}
    for row in rows:
        for request in store.query(_TRACED, [row.summary.run_id]):
            key = request["doc_id"] if request["doc_id"] is not None else -1 - request["ordinal"]
            by_request.setdefault(key, []).append((row, request))
    if not by_request:
        return None
    key = min(by_request, key=lambda k: (-len(by_request[k]), k < 0, abs(k)))
    found = by_request[key]
    shown = tuple(_trace_row(store, row, request, token_texts) for row, request in found)
    most_parallel = max(shown, key=lambda row: row.tokens_per_forward)
    return TraceSection(
        prompt=found[0][1]["prompt"] or "",
        document=key if key >= 0 else None,
        rows=shown,
        opened=(shown[0].run.number, most_parallel.run.number),
    )


def _trace_row(store: Store, row: RunRow, request: Mapping[str, Any], token_texts: TokenTexts) -> TraceRow:
    forwards, commits = store.trace(row.summary.run_id, request["ordinal"])
    texts = token_texts(row.summary.run, [c["token"] for c in commits])
    shown = texts if texts is not None else [str(c["token"]) for c in commits]
    last = max((c["step"] for c in commits), default=0)
    tokens = [
        TraceToken(
            text,
            c["step"],
            c["position"] - (request["prompt_tokens"] or 0),
            float("nan") if c["confidence"] is None else c["confidence"],
            round(5 * c["step"] / max(last, 1)),
        )
        for c, text in zip(commits, shown, strict=True)
    ]
    by_step: dict[int, list[TraceToken]] = {}
    for token in tokens:
        by_step.setdefault(token.step, []).append(token)
    steps = [
        TraceStep(
            f["step"],
            f["kind"],
            f["width"],
            f["block"],
            _collapsed(sorted(by_step.get(f["step"], []), key=lambda t: t.position)),
        )
        for f in forwards
    ]
    return TraceRow(
        run=row,
        text=request["text"] or "",
        stop=request["stop"] or "",
        forwards=len(forwards),
        committed=len(commits),
        tokens=_collapsed(sorted(tokens, key=lambda token: token.position)),
        steps=tuple(steps[:SHOWN_STEPS]),
        left_out=max(0, len(steps) - SHOWN_STEPS),
        has_text=texts is not None,
        tokens_per_forward=len(commits) / len(forwards) if forwards else 0.0,
    )


def _collapsed(tokens: Sequence[TraceToken]) -> tuple[TraceToken, ...]:
    """Three or more of the same token side by side become one with their number."""
    runs: list[list[TraceToken]] = []
    for token in tokens:
        last = runs[-1][-1] if runs else None
        if last is not None and (token.text, token.position) == (last.text, last.position + 1):
            runs[-1].append(token)
        else:
            runs.append([token])
    shown: list[TraceToken] = []
    for run in runs:
        if len(run) < 3:
            shown += run
            continue
        steps = [token.step for token in run]
        sure = min(token.confidence for token in run)
        shown.append(replace(run[0], step=min(steps), end_step=max(steps), count=len(run), confidence=sure))
    return tuple(shown)


# -- environment --


def _environments(rows: Sequence[RunRow]) -> tuple[EnvironmentColumn, ...]:
    """One column per machine and software; readings of the moment are shown as their range."""
    grouped: dict[tuple[tuple[str, str], ...], list[RunRow]] = {}
    for row in rows:
        facts = tuple(_fact(name, value) for name, value in row.summary.environment.items() if not is_reading(name))
        grouped.setdefault(facts, []).append(row)
    return tuple(EnvironmentColumn(tuple(found), (*facts, *_readings(found))) for facts, found in grouped.items())


def _readings(rows: Sequence[RunRow]) -> tuple[tuple[str, str], ...]:
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.summary.environment.items():
            if is_reading(name):
                values.setdefault(name, []).append(value)
    return tuple((_fact(name, found[0])[0], _range(name, found)) for name, found in values.items())


def _range(name: str, values: Sequence[Any]) -> str:
    distinct = list(dict.fromkeys(_fact(name, value)[1] for value in values))
    if len(distinct) > 1 and all(isinstance(value, int | float) for value in values):
        return f"{_fact(name, min(values))[1]} to {_fact(name, max(values))[1]}"
    return ", ".join(distinct)


def _fact(name: str, value: Any) -> tuple[str, str]:
    """Name and value of a fact as the page shows them; bytes become MB or GB."""
    if name.endswith("_bytes") and isinstance(value, int | float) and not isinstance(value, bool):
        amount = f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.1f} MB"
        return _fact_name(name.removesuffix("_bytes")), amount
    return _fact_name(name), short_value(value)


#: Names of facts that read badly as they are stored.
_FACT_NAMES = {
    "lm_eval": "lm-eval",
    "dllm_audit": "dllm-audit",
}


def _fact_name(name: str) -> str:
    """The name of a fact as a person writes it: "cpu_mhz_after" is "CPU clock (MHz) after"."""
    if name.startswith("env_"):
        return name.removeprefix("env_")
    if name.lower() in _FACT_NAMES:
        return _FACT_NAMES[name.lower()]
    words = {"cpu": "CPU", "gpu": "GPU", "mhz": "clock (MHz)", "cuda": "CUDA", "ram": "RAM", "id": "id"}
    return " ".join(words.get(word, word) for word in name.split("_"))


def _details(row: RunRow) -> RunDetails:
    run = row.summary.run
    sources = run["setting_sources"]
    settings = tuple(
        SettingRow(name, short_value(value) if value is not None else "unset", str(sources.get(name, "")))
        for name, value in run["settings"].items()
    )
    facts: list[tuple[str, str]] = [
        ("run", row.summary.run_id),
        ("status", str(run["status"])),
        ("started", f"{run['started_at']:%Y-%m-%d %H:%M} UTC"),
        ("provenance", str(run["provenance"])),
        ("fidelity", str(run["fidelity"])),
    ]
    manifest = run["manifest"]
    for name in ("dllm_audit", "code_commit", "load_seconds"):
        if manifest.get(name) is not None:
            facts.append((_fact_name(name), short_value(manifest[name])))
    if row.summary.discrepancy is not None:
        facts.append(("books: parts against wall time", f"{row.summary.discrepancy * 100:+.1f} %"))
    for group in ("model", "engine", "prompts", "warm_up"):
        found = manifest.get(group)
        if isinstance(found, dict):
            shown = (_fact(name, value) for name, value in found.items() if value is not None)
            facts += [(f"{group.replace('_', ' ')}: {name}", text) for name, text in shown]
    return RunDetails(row, settings, tuple(facts))


# -- claims --


def _claims(registry: Registry, traps: Sequence[Trap] | None, checks: ChecksSection) -> ClaimsSection:
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
