"""`dllm-audit bench`: speed alone, on a grid of prompt lengths, output lengths, settings and loads."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.cli.opening import Choice, choose, installed, spare_threads
from dllm_audit.cli.options import (
    MOST_IN_FLIGHT,
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
    whole_numbers_of,
)
from dllm_audit.cli.progress import Loaded, run_plan, say_failures
from dllm_audit.cli.run_settings import check_settings, distinct_settings, variants_of
from dllm_audit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dllm_audit.analysis.figures import Figure
    from dllm_audit.analysis.repeats import RepeatGroup
    from dllm_audit.evaluate.execution import Cell
    from dllm_audit.measure.load import Load

#: Settings that take several values, each a dimension of the grid.
DIMENSIONS = ("gen_length", "block_length", "steps", "steps_per_block", "tokens_per_step", "threshold", "factor")

#: Requests of a cell where nothing is said: twice the concurrency but at least so many; and so many where requests queue.
LEAST_REQUESTS, QUEUEING_REQUESTS = 8, 32


@click.command(
    epilog="Example: dllm-audit bench --backend dualcache,ar --prompt-length 64,256 --gen-length 64 --threshold 0.9 "
    "--concurrency 1,4"
)
@click.option("--backend", "backends", required=True, metavar="NAME[,NAME...]", help="See dllm-audit backends.")
@click.option("--model", help="Embedded model, folder with safetensors, or hub id [default: fits the backend].")
@click.option("--baseline", metavar="NAME", help="Backend to compare with, interleaved, and once more as A/A control.")
@click.option("--baseline-model", metavar="REF", help="Model of the baseline [default: fits it].")
@click.option(
    "--prompt-length",
    "prompt_lengths",
    default="128",
    show_default=True,
    metavar="N[,N...]",
    help="Tokens of each prompt, special ones included.",
)
@click.option(
    "--random-ids", is_flag=True, help="Prompts of random token ids instead of real words; labelled as fixed work."
)
@click.option(
    "--requests",
    type=click.IntRange(min=1, max=100_000),
    help=f"Requests of each cell [default: twice the concurrency, at least {LEAST_REQUESTS}; {QUEUEING_REQUESTS} where "
    "they queue].",
)
@load_options
@click.option(
    "--repeats",
    type=click.IntRange(min=1, max=1000),
    default=3,
    show_default=True,
    help="Runs of each cell, interleaved.",
)
@click.option("--resume", is_flag=True, help="Go on with the same command where it was interrupted.")
@roofline_option
@database_option
@engine_options
@setting_options(several=DIMENSIONS)
@json_option
def command(
    backends: str,
    model: str | None,
    baseline: str | None,
    baseline_model: str | None,
    prompt_lengths: str,
    random_ids: bool,
    requests: int | None,
    concurrency: str | None,
    load: str | None,
    arrival_rate: str | None,
    repeats: int,
    resume: bool,
    roofline: bool,
    database: Path,
    device: str,
    dtype: str,
    engine: str,
    seed: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure speed alone, without quality, on every combination of the lengths, settings and loads that are given.

    Prompts are real words, cut to the length by the model's tokenizer. Every answer is as long as --gen-length (default
    64), whatever the model says, unless --stop-at-eos: that is fixed work, and is called so. A speed without the quality
    at that speed says nothing about being better; for that there is: dllm-audit run.
    """
    mode = check_engine(engine)
    plugins = installed()
    given = {"gen_length": "64", **given_settings(options)}
    choices = [choose(plugins, name, model) for name in names_of(backends, "--backend")]
    if baseline is None and baseline_model is not None:
        raise UsageError("--baseline-model says which model --baseline decodes. Give --baseline NAME too.")
    base = None if baseline is None else choose(plugins, baseline, baseline_model)
    every = [*choices, *([base] if base else [])]
    spare_threads(choice.source for choice in every)
    variants = variants_of(given, DIMENSIONS)
    for variant in variants:
        check_settings(every, variant)
    lengths = whole_numbers_of(prompt_lengths, "--prompt-length")
    if any(length < 1 for length in lengths):
        raise UsageError(f"--prompt-length {prompt_lengths}: a prompt has at least one token.")
    loads = loads_of(load, arrival_rate)
    concurrencies = concurrencies_of(concurrency, loads)

    from dllm_audit.analysis.repeats import group_repeats
    from dllm_audit.analysis.summary import summarise
    from dllm_audit.evaluate.bench import SpeedWork, speed_task_name
    from dllm_audit.evaluate.execution import Cell, Conditions, balanced_order, check_plan, resumed, shown_command
    from dllm_audit.store.database import Store

    sides: list[tuple[Choice, Sequence[str]]] = [(choice, ["candidate"]) for choice in choices]
    sides += [] if base is None else [(base, ["baseline", "control"])]

    def cells(repeat: int) -> list[Cell]:
        out = []
        for length, comes, n in product(lengths, loads, concurrencies):
            work = SpeedWork(length, requests or _requests(comes, n), random_ids)
            for choice, roles in sides:
                for settings in distinct_settings(choice, variants, scored=False):
                    _check_fits(choice, length, settings["gen_length"])
                    name = speed_task_name(length, settings["gen_length"])
                    out += [
                        Cell(choice.backend, choice.source, name, work, settings, n, repeat, role, comes)
                        for role in roles
                    ]
        return out

    plan = balanced_order([cells(repeat) for repeat in range(repeats)])
    check_plan(plan)
    conditions = Conditions(
        command=shown_command(["dllm-audit", *sys.argv[1:]]),
        device=device,
        dtype=dtype,
        engine=mode,
        seed=seed,
        chat_template="off",
        trace=0,
        resume=resume,
    )
    with Store.open(database, write=True) as store:
        loaded = Loaded(resumed(conditions, store), roofline, without_text=random_ids)
        run_ids = run_plan(plan, loaded.conditions, store, sys.stderr.isatty(), loaded)
        summaries = [summarise(store, run_id) for run_id in run_ids]
    groups = group_repeats(summaries)
    if as_json:
        click.echo(json.dumps({"cells": [_facts(group) for group in groups]}, indent=2))
    else:
        click.echo(_table(groups))
        click.echo(f"\nStored in {database}. Next: dllm-audit report --db {database}", err=True)
    if say_failures(summaries):
        sys.exit(3)


def _requests(load: Load, concurrency: int) -> int:
    """So many requests fill the rows twice; where they queue, the queue is to come to rest."""
    in_flight = 0 if concurrency == MOST_IN_FLIGHT else 2 * concurrency
    return max(in_flight, LEAST_REQUESTS if load.kind == "closed" else QUEUEING_REQUESTS)


def _check_fits(choice: Choice, prompt_tokens: int, gen_length: int) -> None:
    most = choice.source.traits.max_positions
    if prompt_tokens + gen_length > most:
        raise UsageError(
            f"--prompt-length {prompt_tokens} and --gen-length {gen_length} are {prompt_tokens + gen_length} positions, but "
            f"{choice.source.ref} was made for {most}. Lower one of them."
        )


def _facts(group: RepeatGroup) -> dict[str, Any]:
    """One cell of the grid. Latencies and counts are those of its first repeat."""
    from dllm_audit.analysis.facts import figure_facts, load_facts, streaming_facts
    from dllm_audit.analysis.labels import label
    from dllm_audit.analysis.rows import speed_alone

    first = group.summaries[0]
    run = first.run
    return {
        "label": label(run),
        **{name: run[name] for name in ("backend", "provenance", "model", "task", "role", "concurrency")},
        "work": speed_alone(run),
        "prompt_tokens": run["manifest"]["prompts"]["speed_alone"]["prompt_tokens"],
        "output_tokens": run["settings"]["gen_length"],
        "requests": first.stored,
        "failed": sum(summary.failed for summary in group.summaries),
        "runs": [summary.run_id for summary in group.summaries],
        "committed_per_second": figure_facts(_committed_per_second(group)),
        "committed_per_second_of_runs": _rates(group),
        "answered_per_second": figure_facts(group.throughput),
        "tokens_per_forward": figure_facts(first.tokens_per_forward),
        "committed_per_forward": figure_facts(first.committed_per_forward),
        "latency": {f"p{p:g}": figure_facts(f) for p, f in first.latency.items()},
        "ttft": {f"p{p:g}": figure_facts(f) for p, f in first.ttft.items()},
        "streaming": streaming_facts(first.streaming),
        "load": load_facts(first.load),
        "share_of_bound": figure_facts(first.bound.total),
        "settings": run["settings"],
    }


def _committed_per_second(group: RepeatGroup) -> Figure:
    from dllm_audit.analysis.repeats import repeated_rate

    return repeated_rate(group.summaries, lambda summary: summary.committed_tokens, "tokens/s")


def _rates(group: RepeatGroup) -> list[float]:
    timed = [(s.committed_tokens, s.makespan_seconds.value) for s in group.summaries]
    return [tokens / seconds for tokens, seconds in timed if seconds]


def _table(groups: Sequence[RepeatGroup]) -> str:
    """One line a cell, and what the columns mean."""
    from dllm_audit.analysis.labels import label
    from dllm_audit.analysis.rows import speed_alone
    from dllm_audit.analysis.tables import aligned

    titles = ("decoder", "model", "prompt", "output", "answered/s", "committed/s", "single runs", "whole answer")
    rows = [(*titles, "first text", "a block", "rows/forward", "committed/forward")]
    for group in groups:
        first = group.summaries[0]
        run, rates = first.run, _rates(group)
        seconds = (first.latency[50.0], first.streaming.delivered[50.0], first.streaming.block_latency[50.0])
        rows.append(
            (
                label(run),
                run["model"],
                str(run["manifest"]["prompts"]["speed_alone"]["prompt_tokens"]),
                str(run["settings"]["gen_length"]),
                _number(group.throughput, "{:.1f}"),
                _number(_committed_per_second(group), "{:.1f}"),
                f"{min(rates):.1f} to {max(rates):.1f}" if rates else "-",
                *(_number(figure, "{:.3f} s") for figure in seconds),
                _number(first.load.mean_rows, "{:.2f}"),
                _number(first.committed_per_forward, "{:.2f}"),
            )
        )
    works = dict.fromkeys(speed_alone(group.summaries[0].run) for group in groups)
    lines = [
        aligned(rows, right=range(2, len(rows[0]))),
        "",
        "Speed alone: no quality was measured, so none of this says that anything is better.",
        *(f"  {work[0].upper()}{work[1:]}." for work in works),
        "answered/s: tokens before an end of text, over the whole time of all repeats; committed/s: all positions, also those "
        "after it, with which a diffusion decoder that commits by confidence fills its window almost for nothing; single runs: "
        "the slowest and the fastest, committed. Seconds: the median request of the first repeat; a block: its time since a "
        "row took it on, divided by its blocks.",
    ]
    return "\n".join(lines)


def _number(figure: Figure, form: str) -> str:
    return "-" if figure.value is None else form.format(figure.value)
