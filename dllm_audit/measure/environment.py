"""What a measurement stands on: the machine, the versions, the threads. Read, never changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Packages whose version can change a time or a token.
_PACKAGES = ("torch", "transformers", "lm-eval", "tokenizers", "safetensors", "numpy", "duckdb")


def describe(device: torch.device | None = None) -> dict[str, Any]:
    """Flat facts about machine, software and threads; a key whose fact cannot be read here is left out."""
    import psutil

    facts: dict[str, Any] = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": psutil.virtual_memory().available,
        "load_average_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "cpu_governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "last_level_cache": _read("/sys/devices/system/cpu/cpu0/cache/index3/size"),
    }
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    if frequency is not None and frequency.current:
        facts["cpu_mhz"] = round(frequency.current)
    for package in _PACKAGES:
        try:
            facts[package.replace("-", "_")] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES"):
        if name in os.environ:
            facts[f"env_{name}"] = os.environ[name]
    if "torch" in sys.modules:
        facts |= _torch_facts(device)
    return {name: value for name, value in facts.items() if value is not None}


def _torch_facts(device: torch.device | None) -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {
        "device": str(device) if device is not None else "cpu",
        "threads": torch.get_num_threads(),
        "threads_interop": torch.get_num_interop_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device is not None and device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "gpu_memory_bytes": properties.total_memory,
            "gpu_multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
        }
        facts |= _nvidia_smi(device.index or 0)
    return facts


def _nvidia_smi(index: int) -> dict[str, Any]:
    """Driver, clocks, power and processes of a CUDA device, as far as nvidia-smi tells."""
    names = {
        "driver_version": "gpu_driver",
        "clocks.sm": "gpu_clock_sm_mhz",
        "clocks.mem": "gpu_clock_memory_mhz",
        "power.draw": "gpu_power_watts",
        "power.limit": "gpu_power_limit_watts",
        "temperature.gpu": "gpu_temperature_celsius",
        "clocks_throttle_reasons.active": "gpu_throttle_reasons",
        "mig.mode.current": "gpu_mig_mode",
    }
    try:
        answer = _output(
            [
                "nvidia-smi",
                f"--id={index}",
                f"--query-gpu={','.join(names)}",
                "--format=csv,noheader,nounits",
            ]
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in answer.split(",")]
    return dict(zip(names.values(), values, strict=False))


def _cpu_name() -> str:
    text = _read("/proc/cpuinfo") or ""
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def code_commit() -> str | None:
    """The git commit of a checkout that this package runs from, with "+changes" if files differ; None elsewhere."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        commit = _output(["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"])
        changed = _output(["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changed else "")


def _output(command: list[str]) -> str:
    """What a command prints. Raises OSError or SubprocessError where there is no such command, or it fails."""
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex; remembered by path, size and modification time for files above 64 MiB."""
    stat = path.stat()
    if stat.st_size < 64 * 2**20:
        return _sha256(path)
    cache = _hash_cache()
    key = f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
    known: dict[str, str] = {}
    # No memory yet, or a damaged one, is rebuilt below.
    with contextlib.suppress(OSError, ValueError):
        remembered = json.loads(cache.read_text(encoding="utf-8"))
        known = remembered if isinstance(remembered, dict) else {}
    if key not in known:
        known[key] = _sha256(path)
        # A read-only home costs only the memory.
        with contextlib.suppress(OSError):
            cache.parent.mkdir(parents=True, exist_ok=True)
            cache.write_text(json.dumps(known), encoding="utf-8")
    return known[key]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dllm-audit" / "sha256.json"


def timing_hazards(facts: dict[str, Any]) -> list[str]:
    """Sentences about what in `facts` spoils timing on this machine."""
    hazards = []
    cores = facts.get("cores_usable") or facts.get("cores_logical") or 1
    threads = facts.get("threads")
    if threads and threads > cores:
        hazards.append(f"torch uses {threads} threads on {cores} usable cores; set OMP_NUM_THREADS={cores}.")
    load = facts.get("load_average_1min")
    if load is not None and load > 0.5 * cores:
        hazards.append(f"Other work is running: the load average is {load} on {cores} cores. Times will be noisy.")
    governor = facts.get("cpu_governor")
    if governor and governor not in ("performance", "schedutil"):
        hazards.append(f"The CPU frequency governor is {governor!r}; clocks may change during a run.")
    if "gpu" in facts:
        reasons = str(facts.get("gpu_throttle_reasons", "0x0"))
        if reasons not in ("", "0x0000000000000000", "0x0", "[N/A]", "0x0000000000000001"):
            hazards.append(f"The GPU reports throttle reasons {reasons}; its clocks are being held down.")
    return hazards
