"""`dllm-audit run`: decode tasks with one or more backends while timing every request."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.cli.factorial import arms_of, factorial_option, factorial_text, factorials_among
from dllm_audit.cli.opening import choose, installed, spare_threads
from dllm_audit.cli.options import (
    check_engine,
    concurrencies_of,
    database_option,
    engine_options,
    given_settings,
    json_option,
    load_options,
    loads_of,
    names_of,
    roofline_option,
    setting_options,
)
from dllm_audit.cli.progress import say_failures
from dllm_audit.cli.run_settings import (
    check_against_tasks,
    check_loads,
    check_settings,
    distinct_settings,
    variants_of,
)
from dllm_audit.cli.studies import asked, carry_out, check_study, study_of, study_options
from dllm_audit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dllm_audit.analysis.figures import Figure
    from dllm_audit.analysis.summary import RunSummary
    from dllm_audit.evaluate.execution import Cell


@click.command(epilog="Example: dllm-audit run --backend dualcache,ar --task gsm_mini --limit 20 --threshold 0.9")
@click.option("--backend", "backends", required=True, metavar="NAME[,NAME...]", help="See dllm-audit backends.")
@click.option(
    "--task", "tasks", required=True, metavar="TASK[,TASK...]", help="An lm-eval task, or a task's YAML file."
)
@click.option("--model", help="Embedded model, folder with safetensors, or hub id [default: fits the backend].")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N documents of each task.")
@click.option("--num-fewshot", type=click.IntRange(min=0), help="Worked examples in the prompt [default: the task's].")
@click.option(
    "--chat-template",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Render prompts with the model's chat template; auto: if it has one.",
)
@load_options
@study_options
@click.option(
    "--repeats", type=click.IntRange(min=1, max=1000), default=1, show_default=True, help="Runs of each kind."
)
@click.option(
    "--baseline",
    metavar="NAME",
    help="Backend to compare with; runs first, and once more last as A/A control.",
)
@click.option("--baseline-model", metavar="REF", help="Model of the baseline [default: fits it].")
@factorial_option
@click.option("--trace", type=click.IntRange(min=0), default=8, show_default=True, help="Step traces of N requests.")
@click.option("--resume", is_flag=True, help="Go on with the same command where it was interrupted.")
@click.option("--dry-run", is_flag=True, help="Show the plan and what it can decide; decode nothing.")
@click.option(
    "--allow-code-execution",
    is_flag=True,
    help="Let tasks execute code that the model wrote, in a restricted subprocess.",
)
@roofline_option
@click.option(
    "--beside-generate/--no-beside-generate",
    default=True,
    envvar="DLLM_AUDIT_BESIDE_GENERATE",
    help="After an autoregressive run, let it and transformers' own generate decode a few of its prompts in turns (some "
    "seconds), so that a weak baseline is found out [default: beside-generate; env: DLLM_AUDIT_BESIDE_GENERATE=0 or 1].",
)
@database_option
@engine_options
@setting_options(several=("threshold",), likelihoods=True)
@json_option
def command(
    backends: str,
    tasks: str,
    model: str | None,
    limit: int | None,
    num_fewshot: int | None,
    chat_template: str,
    concurrency: str | None,
    load: str | None,
    arrival_rate: str | None,
    until_decided: bool,
    choosing: bool,
    tuning: int | None,
    templates: str | None,
    margin: float | None,
    repeats: int,
    baseline: str | None,
    baseline_model: str | None,
    factorial: str | None,
    trace: int,
    resume: bool,
    dry_run: bool,
    allow_code_execution: bool,
    roofline: bool,
    beside_generate: bool,
    database: Path,
    device: str,
    dtype: str,
    engine: str,
    seed: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Decode lm-eval tasks with one or more backends, time every request, and store each as it ends.

    What has finished is kept whatever happens; the same command with --resume goes on from there.
    """
    mode = check_engine(engine)
    plugins = installed()
    given = given_settings(options)
    choices = [choose(plugins, name, model) for name in names_of(backends, "--backend")]
    base = None
    if baseline is not None:
        base = choose(plugins, baseline, baseline_model)
    elif baseline_model is not None:
        raise UsageError("--baseline-model says which model --baseline decodes. Give --baseline NAME too.")
    study = study_of(until_decided, margin, choosing, tuning, templates)
    arrivals = loads_of(load, arrival_rate)
    concurrencies = concurrencies_of(concurrency, arrivals)
    variants = variants_of(given)
    every = [*choices, *([base] if base else [])]
    for variant in variants:
        check_settings(every, variant)
    spare_threads(choice.source for choice in every)
    arms = arms_of(factorial, choices, variants, plugins)

    click.echo("Loading tasks ...", err=True)
    from dllm_audit.evaluate.execution import Cell, Conditions, balanced_order, check_plan, resumed, shown_command
    from dllm_audit.evaluate.loading import load_tasks
    from dllm_audit.evaluate.prompts import asks_for_likelihoods

    loaded_tasks: dict[str, Any] = {}
    prompted: list[tuple[str, Any, Any]] = []
    for name in names_of(tasks, "--task"):
        loaded = load_tasks(name, num_fewshot, allow_code_execution)
        loaded_tasks |= loaded
        prompted += asked(study, name, loaded, num_fewshot, allow_code_execution)
    scored = {name: asks_for_likelihoods(task) for name, task in loaded_tasks.items()}
    for variant in variants:
        check_against_tasks(every, variant, scored, plugins.backends)
    check_loads(arrivals, scored)
    if factorial is not None and any(scored.values()):
        raise UsageError(f"--factorial is about decoding text, and {' and '.join(scored)} has given answers scored.")

    def cells(repeat: int, prompted: Sequence[tuple[str, Any, Any]]) -> list[Cell]:
        out = []
        for (task_name, task, template), comes, n in product(prompted, arrivals, concurrencies):
            # The baseline first and its control last: a machine that drifts meanwhile shows in the two.
            settings_of_base = [] if base is None else distinct_settings(base, variants, scored[task_name])
            baselines = []
            for settings in settings_of_base:
                assert base is not None
                cell = Cell(base.backend, base.source, task_name, task, settings, n, repeat, "baseline", comes)
                baselines.append(replace(cell, template=template))
            out += baselines
            for arm in arms:
                backend, source = arm.choice.backend, arm.choice.source
                for settings in distinct_settings(arm.choice, arm.variants, scored[task_name]):
                    cell = Cell(backend, source, task_name, task, settings, n, repeat, load=comes)
                    out.append(replace(cell, factorial=arm.levels, template=template))
            out += [replace(cell, role="control") for cell in baselines]
        return out

    # Templates take turns too, as repeats do.
    turns = [prompted] if templates is None else [[one] for one in prompted]
    plan = balanced_order([cells(repeat, some) for repeat in range(repeats) for some in turns])
    check_study(study, plan, mode)
    check_plan(plan)
    if dry_run:
        from dllm_audit.cli.planning import show_plan

        show_plan(plan, loaded_tasks, limit, database, as_json, study)
        return
    conditions = Conditions(
        # Another command that makes runs gives their words: typed was something else.
        command=shown_command(["dllm-audit", *(click.get_current_context().obj or sys.argv[1:])]),
        device=device,
        dtype=dtype,
        engine=mode,
        seed=seed,
        limit=limit,
        num_fewshot=num_fewshot,
        chat_template=chat_template,
        trace=trace,
        resume=resume,
        allow_code=allow_code_execution,
    )
    from dllm_audit.analysis.summary import summarise
    from dllm_audit.store.database import Store

    with Store.open(database, write=True) as store:
        made = carry_out(study, plan, resumed(conditions, store), store, sys.stderr.isatty(), roofline, beside_generate)
        summaries = [summarise(store, run_id) for run_id in made.run_ids]
        factorials = [] if factorial is None else factorials_among(store, summaries)
    if as_json:
        facts = {**made.facts, **({"factorials": [found.as_dict() for found in factorials]} if factorial else {})}
        click.echo(json.dumps({"runs": [run_facts(summary) for summary in summaries], **facts}, indent=2))
    else:
        parts = [_table(summaries), _strengths(summaries), *map(factorial_text, factorials), *made.sentences]
        click.echo("\n\n".join(part for part in parts if part))
        click.echo(f"\nStored in {database}. Next: dllm-audit report --db {database}", err=True)
    if say_failures(summaries):
        sys.exit(3)


def run_facts(summary: RunSummary) -> dict[str, Any]:
    """The facts of one run as `run --json` prints them. Seconds are summed over requests; throughput is over the makespan."""
    from dllm_audit.analysis.baseline import strength_of
    from dllm_audit.analysis.facts import likelihood_facts, load_facts, streaming_facts
    from dllm_audit.records import FORWARD_KINDS

    run = summary.run
    items = {share.item: share.seconds for share in summary.seconds}
    return {
        **{name: run[name] for name in ("run_id", "backend", "provenance", "model", "task", "role", "repeat")},
        "output_type": run["output_type"],
        "concurrency": run["concurrency"],
        "status": run["status"],
        "resumed": run["sittings"] > 1,
        "requests": summary.stored,
        "failed": summary.failed,
        "metrics": {f"{m.name},{m.filter}": m.figure.value for m in summary.metrics},
        "answered_tokens": summary.answered_tokens,
        "committed_tokens": summary.committed_tokens,
        "tokens_per_second": summary.throughput.value,
        "requests_per_second": summary.requests_per_second.value,
        "tokens_per_forward": summary.tokens_per_forward.value,
        "makespan_seconds": summary.makespan_seconds.value,
        "share_of_bound": summary.bound.total.value,
        "weak_baseline": None if (strength := strength_of(summary)) is None else strength.as_dict()["weak_baseline"],
        "peak_memory_bytes": summary.consumption.peak_memory.value,
        "joules": summary.consumption.energy.value,
        "load": load_facts(summary.load),
        "streaming": streaming_facts(summary.streaming),
        "query_positions": summary.query_positions,
        "forwards": {kind: summary.forwards.get(kind, 0) for kind in FORWARD_KINDS},
        "seconds": {"total": sum(items.values()), **items},
        "likelihoods": likelihood_facts(summary.likelihoods),
        "settings": run["settings"],
    }


def _strengths(summaries: Sequence[RunSummary]) -> str:
    """How strong each baseline is, one line for all of which the same holds; empty where nothing was held against anything."""
    from dllm_audit.analysis.baseline import strength_of
    from dllm_audit.analysis.labels import label
    from dllm_audit.analysis.plain import one_line

    baselines = [summary for summary in summaries if summary.run["role"] == "baseline" and not summary.run["repeat"]]
    named: dict[str, list[str]] = {}
    for summary in baselines:
        strength = strength_of(summary)
        if strength is not None and strength.verdict != "unknown":
            named.setdefault(strength.sentence, []).append(label(summary.run))
    return "\n".join(one_line(f"{'; '.join(names)}: {sentence}", 900) for sentence, names in named.items())


def _table(summaries: Sequence[RunSummary]) -> str:
    """A summary table of runs, one line each. What none of them has is no column: tokens, or how sure choices are."""
    from dllm_audit.analysis.labels import label
    from dllm_audit.analysis.tables import aligned

    decoded = any(summary.likelihoods is None for summary in summaries)
    scored = any(summary.likelihoods is not None for summary in summaries)
    titles = ["decoder", "model", "task", "scored" if scored and not decoded else "answered", "quality"]
    titles += ["tokens/s", "tokens/forward"] if decoded else []
    titles += ["requests/s", "undecided"] if scored else []
    rows = [(*titles, "run")]
    for summary in summaries:
        run = summary.run
        row = [label(run), run["model"], run["task"], f"{summary.answered}/{summary.stored}", _quality(summary)]
        if decoded:
            row += [_figure(summary.throughput, "{:.1f}"), _figure(summary.tokens_per_forward, "{:.2f}")]
        if scored:
            found = summary.likelihoods
            undecided = (
                None
                if found is None or summary.primary_metric is None
                else found.undecided.get(summary.primary_metric.name)
            )
            row += [
                "-" if found is None else _figure(summary.requests_per_second, "{:.2f}"),
                "-" if undecided is None else _figure(undecided, "{:.0%}"),
            ]
        rows.append((*row, summary.run_id))
    return aligned(rows, right={3, *range(5, len(titles))})


def _quality(summary: RunSummary) -> str:
    """The metric that decides; of scored answers with its interval, which is all that such a run is about."""
    metric = summary.primary_metric
    if metric is None or metric.figure.value is None:
        return "-"
    ends = f" ({metric.figure.low:.3f} to {metric.figure.high:.3f})" if metric.figure.has_interval else ""
    return f"{metric.name} {metric.figure.value:.3f}" + (ends if summary.likelihoods is not None else "")


def _figure(figure: Figure, form: str) -> str:
    return "-" if figure.value is None else form.format(figure.value)
