"""What on this machine would spoil timing, in sentences that say what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dllm_audit.measure.gpu import throttles

#: Other work may keep so much of the cores busy before times suffer noticeably.
_BUSY_SHARE = 0.5

#: A GPU on which nothing of ours runs yet should be idle.
_BUSY_PERCENT = 10

#: So much of the memory should be free, or the system begins to swap.
_FREE_SHARE = 0.05

#: A hypervisor that takes less of the time than this is not felt.
_STOLEN_SHARE = 0.01

Facts = Mapping[str, Any]


def timing_hazards(facts: Facts) -> list[str]:
    """Sentences about what in `facts` (of `environment.describe` and `readings`) spoils timing on this machine."""
    return [sentence for check in _CHECKS for sentence in check(facts)]


def _number(facts: Facts, name: str) -> float | None:
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _cores(facts: Facts) -> float:
    """Cores that this process may keep busy."""
    known = [_number(facts, name) for name in ("cores_usable", "cores_logical")]
    cores = next((value for value in known if value), 1.0)
    return min(cores, _number(facts, "cores_quota") or cores)


def _threads(facts: Facts) -> Iterator[str]:
    threads, cores = _number(facts, "threads"), _cores(facts)
    if threads and threads > cores:
        why = "" if not facts.get("cores_quota") else ", since the container grants no more"
        yield (
            f"torch uses {threads:g} threads on {cores:g} usable cores{why}: they take turns and every time varies. Set "
            f"OMP_NUM_THREADS={max(1, int(cores))}."
        )


def _load(facts: Facts) -> Iterator[str]:
    load, cores, threads = _number(facts, "load_average_1min"), _cores(facts), _number(facts, "threads") or 1
    if load is not None and load > _BUSY_SHARE * cores:
        left = max(1, int(cores - load))
        more = f", or leave it room with OMP_NUM_THREADS={left}" if threads > left else ""
        yield (
            f"Other work is running: the load average is {load:g} on {cores:g} cores, and torch's {threads:g} "
            f"{'thread comes' if threads == 1 else 'threads come'} on top. Stop it{more}; wait a minute after it has ended."
        )


def _memory(facts: Facts) -> Iterator[str]:
    free, total = _number(facts, "memory_available_bytes"), _number(facts, "memory_bytes")
    total = min(total or 0.0, _number(facts, "memory_quota_bytes") or total or 0.0)
    if free is not None and total and free < _FREE_SHARE * total:
        yield (
            f"Only {free / 1e9:.1f} GB of {total / 1e9:.1f} GB of memory are free: the system may swap while it is timed. "
            "Close other programs, or take a smaller model or fewer requests in flight."
        )


def _clocks(facts: Facts) -> Iterator[str]:
    governor = str(facts.get("cpu_governor", "unknown"))
    if not governor.startswith("unknown") and governor not in ("performance", "schedutil"):
        yield (
            f"The CPU frequency governor is {governor!r}: clocks may change during a run. For steady ones: "
            "sudo cpupower frequency-set -g performance"
        )
    if facts.get("on_battery") is True:
        yield "This machine runs on its battery, which lowers clocks. Plug it in."
    stolen = _number(facts, "cpu_stolen_share")
    if stolen is not None and stolen > _STOLEN_SHARE:
        yield (
            f"A hypervisor gave {stolen:.1%} of this machine's CPU time to others since it was started. Repeat runs "
            "(--repeats 5), or use a machine of your own."
        )


def _kernels(facts: Facts) -> Iterator[str]:
    if str(facts.get("cpu_capability", "")).upper() == "DEFAULT" and "gpu" not in facts:
        yield (
            "torch runs its plainest CPU kernels (no AVX2): times say little about other machines. Unset "
            "ATEN_CPU_CAPABILITY if it is set, or use a processor with AVX2."
        )
    if "gpu_unused" in facts:
        yield f"The GPU is not used: {facts['gpu_unused']}. Install a CUDA build of torch that fits the driver."
    built, architecture = str(facts.get("gpu_kernels_built_for", "")), facts.get("gpu_architecture")
    # Kernels of a lower minor version of the same generation run too.
    generation = str(architecture)[:-1]
    if built and architecture and not any(name.startswith(generation) for name in built.split()):
        yield (
            f"torch has no kernels for this GPU ({architecture}; built for {built}): they are compiled while they are timed, or "
            "fail. Install a build of torch for it."
        )
    if facts.get("gpu_bfloat16") is False:
        yield "This GPU has no bfloat16 units, and bfloat16 is then emulated. Use --dtype float16 or float32."
    if facts.get("attention_kernels") in ("math", "none"):
        yield "Only torch's plain attention kernel is switched on, which is slow. Do not switch flash attention off."
    if str(facts.get("env_CUDA_LAUNCH_BLOCKING", "0")) not in ("", "0"):
        yield "CUDA_LAUNCH_BLOCKING is set: the host waits for every kernel, and every time is longer. Unset it."


def _gpu(facts: Facts) -> Iterator[str]:
    others = _number(facts, "gpu_other_processes")
    if others:
        yield (
            f"{others:g} other {'process uses' if others == 1 else 'processes use'} this GPU and will share its time. End "
            "what you do not need (nvidia-smi lists it), or choose another with --device cuda:N."
        )
    busy = _number(facts, "gpu_utilization_percent")
    if busy is not None and busy > _BUSY_PERCENT and not others:
        yield f"This GPU is busy to {busy:g} % although nothing of ours runs yet. See nvidia-smi for what it does."
    held = throttles(facts.get("gpu_throttle_reasons"))
    if held:
        yield (
            f"The GPU's clocks are held down by {' and '.join(held)}. Let it cool, or ask who administers it; a run records "
            "clocks and power before and after."
        )
    if str(facts.get("gpu_mig_mode", "")) == "Enabled":
        yield (
            "This GPU is divided (MIG): other parts of it share its memory bandwidth and power. Compare only with runs on the "
            "same division."
        )


_CHECKS: tuple[Callable[[Facts], Iterator[str]], ...] = (_threads, _load, _memory, _clocks, _kernels, _gpu)
