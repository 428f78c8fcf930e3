"""Runs steps one after the other, each in a process of its own with a limit on its time, and keeps what they found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu import checks, product, speed
from tests.gpu.models import Context
from tests.gpu.steps import Found, Step

#: The most telling first: what is left of the time goes to the others.
STEPS = (
    Step("environment", "the machine, and what spoils timing on it", checks.environment, 60),
    Step("batches", "tokens alone are those in a batch, float32", checks.batches, 90),
    Step("fixed", "steps of a fixed shape give the tokens of eager ones", checks.fixed_shapes, 60),
    Step("cudagraph", "captured steps give the tokens of eager ones", checks.cuda_graphs, 60, needs_cuda=True),
    Step("golden", "recorded decodes of the original programs, float32", checks.golden, 180),
    Step("bound", "share of what the device allows, one request in flight", speed.bound, 90),
    Step("clock", "items add up to the wall time, the books close", checks.clock, 90),
    Step("run", "run, show, report and doctor, end to end", product.end_to_end, 150),
    Step("precision", "how often bfloat16 changes a token", checks.precision, 60),
    Step("baseline", "ar beside transformers' generate", speed.baseline, 60),
    Step("batching", "what eight requests in flight gain", speed.batching, 60),
    Step("memory", "peak memory beside weights, keys and values", speed.memory, 45),
    Step("energy", "joules per token by the device's counter", speed.energy, 75),
    Step("crowd", "more requests in flight than memory holds", checks.crowd, 60, needs_cuda=True),
    Step("compile", "compiled steps give the tokens of eager ones", checks.compiled, 180, needs_cuda=True),
)

_ROOT = Path(__file__).parents[2]

#: For which the limits of the steps are made.
_USUAL_SECONDS = 600.0

#: Statuses with which the whole is no success.
BAD = ("failed", "broken", "out of time", "not run")


def run_steps(steps: Sequence[Step], device: str, seconds: float, output: Path) -> int:
    """Run `steps`, print a line for each, and keep the results in `output`. Returns 0, or 1 where one did not succeed.

    seconds: for all of them together; with more than ten minutes every step may take as much longer.
    """
    ends, patience = time.monotonic() + seconds, max(1.0, seconds / _USUAL_SECONDS)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        for step in steps:
            began = time.monotonic()
            left = ends - began
            most = min(step.most_seconds * patience, left)
            result = _one(step, device, most, Path(name)) if left > 1 else _not_run(seconds)
            found.append({"step": step.name, "about": step.about, "seconds": time.monotonic() - began, **result})
            print(
                f"{result['status']:<12} {step.name:<12} {found[-1]['seconds']:>5.0f} s  {result['sentence']}",
                flush=True,
            )
            _keep(output, {"device": device, "steps": found})
    counts = {
        status: sum(each["status"] == status for each in found) for status in dict.fromkeys(e["status"] for e in found)
    }
    print(f"\n{', '.join(f'{number} {status}' for status, number in counts.items())}. Everything is in {output}.")
    return 1 if any(status in BAD for status in counts) else 0


def _not_run(seconds: float) -> dict[str, Any]:
    return {"status": "not run", "sentence": f"the {seconds:.0f} s of all steps together were used up", "facts": {}}


def _one(step: Step, device: str, seconds: float, folder: Path) -> dict[str, Any]:
    """What a step found, run in a process of its own for at most `seconds`."""
    if step.needs_cuda and device == "cpu":
        return {"status": "skipped", "sentence": "it needs CUDA", "facts": {}}
    result = folder / f"{step.name}.json"
    command = [sys.executable, "-m", "tests.gpu", step.name, "--device", device, "--alone", str(result)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=_ROOT,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        # With all that it started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return {
            "status": "out of time",
            "sentence": f"it took more than {seconds:.0f} s",
            "facts": {"output": said[-4000:]},
        }
    if not result.exists():
        sentence = f"its process ended with {process.returncode} and left no result"
        return {"status": "broken", "sentence": sentence, "facts": {"output": said[-4000:]}}
    return json.loads(result.read_text(encoding="utf-8"))


def run_alone(step: Step, device: str, result: Path) -> None:
    """Run one step here and write what it found."""
    _keep(result, outcome(step, Context(device, result.parent)))


def outcome(step: Step, context: Context) -> dict[str, Any]:
    """What a step found as plain values: passed, failed, measured, or broken with the reason."""
    try:
        found = step.run(context)
    except Exception as error:  # a step that breaks is a result too
        sentence = f"{type(error).__name__}: {str(error).strip()[:500] or 'without a word'}"
        return {"status": "broken", "sentence": sentence, "facts": {"traceback": traceback.format_exc()}}
    return {"status": _status(found), "sentence": found.sentence, "facts": found.facts}


def _status(found: Found) -> str:
    return {True: "passed", False: "failed", None: "measured"}[found.passed]


def _keep(path: Path, facts: dict[str, Any]) -> None:
    """Write a results file in one step, so that it is whole whenever the run is cut off."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(facts, indent=1, default=str), encoding="utf-8")
    part.replace(path)
