"""What a run used: memory at its peak, and energy where the device counts it, per token and per correct answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dllm_audit.analysis.figures import Figure, ratio
from dllm_audit.analysis.rows import sound

_NOT_RECORDED = "not recorded when this was run"


@dataclass(frozen=True)
class Consumption:
    """peak_memory: in bytes, of what `memory_of` says, the highest of all sittings.

    energy: joules of the windows in which the run decoded, idling included; counter: what counted them. idle_power: watts
    of the device without work, measured before the run. per_token, per_correct: joules for each answered token, and
    for each correct answer where answers are right or wrong.
    """

    peak_memory: Figure
    memory_of: str
    energy: Figure
    counter: str
    idle_power: Figure
    per_token: Figure
    per_correct: Figure

    @property
    def is_recorded(self) -> bool:
        """Whether anything of it is known."""
        return self.peak_memory.value is not None or self.energy.value is not None


def consumption_of(run: Mapping[str, Any], answered_tokens: int, correct: float | None, sittings: int) -> Consumption:
    """The figures from the manifest of a run (group "usage", one entry a sitting).

    correct: right answers; None where answers are not right or wrong. sittings: those that stored an answer.
    """
    found = run["manifest"].get("usage")
    used = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    peak, memory_of = _peak(used)
    energy, counter, idle = _energy(used, sittings)
    per_correct = Figure(None, "J/correct answer", "derived", reason="no metric is right or wrong per document")
    if correct is not None:
        per_correct = _per(energy, correct, "J/correct answer", "no answer is correct")
    return Consumption(
        peak_memory=peak,
        memory_of=memory_of,
        energy=energy,
        counter=counter,
        idle_power=idle,
        per_token=_per(energy, answered_tokens, "J/token", "no token was answered"),
        per_correct=per_correct,
    )


def _peak(used: Sequence[Mapping[str, Any]]) -> tuple[Figure, str]:
    """(the highest peak, what it is of)."""
    peaks = [
        (entry[name], str(entry.get("peak_memory_of", "")))
        for entry in used
        for name in ("peak_device_memory_bytes", "peak_process_memory_bytes")
        if sound(entry.get(name))
    ]
    if not peaks:
        reason = next((str(entry["peak_memory_of"]) for entry in used if "peak_memory_of" in entry), _NOT_RECORDED)
        return Figure(None, "bytes", "measured", reason=reason.removeprefix("unknown: ")), ""
    value, memory_of = max(peaks)
    return Figure(float(value), "bytes", "measured"), memory_of


def _energy(used: Sequence[Mapping[str, Any]], sittings: int) -> tuple[Figure, str, Figure]:
    """(joules of all sittings, the counter, idle power)."""
    entries = [entry["energy"] for entry in used if isinstance(entry.get("energy"), dict)]
    counter = next((str(entry["counter"]) for entry in entries if entry.get("counter")), "")
    watts = [entry["idle_watts"] for entry in entries if sound(entry.get("idle_watts"))]
    idle = Figure(None, "W", "measured", reason="not measured before this run")
    if watts:
        idle = Figure(sum(watts) / len(watts), "W", "measured")
    unknown = [entry for entry in entries if not sound(entry.get("joules"))]
    reason = str(unknown[0].get("reason") or "it was not stored why") if unknown else ""
    if not entries:
        reason = _NOT_RECORDED
    elif not reason and len(entries) < sittings:
        reason = "a sitting was killed before its energy was stored"
    if reason:
        return Figure(None, "J", "measured", reason=reason), counter, idle
    return Figure(sum(entry["joules"] for entry in entries), "J", "measured"), counter, idle


def _per(energy: Figure, amount: float, unit: str, nothing: str) -> Figure:
    if energy.value is None:
        return Figure(None, unit, "derived", reason=energy.reason)
    return ratio(energy.value, amount, unit, "derived", nothing)
