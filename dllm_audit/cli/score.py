"""`dllm-audit score`: how likely a model finds given answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.analysis.plain import one_line
from dllm_audit.cli.opening import installed
from dllm_audit.cli.options import check_engine, engine_options, json_option
from dllm_audit.cli.requests import ids_of, read_requests, text_of
from dllm_audit.cli.terminal import say_json
from dllm_audit.errors import RequestError, UsageError
from dllm_audit.records import Failure, Question, ScoredAnswer

if TYPE_CHECKING:
    from dllm_audit.decode.questions import QuestionSession

_FIELDS = ("id", "prompt", "prompt_ids", "answer", "answer_ids")


@click.command(
    # \b keeps the line whole, so that it can be pasted.
    epilog='\b\nExample: dllm-audit score --model tiny-mdm --requests - <<< \'{"prompt": "Sam has 3", "answer": " red pens"}\''
)
@click.option("--model", required=True, help="Embedded model, folder with safetensors, or hub id.")
@click.option(
    "--requests",
    required=True,
    type=click.Path(path_type=Path, allow_dash=True),
    help="JSON lines with prompt or prompt_ids, answer or answer_ids, optionally id. - reads stdin.",
)
@click.option("--samples", type=click.IntRange(min=2), default=128, show_default=True, help="Masked copies per answer.")
@click.option("--exact", is_flag=True, help="Try every masked copy (up to 16 tokens) instead of sampling.")
@click.option(
    "--compat",
    type=click.Choice(["llada"]),
    help="Reproduce the biased mask counts of LLaDA's published program.",
)
@click.option("--cfg-scale", type=click.FloatRange(min=0), default=0.0, help="Strength of classifier-free guidance.")
@click.option("--batch-size", type=click.IntRange(min=1), default=16, show_default=True, help="Copies per forward.")
@click.option("--mask-token-id", type=click.IntRange(min=0), help="Mask id; default the model's.")
@engine_options
@json_option
def command(
    model: str,
    requests: Path,
    samples: int,
    exact: bool,
    compat: str | None,
    cfg_scale: float,
    batch_size: int,
    mask_token_id: int | None,
    device: str,
    dtype: str,
    engine: str,
    seed: int,
    as_json: bool,
) -> None:
    """Log-likelihoods of answers after their prompts, in nats, and whether greedy decoding gives the answer.

    Exact for autoregressive models. For diffusion models the bound they are trained on: exact for short answers, else
    an unbiased estimate from random masks with its standard error. Exit status 3 when a line could not be scored.
    """
    if check_engine(engine) != "eager":
        raise UsageError(f"score runs eager, and --engine {engine} would change nothing. Leave it out.")
    from dllm_audit.cli.opening import load_source
    from dllm_audit.decode.likelihood import LikelihoodSettings, check_model
    from dllm_audit.decode.questions import QuestionSession
    from dllm_audit.models.loading import find_model

    settings = LikelihoodSettings(samples, exact, compat, cfg_scale, batch_size, mask_token_id)
    source = find_model(model, installed().families)
    check_model(source.traits, settings)
    asked = list(read_requests(requests, _question))
    session = QuestionSession(load_source(source, device, dtype), settings, seed)
    failed = 0
    for id, question in asked:
        result = question if isinstance(question, Failure) else _score(session, question)
        failed += isinstance(result, Failure)
        if as_json:
            say_json(_facts(id, result))
        else:
            click.echo(_words(one_line(str(id)), result))
    if failed:
        if not as_json:
            click.echo(f"{failed} of {len(asked)} answers could not be scored.", err=True)
        sys.exit(3)


def _question(fields: dict[str, Any]) -> Question:
    unknown = sorted(set(fields) - set(_FIELDS))
    if unknown:
        raise RequestError(f"unknown field {unknown[0]!r} (known: {', '.join(_FIELDS)})")
    fields = {name: value for name, value in fields.items() if value is not None}
    for name in ("prompt", "answer"):
        if (name in fields) == (f"{name}_ids" in fields):
            raise RequestError(f"it needs exactly one of {name} and {name}_ids")
    if ("prompt" in fields) != ("answer" in fields):
        raise RequestError("prompt and answer are not both text or both ids")
    return Question(
        id="",
        prompt=text_of(fields, "prompt"),
        prompt_ids=ids_of(fields, "prompt_ids"),
        answer=text_of(fields, "answer"),
        answer_ids=ids_of(fields, "answer_ids"),
        key=json.dumps([fields.get(name) for name in _FIELDS[1:]]),
    )


def _score(session: QuestionSession, question: Question) -> ScoredAnswer | Failure:
    found: list[ScoredAnswer | Failure] = []
    session.score([question], found.append)
    return found[0]


def _facts(id: Any, result: ScoredAnswer | Failure) -> dict[str, Any]:
    if isinstance(result, Failure):
        return {"id": id, "error": {"type": result.type, "message": result.message}}
    return {
        "id": id,
        "loglikelihood": result.loglikelihood,
        "standard_error": result.standard_error,
        "samples": result.samples,
        "exact": result.exact,
        "is_greedy": result.is_greedy,
    }


def _words(id: str, result: ScoredAnswer | Failure) -> str:
    if isinstance(result, Failure):
        return f"{id}: {one_line(result.message, 2000)}"
    how = "exact" if result.exact else f"± {result.standard_error:.4f} (standard error) from {result.samples} samples"
    greedy = "is" if result.is_greedy else "is not"
    return f"{id}: {result.loglikelihood:.4f} nats, {how}; {greedy} the greedy answer"
