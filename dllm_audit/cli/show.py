"""`dllm-audit show`: everything about one run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.cli.options import database_option, json_option
from dllm_audit.errors import UsageError

if TYPE_CHECKING:
    from dllm_audit.analysis.consumption import Consumption
    from dllm_audit.analysis.figures import Figure
    from dllm_audit.analysis.likelihoods import Likelihoods
    from dllm_audit.analysis.load import LoadFigures
    from dllm_audit.analysis.pairing import Comparison
    from dllm_audit.analysis.summary import RunSummary
    from dllm_audit.analysis.text_quality import TextQuality
    from dllm_audit.store.database import Store


@click.command(epilog='Example: dllm-audit show "$(dllm-audit runs --json | jq -r .runs[-1].run_id)" --requests')
@click.argument("run")
@click.option("--requests", is_flag=True, help="Also every request: counts, time, answer.")
@click.option("--trace", type=click.IntRange(min=0), metavar="N", help="Also the step trace of request N (from 0).")
@database_option
@json_option
def command(run: str, requests: bool, trace: int | None, database: Path, as_json: bool) -> None:
    """Show one run: settings, counts, figures, metrics, where the time goes. RUN is an id or its beginning."""
    from dllm_audit.analysis.facts import agreement_facts, figure_facts, request_facts, run_facts
    from dllm_audit.analysis.summary import summarise
    from dllm_audit.store.database import Store

    with Store.open(database) as store:
        summary = summarise(store, run)
        references = _references(store, summary)
        rows = store.requests(summary.run_id) if requests else []
        steps = None if trace is None else _steps(store, summary, trace)
    if as_json:
        facts = run_facts(summary)
        facts["references"] = [
            {
                "against": against,
                "run_id": found.baseline.run_id,
                "documents": found.documents,
                "agreement": agreement_facts(found.agreement),
                "quality_difference": None if found.quality is None else figure_facts(found.quality.difference),
            }
            for against, found in references.items()
        ]
        if requests:
            facts["request_rows"] = [request_facts(row) for row in rows]
        if steps is not None:
            facts["trace"] = steps
        click.echo(json.dumps(facts, indent=2, default=str))
        return
    for part in _parts(summary, references):
        click.echo(part + "\n")
    if requests:
        click.echo((_requests(rows) if summary.likelihoods is None else _scored_requests(rows)) + "\n")
    if steps is not None:
        click.echo(_trace(steps))


def _references(store: Store, summary: RunSummary) -> dict[str, Comparison]:
    """The run against those of the same model that say what committing together, and a cache, changed."""
    from dllm_audit.analysis.pairing import Comparisons
    from dllm_audit.analysis.references import AGAINST_ONE_TOKEN, AGAINST_UNCACHED, REFERENCES

    runs = store.runs()
    found = {against: REFERENCES[against](summary.run, runs) for against in (AGAINST_ONE_TOKEN, AGAINST_UNCACHED)}
    comparisons = Comparisons(store, runs, [summary])
    return {
        against: comparisons.compare(summary.run_id, str(reference["run_id"]))
        for against, reference in found.items()
        if reference is not None and summary.likelihoods is None
    }


def _parts(summary: RunSummary, references: Mapping[str, Comparison]) -> list[str]:
    """The text, section by section."""
    parts = [_head(summary), _settings(summary), _figures(summary)]
    if summary.metrics:
        parts.append(_metrics(summary))
    if summary.text is not None:
        parts.append(_text(summary.text, references))
    parts += [_latency(summary), _load(summary.load), _time(summary), _bound(summary), *_strength(summary)]
    parts.append(_consumption(summary.consumption))
    if summary.conventions:
        parts.append(_conventions(summary))
    if summary.failures:
        lines = [f"  {kind.count} x {kind.type}: {_clean(kind.message)}" for kind in summary.failures]
        parts.append("\n".join(["Failures", *lines]))
    if summary.notes:
        parts.append("\n".join(["Notes", *(f"  {_clean(note)}" for note in summary.notes)]))
    return parts


def _head(summary: RunSummary) -> str:
    from dllm_audit.analysis.labels import label
    from dllm_audit.analysis.rows import speed_alone
    from dllm_audit.analysis.sequential import stopped_words

    run, facts = summary.run, summary.model_facts
    lines = [
        f"{run['run_id']}  {label(run)}  [{run['provenance']}, {run['status']}]",
        f"  {run['task']} with {run['model']}"
        + (f" ({facts['provenance']})" if facts.get("provenance") else "")
        + f", {run['concurrency']} in flight, started {run['started_at']:%Y-%m-%d %H:%M:%S} UTC",
        *([f"  Speed alone ({alone}): no quality was measured"] if (alone := speed_alone(run)) else []),
        f"  {summary.answered} of {run['planned_requests']} requests answered"
        + (f", {summary.failed} failed" if summary.failed else "")
        + (f": unfinished ({run['status']})" if summary.unfinished else "")
        + (f": {words}" if (words := stopped_words(run)) and not summary.unfinished else ""),
    ]
    device = ", ".join(str(summary.environment[k]) for k in ("device", "gpu", "cpu") if summary.environment.get(k))
    if device:
        lines.append(f"  on {device}")
    return "\n".join(_clean(line) for line in lines)


def _settings(summary: RunSummary) -> str:
    sources = summary.run["setting_sources"]
    shown = [
        f"{name}={_plain(value)}" + (f" ({sources[name]})" if sources.get(name) in ("option", "task") else "")
        for name, value in summary.run["settings"].items()
    ]
    return "Settings\n" + click.wrap_text(_clean(", ".join(shown)), 100, "  ", "  ")


def _figures(summary: RunSummary) -> str:
    from dllm_audit.analysis.tables import aligned

    if summary.likelihoods is not None:
        return _scored_figures(summary, summary.likelihoods)
    rows = [
        ("tokens per second", *_said(summary.throughput, "{:.2f}")),
        ("characters per second", *_said(summary.characters_per_second, "{:.1f}")),
        ("correct answers per second", *_said(summary.correct_per_second, "{:.3f}")),
        ("whole time", *_said(summary.makespan_seconds, "{:.3f} s")),
        ("committed per forward (tau)", *_said(summary.committed_per_forward, "{:.3f}")),
        ("answered per forward", *_said(summary.tokens_per_forward, "{:.3f}")),
        ("positions per forward (G)", *_said(summary.positions_per_forward, "{:.1f}")),
        ("guaranteed commits", *_said(summary.guaranteed_share, "{:.1%}")),
        ("forwards spared by ending early", *_said(summary.spared_forwards, "{:,.0f}")),
        ("batch tax", *_said(summary.batch_tax, "{:.1%}")),
        ("cut by the window's length", *_said(summary.truncation_rate, "{:.1%}")),
    ]
    counts = (
        f"  {summary.answered_tokens} tokens answered, {summary.committed_tokens} committed, {summary.prompt_tokens} of prompts; "
        f"{_forwards(summary)}"
    )
    return f"Figures\n{counts}\n" + aligned(rows, right={1}, indent="  ") + _within_this_run(summary.throughput)


def _forwards(summary: RunSummary) -> str:
    kinds = ", ".join(f"{n} {kind}" for kind, n in summary.forwards.items()) or "none"
    return f"{summary.nfe} forwards ({kinds}), {summary.query_positions} query positions"


def _within_this_run(speed: Figure) -> str:
    if not speed.has_interval:
        return ""
    return "\n  Intervals of speed cover which requests were drawn from this run, not how speed varies from run to run."


def _scored_figures(summary: RunSummary, found: Likelihoods) -> str:
    """The figures of a run that scored given answers: it has no tokens of its own."""
    from dllm_audit.analysis.tables import aligned

    rows = [
        ("requests per second", *_said(summary.requests_per_second, "{:.3f}")),
        ("correct answers per second", *_said(summary.correct_per_second, "{:.3f}")),
        ("whole time", *_said(summary.makespan_seconds, "{:.3f} s")),
        ("positions per forward (G)", *_said(summary.positions_per_forward, "{:.1f}")),
        ("batch tax", *_said(summary.batch_tax, "{:.1%}")),
        ("log-likelihoods added up", *_said(found.total, "{:.3f} nats")),
        ("their standard error, mean", *_said(found.standard_error, "{:.4f} nats")),
        *((f"undecided choices ({name})", *_said(figure, "{:.1%}")) for name, figure in found.undecided.items()),
    ]
    counts = (
        f"  {found.exact} log-likelihoods exact, {found.estimated} estimated from {found.samples} masked copies; "
        f"{summary.prompt_tokens} tokens of prompts; {_forwards(summary)}"
    )
    return (
        f"Figures\n{counts}\n" + aligned(rows, right={1}, indent="  ") + _within_this_run(summary.requests_per_second)
    )


def _metrics(summary: RunSummary) -> str:
    from dllm_audit.analysis.tables import aligned

    rows = []
    for metric in summary.metrics:
        value, note = _said(metric.figure, "{:.3f}")
        if metric.extraction_failures is not None and metric.extraction_failures.value is not None:
            note += f"; no answer found in {metric.extraction_failures.value:.1%}"
        rows.append((metric.label, value, note))
    return "Quality\n" + aligned(rows, right={1}, indent="  ")


def _text(found: TextQuality, references: Mapping[str, Comparison]) -> str:
    """How the answers read, and how far they are those of the same model decoded more carefully."""
    from dllm_audit.analysis.tables import aligned
    from dllm_audit.analysis.words import count

    degenerate, how = _said(found.degenerate, "{:.1%}")
    kinds = ", ".join(f"{n} {kind}" for kind, n in found.degenerate_kinds.items())
    rows = [
        ("same word twice in a row", *_said(found.adjacent_repeats, "{:.2%}")),
        ("different bigrams of words", *_said(found.unique_bigrams, "{:.1%}")),
        ("no usable text", degenerate, f"{how}; {kinds}" if kinds else how),
    ]
    if found.code is not None:
        undefined, why = _said(found.code.undefined_names, "{:.1%}")
        names = ", ".join(_clean(name) for name in found.code.names)
        rows += [
            ("code that does not parse", *_said(found.code.syntax_errors, "{:.1%}")),
            ("code with undefined names", undefined, f"{why}; most often {names}" if names else why),
        ]
    for each in found.perplexities:
        value, note = _said(each.figure, "{:.3f}")
        note += f"; {count(each.left_out, 'answer')} left out" if each.left_out else ""
        rows.append((f"perplexity under {_clean(each.reference)}", value, note))
    lines = []
    for against, comparison in references.items():
        rows.append((f"same tokens as {against}", *_said(comparison.agreement.tokens, "{:.1%}")))
        lines.append(f"  Against {against} ({comparison.baseline.run_id}): {_careful(comparison)}.")
    return "\n".join(["How the answers read", aligned(rows, right={1}, indent="  "), *lines])


def _careful(comparison: Comparison) -> str:
    """What a comparison with the same model says about answers and accuracy."""
    same, quality = comparison.agreement.answers, comparison.quality
    words = "answers unknown" if same.value is None else f"{same.value:.1%} of the answers are the same throughout"
    difference = None if quality is None else quality.difference
    if quality is None or difference is None or difference.value is None:
        return words
    words += f"; {quality.label} {difference.value * 100:+.1f} points"
    if difference.low is not None and difference.high is not None:
        words += f" ({difference.low * 100:+.1f} to {difference.high * 100:+.1f}, {difference.basis})"
    return words


def _latency(summary: RunSummary) -> str:
    from dllm_audit.analysis.tables import aligned

    rows = [("", *(f"{p:g} %" for p in summary.latency))]
    streaming = summary.streaming
    lines = [
        ("whole answer", summary.latency),
        ("first token final", summary.ttft),
        ("first text delivered", streaming.delivered),
    ]
    if streaming.blocks:
        lines.append(("a block", streaming.block_latency))
    if summary.likelihoods is not None:
        lines = [("whole request", summary.latency)]
    if summary.load.kind != "closed":
        lines.append(("queued for a row", summary.load.queue))
    for name, figures in lines:
        rows.append((name, *("-" if f.value is None else f"{f.value:.3f} s" for f in figures.values())))
    text = "Latency\n" + aligned(rows, right=range(1, len(rows[0])), indent="  ")
    if streaming.blocks:
        mean, rate = _said(streaming.mean_block_latency, "{:.3f} s")[0], _said(streaming.blocks_per_second, "{:.2f}")[0]
        text += f"\n  {streaming.blocks} blocks closed, {mean} each on average, {rate} blocks/s over the whole time"
    return text


def _load(load: LoadFigures) -> str:
    """How requests came, and how many rows the forwards really had."""
    from dllm_audit.analysis.tables import aligned

    rows = [("rows of a forward, mean", *_said(load.mean_rows, "{:.2f}"))]
    if load.histogram:
        shares = ", ".join(f"{rows}: {share:.1%}" for rows, share, _ in load.histogram)
        rows.append(("rows: share of forwards", "", shares))
    for name, figure in (("ramp-up", load.ramp), ("drain", load.drain), ("idle", load.idle)):
        rows.append((f"{name}, of the whole time", *_said(figure, "{:.1%}")))
    at_most = "" if load.rows is None else f", at most {load.rows} in flight"
    return f"Load: {load.words}{at_most}\n" + aligned(rows, right={1}, indent="  ")


def _time(summary: RunSummary) -> str:
    from dllm_audit.analysis.tables import aligned

    rows = [(s.item, f"{s.seconds:.3f} s", f"{s.share:.1%}") for s in summary.seconds if s.seconds]
    if not rows:
        return "Where the time goes\n  no request was answered"
    text = "Where the time goes (summed over requests)\n" + aligned(rows, right={1, 2}, indent="  ")
    if summary.discrepancy is not None:
        text += f"\n  separately measured parts against the wall time: {summary.discrepancy * 100:+.1f} %"
        if summary.doubt == float("inf"):
            text += ", so no speed is concluded from this run"
    if summary.outside_seconds:
        outside = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in summary.outside_seconds.items())
        text += f"\n  outside the clock: {outside}"
    return text


def _bound(summary: RunSummary) -> str:
    from dllm_audit.analysis.tables import aligned

    found = summary.bound
    title = "Share of what the device allows (modelled)"
    total, why = _said(found.total, "{:.1%}")
    if found.roofline is None:
        return f"{title}\n  unknown: {why}"
    rows = [("forward", "how many", "at least", "took", "share", "limited by")]
    for kind in found.kinds:
        share = f"{kind.share:.1%}" if found.applicable and kind.share is not None else "-"
        took = f"{kind.measured_seconds:.3f} s"
        rows.append((kind.kind, str(kind.count), f"{kind.bound_seconds:.3f} s", took, share, kind.limited_by))
    if found.applicable and found.total.value is not None:
        seconds = (f"{found.bound_seconds:.3f} s", f"{found.measured_seconds:.3f} s")
        rows.append(("all forwards", str(found.forwards), *seconds, total, ""))
    device = found.roofline.device
    lines = [
        title,
        aligned(rows, right={1, 2, 3, 4}, indent="  "),
        f"  of {device.bandwidth / 1e9:,.4g} GB/s and {device.peak / 1e9:,.4g} GFLOP/s, {_clean(device.status)}",
    ]
    if found.total.reason:
        lines.append("  " + _clean(found.total.reason))
    return "\n".join(lines)


def _strength(summary: RunSummary) -> list[str]:
    """An autoregressive run beside transformers' own decoding of the same prompts."""
    from dllm_audit.analysis.baseline import strength_of
    from dllm_audit.analysis.tables import aligned

    found = strength_of(summary)
    if found is None:
        return []
    lines = ["As a baseline (library: transformers' own decoding on the same weights, observed in the same process)"]
    if found.observed is not None:
        rows = [("", "tokens/s", "same tokens", "this run's decoder over it", "")]
        for side, figure in (
            (s, {"generate": found.generate, "prompt lookup": found.lookup}.get(s.name)) for s in found.observed.sides
        ):
            rate = side.tokens * len(side.seconds) / sum(side.seconds)
            value, note = ("", "") if figure is None else _said(figure, "{:.2f}x")
            rows.append((side.name, f"{rate:.1f}", f"{side.equal} of {found.observed.prompts}", value, note))
        lines += [aligned(rows, right={1, 2, 3}, indent="  "), f"  {_clean(found.sample)}"]
    return ["\n".join([*lines, "  " + _clean(found.sentence)])]


def _consumption(found: Consumption) -> str:
    from dllm_audit.analysis.tables import aligned

    memory = found.peak_memory
    value, note = _said(memory if memory.value is None else replace(memory, value=memory.value / 1e6), "{:,.1f} MB")
    rows = [("memory at its peak", value, _clean(found.memory_of or note))]
    value, note = _said(found.energy, "{:,.1f} J")
    rows.append(("energy", value, _clean(found.counter if found.energy.value is not None else note)))
    if found.energy.value is not None:
        rows += [
            ("energy per answered token", *_said(found.per_token, "{:.3f} J")),
            ("energy per correct answer", *_said(found.per_correct, "{:.1f} J")),
            ("power of the idle device", *_said(found.idle_power, "{:.1f} W")),
        ]
    return "Memory and energy\n" + aligned(rows, right={1}, indent="  ")


def _conventions(summary: RunSummary) -> str:
    from dllm_audit.analysis.tables import aligned

    rows = [
        (c.name, *_said(c.rate, "{:.2f}")[:1], "-" if c.inflation is None else f"x {c.inflation:.2f}", c.formula)
        for c in summary.conventions
    ]
    return "The same run, counted differently (tokens per second)\n" + aligned(rows, right={1, 2}, indent="  ")


def _said(figure: Figure, form: str) -> tuple[str, str]:
    """(value, what goes with it)."""
    if figure.value is None:
        return "unknown", figure.reason
    note: list[str] = [] if figure.status == "measured" else [figure.status]
    if figure.low is not None and figure.high is not None:
        note.insert(0, f"{form.format(figure.low)} to {form.format(figure.high)} (95 %, {figure.basis})")
    elif figure.reason:
        note.append(figure.reason)
    return form.format(figure.value), ", ".join(note)


def _requests(rows: list[dict[str, Any]]) -> str:
    from dllm_audit.analysis.rows import is_damaged
    from dllm_audit.analysis.tables import aligned
    from dllm_audit.records import FORWARD_KINDS

    table = [("request", "document", "answered", "committed", "forwards", "seconds", "stop", "answer")]
    for row in rows:
        if row["error_type"] is not None:
            table.append(
                (
                    str(row["ordinal"]),
                    str(row["doc_id"]),
                    "-",
                    "-",
                    "-",
                    "-",
                    "failed",
                    f"{row['error_type']}: {row['error_message']}",
                )
            )
            continue
        if is_damaged(row):
            note = "a time or a count is missing or cannot be true"
            table.append((str(row["ordinal"]), str(row["doc_id"]), "-", "-", "-", "-", "damaged", note))
            continue
        forwards = sum(row[f"{kind}_forwards"] or 0 for kind in FORWARD_KINDS)
        text = row["text"] or ""
        table.append(
            (
                str(row["ordinal"]), str(row["doc_id"]), str(row["answered_tokens"]), str(row["committed_tokens"]),
                str(forwards), f"{row['total_seconds']:.3f}", row["stop"], text if len(text) <= 70 else text[:69] + "…",
            )
        )  # fmt: skip
    return "Requests\n" + aligned(table, right=range(6), indent="  ")


def _scored_requests(rows: list[dict[str, Any]]) -> str:
    from dllm_audit.analysis.rows import is_damaged
    from dllm_audit.analysis.tables import aligned

    table = [
        ("request", "document", "tokens", "log-likelihood", "error", "copies", "greedy", "seconds", "scored answer")
    ]
    for row in rows:
        place = (str(row["ordinal"]), str(row["doc_id"]))
        if row["error_type"] is not None or is_damaged(row):
            why = f"failed: {row['error_type']}: {row['error_message']}"
            if row["error_type"] is None:
                why = "damaged: a time, a count or a value is missing or cannot be true"
            table.append((*place, "-", "-", "-", "-", "-", "-", why))
            continue
        text = row["continuation"] or ""
        table.append(
            (
                *place, str(row["scored_tokens"]), f"{row['loglikelihood']:.4f}",
                "exact" if row["is_exact"] else f"{row['standard_error']:.4f}", str(row["samples"]),
                {True: "yes", False: "no"}.get(row["is_greedy"], "-"), f"{row['total_seconds']:.3f}",
                text if len(text) <= 70 else text[:69] + "…",
            )
        )  # fmt: skip
    return "Requests\n" + aligned(table, right=range(8), indent="  ")


def _steps(store: Store, summary: RunSummary, ordinal: int) -> dict[str, Any]:
    from dllm_audit.report.tokens import token_texts

    forwards, commits = store.trace(summary.run_id, ordinal)
    if not forwards:
        traced = store.query(
            "SELECT DISTINCT ordinal FROM trace_forwards WHERE run_id = ? ORDER BY ordinal", [summary.run_id]
        )
        known = ", ".join(str(row["ordinal"]) for row in traced)
        if summary.likelihoods is not None:
            raise UsageError(f"{summary.run_id} scored given answers, which takes no steps that could be traced.")
        raise UsageError(
            f"Request {ordinal} of {summary.run_id} was not traced. "
            + (f"Traced are: {known}." if known else "None was; dllm-audit run --trace 8 traces the first eight.")
        )
    texts = token_texts()(summary.run, [c["token"] for c in commits])
    names = ("position", "token", "confidence")
    by_step: dict[int, list[dict[str, Any]]] = {}
    for n, commit in enumerate(commits):
        facts = {name: commit[name] for name in names}
        by_step.setdefault(commit["step"], []).append({**facts, "text": texts[n] if texts else None})
    return {
        "request": ordinal,
        "steps": [
            {**{k: f[k] for k in ("step", "kind", "width", "block")}, "commits": by_step.get(f["step"], [])}
            for f in forwards
        ],
    }


def _trace(steps: dict[str, Any]) -> str:
    from dllm_audit.analysis.tables import aligned

    rows = [("forward", "kind", "width", "block", "committed (position:token (confidence))")]
    for step in steps["steps"]:
        committed = "  ".join(_commit(run) for run in _alike(step["commits"]))
        rows.append((str(step["step"]), step["kind"], str(step["width"]), str(step["block"]), committed))
    return f"Trace of request {steps['request']}\n" + _wide(rows, aligned)


def _alike(commits: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Commits of one forward, those of the same token side by side together."""
    runs: list[list[dict[str, Any]]] = []
    for commit in commits:
        last = runs[-1][-1] if runs else None
        if last and (commit["token"], commit["position"]) == (last["token"], last["position"] + 1):
            runs[-1].append(commit)
        else:
            runs.append([commit])
    # Two alike are shown as they are.
    return [part for run in runs for part in ([run] if len(run) > 2 else [[commit] for commit in run])]


def _commit(run: list[dict[str, Any]]) -> str:
    first, last = run[0], run[-1]
    name = first["token"] if first["text"] is None else repr(first["text"])
    if len(run) == 1:
        return f"{first['position']}:{name} ({_confidence(first['confidence'])})"
    sure = [commit["confidence"] for commit in run if commit["confidence"] is not None]
    least = _confidence(min(sure, default=None))
    return f"{first['position']}-{last['position']}:{name} ×{len(run)} (from {least})"


def _confidence(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}"


def _wide(rows: Sequence[tuple[str, ...]], aligned: Callable[..., str]) -> str:
    """Steps with the commits, which may be long, after the aligned columns."""
    from dllm_audit.analysis.plain import one_line

    left = aligned([row[:4] for row in rows], right={0, 2, 3}, indent="  ").splitlines()
    width = max(len(line) for line in left)
    pairs = zip(left, rows, strict=True)
    return "\n".join(f"{line.ljust(width)}  {one_line(row[4], 4000)}".rstrip() for line, row in pairs)


def _plain(value: object) -> str:
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _clean(text: str) -> str:
    from dllm_audit.analysis.plain import one_line

    return one_line(text, 2000)
