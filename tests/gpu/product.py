"""The product itself, as a person runs it: `run`, `show`, `report` and `doctor` on the device."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.gpu.models import Context
from tests.gpu.steps import Found


def command(arguments: list[str]) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of `dllm-audit` with these arguments, in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "dllm_audit", *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def end_to_end(context: Context) -> Found:
    """`run` with a baseline and a batch, then `show`, `report` and `doctor`; and what was stored of the device."""
    database, page = context.folder / "gpu.duckdb", context.folder / "gpu.html"
    on = ["--device", context.device]
    limit, engines = ("2", ["eager"]) if context.dry else ("16", ["eager", "cudagraph"])
    decoding = [
        "--task",
        "gsm_mini",
        "--limit",
        limit,
        "--threshold",
        "0.9",
        "--concurrency",
        "2",
        "--db",
        str(database),
    ]
    facts: dict = {"runs": []}
    for engine in engines:
        arguments = ["run", "--backend", "dualcache", "--baseline", "ar", *decoding, *on, "--engine", engine, "--json"]
        status, out, err = command(arguments)
        if status:
            return Found(False, f"run --engine {engine} ended with {status}: {_last(err)}", facts)
        facts["runs"] += json.loads(out)["runs"]
    wrong = []
    for run in facts["runs"]:
        if run["failed"] or not run["tokens_per_second"]:
            wrong.append(f"{run['run_id']}: {run['failed']} requests failed")
        status, out, err = command(["show", run["run_id"], "--json", "--db", str(database)])
        if status:
            return Found(False, f"show ended with {status}: {_last(err)}", facts)
        manifest = json.loads(out)["manifest"]
        run["manifest"] = {name: manifest.get(name) for name in ("environment", "usage", "engine", "books")}
        wrong += [f"{run['run_id']}: {what}" for what in _missing(manifest, context)]
    for arguments in (["report", "--db", str(database), "-o", str(page)], ["doctor", *on, "--json"]):
        status, _, err = command(arguments)
        if status:
            wrong.append(f"{arguments[0]} ended with {status}: {_last(err)}")
    if not page.exists():
        wrong.append("report wrote no page")
    rates = ", ".join(f"{r['backend']} {r['tokens_per_second']:.0f}" for r in facts["runs"] if r["role"] != "control")
    return Found(not wrong, f"tokens/s: {rates}" + (f"; {'; '.join(wrong)}" if wrong else ""), facts)


def _missing(manifest: dict, context: Context) -> list[str]:
    """What a run on the device must have stored and has not."""
    environment, (used, *_) = manifest["environment"], manifest.get("usage") or [{}]
    missing = []
    if manifest["engine"]["device"] != str(context.on):
        missing.append(f"it ran on {manifest['engine']['device']}")
    names = ["memory_available_bytes_before", "memory_available_bytes_after", "threads", "torch"]
    peak = "peak_process_memory_bytes"
    if context.on.type == "cuda":
        names += ["gpu", "gpu_driver", "gpu_clock_sm_mhz_before", "gpu_power_watts_after", "cuda", "attention_kernels"]
        peak = "peak_device_memory_bytes"
    missing += [f"no {name} was stored" for name in names if name not in environment]
    return missing + ([] if used.get(peak) else [f"no {peak} was stored"])


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was said"])[-1][:300]
