"""The verdict at the top: what was run, what may be concluded, and what may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf

from dllm_audit.analysis.baseline import MATERIALLY_SLOWER
from dllm_audit.analysis.references import AGAINST_AR
from dllm_audit.analysis.rows import speed_alone
from dllm_audit.analysis.words import count, listed
from dllm_audit.report.formats import interval, number, points
from dllm_audit.report.sections.comparisons import PairRow
from dllm_audit.report.sections.findings import NO_QUALITY
from dllm_audit.report.sections.runs import RunRow
from dllm_audit.report.sections.task import TaskSection
from dllm_audit.statistics.throughput import MINIMUM_CLUSTERS


@dataclass(frozen=True)
class VerdictSection:
    """What was run and what follows, in words."""

    headline: str
    ran: str
    may: tuple[str, ...]
    may_not: tuple[str, ...]
    has_embedded: bool
    only_embedded: bool


def verdict_section(rows: Sequence[RunRow], tasks: Sequence[TaskSection], margin: float) -> VerdictSection:
    shown = [row for row in rows if row.summary.run["role"] != "control"]
    embedded = [row for row in shown if row.summary.is_embedded]
    backends = list(dict.fromkeys(str(row.summary.run["backend"]) for row in shown))
    models = list(dict.fromkeys(row.model for row in shown))
    devices = list(dict.fromkeys(_device(row) for row in shown))
    controls = len(rows) - len(shown)
    answered = sum(row.summary.answered for row in rows)
    among = f" ({count(controls, 'control')} among them)" if controls else ""
    ran = (
        f"{count(len(rows), 'run')}{among} of {count(len(backends), 'backend')} ({listed(backends)}) with "
        f"{count(len(models), 'model')} ({listed(models)}) on {count(len(tasks), 'task')} "
        f"({listed([task.name for task in tasks])}), {answered:,} requests answered, on {listed(devices)}."
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
    tasks = [task for task in tasks if not task.speed_alone]
    if not tasks:
        return NO_QUALITY
    tasks, every = [task for task in tasks if any(pair.against == AGAINST_AR for pair in task.pairs)], len(tasks)
    pairs = [pair for task in tasks for pair in task.pairs if pair.against == AGAINST_AR]
    if not pairs:
        return "Nothing was compared with autoregressive decoding yet."
    # A task without an autoregressive baseline cannot win or lose.
    which = "" if len(tasks) == every else f" with an autoregressive baseline ({listed([task.name for task in tasks])})"
    many = f"{len(tasks)} tasks" if len(tasks) > 1 else "1 task"
    winning = [
        task.name
        for task in tasks
        if any(p.comparison.faster_and_not_worse for p in task.pairs if p.against == AGAINST_AR)
    ]
    if winning:
        with_baseline = " with an autoregressive baseline" if which else ""
        return (
            f"On {len(winning)} of {many}{with_baseline} ({listed(winning)}) a diffusion run was faster than autoregressive "
            "decoding and not worse."
        )
    if all(pair.comparison.speed_verdict == "slower" for pair in pairs):
        return f"On every task{which} every diffusion run was slower than autoregressive decoding."
    return f"On no task{which} was a diffusion run shown to be faster than autoregressive decoding and not worse."


def _may(rows: Sequence[RunRow], tasks: Sequence[TaskSection]) -> list[str]:
    """Every decided and attributable comparison, gathered by outcome."""
    outcomes: dict[tuple[str, str, str], list[str]] = {}
    for task in tasks:
        for pair in task.pairs:
            outcome, said = _decided(pair)
            if outcome:
                outcomes.setdefault((task.name, pair.against, outcome), []).append(said)
    found = [
        f"On {task}, {outcome} against {against}: {listed(runs)}."
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
        alone = speed_alone(comparison.candidate.run)
        outcome += " (speed alone: no quality was measured)" if alone else " (quality not decided)"
    if comparison.unfinished:
        outcome += ", as far as unfinished runs tell"
    return outcome, f"{pair.candidate.label} ({'; '.join(numbers)})"


def _may_not(rows: Sequence[RunRow], tasks: Sequence[TaskSection], margin: float, controls: int = 0) -> list[str]:
    found = []
    if any(row.summary.is_embedded for row in rows):
        found.append(
            "How fast a diffusion model of practical size is on a GPU: the embedded models have a few million parameters."
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
            f"That quality is equal within {margin * 100:g} points in {count(len(undecided), 'comparison')}: "
            f"up to {most:,} documents were paired, about {needed:,} would be needed at most."
        )
    spoiled = [p for p in pairs if not p.comparison.attributable]
    if spoiled:
        found.append(
            f"What caused the difference in {count(len(spoiled), 'comparison')}: something else differs too (see there)."
        )
    found += _about_baselines([pair for pair in pairs if pair.against == AGAINST_AR])
    failing = [p for p in pairs if p.comparison.baseline_fails]
    if failing:
        found.append(
            f"That quality is kept in {count(len(failing), 'comparison')}: the reference itself hardly ever answers "
            "correctly there."
        )
    unreliable = [row for row in rows if isinf(row.doubt)]
    if unreliable:
        where = [f" on {row.summary.run['task']}" if len(tasks) > 1 else "" for row in unreliable]
        names = listed([f"{row.label}{task} ({row.doubted})" for row, task in zip(unreliable, where, strict=True)])
        found.append(f"Any speed of {names}: the times are not reliable.")
    unfinished = [row for row in rows if row.summary.unfinished]
    if unfinished:
        names = listed([f"{row.label} ({row.summary.unfinished})" for row in unfinished])
        found.append(f"What the missing requests of unfinished runs would have shown: {names}.")
    loose = [row for row in rows if row.summary.books_close is False and not isinf(row.doubt)]
    if loose:
        found.append(
            f"Exact times of {count(len(loose), 'run')} of {len(rows)}: separately measured parts do not add up to the "
            "wall time within 5 %, so the machine was not steady or something is not measured."
        )
    lengths = [p for p in pairs if p.comparison.length_parity is False]
    if lengths:
        found.append(
            f"Tokens per second alone in {count(len(lengths), 'comparison')}: the answers differ in length by more than 10 %."
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
        found.append(f"Anything about the {count(failed, 'request')} that failed: they are counted, and in no figure.")
    return found


def _about_baselines(pairs: Sequence[PairRow]) -> list[str]:
    """What the strength of the autoregressive baselines does not allow to conclude."""
    strengths = [(p.baseline.label, s) for p in pairs if (s := p.comparison.strength) is not None]
    weak = list(dict.fromkeys(name for name, s in strengths if s.verdict == "weak"))
    unknown = list(dict.fromkeys(name for name, s in strengths if s.verdict == "unknown"))
    undecided = list(dict.fromkeys(name for name, s in strengths if s.verdict == "undecided"))
    found = []
    if weak:
        found.append(f"That anything is faster for being faster than {listed(weak)}: a weak baseline.")
    if undecided:
        found.append(
            f"Whether {listed(undecided)} {'is a weak baseline' if len(undecided) == 1 else 'are weak baselines'}: the turns beside "
            f"transformers' generate cannot tell if {'it' if len(undecided) == 1 else 'they'} ran below {MATERIALLY_SLOWER:g}x its speed."
        )
    if unknown:
        found.append(
            f"How strong {listed(unknown)} {'is' if len(unknown) == 1 else 'are'}: neither held against transformers' generate nor "
            "against what the device allows."
        )
    if any(
        p.baseline.summary.run["provenance"] == "reference" and p.baseline.summary.run["concurrency"] > 1 for p in pairs
    ):
        found.append(
            "Where a served engine would overtake: with several requests in flight the baseline is this package's own engine."
        )
    return found


def _device(row: RunRow) -> str:
    environment = row.summary.environment
    device = str(environment.get("device") or "an unrecorded device")
    name = environment.get("cpu") if device == "cpu" else environment.get("gpu")
    cores = environment.get("cores_usable") or environment.get("cores")
    if not name:
        return device
    return f"{name} ({count(cores, 'core')})" if device == "cpu" and cores else str(name)
