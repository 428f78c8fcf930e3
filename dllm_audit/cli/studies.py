"""Ways to carry out a plan other than run by run: until it is decided, a setting chosen first, several prompt templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.cli.margin import margin_option
from dllm_audit.errors import UsageError

if TYPE_CHECKING:
    from dllm_audit.analysis.choosing import SettingChoice
    from dllm_audit.analysis.templates import TemplateStudy
    from dllm_audit.cli.progress import Loaded
    from dllm_audit.evaluate.execution import Cell, Conditions
    from dllm_audit.evaluate.templates import Template
    from dllm_audit.store.database import Store

DEFAULT_TUNING = 50


@dataclass(frozen=True)
class Study:
    """How a plan is carried out. margin: the loss in quality that is allowed, a share; None where none was given.

    tuning: documents on which one of several thresholds is chosen; None: all that are given are run.
    templates: a file of them, or "builtin"; None: the task asks in its own words.
    """

    until_decided: bool = False
    margin: float | None = None
    tuning: int | None = None
    templates: str | None = None

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
    """--until-decided, --margin, --choose, --tuning and --templates."""
    for option in reversed(
        (
            click.option(
                "--until-decided",
                is_flag=True,
                help='With --baseline: decode both sides in turns and stop as soon as "faster and not worse", or the '
                "opposite, is decided; evidence and intervals hold whenever one stops.",
            ),
            click.option(
                "--choose",
                "choosing",
                is_flag=True,
                help="Of several thresholds, choose one on some of the documents (the fastest within the margin of the best) "
                "and run it on the rest, which alone is the result.",
            ),
            click.option(
                "--tuning",
                type=click.IntRange(min=1),
                metavar="N",
                help=f"Documents that --choose chooses on, drawn by the seed [default: {DEFAULT_TUNING}].",
            ),
            click.option(
                "--templates",
                metavar="FILE|builtin",
                help="With --baseline: the same comparison under several prompt templates and numbers of worked examples, and "
                "whether the ranking holds. FILE: a YAML list of name, doc_to_text (Jinja), num_fewshot.",
            ),
            margin_option,
        )
    ):
        command = option(command)
    return command


def study_of(
    until_decided: bool, margin: float | None, choosing: bool, tuning: int | None, templates: str | None
) -> Study:
    """The study that options ask for. Raises UsageError for one that nothing would use, or two that exclude each other."""
    if tuning is not None and not choosing:
        raise UsageError("--tuning is how many documents --choose chooses on. Give --choose too.")
    if templates is not None and (until_decided or choosing):
        other = "--until-decided" if until_decided else "--choose"
        raise UsageError(
            f"--templates asks one question in several ways, and {other} stands for itself. Leave one out."
        )
    if margin is not None and not (until_decided or choosing or templates is not None):
        raise UsageError(
            "--margin is the loss that --until-decided, --choose and --templates allow; without one of them nothing here "
            "uses it. After the run: dllm-audit compare RUN RUN --margin POINTS"
        )
    return Study(until_decided, margin, (tuning or DEFAULT_TUNING) if choosing else None, templates)


def asked(
    study: Study, name: str, loaded: Mapping[str, Any], num_fewshot: int | None, allow_code: bool
) -> list[tuple[str, Any, Template | None]]:
    """(name, task, template) of what is asked: the loaded tasks of `name` as they are, or each in every wording."""
    from dllm_audit.evaluate.templates import BUILTIN, builtin_templates, load_templated, read_templates

    if study.templates is None:
        return [(task_name, task, None) for task_name, task in loaded.items()]
    found: list[tuple[str, Any, Template | None]] = []
    for task_name, task in loaded.items():
        own = study.templates == BUILTIN
        for template in builtin_templates(task) if own else read_templates(Path(study.templates)):
            worded = load_templated(name, template, num_fewshot, allow_code)[task_name]
            found.append((task_name, worded, template))
    return found


def check_study(study: Study, plan: Sequence[Cell], engine: str) -> None:
    """Raise UsageError for a plan that cannot be carried out so. engine: how forwards are executed."""
    from dllm_audit.evaluate.sequential import check_audit

    if study.tuning is not None and all(len(cells) < 2 for cells in _groups(plan).values()):
        raise UsageError(
            "--choose takes one of several thresholds, and this plan has one. Give several: --threshold 0.7,0.8,0.9"
        )
    if study.until_decided:
        check_audit(preview(study, plan)[1], engine)
    if study.templates is not None and not any(cell.role == "baseline" for cell in plan):
        raise UsageError("--templates asks whether a ranking holds, so it takes two sides: give --baseline NAME.")


def preview(study: Study, plan: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """(the runs to choose on, the runs that judge), before anything is known: there the chosen threshold is "chosen"."""
    from dllm_audit.evaluate.parts import Part

    if study.tuning is None:
        return [], list(plan)
    groups = _groups(plan)
    tuning = [
        replace(c, part=Part("tuning", study.tuning)) for cells in groups.values() if len(cells) > 1 for c in cells
    ]
    rest = []
    for cell in plan:
        cells = groups[_group(cell)]
        if cell.given == cells[0].given:
            given = {**cell.given, "threshold": "chosen"} if len(cells) > 1 else cell.given
            rest.append(replace(cell, given=given, part=Part("rest", study.tuning)))
    return tuning, rest


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
    from dllm_audit.cli.progress import Loaded, run_plan, run_until_decided
    from dllm_audit.cli.template_table import template_text

    loaded = Loaded(conditions, roofline)
    conditions = loaded.conditions
    facts: dict[str, Any] = {}
    sentences: list[str] = []
    if study.tuning is not None:
        plan, choices = _choose(study, study.tuning, plan, conditions, store, live, loaded)
        facts["choices"] = [choice.as_dict() for choice in choices]
        sentences += [f"{choice.sentence} The runs above are on the other documents." for choice in choices]
    if study.until_decided:
        found = run_until_decided(plan, conditions, store, study.allowed, live, loaded, beside_generate)
        facts["sequential"] = found.facts
        return StudyOutcome(found.run_ids, facts, [*sentences, audit_sentence(found.facts)])
    run_ids = run_plan(plan, conditions, store, live, loaded, beside_generate)
    if study.templates is not None:
        studies = _templates(study, store, run_ids)
        facts["templates"] = [found.as_dict() for found in studies]
        sentences += map(template_text, studies)
    return StudyOutcome(run_ids, facts, sentences)


def _templates(study: Study, store: Store, run_ids: Sequence[str]) -> tuple[TemplateStudy, ...]:
    """What the runs that were just made say of templates."""
    from dllm_audit.analysis.pairing import Comparisons
    from dllm_audit.analysis.templates import template_studies

    runs = [store.run(run_id) for run_id in run_ids]
    return template_studies(store, Comparisons(store), runs, study.margin)


def _choose(
    study: Study,
    tuning: int,
    plan: Sequence[Cell],
    conditions: Conditions,
    store: Store,
    live: bool,
    loaded: Loaded,
) -> tuple[list[Cell], list[SettingChoice]]:
    """Run what there is to choose from on the tuning documents: the plan for the rest, and what was chosen."""
    from dllm_audit.analysis.choosing import choose_setting
    from dllm_audit.analysis.summary import summarise
    from dllm_audit.cli.progress import run_plan
    from dllm_audit.evaluate.parts import Part

    groups = {key: cells for key, cells in _groups(plan).items() if len(cells) > 1}
    cells = preview(study, plan)[0]
    click.echo(f"Choosing on {tuning} documents, which will not judge ...", err=True)
    # Traces are of results.
    run_ids = iter(run_plan(cells, replace(conditions, trace=0), store, live, loaded))
    choices: dict[Any, tuple[Cell, SettingChoice]] = {}
    for key, alike in groups.items():
        summaries = [summarise(store, next(run_ids)) for _ in alike]
        choice = choose_setting(summaries, study.allowed)
        choices[key] = alike[choice.place], choice
        click.echo(choice.sentence, err=True)
    rest = []
    for cell in plan:
        found = choices.get(_group(cell))
        if found is None:
            rest.append(replace(cell, part=Part("rest", tuning)))
        elif cell.given == found[0].given:
            rest.append(replace(cell, part=Part("rest", tuning), choice=found[1].as_dict()))
    return rest, [choice for _, choice in choices.values()]


def _groups(plan: Sequence[Cell]) -> dict[Any, list[Cell]]:
    """Cells of a plan that differ in their settings alone, one for each."""
    groups: dict[Any, list[Cell]] = {}
    for cell in plan:
        if cell.repeat == 0 and cell.role != "control":
            groups.setdefault(_group(cell), []).append(cell)
    return groups


def _group(cell: Cell) -> Any:
    # A control has the settings of its baseline.
    side = "candidate" if cell.role == "candidate" else "baseline"
    return side, cell.backend.name, cell.source.ref, cell.task_name, cell.concurrency, cell.load
