"""A library's own decoding on the model that is loaded: transformers' `generate` beside an autoregressive backend.

A baseline is strong when nobody could have had it faster for nothing. So both decode the same prompts on the same
weights in one process, taking turns: `generate` greedy with its key-value cache, and, one request at a time, also with
prompt lookup (Saxena 2023), which proposes tokens that followed the same words in the prompt.
What is observed here is of provenance "library" and stands beside the runs; it is never averaged with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from dllm_audit.errors import AuditError
from dllm_audit.records import Failure, Generation, Request

if TYPE_CHECKING:
    from dllm_audit.backend import Session
    from dllm_audit.models.loading import LoadedModel

OURS, GENERATE, LOOKUP = "ours", "generate", "prompt lookup"

#: Turns of each side: as many as an interval over them needs.
ROUNDS = 5

#: Prompts where one is in flight; where more are, one batch of so many.
PROMPTS = 4

#: New tokens at most, since more would only take longer; and at least, where a forward takes long.
GEN_LENGTH = 64
LEAST_GEN_LENGTH = 8

#: Tokens that prompt lookup proposes at once: what transformers' documentation shows.
LOOKUP_TOKENS = 10

#: Where all turns would take longer, fewer prompts and then fewer tokens are decoded.
MOST_SECONDS = 6.0

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Turns:
    """One side: what it decoded in each turn, and the seconds of each.

    tokens: new tokens of all prompts, the end of text included. equal: prompts to which it gave the tokens of `ours`.
    """

    name: str
    provenance: str
    tokens: int
    equal: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class LibraryComparison:
    """Our decoder and the library's, on one loaded model.

    sides: `ours` first. prompts: so many were decoded in every turn, `batch` of them together. gen_length: new tokens at
    most; an answer ends where the run's answers end, stop strings left aside. version: of transformers.
    """

    batch: int
    prompts: int
    gen_length: int
    version: str
    sides: tuple[Turns, ...]

    def side(self, name: str) -> Turns | None:
        """The side of that name; None where it was not observed."""
        return next((side for side in self.sides if side.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return {
            "batch": self.batch,
            "prompts": self.prompts,
            "gen_length": self.gen_length,
            "transformers": self.version,
            "sides": [{**vars(side), "seconds": list(side.seconds)} for side in self.sides],
        }

    @staticmethod
    def of_facts(facts: Any) -> LibraryComparison | None:
        """What `as_dict` wrote, read back; None for anything that is not that."""
        if not isinstance(facts, Mapping) or not isinstance(facts.get("sides"), list):
            return None
        batch, prompts, gen_length = (facts.get(name, 0) for name in ("batch", "prompts", "gen_length"))
        sides = [side for found in facts["sides"] if (side := _side_of_facts(found)) is not None]
        if not all(map(_is_count, (batch, prompts, gen_length))) or not sides or len(sides) < len(facts["sides"]):
            return None
        if len({len(side.seconds) for side in sides}) > 1:
            return None
        return LibraryComparison(batch, prompts, gen_length, str(facts.get("transformers", "")), tuple(sides))


def _side_of_facts(facts: Any) -> Turns | None:
    if not isinstance(facts, Mapping) or set(facts) != set(Turns.__dataclass_fields__):
        return None
    seconds = facts["seconds"]
    if not isinstance(seconds, list) or not seconds or not all(_is_time(value) for value in seconds):
        return None
    if not (_is_count(facts["tokens"]) and isinstance(facts["equal"], int)):
        return None
    return Turns(str(facts["name"]), str(facts["provenance"]), facts["tokens"], facts["equal"], tuple(seconds))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0


@dataclass(frozen=True)
class Decoded:
    """New tokens of each prompt, and the seconds that all took together."""

    ids: list[Ids]
    seconds: float


def compare_with_library(
    session: Session,
    model: LoadedModel,
    prompts: Sequence[Ids],
    *,
    batch: int,
    gen_length: int,
    end_ids: Sequence[int] = (),
    rounds: int = ROUNDS,
    most_seconds: float = MOST_SECONDS,
) -> LibraryComparison:
    """Decode `prompts` with an autoregressive session and with the library, `rounds` times each in balanced order.

    batch: so many in flight together. gen_length: new tokens at most. end_ids: those that end an answer, on both sides.
    Two short turns of each that are not counted warm up and say how many tokens of how many prompts fit into
    `most_seconds`; eight tokens of one batch are the least. Raises AuditError where ours fails.
    """
    import transformers

    methods: dict[str, Callable[[Sequence[Ids], int], Decoded]] = {
        OURS: lambda some, length: _ours(session, model, some, batch, length, end_ids),
        GENERATE: lambda some, length: _theirs(model, some, batch, length, end_ids, None),
    }
    if batch == 1:
        methods[LOOKUP] = lambda some, length: _theirs(model, some, 1, length, end_ids, LOOKUP_TOKENS)
    least = min(LEAST_GEN_LENGTH, gen_length)
    for _ in range(2):  # the first time pays for allocations
        each = sum(decode(prompts[:batch], least).seconds for decode in methods.values()) / least
    room = int(most_seconds / (rounds * each))
    length = max(least, min(gen_length, room))
    chosen = prompts[: max(1, min(len(prompts) // batch, room // length)) * batch]
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    last: dict[str, Decoded] = {}
    for turn in range(rounds):
        for name in list(methods) if turn % 2 == 0 else list(reversed(methods)):
            last[name] = methods[name](chosen, length)
            seconds[name].append(last[name].seconds)
    sides = tuple(
        Turns(
            name,
            "reference" if name == OURS else "library",
            sum(map(len, last[name].ids)),
            sum(mine == other for mine, other in zip(last[OURS].ids, last[name].ids, strict=True)),
            tuple(seconds[name]),
        )
        for name in methods
    )
    return LibraryComparison(batch, len(chosen), length, transformers.__version__, sides)


def _ours(
    session: Session, model: LoadedModel, prompts: Sequence[Ids], batch: int, gen_length: int, end_ids: Sequence[int]
) -> Decoded:
    results: dict[str, Ids] = {}

    def keep(result: Generation | Failure) -> None:
        if isinstance(result, Failure):
            raise AuditError(result.message)
        results[result.id] = result.output_ids

    requests = [Request(str(n), prompt_ids=ids, settings={"gen_length": gen_length}) for n, ids in enumerate(prompts)]
    began = time.perf_counter()
    log = session.generate(requests, keep, batch)
    seconds = time.perf_counter() - began
    if model.engine != "eager":
        # Graphs are captured anew for every call, which a run leaves outside its clock too.
        seconds = log.makespan_seconds
    return Decoded([_ended(results[str(n)], end_ids) for n in range(len(prompts))], seconds)


def _theirs(
    model: LoadedModel,
    prompts: Sequence[Ids],
    batch: int,
    gen_length: int,
    end_ids: Sequence[int],
    lookup: int | None,
) -> Decoded:
    import torch
    from transformers import GenerationConfig

    pad = end_ids[0] if end_ids else 0
    config = GenerationConfig(
        max_new_tokens=gen_length,
        do_sample=False,
        use_cache=True,
        eos_token_id=list(end_ids) or None,
        pad_token_id=pad,
        prompt_lookup_num_tokens=lookup,
    )
    ids: list[Ids] = []
    began = time.perf_counter()
    with torch.inference_mode(), _as_the_library_has_it(model.module, config):
        for start in range(0, len(prompts), batch):
            some = prompts[start : start + batch]
            width = max(map(len, some))
            padded = torch.tensor([[pad] * (width - len(row)) + list(row) for row in some], device=model.device)
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in some], device=model.device)
            generate: Any = model.module.generate
            out = generate(padded, attention_mask=mask)
            ids += [_ended(tuple(row), end_ids) for row in out[:, width:].tolist()]
    return Decoded(ids, time.perf_counter() - began)


@contextmanager
def _as_the_library_has_it(module: Any, config: Any) -> Iterator[None]:
    """The module as transformers builds it: causal, with no wishes of a checkpoint about how to generate."""
    before = module.config.is_causal, module.config._attn_implementation, module.generation_config
    module.config.is_causal, module.config._attn_implementation, module.generation_config = True, "sdpa", config
    try:
        yield
    finally:
        module.config.is_causal, module.config._attn_implementation, module.generation_config = before


def _ended(ids: Ids, end_ids: Sequence[int]) -> Ids:
    """`ids` up to the first that ends an answer, that one included."""
    place = next((n for n, id in enumerate(ids) if id in end_ids), None)
    return ids if place is None else ids[: place + 1]
