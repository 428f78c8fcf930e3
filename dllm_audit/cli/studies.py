"""Ways to carry out a plan other than run by run: until it is decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.cli.margin import margin_option
from dllm_audit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dllm_audit.evaluate.execution import Cell, Conditions
    from dllm_audit.store.database import Store


@dataclass(frozen=True)
class Study:
    """How a plan is carried out. margin: the loss in quality that is allowed, a share; None where nothing asks for one."""

    until_decided: bool = False
    margin: float | None = None

    @property
    def allowed(self) -> float:
        """The margin, two points where none was given."""
        from dllm_audit.analysis.pairing import DEFAULT_MARGIN

        return DEFAULT_MARGIN if self.margin is None else self.margin


@dataclass(frozen=True)
class StudyOutcome:
    """The runs that were made; what `--json` has beside them, by key; and what is said after the table of runs."""

    run_ids: Sequence[str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    sentences: Sequence[str] = ()


def study_options(command: Callable) -> Callable:
    """--until-decided and --margin."""
    for option in reversed(
        (
            click.option(
                "--until-decided",
                is_flag=True,
                help='With --baseline: decode both sides in turns and stop as soon as "faster and not worse", or the '
                "opposite, is decided; evidence and intervals hold whenever one stops.",
            ),
            margin_option,
        )
    ):
        command = option(command)
    return command


def study_of(until_decided: bool, margin: float | None) -> Study:
    """The study that options ask for. Raises UsageError for one that nothing would use."""
    if margin is not None and not until_decided:
        raise UsageError(
            "--margin is the loss that --until-decided allows; without it nothing here uses one. After the run: "
            "dllm-audit compare RUN RUN --margin POINTS"
        )
    return Study(until_decided, margin)


def check_study(study: Study, plan: Sequence[Cell], engine: str) -> None:
    """Raise UsageError for a plan that cannot be carried out so."""
    from dllm_audit.evaluate.sequential import check_audit

    if study.until_decided:
        check_audit(plan, engine)


def carry_out(
    study: Study,
    plan: Sequence[Cell],
    conditions: Conditions,
    store: Store,
    live: bool,
    roofline: bool,
    beside_generate: bool,
) -> StudyOutcome:
    """Make the runs of a plan as the study has it."""
    from dllm_audit.cli.auditing import audit_sentence
    from dllm_audit.cli.progress import run_plan, run_until_decided

    if study.until_decided:
        found = run_until_decided(plan, conditions, store, study.allowed, live, roofline, beside_generate)
        return StudyOutcome(found.run_ids, {"sequential": found.facts}, [audit_sentence(found.facts)])
    return StudyOutcome(run_plan(plan, conditions, store, live, roofline, beside_generate))
