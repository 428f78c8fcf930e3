"""Runs the published decoders in their own environment: one JSON object a line in, one out.

Started by tests/benchmarks/originals.py with the Python of that environment; it imports nothing of ours.
Arguments: the folder of a checkpoint in LLaDA's names, the folder v1/llada of Fast-dLLM, the folder of LLaDA's generate.py.
"""

import importlib.util
import json
import sys
import time

import torch


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    checkpoint, fast_dllm, llada = sys.argv[1:4]
    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(1)
    sys.path.insert(0, fast_dllm)
    functions = {
        "fast-dllm": load("fast_dllm_generate", f"{fast_dllm}/generate.py"),
        "llada": load("llada_generate", f"{llada}/generate.py"),
    }
    from model.modeling_llada import LLaDAModelLM

    model = LLaDAModelLM.from_pretrained(checkpoint, torch_dtype=torch.float32).eval()
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1

    model.register_forward_pre_hook(count)
    for line in sys.stdin:
        job = json.loads(line)
        calls = 0
        prompt = torch.tensor(job["prompts"])
        generate = getattr(functions[job["program"]], job["function"])
        began = time.perf_counter()
        result = generate(model, prompt, mask_id=job["mask_id"], **job["settings"])
        seconds = time.perf_counter() - began
        ids = result[0] if isinstance(result, tuple) else result
        answer = {"seconds": seconds, "ids": ids[:, prompt.shape[1] :].tolist(), "calls": calls}
        print(json.dumps(answer), file=answers, flush=True)


main()
