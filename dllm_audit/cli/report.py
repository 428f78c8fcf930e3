"""`dllm-audit report`: the results as one HTML page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.cli.margin import margin_option
from dllm_audit.cli.options import database_option, json_option
from dllm_audit.cli.output import check_target, is_stdout, write_whole

if TYPE_CHECKING:
    from dllm_audit.report.page import Report

DEFAULT_REPORT = "dllm-audit-report.html"


@click.command(epilog="Example: dllm-audit report -o report.html")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=DEFAULT_REPORT, show_default=True, help="File to write."
)
@click.option(
    "--run",
    "runs",
    multiple=True,
    metavar="RUN",
    help="Only this run (repeatable), for verdicts on claims too [default: the newest of each].",
)
@margin_option
@database_option
@json_option
def command(output: Path, runs: tuple[str, ...], margin: float | None, database: Path, as_json: bool) -> None:
    """Write the results and the published claims into one HTML page that opens from disk without network.

    An older report of the same name is replaced once the new one is complete; no other file is.
    """
    from dllm_audit.claims.registry import load_claims
    from dllm_audit.claims.traps import load_traps
    from dllm_audit.report.build import render
    from dllm_audit.report.page import gather
    from dllm_audit.report.tokens import token_texts
    from dllm_audit.store.database import Store

    check_target(output, database, is_report, "report", DEFAULT_REPORT)
    traps, problems = load_traps()
    for problem in problems:
        click.echo(f"Warning: {problem}", err=True)
    click.echo(f"Reading {database} ...", err=True)
    with Store.open(database) as store:
        chosen = list({run["run_id"]: run for name in runs for run in [store.run(name)]}.values()) or None
        report = gather(store, load_claims(), chosen, token_texts=token_texts(), margin=margin, traps=traps)
    write_whole(output, render(report))
    if as_json:
        click.echo(json.dumps(facts(output, report), indent=2), err=is_stdout(output))
        return
    for line in (str(output), *summary_lines(report)):
        click.echo(line, err=is_stdout(output))


def facts(output: Path, report: Report) -> dict[str, Any]:
    """What the report says, as JSON values."""
    return {
        "path": str(output),
        "headline": report.verdict.headline,
        "ran": report.verdict.ran,
        "may_be_concluded": list(report.verdict.may),
        "may_not_be_concluded": list(report.verdict.may_not),
        "tasks": [
            {
                "task": task.name,
                "headline": task.headline,
                "sentences": list(task.sentences),
                "comparisons": [
                    {
                        "candidate": pair.candidate.summary.run_id,
                        "baseline": pair.baseline.summary.run_id,
                        "against": pair.against,
                        "verdict": pair.comparison.verdict,
                        "faster_and_not_worse": pair.comparison.faster_and_not_worse,
                    }
                    for pair in task.pairs
                ],
            }
            for task in report.tasks
        ],
        "claims": report.claims.claims,
        "traps": report.claims.traps,
        "checks": {
            "summary": report.checks.sentence,
            "verdicts": [card.check.as_dict() for card in report.checks.cards],
            "not_comparable": {str(row.obstacle): row.claims for row in report.checks.obstacles},
        },
    }


def summary_lines(report: Report) -> tuple[str, str]:
    """What the report says, in two lines for a terminal."""
    from dllm_audit.analysis.plain import one_line

    counts = f"{report.claims.claims} published claims with {report.claims.traps} traps."
    ran = f"{report.verdict.ran} {counts} {report.checks.sentence}"
    return one_line(report.verdict.headline), one_line(ran, 600)


def is_report(path: Path) -> bool:
    """Whether a file is an earlier report: what this tool wrote names it near its beginning."""
    with path.open("rb") as file:
        return b'<meta name="generator" content="dllm-audit ' in file.read(200_000)
