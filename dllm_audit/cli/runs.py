"""`dllm-audit runs`: what the results file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.cli.options import database_option, json_option

if TYPE_CHECKING:
    from dllm_audit.store.database import Store

_COUNTS = """
SELECT run_id, count(*) AS requests, count(error_type) AS failed,
       coalesce(sum(answered_tokens), 0)::BIGINT AS answered_tokens
FROM requests GROUP BY run_id
"""


@click.command(epilog="Example: dllm-audit runs --task gsm_mini")
@click.option("--task", help="Only runs of this task.")
@click.option("--backend", help="Only runs of this backend.")
@database_option
@json_option
def command(task: str | None, backend: str | None, database: Path, as_json: bool) -> None:
    """List the runs in the results file, oldest first."""
    from dllm_audit.store.database import Store

    with Store.open(database) as store:
        facts = [
            fact
            for fact in _facts(store)
            if (task is None or fact["task"] == task) and (backend is None or fact["backend"] == backend)
        ]
    if as_json:
        click.echo(json.dumps({"runs": facts}, indent=2))
    elif facts:
        click.echo(_table(facts))
    else:
        click.echo(
            f"No run in {database} is like that. Make one with: dllm-audit run --backend dualcache --task gsm_mini"
        )


def _facts(store: Store) -> list[dict[str, Any]]:
    from dllm_audit.analysis.labels import label
    from dllm_audit.analysis.rows import asks_for_likelihoods, finite, sound
    from dllm_audit.analysis.sequential import stopped_words

    counts = {row["run_id"]: row for row in store.query(_COUNTS)}
    metrics: dict[str, dict[str, float | None]] = {}
    for row in store.query("SELECT * FROM metrics ORDER BY metric, filter DESC"):
        metrics.setdefault(row["run_id"], {})[f"{row['metric']},{row['filter']}"] = finite(row["value"])
    facts = []
    for run in store.runs():
        count = counts.get(run["run_id"], {"requests": 0, "failed": 0, "answered_tokens": 0})
        scored = asks_for_likelihoods(run)
        makespan = run["makespan_seconds"] if sound(run["makespan_seconds"]) else None
        facts.append(
            {
                "run_id": run["run_id"],
                "started_at": run["started_at"].isoformat(timespec="seconds"),
                "status": run["status"],
                "stopped": stopped_words(run) or None,
                "backend": run["backend"],
                "label": label(run),
                "provenance": run["provenance"],
                "model": run["model"],
                "task": run["task"],
                "output_type": run["output_type"],
                "role": run["role"],
                "concurrency": run["concurrency"],
                "load": run["load"],
                "arrival_rate": run["arrival_rate"],
                "repeat": run["repeat"],
                "requests": count["requests"],
                "planned_requests": run["planned_requests"],
                "failed": count["failed"],
                "answered_tokens": count["answered_tokens"],
                "makespan_seconds": makespan,
                "tokens_per_second": count["answered_tokens"] / makespan if makespan and not scored else None,
                "requests_per_second": (count["requests"] - count["failed"]) / makespan if makespan else None,
                "metrics": metrics.get(run["run_id"], {}),
            }
        )
    return facts


def _table(facts: list[dict[str, Any]]) -> str:
    from dllm_audit.analysis.tables import aligned

    # Runs that scored given answers have no tokens of their own.
    scored = any(fact["output_type"] != "generate_until" for fact in facts)
    requests = ["requests/s"] if scored else []
    titles = [
        "run",
        "started",
        "status",
        "decoder",
        "model",
        "task",
        "requests",
        "failed",
        "tokens/s",
        *requests,
        "quality",
    ]
    rows = [titles]
    for fact in facts:
        speed, quality = fact["tokens_per_second"], next(iter(fact["metrics"].values()), None)
        rows.append(
            [
                fact["run_id"],
                fact["started_at"].replace("T", " "),
                fact["status"] + (f" ({fact['stopped']})" if fact["stopped"] else ""),
                fact["label"],
                fact["model"],
                fact["task"],
                f"{fact['requests']}/{fact['planned_requests']}",
                str(fact["failed"] or "-"),
                "-" if speed is None else f"{speed:.1f}",
                *([_requests_per_second(fact)] if scored else []),
                "-" if quality is None else f"{quality:.3f}",
            ]
        )
    return aligned(rows, right=range(6, len(titles)))


def _requests_per_second(fact: dict[str, Any]) -> str:
    rate = fact["requests_per_second"]
    return "-" if rate is None or fact["output_type"] == "generate_until" else f"{rate:.2f}"
