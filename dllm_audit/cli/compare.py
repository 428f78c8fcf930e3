"""`dllm-audit compare`: two runs on the same documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dllm_audit.cli.margin import margin_option
from dllm_audit.cli.options import database_option, json_option

if TYPE_CHECKING:
    from dllm_audit.analysis.figures import Figure
    from dllm_audit.analysis.pairing import Comparison


@click.command(epilog="Example: dllm-audit compare $(dllm-audit runs --json | jq -r '.runs[-2:][].run_id') --margin 2")
@click.argument("candidate", metavar="RUN")
@click.argument("baseline", metavar="RUN")
@margin_option
@database_option
@json_option
def command(candidate: str, baseline: str, margin: float, database: Path, as_json: bool) -> None:
    """Compare the first run with the second, paired by document: speed, quality, length, and what differs.

    "Faster and not worse" is said only when both are decided and nothing but backend, model and decode settings differs.
    """
    from dllm_audit.analysis.facts import comparison_facts
    from dllm_audit.analysis.pairing import compare
    from dllm_audit.store.database import Store

    with Store.open(database) as store:
        found = compare(store, candidate, baseline, margin / 100)
    click.echo(json.dumps(comparison_facts(found), indent=2, default=str) if as_json else _words(found))


def _words(found: Comparison) -> str:
    from dllm_audit.analysis.labels import label
    from dllm_audit.analysis.manifests import difference_value
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
        rows.append(("the same against itself (A/A)", f"{found.control:.3f}x", "smaller differences mean nothing"))
    lines = [one_line(line, 400) for line in lines] + ["", aligned(rows, right={1}, indent="  "), ""]
    if found.speed.has_interval and "repeats" not in found.speed.basis:
        lines[-1:] = [
            "  Intervals of speed cover which requests were drawn from one run each, not how speed varies from run to run.",
            "",
        ]
    if found.identical:
        lines.append(f"  identical answers: all {found.documents} texts are the same on both sides")
    elif found.agreement.tokens.value is not None and found.agreement.answers.value is not None:
        lines.append(
            f"  the same tokens in {_share(found.agreement.tokens)} of the positions, the same answer in "
            f"{_share(found.agreement.answers)} of the documents"
        )
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
