"""What the runs of one task show, in sentences: who is fastest, who is best, and when neither can be said."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from dllm_audit.analysis.asked import swept, template_of
from dllm_audit.analysis.pairing import noise_bar
from dllm_audit.analysis.references import AGAINST_AR
from dllm_audit.analysis.rows import speed_alone
from dllm_audit.analysis.summary import Metric
from dllm_audit.analysis.words import count, listed
from dllm_audit.report.formats import interval, number
from dllm_audit.report.sections.comparisons import ControlRow, PairRow
from dllm_audit.report.sections.runs import RunRow, same_metric

NO_QUALITY = "Speed alone: no quality was measured, so nothing here can be called faster and not worse."


def task_findings(
    rows: Sequence[RunRow], pairs: Sequence[PairRow], metric: Metric | None, controls: Sequence[ControlRow]
) -> tuple[str, tuple[str, ...]]:
    """(the headline of a task, the sentences under it)."""
    timed = [row for row in rows if row.pace.value]
    if not timed:
        return "Nothing was timed.", ()
    # Only runs under the same conditions have a fastest among them, and templates make answers of other lengths.
    worded = [row for row in timed if template_of(row.summary.run) is not None]
    groups: dict[tuple[str, int, str], list[RunRow]] = {}
    for row in (row for row in timed if row not in worded):
        groups.setdefault(_conditions(row), []).append(row)
    several = len({provenance for provenance, _, _ in groups}) > 1
    loads = len({load for _, _, load in groups}) > 1
    sentences: list[str] = []
    for conditions, among in sorted(groups.items()):
        provenance, concurrency, load = conditions
        where = "" if len(groups) == 1 else " with " + count(concurrency, "request") + " in flight"
        where += f", {load}" if loads else ""
        where += f", {provenance}" if several else ""
        alike = [c for c in controls if _conditions(c.twin) == conditions]
        sentences += _group_sentences(among, where, metric, max((c.factor for c in alike), default=1.0))
    if worded:
        sentences.append(f"{count(len(worded), 'run')} asked by prompt templates: see there whether the ranking holds.")
    for backend, thresholds in swept([row.summary.run for row in rows]):
        sentences.append(
            f"{thresholds} thresholds of {backend} were run on the same documents: whoever picks the best of them by these "
            "figures overrates it (the winner's curse). run --choose picks one on other documents than those that judge it."
        )
    for control in controls:
        if control.speed.value is not None and template_of(control.control.summary.run) is None:
            sentences.append(f"{_same_twice(control)}. {control.meaning}".rstrip())
    unfinished = [f"{row.label} ({row.summary.unfinished})" for row in rows if row.summary.unfinished]
    if unfinished:
        sentences.append(f"Unfinished: {listed(unfinished)}. What is missing is in no figure.")
    headline = NO_QUALITY if speed_alone(rows[0].summary.run) else _task_headline(pairs, rows)
    if all(row.summary.likelihoods is not None for row in rows):
        headline = headline.replace("autoregressive decoding", "the autoregressive model")
    return headline, tuple(sentences)


def _conditions(row: RunRow) -> tuple[str, int, str]:
    run = row.summary.run
    return str(run["provenance"]), int(run["concurrency"]), row.summary.load.words


def _same_twice(control: ControlRow) -> str:
    ends = f" ({interval(control.speed, number)})" if control.speed.has_interval else ""
    return f"The same configuration twice ({control.twin.label}): {number(control.speed.value)}x{ends}"


def _group_sentences(rows: Sequence[RunRow], where: str, metric: Metric | None, noise: float) -> list[str]:
    """The fastest, the fastest diffusion run and the best of runs under the same conditions."""
    reliable = [row for row in rows if not isinf(row.doubt)]
    sentences = []
    if reliable:
        among = where if len(reliable) == len(rows) else " with reliable times" + where.replace(" with ", " and ", 1)
        sentences.append(_fastest(reliable, "", among, metric, noise))
        diffusion = [row for row in reliable if row.summary.run["kind"] == "diffusion"]
        if diffusion and len(diffusion) < len(reliable) and max(reliable, key=_speed) not in diffusion:
            sentences.append(_fastest(diffusion, " diffusion run", among, metric, noise))
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
    """Which run is the fastest, if its interval lies beyond those of every other configuration and beyond noise.

    noise: the factor by which a configuration differs from itself, as far as a control tells.
    """
    first = max(rows, key=_speed)
    others = [row for row in rows if _configuration(row) != _configuration(first)]
    if not others:
        return f"The only{what or ' configuration'}{where}: {_described(first, metric)}."
    for row in (first, *others):
        if not row.pace.has_interval:
            return (
                f"No fastest{what} can be named{where}: the interval of {row.label} is unknown. "
                f"Highest speed observed: {_described(first, metric)}."
            )
    next_one = max(others, key=lambda row: _ends(row)[1])
    noise = max(noise_bar(row.pace, noise) for row in (first, next_one))
    if _ends(first)[0] > _ends(next_one)[1] * noise:
        return f"Fastest{what}{where}: {_described(first, metric)}."
    between = " and ".join(
        f"{row.label} ({number(_ends(row)[0])} to {number(_ends(row)[1])} {row.pace.unit})" for row in (first, next_one)
    )
    how = ", widened because the books do not close, overlap" if max(first.doubt, next_one.doubt) > 1 else " overlap"
    if _ends(first)[0] > _ends(next_one)[1]:
        how += f" within the {number(noise)}x that runs of one configuration differ by"
    return f"No fastest{what} can be named{where}: the intervals of {between}{how}."


def _ends(row: RunRow) -> tuple[float, float]:
    """The interval of a speed, widened by how far the books of the run are off."""
    speed = row.pace
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
        if any(pair.comparison.speed_verdict == "faster than a weak baseline" for pair in against_ar):
            return "Some diffusion runs were faster than autoregressive decoding, but than a weak baseline only."
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
    """A run with its speed, where its times are reliable, and its quality."""
    quality = same_metric(row.summary, metric)
    text = f"{row.label} on {row.model}"
    if not isinf(row.doubt):
        text += f", {number(_speed(row))} {row.pace.unit}"
        text += f" ({interval(row.pace, number)})" if row.pace.has_interval else ""
    if row.summary.unfinished:
        text += f", unfinished ({row.summary.unfinished})"
    if quality is None or quality.figure.value is None:
        return text
    if quality.binary:
        return text + f" at {quality.figure.value * 100:.0f} % {quality.name.replace('_', ' ')}"
    return text + f" at {quality.name.replace('_', ' ')} {quality.figure.value:.3g}"


def _speed(row: RunRow) -> float:
    return row.pace.value or 0.0


def _quality(row: RunRow, metric: Metric | None) -> float | None:
    found = same_metric(row.summary, metric)
    return found.figure.value if found else None
