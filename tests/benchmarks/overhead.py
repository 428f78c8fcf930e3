"""What the decode loop costs over its bare forwards: everything of a run that is no forward pass."""

from __future__ import annotations

from dllm_audit.plugins import load_plugins
from dllm_audit.records import Request
from tests.benchmarks.models import LLADA_60M, LLAMA_60M, embedded, random_model, random_prompts

PROMPT, GEN = 256, 64


def main() -> None:
    """prompt 256, 64 new tokens, one token per step, float32, one request; overhead = (wall - forwards) / forwards"""
    backends = load_plugins().backends
    models = {
        ("uncached", "prefixcache", "dualcache"): (embedded("tiny-mdm"), random_model("bench-llada-60m", LLADA_60M)),
        ("ar",): (embedded("tiny-ar"), random_model("bench-llama-60m", LLAMA_60M)),
        ("block",): (embedded("tiny-block"),),
    }
    print(f"{'backend':<12} {'model':<16} {'forwards s':>11} {'sampling s':>11} {'host s':>8} {'overhead':>9}")
    for names, sizes in models.items():
        for model in sizes:
            for name in names:
                tokens = 4 if name == "uncached" else 1
                settings = {"gen_length": GEN} if name == "ar" else {"gen_length": GEN, "tokens_per_step": tokens}
                session = backends[name].open(model, settings)
                request = Request("0", prompt_ids=random_prompts(1, PROMPT, model.traits.vocab_size)[0])
                session.warm_up([request], 1)
                log = session.generate([request], lambda result: None)
                forwards = sum(shape.seconds for shape in log.shapes)
                print(
                    f"{name:<12} {model.source.ref:<16} {forwards:>11.3f} {log.seconds.get('sampling', 0):>11.4f} "
                    f"{log.seconds.get('host', 0):>8.4f} {log.makespan_seconds / forwards - 1:>9.1%}"
                )
