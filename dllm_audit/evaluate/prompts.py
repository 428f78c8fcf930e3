"""The prompts of a task as lm-eval renders them, addressed by content."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dllm_audit.errors import ModelError, TaskError
from dllm_audit.evaluate.deadline import task_templates_end, template_ends
from dllm_audit.evaluate.mistakes import fields_of, mistake_of, named
from dllm_audit.records import Question, Request

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TaskItem:
    """One thing that a task asks for. `ordinal`: its place in the task's order; `doc_id`: the document it belongs to.

    key: SHA-256 of everything that makes it, with a number for repetitions of the same one.
    """

    ordinal: int
    doc_id: int
    prompt: str
    key: str

    @property
    def prompt_sha256(self) -> str:
        return hashlib.sha256(self.prompt.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True)
class TaskPrompt(TaskItem):
    """A prompt to answer. gen_length, temperature: what the task asks for, None where it says nothing."""

    until: tuple[str, ...]
    gen_length: int | None
    temperature: float | None

    def request(self, explicit: Mapping[str, Any]) -> Request:
        """The request for a backend; the task's wishes count where `explicit` settings say nothing."""
        wishes = {"gen_length": self.gen_length, "temperature": self.temperature}
        settings = {k: v for k, v in wishes.items() if v is not None and k not in explicit}
        return Request(str(self.ordinal), prompt=self.prompt, until=self.until, settings=settings, key=self.key)


@dataclass(frozen=True)
class TaskQuestion(TaskItem):
    """A given answer of which the task asks how likely it is after `prompt`.

    choice: its place among the answers that a document lets choose from; None where there is no choice.
    rolling: a whole text without a prompt.
    """

    continuation: str
    choice: int | None
    rolling: bool

    def question(self) -> Question:
        """The question for a backend."""
        id = str(self.ordinal)
        return Question(id, answer=self.continuation, prompt=self.prompt, rolling=self.rolling, key=self.key)


def asks_for_likelihoods(task: Any) -> bool:
    """Whether an lm-eval task has given answers scored, instead of text generated."""
    return bool(task.OUTPUT_TYPE != "generate_until")


def chat_template_of(tokenizer: PreTrainedTokenizerBase | None, wish: str, model: str) -> bool:
    """Whether prompts go through the chat template. wish "auto": when the tokenizer has one."""
    has = tokenizer is not None and bool(getattr(tokenizer, "chat_template", None))
    if wish == "on" and not has:
        raise ModelError(f"{model} has no chat template. Use --chat-template off.")
    return has if wish == "auto" else wish == "on"


def build_prompts(
    task: Any, tokenizer: PreTrainedTokenizerBase | None, chat_template: bool, limit: int | None
) -> list[TaskPrompt]:
    """Render the prompts of a task that generates, in its order; `limit` keeps the first documents."""
    return _rendered(_prompts, task, tokenizer, chat_template, limit)


def build_questions(
    task: Any, tokenizer: PreTrainedTokenizerBase | None, chat_template: bool, limit: int | None
) -> list[TaskQuestion]:
    """Render what a task that asks for log-likelihoods has scored, in its order; `limit` keeps the first documents."""
    return _rendered(_questions, task, tokenizer, chat_template, limit)


def first_item(task: Any) -> TaskPrompt | TaskQuestion:
    """What a task asks first, without a chat template. Raises TaskError where it asks nothing that can be rendered."""
    build = build_questions if asks_for_likelihoods(task) else build_prompts
    return build(task, None, False, 1)[0]


Item = TypeVar("Item", bound=TaskItem)


def _rendered(
    read: Callable[[Any, str], Iterator[Item]],
    task: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    chat_template: bool,
    limit: int | None,
) -> list[Item]:
    """What `read` makes of a task's instances, once lm-eval has built them."""
    name = task.config.task
    # Few-shot examples come from a generator that advances: start it anew, so that a prompt depends on nothing before.
    task.set_fewshot_seed(seed=1234)
    _check_examples(task, name)
    with _explained(task, name), task_templates_end(name):
        task.build_all_requests(
            limit=limit,
            rank=0,
            world_size=1,
            apply_chat_template=chat_template,
            fewshot_as_multiturn=chat_template,
            chat_template=_renderer(tokenizer) if chat_template else None,
            tokenizer_name="" if tokenizer is None else str(tokenizer.name_or_path),
        )
        kinds = {instance.request_type for instance in task.instances}
        if "generate_until" in kinds and len(kinds) > 1:
            raise TaskError(
                f"Task {name!r} asks for text and for log-likelihoods ({', '.join(sorted(kinds))}), and a run does one of "
                "them. Use a task that asks for one thing."
            )
        items = list(read(task, name))
    if not items:
        raise TaskError(f"Task {name!r} has no documents to decode.")
    return items


def _check_examples(task: Any, name: str) -> None:
    """Raise TaskError where a task shows more worked examples than it has: lm-eval draws them without replacement."""
    asked, pool = task.config.num_fewshot or 0, getattr(getattr(task, "sampler", None), "df", None)
    if pool is None or not asked:
        return
    # A document is no example of itself.
    least = asked + (task.fewshot_cfg.split is not None and task.fewshot_cfg.split == task.config.test_split)
    if len(pool) < least:
        raise TaskError(
            f"Task {name!r} is to show {asked} worked examples with each document, and its data hold {len(pool)} to take them "
            "from. Lower --num-fewshot, or num_fewshot in its YAML file."
        )


@contextmanager
def _explained(task: Any, name: str) -> Iterator[None]:
    """Turn what a task's templates and functions raise into a sentence."""
    try:
        yield
    except TaskError:
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(
            f"The prompts of task {name!r} could not be rendered: {mistake_of(error, fields_of(task))} See the task's YAML file."
        ) from error


def _prompts(task: Any, name: str) -> Iterator[TaskPrompt]:
    addresses = _Addresses(name)
    for ordinal, instance in enumerate(_repeated(task)):
        prompt, wishes = instance.args
        until, gen_length, temperature = _wishes(wishes)
        key = addresses.of(prompt, until, gen_length, temperature)
        yield TaskPrompt(ordinal, instance.doc_id, prompt, key, tuple(until), gen_length, temperature)


def _questions(task: Any, name: str) -> Iterator[TaskQuestion]:
    addresses = _Addresses(name)
    answers = Counter(instance.doc_id for instance in task.instances)
    # Beside each answer after its prompt, such a task has the answer scored without one: that is no choice.
    halves = "acc_mutual_info" in getattr(task, "_metric_fn_list", {})
    places: Counter[int] = Counter()
    for ordinal, instance in enumerate(_repeated(task)):
        rolling = instance.request_type == "loglikelihood_rolling"
        prompt, continuation = ("", *instance.args) if rolling else instance.args
        place = places[instance.doc_id]
        places[instance.doc_id] += 1
        chosen_from = answers[instance.doc_id] // (2 if halves else 1)
        is_choice = task.OUTPUT_TYPE == "multiple_choice" and place < chosen_from
        key = addresses.of(prompt, continuation, rolling)
        yield TaskQuestion(ordinal, instance.doc_id, prompt, key, continuation, place if is_choice else None, rolling)


def _repeated(task: Any) -> Iterator[Any]:
    """A task's instances, each as often as the task wants it, in the order in which lm-eval takes the answers back."""
    for instance in task.instances:
        for _ in range(instance.repeats or 1):
            yield instance


class _Addresses:
    """Addresses by content of the requests of a task: the same content again gets another."""

    def __init__(self, task_name: str) -> None:
        self.task_name = task_name
        self.seen: Counter[str] = Counter()

    def of(self, *content: Any) -> str:
        text = json.dumps([self.task_name, *content])
        self.seen[text] += 1
        return hashlib.sha256(f"{text}\0{self.seen[text]}".encode()).hexdigest()


def _renderer(tokenizer: PreTrainedTokenizerBase | None) -> Callable[..., str]:
    assert tokenizer is not None

    def render(history: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        try:
            with template_ends("The model's chat template", "Use --chat-template off."):
                rendered = tokenizer.apply_chat_template(
                    list(history),
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=not add_generation_prompt,
                )
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(
                f"The model's chat template cannot render a prompt ({named(error)}). Use --chat-template off."
            ) from error
        return str(rendered)

    return render


def _wishes(arguments: dict[str, Any]) -> tuple[list[str], int | None, float | None]:
    """Stop strings, answer length and temperature of one request; each request has its own."""
    from lm_eval.models.utils import normalize_gen_kwargs

    until = arguments.get("until")
    arguments = {**arguments, "until": [until] if isinstance(until, str) else list(until or [])}
    normal = normalize_gen_kwargs(arguments, default_max_gen_toks=0)
    strange = [stop for stop in normal["until"] if stop is not None and not isinstance(stop, str)]
    if strange:
        raise ValueError(f"until holds texts at which an answer ends, and {strange[0]!r} is none")
    temperature = float(normal.get("temperature") or 0.0)
    return [s for s in normal["until"] if s], normal["max_gen_toks"] or None, temperature or None
