"""The whole page of the report: every section, gathered from the stored runs and the registry of claims."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllm_audit import __version__
from dllm_audit.analysis.asked import is_tuning
from dllm_audit.analysis.pairing import DEFAULT_MARGIN
from dllm_audit.analysis.references import REFERENCES
from dllm_audit.claims.verdicts import check_claims
from dllm_audit.errors import UsageError
from dllm_audit.report.sections.checks import ChecksSection, checks_section
from dllm_audit.report.sections.claims import ClaimsSection, claims_section
from dllm_audit.report.sections.counting import Habit, habits
from dllm_audit.report.sections.environment import EnvironmentColumn, RunDetails, environment_columns, run_details
from dllm_audit.report.sections.example import TokenTexts
from dllm_audit.report.sections.reproduce import commands
from dllm_audit.report.sections.runs import RunRow, newest_runs, run_rows
from dllm_audit.report.sections.task import TaskSection, task_section
from dllm_audit.report.sections.verdict import VerdictSection, verdict_section

if TYPE_CHECKING:
    from dllm_audit.claims.registry import Registry
    from dllm_audit.claims.traps import Trap
    from dllm_audit.store.database import Store


@dataclass(frozen=True)
class Report:
    """What the page says, before it is laid out."""

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
    references: tuple[str, ...] = tuple(REFERENCES)

    @property
    def has_templates(self) -> bool:
        """Whether a comparison was made under several prompt templates."""
        return any(task.templates for task in self.tasks)

    @property
    def rows(self) -> tuple[RunRow, ...]:
        return tuple(row for task in self.tasks for row in task.runs)


def gather(
    store: Store,
    registry: Registry,
    runs: Sequence[Mapping[str, Any]] | None = None,
    *,
    token_texts: TokenTexts | None = None,
    margin: float | None = None,
    made_at: dt.datetime | None = None,
    traps: Sequence[Trap] | None = None,
) -> Report:
    """The report of `runs`: rows of the store, by default the newest of each content.

    Claims are checked against the named runs only, or against all that are stored, as `claims check` does.
    margin: the loss in quality that comparisons allow, a share; None: two points, or what an audit had allowed.
    token_texts: gives the texts of single tokens for the traced example; without it their ids are shown.
    traps: those that claims are searched for, by default those of the package.
    Raises UsageError when there is no run.
    """
    allowed = DEFAULT_MARGIN if margin is None else margin
    stored = store.runs()
    chosen = newest_runs(stored) if runs is None else list(runs)
    if not chosen:
        raise UsageError(
            f"There are no runs in {store.path}. Make some with: dllm-audit run --backend dualcache --task gsm_mini"
        )
    rows = run_rows(store, chosen)
    # The name alone, as everywhere in the page: a folder says whose machine this is.
    found = check_claims(
        registry.claims,
        store,
        Path(store.path.name),
        runs=stored if runs is None else chosen,
        known=[row.summary for row in rows],
    )
    checks = checks_section(found, registry.claims, {row.summary.run_id: row for row in rows})
    texts = token_texts or (lambda run, ids: None)
    tasks = tuple(
        task_section(store, name, tuple(row for row in rows if row.summary.run["task"] == name), texts, margin)
        for name in dict.fromkeys(str(row.summary.run["task"]) for row in rows)
    )
    return Report(
        version=__version__,
        made_at=f"{made_at or dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC",
        database=store.path.name,
        verdict=verdict_section(rows, tasks, allowed),
        tasks=tasks,
        checks=checks,
        claims=claims_section(registry, traps, checks),
        environments=environment_columns(rows),
        details=tuple(run_details(row) for row in rows),
        commands=commands(chosen, store.path.name),
        margin_points=allowed * 100,
        left_out=sum(not is_tuning(run) for run in stored) - len(chosen) if runs is None else 0,
        habits=habits(rows),
    )
