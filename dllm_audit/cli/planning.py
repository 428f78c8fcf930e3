"""`run --dry-run`: what would run, how long it may take, and what it can decide."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.analysis.plain import one_line
from dllm_audit.analysis.words import count

if TYPE_CHECKING:
    from dllm_audit.cli.studies import Study
    from dllm_audit.evaluate.execution import Cell


def show_plan(
    plan: Sequence[Cell],
    tasks: Mapping[str, Any],
    limit: int | None,
    database: Path,
    as_json: bool,
    study: Study,
) -> None:
    """Print the plan. The time is estimated from earlier runs of the same backend, model and task, if there are any."""
    from dllm_audit.cli.studies import preview
    from dllm_audit.evaluate.parts import check_parts
    from dllm_audit.evaluate.prompts import asks_for_likelihoods, build_questions
    from dllm_audit.evaluate.sequential import CONTROL_DOCUMENTS
    from dllm_audit.statistics.power import decidable_margin

    tuning, rest = preview(study, plan)
    plan = [*tuning, *rest]
    documents = {name: min(limit or len(task.eval_docs), len(task.eval_docs)) for name, task in tasks.items()}
    # Of a document whose given answers are scored, each is a request of its own.
    asked = documents | {
        name: len(build_questions(task, None, False, limit))
        for name, task in tasks.items()
        if asks_for_likelihoods(task)
    }
    if study.tuning is not None:
        for available in documents.values():
            check_parts(study.tuning, available)
    earlier = _seconds_per_request(database)
    runs: list[dict[str, Any]] = []
    for cell in plan:
        available = documents[cell.task_name]
        taken = available if cell.part is None else cell.part.documents(available)
        if study.until_decided and cell.role == "control":
            taken = min(taken, CONTROL_DOCUMENTS)
        requests = round(asked[cell.task_name] * taken / available)
        each = earlier.get((cell.backend.name, cell.source.ref, cell.task_name))
        runs.append(
            {
                "backend": cell.backend.name,
                "model": cell.source.ref,
                "task": cell.task_name,
                "role": cell.role,
                "concurrency": min(cell.concurrency, requests) if cell.load.kind == "offline" else cell.concurrency,
                "load": cell.load.as_dict(),
                "repeat": cell.repeat,
                "settings": dict(cell.given),
                "part": None if cell.part is None else cell.part.name,
                "template": None if cell.template is None else cell.template.name,
                "requests": requests,
                "estimated_seconds": None if each is None else each * requests,
            }
        )
    judging = {name: n - (study.tuning or 0) for name, n in documents.items()}
    margins = {name: decidable_margin(n).margin for name, n in judging.items()}
    projected = _projected(study, next(iter(judging.values()))) if study.until_decided else None
    known = [run["estimated_seconds"] for run in runs]
    total = None if any(seconds is None for seconds in known) else sum(known)
    if as_json:
        facts = {
            "runs": runs,
            "requests": sum(run["requests"] for run in runs),
            "estimated_seconds": total,
            "decidable_margin": margins,
            **({"sequential": {"margin": study.allowed, "projections": projected}} if projected else {}),
        }
        click.echo(json.dumps(facts, indent=2))
        return
    for number, (run, cell) in enumerate(zip(runs, plan, strict=True), 1):
        comes = f", {cell.load.words}" if cell.load.words else ""
        settings = "".join(f", {k}={v}" for k, v in run["settings"].items())
        role = "" if run["role"] == "candidate" else f" ({run['role']})"
        comes += f", template {one_line(run['template'], 60)}" if run["template"] else ""
        comes += ", to choose a threshold on" if run["part"] == "tuning" else ""
        click.echo(
            f"{number:>3}. {run['backend']}{role} on {run['task']} with {run['model']}: {run['requests']} requests, "
            f"{run['concurrency']} in flight{comes}, repeat {run['repeat'] + 1}{settings}"
        )
    most = "At most " if study.until_decided else ""
    click.echo(f"\n{most}{sum(run['requests'] for run in runs)} requests in {len(runs)} runs.")
    if total is None:
        click.echo(f"No time can be estimated: {database} holds no earlier run of every backend, model and task.")
    else:
        time = f"{total / 60:.1f} minutes" if total >= 90 else count(max(1, round(total)), "second")
        click.echo(f"About {time} of decoding, estimated from earlier runs in {database}.")
    for name, margin in margins.items():
        click.echo(
            f"{name}: {judging[name]} paired documents can decide a quality margin of {100 * margin:.1f} points "
            "(one-sided 5 %, power 80 %, 10 % of the documents discordant)."
        )
    if projected:
        click.echo(_projection_words(study.allowed, projected))


def _projected(study: Study, available: int) -> list[dict[str, Any]]:
    """How many pairs an audit takes where the two are equal, and where the candidate loses or gains three margins."""
    from dllm_audit.statistics.sequential import projected_pairs

    return [asdict(projected_pairs(study.allowed, available, n * study.allowed)) for n in (0, -3, 3)]


def _projection_words(margin: float, projected: Sequence[Mapping[str, Any]]) -> str:
    from dllm_audit.statistics.sequential import MINIMUM_PAIRS

    equal, loses, gains = ({**p, "pairs": max(p["pairs"], MINIMUM_PAIRS)} for p in projected)
    points = f"{margin * 100:g} points"
    return (
        f"Until decided, with {points} allowed: about {equal['pairs']:,} pairs where the two are equally good, "
        f"{loses['pairs']:,} where the candidate loses {margin * 300:g} points, {gains['pairs']:,} where it gains as many (half of "
        "such audits take fewer). The documents of this plan decide "
        f"{equal['decided_within']:.0%} of the audits of equals, as far as quality goes; speed takes {MINIMUM_PAIRS} pairs at least."
    )


def _seconds_per_request(database: Path) -> dict[tuple[str, str, str], float]:
    """Mean seconds of a request by (backend, model, task), from earlier runs."""
    from dllm_audit.store.database import Store

    if not database.exists():
        return {}
    with Store.open(database) as store:
        rows = store.query(
            "SELECT backend, model, task, avg(total_seconds) AS seconds FROM runs JOIN requests USING (run_id) "
            "WHERE error_type IS NULL GROUP BY ALL"
        )
    return {(row["backend"], row["model"], row["task"]): row["seconds"] for row in rows if row["seconds"] is not None}
