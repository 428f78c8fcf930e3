"""What a decoder must prove before it is timed: every built-in backend, with every kind of commit rule it knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from dllm_audit import Failure, Request
from dllm_audit.errors import SettingError
from dllm_audit.models.loading import LoadedModel, find_model, load_model
from dllm_audit.plugins import load_plugins

TINY_LLADA = Path(__file__).parents[1] / "golden" / "tiny-llada"
BACKENDS = load_plugins().backends
MASK = {"llada": 126, "llama-block": 96, "llama": None}


def random_llama(folder: Path, **extra) -> Path:
    """A random model on Llama's network, written as a person would give it."""
    fields = {
        "vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "eos_token_id": 2, "tie_word_embeddings": False,
    }  # fmt: skip
    torch.manual_seed(5)
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    for name, weight in module.named_parameters():
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.35)
    folder.mkdir()
    save_file({name: w.detach().clone() for name, w in module.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields | extra))
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, LoadedModel]:
    root = tmp_path_factory.mktemp("models")
    folders = {
        "bidirectional": TINY_LLADA,
        "causal": random_llama(root / "causal", architectures=["LlamaForCausalLM"]),
        "block": random_llama(
            root / "block", architectures=["LlamaForBlockDiffusion"], mask_token_id=96, block_length=8
        ),
    }
    return {attention: load_model(find_model(str(folder)), "cpu", "float32") for attention, folder in folders.items()}


RULES = [
    {},
    {"tokens_per_step": 3},
    {"steps_per_block": 1},
    {"steps_per_block": 50},
    {"threshold": 0.5},
    {"threshold": 0.0},
    {"threshold": 1.0},
    {"factor": 2.0},
    {"entropy_bound": 0.0},
    {"entropy_bound": 3.0},
    {"confidence": "margin"},
    {"confidence": "entropy"},
    {"confidence": "random"},
    {"temperature": 1.5},
    {"eos": "suppress_logits"},
    {"eos": "suppress_confidence"},
    {"confidence_dtype": "float64"},
    {"confidence_dtype": "model"},
]
CELLS = [
    pytest.param(name, rule, id=f"{name}-{rule}")
    for name, backend in sorted(BACKENDS.items())
    for rule in RULES
    if set(rule) <= set(backend.settings)
]
REQUESTS = [
    Request(str(n), prompt_ids=tuple(3 + (5 * i + n) % 90 for i in range(length)), settings={"gen_length": window})
    for n, (length, window) in enumerate([(1, 1), (7, 13), (8, 8), (9, 16), (33, 5)])
]


def decode(backend, model, requests, settings, concurrency=1):
    results = {}
    session = backend.open(model, settings)
    log = session.generate(requests, lambda r: results.__setitem__(r.id, r), concurrency, traced=True)
    return results, log


@pytest.mark.parametrize(("name", "rule"), CELLS)
def test_a_decoder_fills_its_window_exactly_and_accounts_for_what_it_did(name, rule, models):
    backend = BACKENDS[name]
    model = models[backend.attention]
    results, log = decode(backend, model, REQUESTS, rule, concurrency=3)
    mask = MASK[model.traits.family]
    for request in REQUESTS:
        result = results[request.id]
        assert not isinstance(result, Failure), result
        window = request.settings["gen_length"]
        # only ids after the prompt, all of them decided, none of them the mask
        assert len(result.output_ids) == window == result.committed_tokens
        assert result.residual_masks == 0
        assert mask not in result.output_ids
        assert all(0 <= token < model.traits.vocab_size for token in result.output_ids)
        # every position was committed exactly once, and the prompt never
        positions = sorted(commit.position for commit in result.trace.commits)
        assert positions == list(range(len(request.prompt_ids), len(request.prompt_ids) + window))
        # no forward without a reason: each may commit, or prepares the ones that do
        committing = {commit.step for commit in result.trace.commits}
        idle = [f.kind for step, f in enumerate(result.trace.forwards) if step not in committing]
        assert set(idle) <= ({"prefill", "commit"} if name == "block" else set())
        assert result.committing_forwards == len(committing)
        assert result.nfe == len(result.trace.forwards)
        # the answer is a beginning of the window
        assert result.answer_ids == result.output_ids[: result.answered_tokens]
        assert 0 <= result.guaranteed_commits <= result.committed_tokens
    assert log.row_forwards == sum(result.nfe for result in results.values())


@pytest.mark.parametrize(("name", "rule"), CELLS)
def test_a_decoder_gives_the_same_tokens_alone_and_in_a_batch_and_when_it_is_asked_again(name, rule, models):
    backend = BACKENDS[name]
    model = models[backend.attention]
    alone, _ = decode(backend, model, REQUESTS, rule)
    together, _ = decode(backend, model, REQUESTS, rule, concurrency=4)
    backwards, _ = decode(backend, model, REQUESTS[::-1], rule, concurrency=2)
    tokens = {id: result.output_ids for id, result in alone.items()}
    assert {id: result.output_ids for id, result in together.items()} == tokens
    assert {id: result.output_ids for id, result in backwards.items()} == tokens


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_an_option_that_nothing_consumes_is_an_error(name):
    from dllm_audit.settings import CORE_SETTINGS

    foreign = set(CORE_SETTINGS) - set(BACKENDS[name].settings)
    for setting in foreign:
        with pytest.raises(SettingError, match=f"^Backend {name!r} has no setting {setting!r}"):
            BACKENDS[name].resolve({setting: 1})


@pytest.mark.parametrize(("name", "rule"), CELLS)
def test_an_option_that_is_declared_is_consumed(name, rule, models):
    """Each rule changes the commits of at least one request, except those that only name what is there already."""
    same = (
        {},
        {"confidence_dtype": "float64"},
        {"confidence_dtype": "model"},
        {"steps_per_block": 50},
        {"threshold": 1.0},
    )
    if rule in same or "eos" in rule:
        return
    backend = BACKENDS[name]
    model = models[backend.attention]
    plain, _ = decode(backend, model, REQUESTS, {})
    changed, _ = decode(backend, model, REQUESTS, rule)
    assert [plain[r.id].trace for r in REQUESTS] != [changed[r.id].trace for r in REQUESTS]


@pytest.mark.parametrize("name", sorted(name for name, backend in BACKENDS.items() if "eos" in backend.settings))
def test_suppressed_end_of_text_does_not_appear_or_comes_last(name, models):
    backend = BACKENDS[name]
    model = models[backend.attention]
    blocks = {"block_length": 8} if "block_length" in backend.settings else {}
    free, _ = decode(backend, model, REQUESTS, blocks)
    end = free["1"].output_ids[0]
    none, _ = decode(backend, model, REQUESTS, {**blocks, "eos": "suppress_logits", "eos_token_id": end})
    assert all(end not in result.output_ids for result in none.values())
    last, _ = decode(backend, model, REQUESTS, {**blocks, "eos": "suppress_confidence", "eos_token_id": end})
    for result in last.values():
        by_block: dict[int, list[bool]] = {}
        for commit in result.trace.commits:
            by_block.setdefault(result.trace.forwards[commit.step].block, []).append(commit.token == end)
        # within a block, what ends the text is committed only when nothing else is proposed
        assert all(not ends[0] or all(ends) for ends in by_block.values())
