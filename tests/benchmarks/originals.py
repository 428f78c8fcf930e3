"""The published decoders beside ours, taking turns in one run: same weights, same tokens, same forwards.

The originals are not part of this repository. With an environment of their own (torch, transformers 4.49) and a checkout of
NVlabs/Fast-dLLM at a9b81e4 and of ML-GSAI/LLaDA at b7e6c35:

    python -m tests.benchmarks.originals ORIGINAL_PYTHON FAST_DLLM/v1/llada LLADA [REPEATS]

Ratios are seconds of the original / seconds of ours: above 1, ours is faster. Measured on 2026-11-30 on two shared x86-64 cores,
one thread, torch 2.13.0 on both sides, two turns; tokens and forwards equal in every line:

    LLaDA generate, 4 tokens per step                    1.66
    Fast-dLLM generate, 4 per step / threshold           2.20 / 2.18
    Fast-dLLM prefix cache, 4 per step / threshold       1.88 / 1.63
    Fast-dLLM dual cache, 8 / 4 per step / threshold     1.72 / 1.53 / 1.29

The gain is the vocabulary head, which runs on the masks of the block alone, and the confidence, which needs no float64 softmax.
At one token per step DualCache's forwards are 32 wide, so that there is little of either to save.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from dllm_audit.models.loading import LoadedModel
from dllm_audit.models.tiny.network import key_names
from dllm_audit.plugins import load_plugins
from dllm_audit.records import Failure, Generation, Request
from tests.benchmarks.models import LLADA_60M, random_model, random_prompts

PROMPT, GEN, BLOCK = 256, 128, 32


class Case(NamedTuple):
    """One published function, and ours: backend and settings that give its tokens."""

    program: str
    function: str
    backend: str
    schedule: dict[str, Any]


#: No probability of a random model reaches .9, so the threshold commits one token per step, as 128 steps do.
CASES = [
    Case("llada", "generate", "uncached", {"steps": 32}),
    Case("fast-dllm", "generate", "uncached", {"steps": 32}),
    Case("fast-dllm", "generate", "uncached", {"steps": 128, "threshold": 0.9}),
    Case("fast-dllm", "generate_with_prefix_cache", "prefixcache", {"steps": 32}),
    Case("fast-dllm", "generate_with_prefix_cache", "prefixcache", {"steps": 128, "threshold": 0.9}),
    Case("fast-dllm", "generate_with_dual_cache", "dualcache", {"steps": 16}),
    Case("fast-dllm", "generate_with_dual_cache", "dualcache", {"steps": 32}),
    Case("fast-dllm", "generate_with_dual_cache", "dualcache", {"steps": 128, "threshold": 0.9}),
]


class Result(NamedTuple):
    """ids: of each row's window; calls: forward passes; seconds: of the whole function."""

    seconds: float
    ids: list[list[int]]
    calls: int


class Originals:
    """The published functions, at work in a process of their own."""

    def __init__(self, python: str, checkpoint: Path, fast_dllm: str, llada: str) -> None:
        worker = Path(__file__).with_name("originals_worker.py")
        self.process = subprocess.Popen(
            [python, str(worker), str(checkpoint), fast_dllm, llada],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"},
        )

    def run(self, case: Case, prompts: list[tuple[int, ...]]) -> Result:
        settings = {"steps": GEN, "gen_length": GEN, "block_length": BLOCK, **case.schedule}
        job = {"program": case.program, "function": case.function, "prompts": prompts, "settings": settings}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({**job, "mask_id": LLADA_60M["mask_token_id"]}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("The originals' process ended. What it said stands above.")
        return Result(**json.loads(line))

    def close(self) -> None:
        self.process.communicate()


def ours(model: LoadedModel, case: Case, prompts: list[tuple[int, ...]]) -> Result:
    """Our backend on the same prompts, its tokens and forwards those of the program."""
    settings = {
        "gen_length": GEN,
        "block_length": BLOCK,
        **case.schedule,
        "compat": case.program,
        # The program's own: LLaDA takes the logits' format, Fast-dLLM float64.
        "confidence_dtype": "model" if case.program == "llada" else "float64",
    }
    return decode(model, case.backend, settings, prompts)


def decode(model: LoadedModel, backend: str, settings: dict[str, Any], prompts: list[tuple[int, ...]]) -> Result:
    """One timed decode of `prompts` together."""
    session = load_plugins().backends[backend].open(model, settings)
    results: dict[str, Generation] = {}

    def keep(result: Generation | Failure) -> None:
        assert isinstance(result, Generation), result
        results[result.id] = result

    requests = [Request(str(n), prompt_ids=prompt) for n, prompt in enumerate(prompts)]
    began = time.perf_counter()
    log = session.generate(requests, keep, len(prompts))
    seconds = time.perf_counter() - began
    return Result(seconds, [list(results[r.id].output_ids) for r in requests], log.batch_forwards)


def publish(model: LoadedModel, folder: Path) -> None:
    """Write the model as a checkpoint in LLaDA's own names."""
    layers = LLADA_60M["n_layers"]
    ours, theirs = key_names("llama", layers), key_names("llada", layers)
    weights = model.module.state_dict()
    save_file(
        {theirs[key]: weights[ours[key]].contiguous() for key in ours}, folder / "model.safetensors", {"format": "pt"}
    )
    fields = {
        **LLADA_60M,
        "model_type": "llada",
        "block_type": "llama",
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "rope": True,
        "rope_full_precision": True,
        "include_bias": False,
        "include_qkv_bias": False,
        "use_cache": False,
        "flash_attention": False,
        "alibi": False,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
        "residual_dropout": 0.0,
        "attention_layer_norm": False,
        "bias_for_layer_norm": False,
        "layer_norm_with_affine": True,
        "rms_norm_eps": 1e-5,
        "scale_logits": False,
        "input_emb_norm": False,
        "block_group_size": 1,
        "init_device": "cpu",
    }
    (folder / "config.json").write_text(json.dumps(fields))


def main() -> None:
    python, fast_dllm, llada = sys.argv[1:4]
    repeats = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    torch.set_num_threads(1)
    model = random_model("bench-llada-60m", LLADA_60M)
    prompts = random_prompts(1, PROMPT, LLADA_60M["vocab_size"])
    with tempfile.TemporaryDirectory() as folder:
        publish(model, Path(folder))
        originals = Originals(python, Path(folder), fast_dllm, llada)
        print(
            f"bench-llada-60m, prompt {PROMPT}, gen {GEN}, block {BLOCK}, float32, batch 1, one thread, {repeats} turns"
        )
        print("ours, default: the same backend by the paper's rules with confidence in float32")
        print(
            f"{'original':<38} {'schedule':<32} {'original s':>10} {'ours s':>8} {'ratio':>6} {'default s':>10} {'ratio':>6}"
            "  tokens  forwards"
        )
        for case in CASES:
            line(model, originals, case, prompts, repeats)
        originals.close()


def line(model: LoadedModel, originals: Originals, case: Case, prompts: list[tuple[int, ...]], repeats: int) -> None:
    """Measure one case in turns and print it."""
    settings = {"gen_length": GEN, "block_length": BLOCK, **case.schedule}
    seconds: tuple[list[float], list[float], list[float]] = ([], [], [])
    for turn in range(repeats):
        runs = [
            lambda: originals.run(case, prompts),
            lambda: ours(model, case, prompts),
            lambda: decode(model, case.backend, settings, prompts),
        ]
        order = range(3) if turn % 2 == 0 else reversed(range(3))
        found = {n: runs[n]() for n in order}
        theirs, same, default = found[0], found[1], found[2]
        for times, result in zip(seconds, (theirs, same, default), strict=True):
            times.append(result.seconds)
    tokens = "equal" if theirs.ids == same.ids else "DIFFER"
    forwards = f"{theirs.calls}" if theirs.calls == same.calls else f"{theirs.calls} and {same.calls}"
    medians = [statistics.median(times) for times in seconds]
    schedule = ", ".join(f"{name} {value}" for name, value in case.schedule.items())
    print(
        f"{case.program + ' ' + case.function:<38} {schedule:<32} {medians[0]:>10.2f} {medians[1]:>8.2f} "
        f"{medians[0] / medians[1]:>6.2f} {medians[2]:>10.2f} {medians[0] / medians[2]:>6.2f}  {tokens:<6}  {forwards}",
        flush=True,
    )


if __name__ == "__main__":
    main()
