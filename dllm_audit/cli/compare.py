"""`dllm-audit compare`: two runs on the same documents, or every run of the newest command against its baseline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.cli.margin import margin_option
from dllm_audit.cli.options import database_option, json_option
from dllm_audit.cli.terminal import say, say_json
from dllm_audit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dllm_audit.analysis.bounds import Decomposition
    from dllm_audit.analysis.figures import Figure
    from dllm_audit.analysis.pairing import Comparison
    from dllm_audit.analysis.sweeps import Sweep
    from dllm_audit.store.database import Store


@click.command(epilog="Example: dllm-audit compare $(dllm-audit runs --json | jq -r '.runs[-2:][].run_id') --margin 2")
@click.argument("runs", nargs=-1, metavar="[RUN [RUN]]")
@margin_option
@database_option
@json_option
def command(runs: tuple[str, ...], margin: float | None, database: Path, as_json: bool) -> None:
    """Compare the first run with the second, paired by document: speed, quality, length, and what differs.

    Of one run alone with its baseline. Without any, every configuration of the newest command with its baseline, and what a
    sweep over concurrency or a factorial of it says. "Faster and not worse" is said only when both are decided, the baseline
    is not weak, and nothing but backend, model and decode settings differs.
    """
    from dllm_audit.analysis.factorials import factorials_of
    from dllm_audit.analysis.facts import comparison_facts
    from dllm_audit.analysis.pairing import Comparisons
    from dllm_audit.analysis.sweeps import sweeps_of
    from dllm_audit.cli.factorial import factorial_text
    from dllm_audit.store.database import Store

    if len(runs) > 2:
        raise UsageError(f"compare takes two runs, and {len(runs)} are given.")
    with Store.open(database) as store:
        stored = store.runs()
        comparisons = Comparisons(store, stored)
        if len(runs) == 2:
            found = comparisons.compare(*runs, margin)
            if as_json:
                say_json(_plain(comparison_facts(found)), indent=2)
            else:
                say(_words(found))
            return
        pairs, made = _chosen(store, stored, runs)
        compared = [comparisons.compare(ours["run_id"], theirs["run_id"], margin) for ours, theirs in pairs]
        sweeps = sweeps_of(compared, comparisons)
        factorials = factorials_of(store, comparisons, made)
    if as_json:
        facts = {
            "comparisons": [comparison_facts(found) for found in compared],
            "sweeps": [sweep.as_dict() for sweep in sweeps],
            "factorials": [factorial.as_dict() for factorial in factorials],
        }
        say_json(_plain(facts), indent=2)
        return
    parts = [_words(found) for found in compared]
    say(("\n\n" + "-" * 100 + "\n\n").join([*parts, *map(_sweep, sweeps), *map(factorial_text, factorials)]))


def _chosen(
    store: Store, stored: Sequence[Mapping[str, Any]], runs: Sequence[str]
) -> tuple[list[tuple[Mapping[str, Any], Mapping[str, Any]]], list[Mapping[str, Any]]]:
    """(pairs to compare, the runs of the command that they are of) where not both sides are named."""
    from dllm_audit.analysis.factorials import levels_of
    from dllm_audit.analysis.references import baseline_of, newest_pairs

    if runs:
        run = store.run(runs[0])
        baseline = baseline_of(run, stored)
        if baseline is None:
            raise UsageError(
                f"{run['run_id']} has no baseline in {store.path}: no autoregressive run of {run['task']}, and its command made "
                "none. Name the run to compare it with too, or make one: dllm-audit run ... --baseline ar"
            )
        return [(run, baseline)], []
    pairs = newest_pairs(stored)
    newest = pairs[0][0]["invocation"] if pairs else None
    designs = [run for run in stored if levels_of(run) is not None]
    if designs and (newest is None or designs[-1]["started_at"] > pairs[0][0]["started_at"]):
        newest = designs[-1]["invocation"]
        pairs = [pair for pair in pairs if pair[0]["invocation"] == newest]
    made = [run for run in stored if run["invocation"] == newest]
    if not made:
        raise UsageError(
            f"{store.path} holds nothing to compare: no run has a baseline there. Name two runs, dllm-audit compare RUN RUN, or "
            "make a baseline: dllm-audit run --backend dualcache --baseline ar --task gsm_mini"
        )
    return pairs, made


def _plain(facts: dict[str, Any]) -> Any:
    """The same facts with dates and the like as text."""
    return json.loads(json.dumps(facts, default=str))


def _words(found: Comparison) -> str:
    from dllm_audit.analysis.labels import label
    from dllm_audit.analysis.manifests import difference_value
    from dllm_audit.analysis.pairing import noise_words
    from dllm_audit.analysis.plain import one_line
    from dllm_audit.analysis.tables import aligned

    ours, theirs = found.candidate.run, found.baseline.run
    lines = [
        f"{label(ours)} on {ours['model']}  ({ours['run_id']})",
        f"  against {label(theirs)} on {theirs['model']}  ({theirs['run_id']})",
        f"  {found.documents} documents in common" + (f", {found.unpaired} on one side only" if found.unpaired else ""),
    ]
    rows = [
        ("speed, answered tokens/s", *_said(found.speed)),
        ("speed, characters/s", *_said(found.characters)),
        ("time for the same documents", *_said(found.time)),
        ("length of the answers", *_said(found.length)),
    ]
    if found.scored:
        rows = [("speed, requests/s", *_said(found.speed)), rows[2]]
    if found.length_parity is False:
        rows[-1] = (*rows[-1][:2], "differs by more than 10 %")
    if found.control is not None:
        meaning = noise_words(found.speed, found.control) or "its interval over repeats holds what runs differ by"
        rows.append(("the same against itself (A/A)", f"{found.control:.3f}x", meaning))
    lines = [one_line(line, 400) for line in lines] + ["", aligned(rows, right={1}, indent="  "), ""]
    if found.speed.has_interval:
        covered = "which requests were drawn from one run each, not how speed varies from run to run."
        if " documents" in found.speed.basis and "repeats" in found.speed.basis:
            covered = "which documents were drawn, and how speed varies from run to run."
        elif "repeats" in found.speed.basis:
            covered = "how speed varies from run to run on these documents, not which documents were drawn."
        lines[-1:] = [f"  Intervals of speed cover {covered}", ""]
    if found.identical:
        lines.append(f"  identical answers: all {found.documents} texts are the same on both sides")
    elif found.agreement.tokens.value is not None and found.agreement.answers.value is not None:
        lines.append(
            f"  the same tokens in {_share(found.agreement.tokens)} of the positions, the same answer in "
            f"{_share(found.agreement.answers)} of the documents"
        )
    if found.strength is not None:
        sample = f" ({found.strength.sample})" if found.strength.sample else ""
        lines.append(one_line(f"  {found.strength.sentence}{sample}", 600))
    for quality in found.qualities:
        lines.append(
            one_line(f"  {quality.label}: {_quality(quality.candidate)} against {_quality(quality.baseline)}", 400)
        )
        difference = quality.difference
        if difference.has_interval and difference.value is not None:
            text = f"    difference {_signed(difference.value)}, {_signed(difference.low)} to {_signed(difference.high)} points (95 %)"
            lines.append(text + ("" if quality.p_value is None else f"; McNemar p = {quality.p_value:.3g}"))
        lines.append("    " + quality.sentence)
    if not found.qualities:
        lines.append("  No metric was scored on both sides.")
    lines += ["", _decomposition(found.decomposition)]
    for name, differences in (
        ("Treatment (what is compared)", found.manifests.treatment),
        ("Nuisance (spoils the comparison)", found.manifests.nuisance),
        ("Drift (readings of the moment)", found.manifests.drift),
    ):
        if differences:
            table = [(d.name, difference_value(d, d.candidate), difference_value(d, d.baseline)) for d in differences]
            lines += ["", name, aligned(table, indent="  ")]
    if found.caveats:
        lines += ["", "Caveats", *("  " + one_line(caveat, 400) for caveat in found.caveats)]
    return "\n".join([*lines, "", "Verdict: " + one_line(found.verdict, 1000)])


def _decomposition(found: Decomposition) -> str:
    """The factors of the speed, whose printed ratios multiply to the printed one, and what each kind of forward took."""
    from dllm_audit.analysis.plain import one_line
    from dllm_audit.analysis.tables import aligned

    title = "Where the speed comes from"
    ours, theirs = found.candidate, found.baseline
    if found.ratio is None or ours is None or theirs is None:
        return f"{title}\n  {one_line(found.sentence, 600)}"
    shown = "{:.3f}".format
    rows: list[tuple[str, ...]] = [("factor", "candidate", "baseline", "ratio")]
    for factor, text in zip(found.factors, found.texts(shown), strict=True):
        rows.append((factor.name, f"{factor.candidate:,.4g}", f"{factor.baseline:,.4g}", f"{text}x"))
    rates = [f"{side.tokens / side.wall_seconds:,.4g}" for side in (ours, theirs)]
    rows.append(("together: answered tokens/s", *rates, f"{shown(found.ratio)}x"))
    kinds: list[tuple[str, ...]] = [("side", "forward", "how many", "took", "of the time", "at least")]
    for name, side in (("candidate", ours), ("baseline", theirs)):
        for kind in side.kinds:
            least = "-" if kind.bound_seconds is None else f"{kind.bound_seconds:.3f} s"
            share = f"{kind.measured_seconds / side.wall_seconds:.1%}"
            kinds.append((name, kind.kind, str(kind.count), f"{kind.measured_seconds:.3f} s", share, least))
        share = f"{side.outside_seconds / side.wall_seconds:.1%}"
        kinds.append((name, "outside of forwards", "", f"{side.outside_seconds:.3f} s", share, ""))
    if not found.bounded:
        kinds = [row[:-1] for row in kinds]
    return "\n".join(
        [
            title,
            aligned(rows, right={1, 2, 3}, indent="  "),
            "",
            aligned(kinds, right=range(2, 6), indent="  "),
            "  " + one_line(found.sentence, 600),
        ]
    )


def _sweep(found: Sweep) -> str:
    """A sweep over concurrency for a terminal."""
    from dllm_audit.analysis.plain import one_line
    from dllm_audit.analysis.tables import aligned

    rows: list[tuple[str, ...]] = [("in flight", "candidate", "baseline", "speed", "")]
    for point in found.points:
        rates = (
            f"{figure.value:.1f}" if figure.value is not None else "-" for figure in (point.candidate, point.baseline)
        )
        rows.append((str(point.concurrency), *rates, *_said(point.speed)))
    sentences = [found.sentence, found.prediction.sentence, *found.notes]
    return "\n".join(
        [
            one_line(
                f"Sweep over concurrency on {found.task}: {found.candidate} against {found.baseline}, tokens/s", 400
            ),
            aligned(rows, right={0, 1, 2, 3}, indent="  "),
            *("  " + one_line(sentence, 600) for sentence in sentences),
        ]
    )


def _said(figure: Figure) -> tuple[str, str]:
    if figure.value is None:
        return "unknown", figure.reason
    note = f"{figure.low:.3f} to {figure.high:.3f} (95 %, {figure.basis})" if figure.has_interval else figure.reason
    return f"{figure.value:.3f}x", note


def _share(figure: Figure) -> str:
    """A share in words, with its interval where it has one."""
    assert figure.value is not None
    ends = f" ({figure.low:.1%} to {figure.high:.1%})" if figure.has_interval else ""
    return f"{figure.value:.1%}{ends}"


def _quality(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "?" if value is None else f"{value * 100:+.1f}"
