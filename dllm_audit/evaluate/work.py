"""What a task asks of a backend, behind one face: prompts decoded to text, or given answers scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dllm_audit.backend import ForesightedBackend, likelihoods_of
from dllm_audit.errors import UsageError
from dllm_audit.evaluate.bench import BENCH_DEFAULTS, SpeedWork
from dllm_audit.evaluate.promises import HeldSession
from dllm_audit.evaluate.prompts import (
    TaskItem,
    TaskPrompt,
    TaskQuestion,
    asks_for_likelihoods,
    build_prompts,
    build_questions,
)

if TYPE_CHECKING:
    from dllm_audit.backend import Backend
    from dllm_audit.decode.tally import OnShapes
    from dllm_audit.evaluate.scoring import Answer
    from dllm_audit.models.loading import LoadedModel
    from dllm_audit.models.traits import ModelTraits
    from dllm_audit.records import EngineLog, Failure, Generation, ScoredAnswer
    from dllm_audit.settings import Resolution

#: What `run` changes in the backends' defaults: a task's answer ends with its end-of-text.
RUN_DEFAULTS: Mapping[str, Any] = {"stop_at_eos": True}


@dataclass(frozen=True)
class Decoding:
    """Prompts of a task, to be answered with text. given: the settings as typed."""

    items: Sequence[TaskPrompt]
    resolution: Resolution
    session: HeldSession
    given: Mapping[str, Any]

    def run(
        self,
        items: Sequence[Any],
        keep: Callable[[Generation | Failure], None],
        concurrency: int,
        on_shapes: OnShapes | None = None,
        arrivals: Sequence[float] | None = None,
    ) -> EngineLog:
        """Decode `items`; each result goes to `keep` as it ends, before it what ran so far to `on_shapes`.

        arrivals: seconds after the start at which each is there; None: each when a row is free for it.
        """
        requests = [item.request(self.given) for item in items]
        return self.session.generate(requests, keep, concurrency, on_shapes=on_shapes, arrivals=arrivals)

    def warm_up(self, items: Sequence[Any], concurrency: int) -> None:
        """Decode `items` and forget them."""
        self.session.warm_up([item.request(self.given) for item in items], concurrency)

    def answer(self, row: Mapping[str, Any]) -> Answer:
        """What lm-eval takes back for a stored request."""
        text: str = row["text"]
        return text


@dataclass(frozen=True)
class Scoring:
    """Answers of a task, to be scored."""

    items: Sequence[TaskQuestion]
    resolution: Resolution
    session: HeldSession

    def run(
        self,
        items: Sequence[Any],
        keep: Callable[[ScoredAnswer | Failure], None],
        concurrency: int,
        on_shapes: OnShapes | None = None,
        arrivals: Sequence[float] | None = None,
    ) -> EngineLog:
        """Score `items`; each result goes to `keep` as it ends, before it what ran so far to `on_shapes`."""
        if arrivals is not None:
            raise UsageError(
                "Log-likelihoods are scored in a closed loop only, where nobody queues: leave out --load and --arrival-rate."
            )
        return self.session.score([item.question() for item in items], keep, concurrency, on_shapes)

    def warm_up(self, items: Sequence[Any], concurrency: int) -> None:
        """Score `items` and forget them."""
        self.session.warm_up([item.question() for item in items], concurrency)

    def answer(self, row: Mapping[str, Any]) -> Answer:
        """What lm-eval takes back for a stored request."""
        value = float(row["loglikelihood"])
        return value if row["is_greedy"] is None else (value, bool(row["is_greedy"]))


def work_of(
    backend: Backend,
    task: Any,
    given: Mapping[str, Any],
    model: LoadedModel,
    seed: int,
    chat_template: bool,
    limit: int | None,
) -> Decoding | Scoring:
    """What `task` asks of `backend` on `model`, with the settings as typed and a session ready for it."""
    if isinstance(task, SpeedWork):
        return _decoding(backend, task.prompts(model, seed), given, model, seed, BENCH_DEFAULTS)
    if asks_for_likelihoods(task):
        side = likelihoods_of(backend)
        return Scoring(
            build_questions(task, model.tokenizer, chat_template, limit),
            side.resolve_likelihoods(given),
            HeldSession(side.open_likelihoods(model, given, seed), backend.name, model.traits.vocab_size),
        )
    prompts = build_prompts(task, model.tokenizer, chat_template, limit)
    return _decoding(backend, prompts, given, model, seed, RUN_DEFAULTS)


def check_work(backend: Backend, traits: ModelTraits, given: Mapping[str, Any], task: Any, first: Any) -> None:
    """Raise SettingError where `backend` could answer nothing of `task`, as far as that shows before a model is loaded.

    given: the settings as typed. first: the first item of a task of lm-eval's, see `prompts.first_item`.
    """
    if not isinstance(backend, ForesightedBackend):
        return
    if isinstance(task, SpeedWork):
        backend.check_settings(given, traits, None, BENCH_DEFAULTS)
    elif asks_for_likelihoods(task):
        backend.check_likelihoods(given, traits)
    else:
        backend.check_settings({**first.request(given).settings, **given}, traits, None, RUN_DEFAULTS)


def _decoding(
    backend: Backend,
    prompts: Sequence[TaskPrompt],
    given: Mapping[str, Any],
    model: LoadedModel,
    seed: int,
    defaults: Mapping[str, Any],
) -> Decoding:
    lengths = {prompt.gen_length for prompt in prompts}
    task_length = lengths.pop() if len(lengths) == 1 else None
    changed = {name: value for name, value in defaults.items() if name in backend.settings}
    return Decoding(
        prompts,
        backend.resolve(given, model.traits, task_length, defaults),
        HeldSession(backend.open(model, {**changed, **given}, seed), backend.name, model.traits.vocab_size),
        given,
    )


def stored_beside(item: TaskItem) -> tuple[str | None, int | None]:
    """What is stored with a request of its own: the answer that was given, and its place among the document's answers."""
    return (item.continuation, item.choice) if isinstance(item, TaskQuestion) else (None, None)
