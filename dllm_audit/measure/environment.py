"""What a measurement stands on: the machine, the versions, the threads. Read, never changed.

A fact that cannot be read, and that a reader would miss, says so: "unknown: why". Other facts are left out then.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dllm_audit.measure import gpu
from dllm_audit.measure.memory import available_memory, memory_quota

if TYPE_CHECKING:
    import torch

#: Packages whose version can change a time or a token.
_PACKAGES = ("torch", "transformers", "lm-eval", "tokenizers", "safetensors", "numpy", "duckdb", "triton")

#: Variables that change threads, kernels or memory.
_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
)


def describe(device: torch.device | None = None) -> dict[str, Any]:
    """Flat facts about machine, software and threads that hold from run to run. See `readings` for those of the moment."""
    import psutil

    facts: dict[str, Any] = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cores_quota": _cpu_quota(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_quota_bytes": memory_quota(),
        "cpu_governor": _read(_GOVERNOR) or "unknown: this system does not tell",
        "last_level_cache": _read("/sys/devices/system/cpu/cpu0/cache/index3/size"),
        "on_battery": _on_battery(),
        "compiler": next((name for name in ("c++", "g++", "clang++", "cl") if shutil.which(name)), None),
    }
    for package in _PACKAGES:
        try:
            facts[package.replace("-", "_")] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    facts |= {f"env_{name}": os.environ[name] for name in _VARIABLES if name in os.environ}
    if "torch" in sys.modules:
        facts |= _torch_facts(device)
    return {name: value for name, value in facts.items() if value is not None}


def readings(device: torch.device | None = None) -> dict[str, Any]:
    """Flat readings of the moment: load, clocks, power, temperature, free memory."""
    import psutil

    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    facts: dict[str, Any] = {
        "memory_available_bytes": available_memory(),
        "load_average_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "cpu_mhz": round(frequency.current) if frequency is not None and frequency.current else None,
        "cpu_stolen_share": _stolen_share(),
    }
    if device is not None and device.type == "cuda":
        facts |= gpu.readings(device)
    return {name: value for name, value in facts.items() if value is not None}


def at(moment: str, facts: dict[str, Any]) -> dict[str, Any]:
    """The same readings with the moment in their names: "before" or "after"."""
    return {f"{name}_{moment}": value for name, value in facts.items()}


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
        architecture = f"sm_{properties.major}{properties.minor}"
        backends = torch.backends.cuda
        kernels = {
            "flash": backends.flash_sdp_enabled(),
            "memory-efficient": backends.mem_efficient_sdp_enabled(),
            "cudnn": backends.cudnn_sdp_enabled(),
            "math": backends.math_sdp_enabled(),
        }
        facts |= {
            "gpu": properties.name,
            "gpu_memory_bytes": properties.total_memory,
            "gpu_multiprocessors": properties.multi_processor_count,
            "gpu_architecture": architecture,
            "gpu_kernels_built_for": " ".join(torch.cuda.get_arch_list()),
            "gpu_bfloat16": torch.cuda.is_bf16_supported(including_emulation=False),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "tf32_matmul": backends.matmul.allow_tf32,
            "attention_kernels": ", ".join(name for name, enabled in kernels.items() if enabled) or "none",
        }
        facts |= gpu.standing_facts(device)
    elif shutil.which("nvidia-smi") is not None and not torch.cuda.is_available():
        build = "a CPU build" if torch.version.cuda is None else f"a build for CUDA {torch.version.cuda}"
        facts["gpu_unused"] = f"an NVIDIA driver is here, but torch {torch.__version__}, {build}, sees no CUDA device"
    return facts


def _cpu_name() -> str:
    text = _read("/proc/cpuinfo") or ""
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


_GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


def _cpu_quota() -> float | None:
    """Cores that the control group of a container grants, of which torch knows nothing; None where there is no limit."""
    quota, _, period = (_read("/sys/fs/cgroup/cpu.max") or "").partition(" ")
    if not (quota.isdigit() and period.isdigit() and int(period)):
        # The first version of control groups.
        quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") or ""
        period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us") or ""
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return None
    return round(int(quota) / int(period), 2)


def _on_battery() -> bool | None:
    import psutil

    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def _stolen_share() -> float | None:
    """Of this machine's CPU time since it was started, the share that a hypervisor gave to others."""
    import psutil

    times = psutil.cpu_times()
    stolen, total = getattr(times, "steal", None), sum(times)
    return round(stolen / total, 4) if stolen and total else None


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
    cache = hash_cache()
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
            # In one step: another process may read it meanwhile.
            written = cache.with_suffix(f".{os.getpid()}")
            written.write_text(json.dumps(known), encoding="utf-8")
            written.replace(cache)
    return known[key]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_cache() -> Path:
    """Where the hashes of large files are remembered."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dllm-audit" / "sha256.json"
