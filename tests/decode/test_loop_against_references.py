"""The loop gives the tokens of a plain reference: transformers' own `generate`, or a few lines that recompute everything."""

from __future__ import annotations

import pytest
import torch
from small_models import END, GRID, MASK, TINY_LLADA, VOCABULARY, folder_of, generate, model_of

from dllm_audit import Request

PROMPTS = [
    tuple(torch.randint(3, 90, (length,), generator=torch.Generator().manual_seed(length)).tolist())
    for length in (1, 2, 7, 8, 9, 16, 23, 40)
]
REQUESTS = [Request(str(n), prompt_ids=prompt) for n, prompt in enumerate(PROMPTS)]


# -- autoregressive --


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def autoregressive(request):
    """(our model, transformers' greedy answers for PROMPTS): one loaded by us, one by transformers, from one folder."""
    import transformers

    folder = folder_of(request.param)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=24,
            eos_token_id=None,
            pad_token_id=0,
        )
        answers.append(tuple(out[0, len(prompt) :].tolist()))
    return model_of(request.param), answers


def test_ar_alone_equals_greedy_decoding_of_transformers(autoregressive):
    model, answers = autoregressive
    results, _ = generate("ar", REQUESTS, {"gen_length": 24}, model=model)
    assert [results[r.id].output_ids for r in REQUESTS] == answers
    assert len({token for answer in answers for token in answer}) > 20, "the models say different things"


@pytest.mark.parametrize("concurrency", [3, 8])
def test_ar_in_a_batch_equals_greedy_decoding_of_transformers(autoregressive, concurrency):
    model, answers = autoregressive
    results, log = generate("ar", REQUESTS, {"gen_length": 24}, concurrency, model=model)
    assert [results[r.id].output_ids for r in REQUESTS] == answers
    if concurrency == 8:
        assert log.batch_forwards == 24  # all eight prompts in one prefill, then 23 tokens each


def test_ar_stops_where_transformers_stops(autoregressive):
    model, answers = autoregressive
    ends = [answer[9] for answer in answers]
    for request, answer, end in zip(REQUESTS, answers, ends, strict=True):
        results, _ = generate(
            "ar", [request], {"gen_length": 24, "stop_at_eos": True, "eos_token_id": end}, model=model
        )
        kept = answer[: answer.index(end) + 1]
        result = results[request.id]
        assert result.output_ids == kept
        assert result.answer_ids == kept[:-1]
        assert (result.stop, result.nfe, result.answered_tokens) == ("eos", len(kept), len(kept) - 1)


# -- block diffusion --


def block_causal_logits(model, ids: list[int]) -> torch.Tensor:
    """Logits of one forward over everything, no cache, with the block-causal mask written out."""
    block = torch.arange(len(ids)) // GRID
    mask = (block[:, None] >= block[None, :])[None, None]
    return model.module(torch.tensor([ids]), attention_mask=mask, use_cache=False, is_causal=False).logits[0]


def naive_block_diffusion(model, prompt, gen_length, tokens_per_step=1, threshold=None, block_length=GRID):
    """Recompute everything at each step; commit the most confident masks of the leftmost open block."""
    ids = [*prompt, *[MASK] * gen_length]
    for start in range(len(prompt) - len(prompt) % block_length, len(ids), block_length):
        inside = range(max(start, len(prompt)), min(start + block_length, len(ids)))
        while open_columns := [c for c in inside if ids[c] == MASK]:
            # What lies right of the block is invisible to it; cutting it off shows that.
            probabilities = block_causal_logits(model, ids[: inside[-1] + 1]).softmax(-1)
            probabilities[:, MASK] = 0
            sure = sorted(open_columns, key=lambda c: -probabilities[c].max().item())
            if threshold is None:
                chosen = sure[:tokens_per_step]
            else:
                chosen = [c for c in sure if probabilities[c].max().item() >= threshold] or sure[:1]
            for column in chosen:
                ids[column] = int(probabilities[column].argmax())
    return tuple(ids[len(prompt) :])


@pytest.mark.parametrize("settings", [{}, {"tokens_per_step": 3}, {"threshold": 0.25}, {"block_length": 4}])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_block_equals_recomputing_everything_with_a_block_causal_mask(settings, concurrency):
    """So its cache is exact: keys of finished blocks are those of the finished tokens."""
    model = model_of("llama-block")
    results, _ = generate("block", REQUESTS, {"gen_length": 19, **settings}, concurrency)
    naive = [naive_block_diffusion(model, prompt, 19, **settings) for prompt in PROMPTS]
    assert [results[r.id].output_ids for r in REQUESTS] == naive
    assert len({token for answer in naive for token in answer}) > 20


# -- masked diffusion --


def full_logits(model, ids: list[int]) -> torch.Tensor:
    return model.module(torch.tensor([ids]), use_cache=False, is_causal=False).logits[0]


def naive_masked_diffusion(model, prompt, gen_length, block_length, suffix=(), mask=126):
    """Uncached, one token per step: the most confident mask of the block becomes its argmax."""
    ids = [*prompt, *[mask] * gen_length, *suffix]
    for start in range(len(prompt), len(prompt) + gen_length, block_length):
        for _ in range(min(block_length, len(prompt) + gen_length - start)):
            probabilities = full_logits(model, ids).softmax(-1)
            probabilities[:, mask] = 0
            inside = range(start, min(start + block_length, len(prompt) + gen_length))
            column = max((c for c in inside if ids[c] == mask), key=lambda c: probabilities[c].max().item())
            ids[column] = int(probabilities[column].argmax())
    return tuple(ids[len(prompt) : len(prompt) + gen_length])


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("suffix", [(), (5, 17, 60)])
def test_uncached_equals_recomputing_the_whole_canvas(concurrency, suffix):
    requests = [Request(r.id, prompt_ids=r.prompt_ids, suffix_ids=suffix) for r in REQUESTS]
    results, _ = generate("uncached", requests, {"gen_length": 10, "block_length": 4}, concurrency)
    naive = [naive_masked_diffusion(model_of("llada"), prompt, 10, 4, suffix) for prompt in PROMPTS]
    assert [results[r.id].output_ids for r in requests] == naive


class Frozen:
    """LLaDA's network written out on the weights of the file, so that each layer's keys and values can be frozen."""

    def __init__(self) -> None:
        from safetensors.torch import load_file

        self.weights = load_file(TINY_LLADA / "model.safetensors")

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.weights[f"model.transformer.{name}.weight"]

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self[name]

    def rotate(self, x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """x: float [heads, W, 16]."""
        frequency = 500000.0 ** -(torch.arange(0, 16, 2).float() / 16)
        angle = torch.cat([columns[:, None] * frequency] * 2, dim=-1)
        turned = torch.cat([-x[..., 8:], x[..., :8]], dim=-1)
        return x * angle.cos() + turned * angle.sin()

    def forward(self, ids: list[int], columns: range, frozen: list | None = None):
        """(logits of `columns`, K and V per layer [heads, L, 16]). frozen: K and V of the other columns."""
        at = torch.tensor(list(columns))
        x = self["wte"][torch.tensor([ids[c] for c in columns])]
        kept = []
        for layer in range(3):
            name = f"blocks.{layer}"
            y = self.norm(x, f"{name}.attn_norm")
            q, k, v = ((y @ self[f"{name}.{part}_proj"].T).view(-1, 4, 16).transpose(0, 1) for part in "qkv")
            q, k = self.rotate(q, at), self.rotate(k, at)
            if frozen is not None:
                keys, values = frozen[layer][0].clone(), frozen[layer][1].clone()
                keys[:, at], values[:, at] = k, v
                k, v = keys, values
            kept.append((k, v))
            attention = (q @ k.transpose(1, 2) / 4.0).softmax(-1) @ v
            x = x + attention.transpose(0, 1).reshape(-1, 64) @ self[f"{name}.attn_out"].T
            y = self.norm(x, f"{name}.ff_norm")
            y = torch.nn.functional.silu(y @ self[f"{name}.ff_proj"].T) * (y @ self[f"{name}.up_proj"].T)
            x = x + y @ self[f"{name}.ff_out"].T
        return self.norm(x, "ln_f") @ self["ff_out"].T, kept


def naive_cached_diffusion(prompt, gen_length, block_length, dual: bool, suffix=()):
    """Fast-dLLM by hand: a full forward at each block's start commits one token and freezes the keys from before it."""
    network, mask = Frozen(), 126
    ids = [*prompt, *[mask] * gen_length, *suffix]
    window_end = len(prompt) + gen_length
    for start in range(len(prompt), window_end, block_length):
        end = min(start + block_length, window_end)
        frozen = None
        for _ in range(end - start):
            columns = range(len(ids)) if frozen is None else range(start, end if dual else len(ids))
            logits, kept = network.forward(ids, columns, frozen)
            frozen = kept if frozen is None else frozen
            probabilities = logits.softmax(-1)
            probabilities[:, mask] = 0
            offset = columns.start
            column = max(
                (c for c in range(start, end) if ids[c] == mask), key=lambda c: probabilities[c - offset].max().item()
            )
            ids[column] = int(probabilities[column - offset].argmax())
    return tuple(ids[len(prompt) : window_end])


@pytest.mark.parametrize("suffix", [(), (5, 17, 60)])
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("backend", ["prefixcache", "dualcache"])
def test_a_cached_decoder_equals_a_hand_written_network_with_frozen_keys(backend, concurrency, suffix):
    requests = [Request(r.id, prompt_ids=r.prompt_ids, suffix_ids=suffix) for r in REQUESTS]
    results, _ = generate(backend, requests, {"gen_length": 14, "block_length": 6}, concurrency)
    naive = [naive_cached_diffusion(prompt, 14, 6, backend == "dualcache", suffix) for prompt in PROMPTS]
    assert [results[r.id].output_ids for r in requests] == naive


def test_the_hand_written_network_is_the_loaded_one():
    ids = list(PROMPTS[-1])
    logits, _ = Frozen().forward(ids, range(len(ids)))
    assert (logits - full_logits(model_of("llada"), ids)).abs().max().item() < 1e-4


def test_the_frozen_keys_matter():
    """Otherwise the references above would prove nothing about the caches."""
    settings = {"gen_length": 14, "block_length": 6}
    answers = {name: generate(name, REQUESTS, settings)[0] for name in ("uncached", "prefixcache", "dualcache")}
    for one, other in (("uncached", "prefixcache"), ("prefixcache", "dualcache")):
        assert any(answers[one][r.id].output_ids != answers[other][r.id].output_ids for r in REQUESTS)


def test_every_token_is_of_the_vocabulary_and_none_is_the_mask():
    results, _ = generate("block", REQUESTS, {"gen_length": 19})
    tokens = {token for result in results.values() for token in result.output_ids}
    assert MASK not in tokens
    assert max(tokens) < VOCABULARY
    assert END < VOCABULARY
