"""Measurements: how close forwards come to what the device allows, batches, the baseline, memory, energy."""

from __future__ import annotations

import statistics

from dllm_audit.analysis.baseline import speed_over
from dllm_audit.analysis.bounds import shares_of_bound
from dllm_audit.measure.energy import LEAST_SECONDS, find_energy_source, with_idle_power
from dllm_audit.measure.library import compare_with_library
from dllm_audit.measure.roofline_device import measure_device
from dllm_audit.measure.usage import UsageMeter
from dllm_audit.plugins import load_plugins
from dllm_audit.records import Request
from tests.benchmarks.batching import measure_gain
from tests.benchmarks.models import random_prompts
from tests.gpu.checks import decode
from tests.gpu.models import Context, with_engine
from tests.gpu.steps import Found

#: Of the bound, what a step of a strong engine should reach with one request in flight.
GOAL = 0.70

#: What is decoded with one request in flight: backend, model and settings.
ALONE = {
    "ar": ("ar", {}),
    "dualcache": ("diffusion", {"block_length": 32, "tokens_per_step": 2}),
    "prefixcache": ("diffusion", {"block_length": 32, "tokens_per_step": 2}),
    "uncached": ("diffusion", {"block_length": 32, "tokens_per_step": 4}),
}


def bound(context: Context) -> Found:
    """Share of the measured bound of every kind of forward, one request in flight, under every engine."""
    import torch

    prompt, gen = (16, 8) if context.dry else (256, 128)
    speed = measure_device(context.on, getattr(torch, context.half), str(context.on))
    facts: dict = {"device": speed.as_dict(), "shares": {}}
    steps: dict[str, float] = {}
    for backend, (kind, settings) in ALONE.items():
        model = context.large(kind)
        dimensions = model.dimensions
        assert dimensions is not None
        roofline = {
            "dimensions": dimensions.as_dict(),
            "bytes_per_weight": model.dtype.itemsize,
            "device": speed.as_dict(),
        }
        run = {"settings": settings, "manifest": {"roofline": roofline, "model": {"attention": model.traits.attention}}}
        requests = [
            Request(str(n), prompt_ids=ids) for n, ids in enumerate(random_prompts(2, prompt, model.traits.vocab_size))
        ]
        engines = ["eager"]
        if backend in ("ar", "dualcache"):
            engines.append("fixed" if context.dry else "cudagraph")
        for engine in engines:
            chosen = with_engine(model, engine)
            given = {"gen_length": gen, **settings}
            load_plugins().backends[backend].open(chosen, given).warm_up(requests[:1], 1)
            _, log, _ = decode(chosen, backend, given, requests, 1)
            found = shares_of_bound(run, log.shapes)
            host = sum(log.seconds.get(item, 0.0) for item in ("host", "sampling"))
            facts["shares"][f"{backend}, {engine}"] = {
                "kinds": [
                    {
                        "kind": each.kind,
                        "count": each.count,
                        "bound_ms": each.bound_seconds / each.count * 1e3,
                        "measured_ms": each.measured_seconds / each.count * 1e3,
                        "share": each.share,
                        "limited_by": each.limited_by,
                    }
                    for each in found.kinds
                ],
                "total": found.total.value,
                "reason": found.total.reason,
                "host_and_sampling_over_forwards": host / sum(shape.seconds for shape in log.shapes),
            }
            steps |= {
                f"{backend} {each.kind}, {engine}": each.share or 0.0 for each in found.kinds if each.kind == "denoise"
            }
    best = {b: max(share for name, share in steps.items() if name.startswith(b + " ")) for b in ALONE}
    said = ", ".join(f"{backend} {share:.0%}" for backend, share in best.items())
    passed = None if context.dry else best["ar"] >= GOAL
    return Found(passed, f"steps reach of the bound, under the best engine: {said} (goal for ar: {GOAL:.0%})", facts)


def batching(context: Context) -> Found:
    """What eight requests in flight gain over one after the other, beside what their bare forwards allow."""
    prompt, gen, number, turns = (16, 8, 3, 1) if context.dry else (256, 64, 8, 2)
    facts = {}
    for backend, (kind, settings) in ALONE.items():
        model = context.large(kind)
        prompts = random_prompts(number, prompt, model.traits.vocab_size)
        gain = measure_gain(model, backend, {"gen_length": gen, **settings}, prompts, turns)
        facts[backend] = {**vars(gain), "gain": gain.gain}
    said = ", ".join(f"{backend} {each['gain']:.1f}x of {each['allowed']:.1f}x" for backend, each in facts.items())
    return Found(None, f"{number} in flight gain: {said}", facts)


def baseline(context: Context) -> Found:
    """`ar` beside transformers' `generate` on the same weights, in turns, one and eight requests in flight."""
    prompt, gen, rounds = (16, 8, 2) if context.dry else (256, 64, 5)
    facts = {}
    for engine in ("eager", "fixed" if context.dry else "cudagraph"):
        model = with_engine(context.large("ar"), engine)
        session = load_plugins().backends["ar"].open(model, {"gen_length": gen})
        for batch in (1, 2 if context.dry else 8):
            found = compare_with_library(
                session,
                model,
                random_prompts(batch, prompt, model.traits.vocab_size),
                batch=batch,
                gen_length=gen,
                rounds=rounds,
                most_seconds=3600,
            )
            for side in found.sides[1:]:
                ratio = speed_over(found, side.name)
                facts[f"{engine}, batch {batch}, over {side.name}"] = {
                    "ratio": ratio.value,
                    "low": ratio.low,
                    "high": ratio.high,
                    "prompts_with_equal_tokens": side.equal,
                    "prompts": found.prompts,
                    "seconds": {each.name: statistics.median(each.seconds) for each in found.sides},
                }
    over = {name: each["ratio"] or 0.0 for name, each in facts.items() if name.endswith("generate")}
    said = ", ".join(f"{ratio:.2f}x ({name.removesuffix(', over generate')})" for name, ratio in over.items())
    best = {batch: max(ratio for name, ratio in over.items() if f"batch {batch}," in name) for batch in _batches(over)}
    passed = None if context.dry else all(ratio >= 1 for ratio in best.values())
    return Found(passed, f"speed of ar over generate: {said}", facts)


def _batches(names: dict[str, float]) -> set[str]:
    return {name.split("batch ")[1].split(",")[0] for name in names}


def memory(context: Context) -> Found:
    """Peak memory of decoding beside what weights, keys and values take."""
    prompt, gen, number = (16, 8, 3) if context.dry else (512, 64, 8)
    facts, wrong = {}, []
    for backend, (kind, settings) in ALONE.items():
        model = context.large(kind)
        dimensions = model.dimensions
        assert dimensions is not None
        requests = [
            Request(str(n), prompt_ids=ids)
            for n, ids in enumerate(random_prompts(number, prompt, model.traits.vocab_size))
        ]
        meter = UsageMeter(context.on, find_energy_source(context.on))
        with meter.window():
            decode(model, backend, {"gen_length": gen, **settings}, requests, number)
        used = meter.as_dict()
        peak = used.get("peak_device_memory_bytes") or used["peak_process_memory_bytes"]
        kept = number * (prompt + gen) * dimensions.kv_elements * model.dtype.itemsize if backend != "uncached" else 0
        facts[backend] = {
            "peak_bytes": peak,
            "peak_memory_of": used["peak_memory_of"],
            "weight_bytes": model.weight_bytes,
            "kv_bytes": kept,
            "beyond_weights_and_kv_bytes": peak - model.weight_bytes - kept,
        }
        if peak < model.weight_bytes + kept:
            wrong.append(f"{backend}: the peak is less than weights, keys and values")
    said = ", ".join(f"{backend} {each['peak_bytes'] / 1e9:.2f} GB" for backend, each in facts.items())
    return Found(not wrong, f"peak: {said}" + (f"; {'; '.join(wrong)}" if wrong else ""), facts)


def energy(context: Context) -> Found:
    """Joules per token of one request after the other, by the device's counter, with its idle power."""
    source = find_energy_source(context.on)
    if source.counter is None:
        return Found(None, f"no energy: {source.reason}", {"reason": source.reason})
    source = with_idle_power(source)
    facts: dict = {"counter": source.counter.name if source.counter else "", "idle_watts": source.idle_watts}
    for backend, (kind, settings) in ALONE.items():
        model = context.large(kind)
        requests = [
            Request(str(n), prompt_ids=ids) for n, ids in enumerate(random_prompts(4, 64, model.traits.vocab_size))
        ]
        meter = UsageMeter(context.on, source)
        tokens, seconds = 0, 0.0
        with meter.window():
            while seconds < LEAST_SECONDS + 1:
                results, _, took = decode(model, backend, {"gen_length": 64, **settings}, requests, len(requests))
                tokens += sum(result.committed_tokens for result in results.values())
                seconds += took
        used = meter.as_dict()["energy"]
        joules = used["joules"]
        facts[backend] = {**used, "tokens": tokens, "joules_per_token": None if joules is None else joules / tokens}
    told = {b: each["joules_per_token"] for b in ALONE if (each := facts[b])["joules_per_token"] is not None}
    said = ", ".join(f"{backend} {value:.3f}" for backend, value in told.items()) or "unknown"
    idle = "unknown" if source.idle_watts is None else f"{source.idle_watts:.0f} W"
    return Found(len(told) == len(ALONE), f"joules per token: {said}; idle power {idle}", facts)
