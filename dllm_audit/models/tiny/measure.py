"""Small samplers that measure the twins while they train: greedy, uncached, batched over prompts of equal
length.

They serve training only. The product's decoders, which are checked against published implementations, measure
the rest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from itertools import islice

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dllm_audit.models.tiny import network, problems
from dllm_audit.models.tiny.tokenizer import EOS_ID, MASK_ID

Decoder = Callable[[network.Twin, Tensor], Tensor]
"""Takes prompts [B, P], returns the tokens after them [B, gen_length]."""


def decode_causal(twin: network.Twin, prompts: Tensor, gen_length: int) -> Tensor:
    """Return greedy continuations [B, gen_length]; a row is filled with EOS once it has produced one."""
    canvas = prompts
    done = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(gen_length):
        L = canvas.shape[1]
        logits = twin(canvas, torch.arange(L), network.causal_bias(L), slice(L - 1, L))[:, 0]
        token = torch.where(done, EOS_ID, logits.argmax(-1))
        done |= token == EOS_ID
        canvas = torch.cat([canvas, token[:, None]], 1)
        if done.all():
            break
    out = torch.full((len(prompts), gen_length), EOS_ID)
    out[:, : canvas.shape[1] - prompts.shape[1]] = canvas[:, prompts.shape[1] :]
    return out


def decode_masked(twin: network.Twin, prompts: Tensor, gen_length: int, tokens_per_step: int) -> Tensor:
    """Return [B, gen_length] decoded as one block, `tokens_per_step` of highest probability at a time."""
    B, P = prompts.shape
    canvas = torch.cat([prompts, torch.full((B, gen_length), MASK_ID)], 1)
    positions = torch.arange(P + gen_length)
    while (canvas == MASK_ID).any():
        logits = twin(canvas, positions, None, slice(P, None))
        commit(canvas[:, P:], logits, tokens_per_step)
    return canvas[:, P:]


def decode_blocks(
    twin: network.Twin,
    prompts: Tensor,
    gen_length: int,
    tokens_per_step: int,
    block_length: int,
) -> Tensor:
    """Return [B, gen_length] decoded in blocks that start at multiples of `block_length` from position 0."""
    B, P = prompts.shape
    canvas = torch.cat([prompts, torch.full((B, gen_length), MASK_ID)], 1)
    for start in range(P // block_length * block_length, P + gen_length, block_length):
        end = min(start + block_length, P + gen_length)
        bias = network.block_causal_bias(end, block_length)
        while (canvas[:, start:end] == MASK_ID).any():
            logits = twin(canvas[:, :end], torch.arange(end), bias, slice(start, end))
            commit(canvas[:, start:end], logits, tokens_per_step)
        if (canvas[:, P:end] == EOS_ID).any(1).all():
            canvas[:, end:] = EOS_ID
            break
    return canvas[:, P:]


def commit(window: Tensor, logits: Tensor, count: int) -> None:
    """Write the `count` most probable predictions at masked places of `window` [B, W]; logits [B, W, V]."""
    logits = logits.float()
    logits[..., MASK_ID] = -torch.inf
    confidence, token = logits.softmax(-1).max(-1)
    confidence = confidence.masked_fill(window != MASK_ID, -1.0)
    best = confidence.topk(min(count, window.shape[1]), dim=1).indices
    chosen = torch.zeros_like(window, dtype=torch.bool).scatter_(1, best, True) & (window == MASK_ID)
    window[chosen] = token[chosen]


def answers(twin: network.Twin, tokenizer: Tokenizer, prompts: list[str], decode: Decoder) -> list[str]:
    """Return the decoded text of each prompt, cut before the first EOS."""
    groups: dict[int, list[int]] = defaultdict(list)
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    for i, ids in enumerate(encoded):
        groups[len(ids)].append(i)
    found = [""] * len(prompts)
    with torch.inference_mode():
        for members in groups.values():
            for tokens, i in zip(decode(twin, torch.tensor([encoded[i] for i in members])), members, strict=True):
                ids = tokens.tolist()
                ids = ids[: ids.index(EOS_ID)] if EOS_ID in ids else ids
                found[i] = tokenizer.decode(ids, skip_special_tokens=False)
    return found


def decoder(model: str, tokenizer: Tokenizer, gen_length: int, tokens_per_step: int, block_length: int) -> Decoder:
    """Return the decoder of a twin ("tiny-ar", "tiny-mdm" or "tiny-block")."""
    if model == "tiny-ar":
        return lambda twin, prompts: decode_causal(twin, prompts, gen_length)
    if model == "tiny-mdm":
        return lambda twin, prompts: decode_masked(twin, prompts, gen_length, tokens_per_step)
    return lambda twin, prompts: decode_blocks(twin, prompts, gen_length, tokens_per_step, block_length)


def problem_accuracy(
    twin: network.Twin,
    tokenizer: Tokenizer,
    model: str,
    tokens_per_step: int,
    count: int,
    block_length: int = 8,
) -> float:
    """Return the share of `count` held-out word problems whose `#### ` number is right, in a window of 64."""
    tests = list(islice(problems.word_problems(problems.TEST_SEED, "test"), count))
    decode = decoder(model, tokenizer, 64, tokens_per_step, block_length)
    texts = answers(twin, tokenizer, [test.prompt for test in tests], decode)
    right = 0
    for text, test in zip(texts, tests, strict=True):
        match = re.search(r"#### (\d+)", text)
        right += match is not None and int(match[1]) == test.results[-1]
    return right / count


def list_validity(
    twin: network.Twin,
    tokenizer: Tokenizer,
    model: str,
    kind: str,
    tokens_per_step: int,
    count: int,
    gen_length: int = 16,
    block_length: int = 8,
) -> float:
    """Return the share of `count` held-out list exercises of a kind that are answered validly."""
    tests = list(islice(problems.list_exercises(problems.TEST_SEED, "test", kind), count))
    decode = decoder(model, tokenizer, gen_length, tokens_per_step, block_length)
    texts = answers(twin, tokenizer, [test.prompt for test in tests], decode)
    valid = [
        problems.is_valid_list(kind, test.items, test.new_item, text) for text, test in zip(texts, tests, strict=True)
    ]
    return sum(valid) / count
