"""Work of a stated size, for speed alone: prompts of so many tokens, to be answered with so many positions.

The prompts are real words: texts of the embedded tasks in a random order, cut to the length by the model's own tokenizer.
Random token ids would be faster or slower than text for reasons of their own (experts that they choose, an end of text
that comes at once), so they come only on request, and the run then says so.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dllm_audit.decode.session import encode_text
from dllm_audit.errors import UsageError
from dllm_audit.evaluate.prompts import TaskPrompt
from dllm_audit.records import Request

if TYPE_CHECKING:
    from dllm_audit.models.loading import LoadedModel

#: What `bench` changes in the backends' defaults: every answer has the same length.
BENCH_DEFAULTS: Mapping[str, Any] = {"stop_at_eos": False}

_TEXTS = Path(__file__).parent / "tasks" / "data"

#: Characters around the estimated end of a prompt in which an end with exactly the wanted tokens is sought.
_REACH = 24


@dataclass(frozen=True)
class IdsPrompt(TaskPrompt):
    """A prompt of token ids, which no text stands for."""

    prompt_ids: tuple[int, ...]

    def request(self, explicit: Mapping[str, Any]) -> Request:
        return Request(str(self.ordinal), prompt_ids=self.prompt_ids, key=self.key)


@dataclass(frozen=True)
class SpeedWork:
    """`requests` prompts of `prompt_tokens` tokens; how long the answers are is a decode setting.

    random_ids: prompts of random token ids instead of text.
    """

    prompt_tokens: int
    requests: int
    random_ids: bool = False

    OUTPUT_TYPE: ClassVar[str] = "generate_until"

    def prompts(self, model: LoadedModel, seed: int) -> list[TaskPrompt]:
        """The prompts, the same for the same tokenizer and seed. A text may miss the length by a token where none hits it."""
        if self.random_ids:
            return [self._of_ids(model, seed, ordinal) for ordinal in range(self.requests)]
        texts = _texts()
        return [self._of_text(model, texts, seed, ordinal) for ordinal in range(self.requests)]

    def facts(self) -> dict[str, Any]:
        """What it is, for the manifest of a run."""
        return {"prompt_tokens": self.prompt_tokens, "prompts": "random ids" if self.random_ids else "text"}

    def _of_ids(self, model: LoadedModel, seed: int, ordinal: int) -> TaskPrompt:
        traits = model.traits
        special = {traits.mask_token_id, *traits.end_token_ids}
        draw = random.Random(f"{seed} ids {ordinal}")
        ids: list[int] = []
        while len(ids) < self.prompt_tokens:
            id = draw.randrange(traits.vocab_size)
            if id not in special:
                ids.append(id)
        return IdsPrompt(ordinal, ordinal, "", _key(ordinal, ids), (), None, None, tuple(ids))

    def _of_text(self, model: LoadedModel, texts: Sequence[str], seed: int, ordinal: int) -> TaskPrompt:
        order = random.Random(f"{seed} text {ordinal}").sample(range(len(texts)), len(texts))
        text, tokens = "", 0
        for number in itertools.cycle(order):
            if tokens > self.prompt_tokens + _REACH:
                break
            text += texts[number] + "\n\n"
            # A joined text has about as many tokens as its parts have; what it really has is looked at below.
            tokens += len(encode_text(model, texts[number], continues=True))
        text = _cut(model, text, self.prompt_tokens)
        return TaskPrompt(ordinal, ordinal, text, _key(ordinal, text), (), None, None)


def speed_task_name(prompt_tokens: int, gen_length: int) -> str:
    """The name under which runs of one prompt and output length are stored."""
    return f"bench-p{prompt_tokens}-g{gen_length}"


def _texts() -> list[str]:
    """Questions with their answers, of the embedded word problems."""
    file = _TEXTS / "gsm_mini_train.jsonl"
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [f"Question: {record['question']}\nAnswer: {record['answer']}" for record in records]


def _cut(model: LoadedModel, text: str, tokens: int) -> str:
    """The beginning of `text` that has exactly so many tokens, special ones included; or, if none has, nearly so many."""

    def length(characters: int) -> int:
        return len(encode_text(model, text[:characters]))

    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if length(middle) <= tokens else (low, middle - 1)
    # Cutting a word may change how it is split, so the count need not grow with every character.
    near = sorted(range(max(1, low - _REACH), min(len(text), low + _REACH) + 1), key=lambda at: abs(at - low))
    counts = {at: length(at) for at in near}
    best = min(near, key=lambda at: abs(counts[at] - tokens))
    if counts[best] > tokens + 1:
        raise UsageError(
            f"--prompt-length {tokens} is too short: this model's tokenizer makes {counts[best]} tokens of a single character."
        )
    return text[:best]


def _key(ordinal: int, content: Any) -> str:
    return hashlib.sha256(json.dumps(["bench", ordinal, content]).encode()).hexdigest()
