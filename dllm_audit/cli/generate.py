"""`dllm-audit generate`: decode prompts and show what happened."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.analysis.plain import one_line
from dllm_audit.backend import ForesightedBackend
from dllm_audit.cli.opening import choose, installed, load, spare_threads
from dllm_audit.cli.options import check_engine, engine_options, given_settings, json_option, setting_options
from dllm_audit.cli.requests import ids_of, read_requests, text_of
from dllm_audit.cli.terminal import say, say_json
from dllm_audit.errors import RequestError, UsageError
from dllm_audit.records import TIME_ITEMS, Failure, Generation, Request

if TYPE_CHECKING:
    from dllm_audit.models.loading import LoadedModel

_FIELDS = ("id", "prompt", "prompt_ids", "suffix", "suffix_ids", "until", "settings")


@click.command(
    epilog="Example: dllm-audit generate --backend dualcache --threshold 0.9 --gen-length 64 --stop-at-eos --trace "
    '--prompt "Question: Eva has 26 coins. She finds 31 more. She loses 25. How many coins does Eva have in the end?'
    '\\nAnswer:"'
)
@click.option("--backend", required=True, help="Name of a backend; see dllm-audit backends.")
@click.option("--model", help="Embedded model, folder with safetensors, or hub id.")
@click.option("--prompt", help="Text to go on from; \\n means a new line.")
@click.option("--suffix", help="Text that the answer must lead to (infilling).")
@click.option(
    "--requests",
    type=click.Path(path_type=Path, allow_dash=True),
    help="JSON lines with prompt or prompt_ids, optionally id, suffix or suffix_ids, settings. - reads stdin.",
)
@click.option("--concurrency", type=click.IntRange(min=1), default=1, show_default=True, help="Rows in flight.")
@click.option("--trace", is_flag=True, help="Show every forward and every committed token.")
@engine_options
@setting_options()
@json_option
def command(
    backend: str,
    model: str | None,
    prompt: str | None,
    suffix: str | None,
    requests: Path | None,
    concurrency: int,
    trace: bool,
    device: str,
    dtype: str,
    engine: str,
    seed: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Decode prompts and show what happened: the text, what it cost, and with --trace every step.

    Exit status 3 when a line could not be decoded; the others are decoded all the same.
    """
    if (prompt is None) == (requests is None):
        raise UsageError("Give either --prompt TEXT or --requests FILE.jsonl.")
    mode = check_engine(engine)
    from dllm_audit.evaluate.promises import HeldSession
    from dllm_audit.models.loading import has_tokenizer

    choice = choose(installed(), backend, model)
    spare_threads([choice.source])
    settings = given_settings(options)
    choice.backend.resolve(settings, traits=choice.source.traits)
    if prompt is not None:
        # Lines of a file bring settings of their own.
        if isinstance(choice.backend, ForesightedBackend):
            choice.backend.check_settings(settings, choice.source.traits)
        line = Request("prompt", prompt=_unescape(prompt), suffix=None if suffix is None else _unescape(suffix))
        asked: list[tuple[Any, Request | Failure]] = [("prompt", line)]
    else:
        assert requests is not None
        asked = list(read_requests(requests, _request))
    if prompt is not None and not has_tokenizer(choice.source.folder):
        raise UsageError(
            f"The model folder {choice.source.ref} has no tokenizer, so it takes token ids only. "
            'Put {"id": "1", "prompt_ids": [1, 2, 3]} into a file and give it with --requests.'
        )
    loaded = load(choice, device, dtype, mode)
    session = HeldSession(choice.backend.open(loaded, settings, seed), choice.backend.name, loaded.traits.vocab_size)

    printer = _Printer(asked, loaded, as_json, trace)
    ready = [dataclasses.replace(r, id=str(n)) for n, (_, r) in enumerate(asked) if isinstance(r, Request)]
    session.generate(ready, printer.take, concurrency, traced=trace)
    if printer.failed:
        if not as_json:
            click.echo(f"{printer.failed} of {len(asked)} requests could not be decoded.", err=True)
        sys.exit(3)


def _unescape(text: str) -> str:
    return text.replace("\\n", "\n")


def _request(fields: dict[str, Any]) -> Request:
    unknown = sorted(set(fields) - set(_FIELDS))
    if unknown:
        raise RequestError(f"unknown field {unknown[0]!r} (known: {', '.join(_FIELDS)})")
    fields = {name: value for name, value in fields.items() if value is not None}
    if ("prompt" in fields) == ("prompt_ids" in fields):
        raise RequestError("it needs exactly one of prompt and prompt_ids")
    if "suffix" in fields and "suffix_ids" in fields:
        raise RequestError("it has both suffix and suffix_ids")
    until = fields.get("until", [])
    until = [until] if isinstance(until, str) else until
    if not isinstance(until, list) or not all(isinstance(stop, str) for stop in until):
        raise RequestError("until is no text and no list of texts")
    return Request(
        id="",
        prompt=text_of(fields, "prompt"),
        prompt_ids=ids_of(fields, "prompt_ids"),
        suffix=text_of(fields, "suffix"),
        suffix_ids=ids_of(fields, "suffix_ids"),
        until=tuple(stop for stop in until if stop),
        settings=_mapping(fields.get("settings", {})),
        key=json.dumps([fields.get(k) for k in ("prompt", "prompt_ids", "suffix", "suffix_ids")]),
    )


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError("settings is no JSON object")
    return value


class _Printer:
    """Prints results in the order of the requests, each as soon as all before it are there."""

    def __init__(
        self, asked: list[tuple[Any, Request | Failure]], model: LoadedModel, as_json: bool, trace: bool
    ) -> None:
        self.asked = asked
        self.model = model
        self.as_json = as_json
        self.trace = trace
        self.done: dict[int, Generation | Failure] = {n: r for n, (_, r) in enumerate(asked) if isinstance(r, Failure)}
        self.next = 0
        self.failed = 0
        self._flush()

    def take(self, result: Generation | Failure) -> None:
        self.done[int(result.id)] = result
        self._flush()

    def _flush(self) -> None:
        while self.next in self.done:
            result = self.done.pop(self.next)
            id = self.asked[self.next][0]
            self.next += 1
            self.failed += isinstance(result, Failure)
            if self.as_json:
                say_json(self._facts(id, result))
            else:
                say(self._words(one_line(str(id)), result))

    def _facts(self, id: Any, result: Generation | Failure) -> dict[str, Any]:
        if isinstance(result, Failure):
            return {"id": id, "error": {"type": result.type, "message": result.message}}
        facts: dict[str, Any] = {
            "id": id,
            "output_ids": list(result.output_ids),
            "text": result.text,
            "answered_tokens": result.answered_tokens,
            "committed_tokens": result.committed_tokens,
            "residual_masks": result.residual_masks,
            "nfe": result.nfe,
            "stop": result.stop,
            "query_positions": result.query_positions,
            "guaranteed_commits": result.guaranteed_commits,
            "seconds": result.seconds,
            "ttft_seconds": result.ttft_seconds,
        }
        if result.trace is not None:
            facts["forwards"] = [dataclasses.asdict(forward) for forward in result.trace.forwards]
            facts["commits"] = [dataclasses.asdict(commit) for commit in result.trace.commits]
        return facts

    def _words(self, id: str, result: Generation | Failure) -> str:
        if isinstance(result, Failure):
            return f"{id}: {one_line(result.message, 2000)}"
        lines = []
        if len(self.asked) > 1:
            lines.append(f"== {id}")
        lines.append(result.text if result.text is not None else " ".join(map(str, result.output_ids)))
        kinds = ", ".join(f"{n} {kind}" for kind, n in result.forwards.items())
        total = result.seconds["total"]
        lines.append("")
        lines.append(
            f"{result.answered_tokens} tokens answered, {result.committed_tokens} committed in {result.nfe} forwards "
            f"({kinds}), {result.query_positions} query positions; {_rate(result.answered_tokens, total)} in {total:.3f} s."
        )
        lines.append(
            "seconds: " + ", ".join(f"{item} {result.seconds[item]:.4f}" for item in TIME_ITEMS if result.seconds[item])
        )
        if result.residual_masks:
            lines.append(f"{result.residual_masks} positions are still masks (the compat program leaves them).")
        if result.trace is not None:
            lines += self._steps(result)
        return "\n".join(lines)

    def _steps(self, result: Generation) -> list[str]:
        assert result.trace is not None
        by_step: dict[int, list[str]] = {}
        for commit in result.trace.commits:
            token = commit.token
            # repr puts a line end as \n, so that the table stays one.
            shown = repr(self.model.tokenizer.decode([token])) if self.model.tokenizer is not None else str(token)
            by_step.setdefault(commit.step, []).append(f"{commit.position}:{shown} ({commit.confidence:.3f})")
        lines = ["", "step  kind     width  block  committed (position:token (confidence))"]
        for step, forward in enumerate(result.trace.forwards):
            lines.append(
                f"{step:>4}  {forward.kind:<8} {forward.width:>5}  {forward.block:>5}  {'  '.join(by_step.get(step, []))}"
            )
        return lines


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} tokens/s" if seconds > 0 else "no time"
