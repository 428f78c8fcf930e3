"""`dllm-audit perplexity`: how likely another model finds the answers of stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.analysis.plain import one_line
from dllm_audit.cli.opening import installed, load_source
from dllm_audit.cli.options import database_option, device_option, dtype_option, json_option
from dllm_audit.cli.terminal import say, say_json
from dllm_audit.errors import Interrupted

if TYPE_CHECKING:
    from dllm_audit.analysis.summary import RunSummary


@click.command(
    epilog='Example: dllm-audit perplexity "$(dllm-audit runs --json | jq -r .runs[-1].run_id)" --under tiny-ar'
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--under", "reference", required=True, metavar="REF", help="Autoregressive model that reads the answers.")
@click.option(
    "--concurrency", type=click.IntRange(min=1, max=4096), default=8, show_default=True, help="Answers in one forward."
)
@database_option
@device_option
@dtype_option
@json_option
def command(
    runs: tuple[str, ...], reference: str, concurrency: int, database: Path, device: str, dtype: str, as_json: bool
) -> None:
    """Perplexity of the answers of stored runs under an autoregressive model. RUN is an id or its beginning.

    Each answer follows the prompt that the run gave, template and all, in the tokens of the model that reads it. What it
    found is stored, so that asking again scores only new answers, and shown by show and report from then on. Nothing is
    decoded, and no time of a run changes.
    """
    from dllm_audit.analysis.summary import summarise
    from dllm_audit.evaluate.perplexity import check_reference, score_answers
    from dllm_audit.models.loading import find_model
    from dllm_audit.store.database import Store

    source = find_model(reference, installed().families)
    check_reference(source)
    with Store.open(database) as store:
        run_ids = [str(store.run(run)["run_id"]) for run in dict.fromkeys(runs)]
    model = load_source(source, device, dtype)
    facts = []
    with Store.open(database, write=True) as store:
        for run_id in run_ids:
            try:
                reasons = score_answers(store, run_id, model, concurrency)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"Interrupted. What had been scored is kept in {store.path}; the same command goes on from there."
                ) from None
            facts.append(_facts(summarise(store, run_id), source.ref, reasons))
    if as_json:
        say_json({"runs": facts}, indent=2)
        return
    from dllm_audit.analysis.tables import aligned

    rows = [("run", "decoder", "perplexity", "95 % interval", "answers")]
    say(aligned([*rows, *map(_row, facts)], right={2}))
    for reason in dict.fromkeys(reason for each in facts for reason in each["left_out_because"]):
        say(f"Left out: {one_line(reason, 2000)}", err=True)


def _facts(summary: RunSummary, reference: str, reasons: list[str]) -> dict[str, Any]:
    from dllm_audit.analysis.facts import figure_facts
    from dllm_audit.analysis.labels import label

    found = next((p for p in summary.text.perplexities if p.reference == reference), None) if summary.text else None
    return {
        "run_id": summary.run_id,
        "label": label(summary.run),
        "reference": reference,
        "perplexity": None if found is None else figure_facts(found.figure),
        "answers": 0 if found is None else found.answers,
        "left_out": summary.answered - (0 if found is None else found.answers),
        "left_out_because": reasons,
    }


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    figure = facts["perplexity"] or {"value": None, "reason": "no answer could be scored"}
    value = "unknown" if figure["value"] is None else f"{figure['value']:.3f}"
    low, high = figure.get("low"), figure.get("high")
    ends = f"{low:.3f} to {high:.3f}" if low is not None and high is not None else str(figure.get("reason", ""))
    answers = f"{facts['answers']}" + (f", {facts['left_out']} left out" if facts["left_out"] else "")
    return one_line(facts["run_id"]), one_line(facts["label"]), value, ends, answers
