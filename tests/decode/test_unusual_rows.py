"""Rows that cannot go on end as failures, and rows that wait for one another are counted."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from dllm_audit.models.loading import find_model, load_model
from dllm_audit.plugins import load_plugins
from dllm_audit.records import Failure, Generation, Request

BACKENDS = load_plugins().backends


def decode(name: str, model, settings: dict, prompts: list[tuple[int, ...]], concurrency: int = 1):
    results: dict[str, Generation | Failure] = {}
    session = BACKENDS[name].open(model, settings)
    requests = [Request(str(n), prompt_ids=prompt) for n, prompt in enumerate(prompts)]
    log = session.generate(requests, lambda result: results.__setitem__(result.id, result), concurrency)
    return [results[str(n)] for n in range(len(prompts))], log


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("name", "model", "settings"),
    [
        ("uncached", "tiny-mdm", {}),
        ("uncached", "tiny-mdm", {"threshold": 0.9}),
        ("prefixcache", "tiny-mdm", {"factor": 1.0}),
        ("dualcache", "tiny-mdm", {"tokens_per_step": 2}),
        ("block", "tiny-block", {"confidence": "margin"}),
        ("block", "tiny-block", {"confidence": "entropy"}),
        ("uncached", "tiny-mdm", {"confidence": "random"}),
        ("ar", "tiny-ar", {}),
    ],
)
def test_logits_that_are_not_finite_fail_the_request_instead_of_looping(name, model, settings, value):
    loaded = load_model(find_model(model), "cpu")
    loaded.module.lm_head.weight = torch.nn.Parameter(torch.full_like(loaded.module.lm_head.weight, value))
    results, _ = decode(name, loaded, {"gen_length": 8, **settings}, [(5, 6, 7), (8, 9)], concurrency=2)
    assert [type(result) for result in results] == [Failure, Failure]
    assert results[0].message.startswith("The model's logits are not finite (NaN or infinite)")


@pytest.mark.parametrize("engine", ["eager", "fixed"])
@pytest.mark.parametrize(("name", "model"), [("dualcache", "tiny-mdm"), ("block", "tiny-block"), ("ar", "tiny-ar")])
def test_a_row_that_is_not_finite_spoils_nothing_for_the_next_one_in_its_place(name, model, engine):
    """The next row is shorter, so it never overwrites all keys of the first: masked they weigh 0, and 0 x NaN is NaN."""
    loaded = dataclasses.replace(load_model(find_model(model), "cpu"), engine=engine)
    embedding = loaded.module.model.embed_tokens
    embedding.weight = torch.nn.Parameter(embedding.weight.detach().clone())
    embedding.weight.data[33] = float("nan")
    longest, spoiled, short = (5, 6) * 30, (33,) * 20, (7, 8, 9)
    given = {"gen_length": 16}
    (alone,), _ = decode(name, loaded, given, [short])
    results, _ = decode(name, loaded, given, [longest, spoiled, short], concurrency=2)
    assert isinstance(results[1], Failure)
    assert results[2].output_ids == alone.output_ids


def test_rows_that_wait_while_another_refreshes_are_counted_in_flight():
    # a: two blocks of R D D D. b ends after R D; c takes its place in the middle of a's block and refreshes alone.
    #   R(a b)  D(a b)  R(c)  D(a c)  D(a c)  R(a)  D(a)  D(a)  D(a)
    model = load_model(find_model("tiny-mdm"), "cpu")
    session = BACKENDS["dualcache"].open(model, {"gen_length": 8, "block_length": 4, "tokens_per_step": 1})
    requests = [
        Request("a", prompt_ids=(5, 6, 7)),
        Request("b", prompt_ids=(8, 9), settings={"gen_length": 2}),
        Request("c", prompt_ids=(3,), settings={"gen_length": 3}),
    ]
    log = session.generate(requests, lambda result: None, 2)
    assert (log.batch_forwards, log.row_forwards, log.row_slots) == (9, 13, 14)


@dataclasses.dataclass(frozen=True)
class NeverSure:
    """A commit policy that chooses nothing."""

    confidences: tuple[str, ...] = ()

    def select(self, confidence, quota):
        return torch.zeros_like(confidence, dtype=torch.bool)


def test_a_commit_policy_that_chooses_nothing_is_told_so_and_not_that_the_model_is_broken():
    backend = BACKENDS["dualcache"]
    idle = dataclasses.replace(
        backend, make_recipe=lambda s, t: dataclasses.replace(backend.make_recipe(s, t), commit=NeverSure())
    )
    found: list = []
    session = idle.open(load_model(find_model("tiny-mdm"), "cpu"), {"gen_length": 8})
    session.generate([Request("a", prompt_ids=(5, 6)), Request("b", prompt_ids=(7,))], found.append, 2)
    assert [result.message for result in found] == [
        "The decoder's commit policy chose none of the positions that it was offered, and would go on for ever. Its select must "
        "choose one at least wherever the quota is 1 or more."
    ] * 2


@dataclasses.dataclass(frozen=True)
class Everything:
    """A commit policy that chooses every position, undecided or not."""

    confidences: tuple[str, ...] = ()

    def select(self, confidence, quota):
        return torch.ones_like(confidence, dtype=torch.bool)


def test_a_commit_policy_decides_nothing_that_was_decided_before():
    """With an uncached decoder of the original program, prompt and finished blocks are offered columns too."""
    backend, model = BACKENDS["uncached"], load_model(find_model("tiny-mdm"), "cpu")
    greedy = dataclasses.replace(
        backend,
        make_recipe=lambda s, t: dataclasses.replace(backend.make_recipe(s, t), commit=Everything(), left_open=True),
    )
    found: list = []
    session = greedy.open(model, {"gen_length": 8, "block_length": 4})
    requests = [Request("a", prompt_ids=(5, 6, 7, 8, 9), suffix_ids=(3,)), Request("b", prompt_ids=(7,))]
    session.generate(requests, found.append, 2, True)
    for result in found:
        assert (result.nfe, result.committed_tokens, result.residual_masks) == (2, 8, 0)
        assert len({commit.position for commit in result.trace.commits}) == len(result.trace.commits) == 8
