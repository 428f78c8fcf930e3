"""How much memory loading a checkpoint takes at its peak, beyond the process with everything imported."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import save_file

from tests.benchmarks.models import LLAMA_60M, random_model

#: Prints the peak before and after; what is mapped from the file counts as memory too.
_CHILD = """
import sys
import torch, transformers
from transformers import LlamaForCausalLM
from dllm_audit.models.loading import find_model, load_model
def peak():
    # The kernel's high-water mark of this process alone; getrusage's would begin with that of the parent.
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
source = find_model(sys.argv[1])
before = peak()
model = load_model(source, "cpu", sys.argv[2])
# What is mapped counts once it was read: read all of it.
for weight in model.module.parameters():
    weight.sum().item()
print(peak() - before)
"""


def main() -> None:
    """60 M parameters in float32 and bfloat16 files, loaded in either format; ratio = peak beyond the process / bytes of the larger of file and model"""
    print(f"{'file':<10} {'loaded as':<10} {'file MB':>8} {'peak MB':>8} {'ratio':>6}")
    for stored in ("float32", "bfloat16"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            size = publish(folder, stored)
            for wanted in ("float32", "bfloat16"):
                answer = subprocess.run(
                    [sys.executable, "-c", _CHILD, str(folder), wanted], capture_output=True, text=True, check=True
                )
                peak = int(answer.stdout)
                larger = size * (2 if (stored, wanted) == ("bfloat16", "float32") else 1)
                print(f"{stored:<10} {wanted:<10} {size / 1e6:>8.0f} {peak / 1e6:>8.0f} {peak / larger:>6.2f}")


def publish(folder: Path, stored: str) -> int:
    """Write the benchmark model as two shards of one checkpoint; returns their bytes."""
    import torch

    weights = random_model("bench-llama-60m", LLAMA_60M).module.state_dict()
    names = sorted(weights)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, keys in shards.items():
        save_file({key: weights[key].to(getattr(torch, stored)).contiguous() for key in keys}, folder / file)
    index = {"weight_map": {key: file for file, keys in shards.items() for key in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({**LLAMA_60M, "model_type": "llama"}))
    return sum((folder / file).stat().st_size for file in shards)
