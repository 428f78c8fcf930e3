"""The prompts of a task as lm-eval renders them, addressed by content."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dllm_audit.errors import ModelError, TaskError
from dllm_audit.records import Request

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TaskPrompt:
    """One request of a task. `ordinal`: its place in the task's order; `doc_id`: the document it belongs to.

    gen_length, temperature: what the task asks for, None where it says nothing.
    key: SHA-256 of everything that makes the request, with a number for repetitions of the same one.
    """

    ordinal: int
    doc_id: int
    prompt: str
    until: tuple[str, ...]
    gen_length: int | None
    temperature: float | None
    key: str

    @property
    def prompt_sha256(self) -> str:
        return hashlib.sha256(self.prompt.encode()).hexdigest()

    def request(self, explicit: Mapping[str, Any]) -> Request:
        """The request for a backend; the task's wishes count where `explicit` settings say nothing."""
        wishes = {"gen_length": self.gen_length, "temperature": self.temperature}
        settings = {k: v for k, v in wishes.items() if v is not None and k not in explicit}
        return Request(str(self.ordinal), prompt=self.prompt, until=self.until, settings=settings, key=self.key)


def chat_template_of(tokenizer: PreTrainedTokenizerBase | None, wish: str, model: str) -> bool:
    """Whether prompts go through the chat template. wish "auto": when the tokenizer has one."""
    has = tokenizer is not None and bool(getattr(tokenizer, "chat_template", None))
    if wish == "on" and not has:
        raise ModelError(f"{model} has no chat template. Use --chat-template off.")
    return has if wish == "auto" else wish == "on"


def build_prompts(
    task: Any, tokenizer: PreTrainedTokenizerBase | None, chat_template: bool, limit: int | None
) -> list[TaskPrompt]:
    """Render the prompts of `task`, in its order; `limit` keeps the first documents."""
    name = task.config.task
    if task.OUTPUT_TYPE != "generate_until":
        raise TaskError(
            f"Task {name!r} asks for log-likelihoods ({task.OUTPUT_TYPE}), and `run` decodes text. "
            "Use a task that generates, such as gsm_mini or gsm8k."
        )
    # Few-shot examples come from a generator that advances: start it anew, so that a prompt depends on nothing before.
    task.set_fewshot_seed(seed=1234)
    with _explained(name, chat_template):
        return _build(task, name, tokenizer, chat_template, limit)


@contextmanager
def _explained(name: str, chat_template: bool) -> Iterator[None]:
    """Turn what a task's or a tokenizer's templates and functions raise into a sentence."""
    try:
        yield
    except TaskError:
        raise
    except (Exception, SystemExit) as error:
        words = (str(error).strip().splitlines() or [""])[0][:200]
        advice = (
            "If it is the chat template, use --chat-template off." if chat_template else "See the task's YAML file."
        )
        raise TaskError(
            f"The prompts of task {name!r} could not be rendered: {type(error).__name__}: {words}. {advice}"
        ) from error


def _build(
    task: Any, name: str, tokenizer: PreTrainedTokenizerBase | None, chat_template: bool, limit: int | None
) -> list[TaskPrompt]:
    task.build_all_requests(
        limit=limit,
        rank=0,
        world_size=1,
        apply_chat_template=chat_template,
        fewshot_as_multiturn=chat_template,
        chat_template=_renderer(tokenizer) if chat_template else None,
        tokenizer_name="" if tokenizer is None else str(tokenizer.name_or_path),
    )
    prompts: list[TaskPrompt] = []
    seen: Counter[str] = Counter()
    for instance in task.instances:
        prompt, wishes = instance.args
        for _ in range(instance.repeats or 1):
            until, gen_length, temperature = _wishes(wishes)
            content = json.dumps([name, prompt, until, gen_length, temperature])
            seen[content] += 1
            key = hashlib.sha256(f"{content}\0{seen[content]}".encode()).hexdigest()
            prompts.append(
                TaskPrompt(len(prompts), instance.doc_id, prompt, tuple(until), gen_length, temperature, key)
            )
    if not prompts:
        raise TaskError(f"Task {name!r} has no documents to decode.")
    return prompts


def _renderer(tokenizer: PreTrainedTokenizerBase | None) -> Callable[..., str]:
    assert tokenizer is not None

    def render(history: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        rendered = tokenizer.apply_chat_template(
            list(history),
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return str(rendered)

    return render


def _wishes(arguments: dict[str, Any]) -> tuple[list[str], int | None, float | None]:
    """Stop strings, answer length and temperature of one request; each request has its own."""
    from lm_eval.models.utils import normalize_gen_kwargs

    until = arguments.get("until")
    arguments = {**arguments, "until": [until] if isinstance(until, str) else list(until or [])}
    normal = normalize_gen_kwargs(arguments, default_max_gen_toks=0)
    temperature = float(normal.get("temperature") or 0.0)
    return [s for s in normal["until"] if s], normal["max_gen_toks"] or None, temperature or None
