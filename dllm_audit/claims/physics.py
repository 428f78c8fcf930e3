"""What a published speed needs of the hardware: the roofline of `measure.roofline`, modelled, never measured.

Attention, keys and values are left out, which errs in favour of the claim. A rate then needs so many tokens per forward;
what the decode settings allow is at most that many. Where a choice is open (unknown precision, unknown concurrency) the
one that favours the claim is taken and named.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from math import ceil
from typing import Any

from dllm_audit.claims.hardware import Device, ModelSize, bytes_per_weight, find_device, find_model_size
from dllm_audit.claims.schema import Claim, Gap, Quantity, Stated, bounds_of, number_of
from dllm_audit.measure.roofline import Roofline, Work
from dllm_audit.models.dimensions import Dimensions

TIME_UNITS = {"s": 1.0, "ms": 1e-3}
TAUS = (1, 4, 8, 16, 32)
"""Tokens per forward for which sizes are given when the model's size is unknown."""


class Verdict(StrEnum):
    IMPOSSIBLE = "impossible"
    NEEDS = "needs"
    """Possible if so many tokens come from each forward."""
    PLAUSIBLE = "plausible"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class PhysicsCheck:
    """What a claim's speed needs. Every number is modelled; `assumptions` are what was not stated and how it was filled.

    needed_tokens_per_forward: of each row, at the stated concurrency. allowed_tokens_per_forward: by the settings.
    possible_parameters: where the model's size is unknown, tokens per forward -> the largest model that can do it.
    """

    verdict: Verdict
    sentence: str
    tokens_per_second: float | None = None
    needed_tokens_per_forward: float | None = None
    allowed_tokens_per_forward: float | None = None
    allowed_by: str = ""
    positions: float | None = None
    device: str = ""
    devices: float | None = None
    model: str = ""
    possible_parameters: dict[int, float] | None = None
    assumptions: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    status: str = "modelled"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": str(self.verdict)}


@dataclass(frozen=True)
class _Rate:
    """Tokens per second of everything in flight, with the words that say where it comes from; rows None: unknown.

    may_be_of_all: one row was assumed, though the source leaves open whether there were more.
    """

    tokens_per_second: float
    origin: str
    rows: float | None
    may_be_of_all: bool = False


def check_physics(claim: Claim) -> PhysicsCheck:
    """What the claim's speed needs, against what its settings allow."""
    if not claim.about_speed:
        return PhysicsCheck(Verdict.NOT_APPLICABLE, "The claim is not about speed.")
    device = None if isinstance(claim.hardware.device, Gap) else find_device(claim.hardware.device)
    if device is None:
        named = claim.hardware.device
        why = f"the hardware is {named}" if isinstance(named, Gap) else f"no datasheet of {named!r} is at hand"
        return PhysicsCheck(Verdict.UNKNOWN, f"Nothing can be worked out: {why}.")
    caution = device.caution(claim.hardware.device)
    assumptions = [caution] if caution else []
    devices = _devices(claim, assumptions)
    rate = _rate(claim, devices, assumptions)
    if rate is None:
        return PhysicsCheck(
            Verdict.UNKNOWN, "Nothing can be worked out: the source gives no rate, nor a time with a number of tokens."
        )
    size = find_model_size(claim.model, claim.system)
    weight_bytes = _weight_bytes(claim, device, size, assumptions)
    positions, width_known = _positions(claim, assumptions)
    allowed, allowed_by = _allowed(claim, positions if width_known else None)
    common = {
        "tokens_per_second": rate.tokens_per_second,
        "allowed_tokens_per_forward": allowed,
        "allowed_by": allowed_by,
        "positions": positions,
        "device": device.name,
        "devices": devices,
        "assumptions": tuple(assumptions),
    }
    if size is None:
        sizes = _possible_parameters(rate, device, devices, weight_bytes, positions)
        listed = ", ".join(f"{_billions(most)} at {tau}" for tau, most in sizes.items())
        return PhysicsCheck(
            Verdict.UNKNOWN,
            f"The model's size is not known. {rate.origin} on {_hardware(device, devices)} can at most be had from so many "
            f"parameters at so many tokens per forward: {listed}.",
            possible_parameters=sizes,
            sources=(device.source,),
            **common,  # type: ignore[arg-type]
        )

    def need(parts: Dimensions, weight_bytes: float, rate: _Rate) -> float:
        return _needed(rate, Roofline(parts, weight_bytes, device.best_speed(weight_bytes).times(devices)), positions)

    if size.experts:
        assumptions.append("Experts: every position chooses for itself; fewer are read where positions agree.")
    needed = need(size.dimensions, weight_bytes, rate)
    verdict, sentence = _judge(rate, needed, allowed, allowed_by, size, device, devices)
    if verdict is Verdict.IMPOSSIBLE and allowed:
        # What is impossible as it was taken may be possible where the source leaves something open.
        open_ends = [
            (
                "several requests in flight together. Impossible for one",
                rate.may_be_of_all and need(size.dimensions, weight_bytes, replace(rate, rows=None)) <= allowed,
            ),
            (
                "positions that share their experts. Impossible where each chooses for itself",
                bool(size.experts) and need(Dimensions.of_size(size.active), weight_bytes, rate) <= allowed,
            ),
            (
                "weights of fewer than 8 bits. Impossible with 8",
                _bytes_of(claim) is None and need(size.dimensions, _NARROWEST, rate) <= allowed,
            ),
            (f"at least {ceil(needed / allowed)} devices. Impossible on one", number_of(claim.hardware.count) is None),
        ]
        what = next((what for what, possible in open_ends if possible), None)
        if what:
            verdict, sentence = Verdict.NEEDS, f"Needs {what}: {sentence.partition(': ')[2]}"
    return PhysicsCheck(
        verdict,
        sentence,
        needed_tokens_per_forward=needed,
        model=size.name,
        sources=(device.source, size.source),
        **{**common, "assumptions": tuple(assumptions)},  # type: ignore[arg-type]
    )


def _judge(
    rate: _Rate,
    needed: float,
    allowed: float | None,
    allowed_by: str,
    size: ModelSize,
    device: Device,
    devices: float,
) -> tuple[Verdict, str]:
    need = (
        f"{rate.origin} with {size.name} on {_hardware(device, devices)} needs at least {_significant(needed)} tokens per "
        "forward"
    )
    if allowed is not None and needed > allowed * 1.005:
        return Verdict.IMPOSSIBLE, f"Impossible as stated: {need}, but {allowed_by} allows {allowed:g}."
    if needed <= 1:
        return Verdict.PLAUSIBLE, f"Plausible: {need}, which one token at a time would do."
    if allowed_by.startswith("the stated"):
        return Verdict.PLAUSIBLE, f"Plausible: {need}, and {allowed_by} gives {allowed:g}."
    room = f", and {allowed_by} allows {allowed:g}" if allowed is not None else ""
    return Verdict.NEEDS, f"Needs tau >= {_significant(needed)}: {need}{room}."


def _needed(rate: _Rate, roofline: Roofline, positions: float) -> float:
    """Tokens that each row must get from each forward. With unknown rows, as many as favour the claim most."""
    if rate.rows is None:
        # More rows share the reading of the weights; in the end only the multiplications are left.
        return rate.tokens_per_second * roofline.bound(Work(positions)).compute_seconds
    return rate.tokens_per_second * roofline.bound(Work(rate.rows * positions)).seconds / rate.rows


def _possible_parameters(
    rate: _Rate, device: Device, devices: float, weight_bytes: float, positions: float
) -> dict[int, float]:
    """Tokens per forward -> the largest dense model (or active part) whose bound still allows the rate."""
    peak = device.fastest(weight_bytes)
    out = {}
    for tau in TAUS:
        by_compute = tau * devices * peak / (rate.tokens_per_second * 2 * max(positions, tau))
        by_reading = (
            float("inf")
            if rate.rows is None
            else tau * rate.rows * devices * device.bandwidth / (rate.tokens_per_second * weight_bytes)
        )
        out[tau] = min(by_compute, by_reading)
    return out


def _rate(claim: Claim, devices: float, assumptions: list[str]) -> _Rate | None:
    found = _stated_rate(claim)
    if found is None:
        return None
    rate, origin = found
    rows = _rows(claim.concurrency)
    # A time is that of one request.
    of_one = claim.rate_of == "one request" or claim.unit in TIME_UNITS
    if claim.rate_of == "one device":
        return _Rate(rate * devices, f"{origin} for each of {devices:g} devices", rows)
    if of_one:
        if rows is None:
            assumptions.append("Unknown concurrency: one request at a time, which favours a rate per request.")
            rows = 1.0
        return _Rate(rate * rows, origin if rows == 1 else f"{origin} for each of {rows:g} requests", rows)
    if rows is None and isinstance(claim.rate_of, Gap):
        assumptions.append(
            "Unknown concurrency, and whether the rate is of one request or of all: taken as one at a time. With many in "
            "flight together less is needed."
        )
        return _Rate(rate, origin, 1.0, may_be_of_all=True)
    if rows is None:
        assumptions.append("Unknown concurrency: as many requests as favour the claim.")
    return _Rate(rate, origin, rows)


def _stated_rate(claim: Claim) -> tuple[float, str] | None:
    """Tokens per second as claimed, or worked out from what stands beside the claim."""
    value, unit = _least(claim.value), claim.unit
    if unit == "tok/s" and value:
        return value, f"{value:g} tok/s"
    if unit in TIME_UNITS and value:
        return _from_time(claim, value, unit)
    if claim.kind == "speedup":
        for figure in claim.figures:
            if figure.relation == "same" and figure.unit == "tok/s" and figure.baseline_value:
                return figure.value, f"{figure.value:g} tok/s ({figure.where})"
        baseline = number_of(claim.baseline.value) if claim.baseline else None
        if value and baseline and claim.baseline and claim.baseline.unit == "tok/s" and unit == "x":
            return value * baseline, f"{value:g} x {baseline:g} tok/s = {_significant(value * baseline)} tok/s"
    return None


#: Metrics whose time is not that of a whole answer.
_PART_OF_A_TIME = re.compile(
    r"first|ttft|step|forward|pass|per (output )?token|tpot|inter-?token|overhead", re.IGNORECASE
)


def _from_time(claim: Claim, value: float, unit: str) -> tuple[float, str] | None:
    tokens = number_of(claim.output_tokens) if not isinstance(claim.output_tokens, Stated) else None
    if not tokens or _PART_OF_A_TIME.search(claim.metric):
        return None
    rate = tokens / (value * TIME_UNITS[unit])
    return rate, f"{tokens:g} tokens in {value:g} {unit}, {_significant(rate)} tok/s,"


def _rows(concurrency: Quantity) -> float | None:
    rows = number_of(concurrency)
    if rows is None and isinstance(concurrency, Stated):
        rows = bounds_of(concurrency)[1]
    return rows if rows and rows >= 1 else None


def _least(quantity: Quantity) -> float | None:
    """The least that a quantity claims: what must be possible at any rate."""
    low, high = bounds_of(quantity)
    return low if low is not None else high


def _devices(claim: Claim, assumptions: list[str]) -> float:
    count = number_of(claim.hardware.count)
    if count is None:
        count = 1.0
        assumptions.append("Unknown number of devices: one.")
    return count


def _bytes_of(claim: Claim) -> float | None:
    return None if isinstance(claim.precision, Gap) else bytes_per_weight(claim.precision)


#: Bytes of the narrowest weights that are served.
_NARROWEST = 0.5


def _weight_bytes(claim: Claim, device: Device, size: ModelSize | None, assumptions: list[str]) -> float:
    known = _bytes_of(claim)
    if known:
        return known
    assumptions.append("Unknown precision: 8-bit weights, which favours the claim over 16-bit ones.")
    return 1.0


def _positions(claim: Claim, assumptions: list[str]) -> tuple[float, bool]:
    """(query positions of each row in one forward, whether the source tells)."""
    decode = claim.decode
    block, output, prompt = (number_of(q) for q in (decode.block_length, claim.output_tokens, claim.prompt_tokens))
    if decode.schedule == "autoregressive":
        return 1.0, True
    cache = decode.cache.casefold()
    if not isinstance(decode.cache, Gap) and (cache.startswith(("none", "no ")) or "uncached" in cache):
        if output:
            if not prompt:
                assumptions.append("Unknown prompt length: none, which favours the claim.")
            return output + (prompt or 0.0), True
    elif block:
        return block, True
    if block:
        return block, True
    tokens = number_of(decode.tokens_per_step)
    assumptions.append("Unknown block length: no more positions per forward than tokens that come of it.")
    return tokens or 1.0, False


def _allowed(claim: Claim, width: float | None) -> tuple[float | None, str]:
    """(the most tokens per forward that the settings allow, the words for the setting); None when nothing bounds it."""
    decode = claim.decode
    if decode.schedule == "autoregressive":
        return 1.0, "one token at a time"
    tokens = number_of(decode.tokens_per_step)
    if tokens:
        return tokens, "the stated tokens per step"
    steps, output = number_of(decode.steps), number_of(claim.output_tokens)
    if decode.schedule == "fixed" and steps and output and not isinstance(decode.steps, Stated):
        return output / steps, f"the stated {steps:g} steps"
    block = number_of(decode.block_length)
    if block:
        return block, f"a block of {block:g}"
    return (width, "the width of a forward") if width else (None, "")


def _hardware(device: Device, devices: float) -> str:
    return device.name if devices == 1 else f"{devices:g} {device.name}"


def _billions(parameters: float) -> str:
    if parameters == float("inf"):
        return "any"
    digits = 0 if parameters >= 1e10 else 1
    return f"{parameters / 1e9:.{digits}f}B"


def _significant(number: float) -> str:
    """Two digits after the point below ten, none above a hundred; never rounded below what is needed."""
    if number >= 100:
        return f"{ceil(number):,}"
    return f"{number:.2g}" if number < 1 else f"{number:.3g}"
