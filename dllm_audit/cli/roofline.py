"""`dllm-audit roofline`: what a device allows at most, for every kind of decoder. Modelled from sizes, bandwidth and peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.cli.options import json_option
from dllm_audit.cli.terminal import say, say_json
from dllm_audit.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from dllm_audit.measure.roofline import DeviceSpeed, Roofline
    from dllm_audit.models.dimensions import Dimensions

#: Bytes of one weight by the name of its format.
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}

DEFAULT_MODEL = "tiny-mdm"

#: Far beyond any model, any context and any device; a number above them is a slip of the keyboard.
MOST_PARAMETERS = 1e16
MOST_TOKENS = 10_000_000
MOST_GENERATED = 131_072
MOST_IN_FLIGHT = 65_536

#: Every concurrency up to the one asked for is worked out, which takes seconds here.
MOST_SEARCHED = 16_384


class _Amount(click.ParamType):
    """A number of parameters, such as 7e9."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            amount = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number of parameters, such as 7e9.", param, ctx)
        if not isfinite(amount) or not 1 <= amount <= MOST_PARAMETERS:
            self.fail(f"{value} is no size of a model: give a number from 1 to {MOST_PARAMETERS:g}.", param, ctx)
        return amount


def _count(most: int) -> click.IntRange:
    return click.IntRange(min=1, max=most)


@click.command(epilog="\b\nExample: dllm-audit roofline --params 7e9 --device-spec h100-sxm --no-attention")
@click.option("--model", help="Embedded model, folder with config.json, or hub id; its weights are not read.")
@click.option("--params", type=_Amount(), help="Parameters of a model instead, for example 7e9.")
@click.option("--active-params", type=_Amount(), help="Of a mixture: parameters per token.")
@click.option("--experts", type=_count(100_000), metavar="N", help="Of a mixture: experts of a layer.")
@click.option("--experts-per-token", type=_count(100_000), metavar="N", help="Of a mixture: experts chosen per token.")
@click.option("--layers", type=_count(100_000), metavar="N", help="Layers of attention.")
@click.option("--kv-heads", type=_count(100_000), metavar="N", help="Heads of keys and values.")
@click.option("--head-dim", type=_count(100_000), metavar="N", help="Width of a head.")
@click.option("--heads", type=_count(100_000), metavar="N", help="Query heads [default: as many as --kv-heads].")
@click.option(
    "--vocab", type=_count(100_000_000), metavar="N", help="Size of the vocabulary, for the memory of logits."
)
@click.option("--no-attention", is_flag=True, help="Leave out attention, keys and values; their sizes outrank it.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", *_BYTES]),
    default="auto",
    show_default=True,
    help="Number format; auto is float32 on a CPU and bfloat16 elsewhere.",
)
@click.option("--device", metavar="NAME", help="Measure this device: auto, cpu, cuda, cuda:N or mps [default: auto].")
@click.option("--device-spec", metavar="NAME", help="Take a datasheet's values instead, for example h100-sxm.")
@click.option("--prompt", type=_count(MOST_TOKENS), default=512, show_default=True, metavar="N", help="Prompt tokens.")
@click.option(
    "--gen-length", type=_count(MOST_GENERATED), default=256, show_default=True, metavar="N", help="Tokens to generate."
)
@click.option(
    "--block-length", type=_count(MOST_GENERATED), default=32, show_default=True, metavar="N", help="Tokens of a block."
)
@click.option(
    "--tokens-per-step",
    type=_count(MOST_GENERATED),
    default=4,
    show_default=True,
    metavar="N",
    help="Tokens that diffusion commits per step.",
)
@click.option(
    "--context",
    type=_count(MOST_TOKENS),
    metavar="N",
    help="Columns of every row for the throughput [default: those of prompt and generated tokens].",
)
@click.option(
    "--concurrency",
    metavar="N[,N...]",
    help="Requests in flight for the throughput [default: 1 to 256, and the knee].",
)
@click.option(
    "--max-concurrency",
    type=_count(MOST_SEARCHED),
    default=4096,
    show_default=True,
    metavar="N",
    help="Look for a crossover up to here.",
)
@json_option
def command(
    model: str | None,
    params: float | None,
    no_attention: bool,
    dtype: str,
    device: str | None,
    device_spec: str | None,
    prompt: int,
    gen_length: int,
    block_length: int,
    tokens_per_step: int,
    context: int | None,
    concurrency: str | None,
    max_concurrency: int,
    as_json: bool,
    **sizes: Any,
) -> None:
    """What a device allows at most: time of each forward, latency, throughput, knee and crossover, memory.

    A forward cannot take less than reading what it needs from memory, nor less than multiplying it at the device's peak.
    Every figure is modelled so, for the same network under every kind of decoder; what runs really reach of it is shown
    by dllm-audit show. Without --device-spec this machine is measured first, in a few seconds. Without --model and --params the
    model is the embedded tiny-mdm.
    """
    from dllm_audit.cli.roofline_report import RooflineReport
    from dllm_audit.measure.roofline import Roofline
    from dllm_audit.measure.roofline_plans import RequestShape, plans

    if tokens_per_step > block_length:
        raise UsageError(
            f"--tokens-per-step {tokens_per_step} is more than a block of {block_length} holds. Raise --block-length, or lower it."
        )
    if context is not None and context < gen_length:
        raise UsageError(
            f"--context {context} cannot hold --gen-length {gen_length}: the context is prompt and generated tokens together."
        )
    rows = None if concurrency is None else _whole_numbers(concurrency)
    given = {n.replace("_", "-"): v for n, v in sizes.items() if v is not None}
    attention = [f"--{name}" for name in ("layers", "kv-heads", "head-dim", "heads") if name in given]
    attention += ["--context"] if context is not None else []
    overridden = no_attention and bool(attention)
    no_attention = no_attention and not overridden
    asked = _Model(model, params, no_attention, given)
    asked.check()
    name, dimensions, notes = asked.resolve()
    if overridden:
        notes.append(
            f"--no-attention is overridden: {', '.join(attention)} say how much attention reads, so it is counted."
        )
    if no_attention:
        dimensions = replace(dimensions, layers=0, heads=0, kv_heads=0, head_dim=0)
    if context is not None and not dimensions.layers:
        raise UsageError("--context says how much attention reads, so it needs --layers, --kv-heads and --head-dim.")
    speed, dtype = _device(device, device_spec, dtype)
    roofline = Roofline(dimensions, _BYTES[dtype], speed)
    if roofline.lives_in_cache:
        notes.append(
            "The weights fit into the last-level cache, so nothing need be read from memory: the bound is of multiplying alone, "
            "and it says nothing of a model that does not fit."
        )
    shape = RequestShape(prompt, gen_length, block_length, tokens_per_step)
    report = RooflineReport(
        name,
        dtype,
        roofline,
        shape,
        context,
        tuple(plans(shape, context)),
        tuple(plans(shape)),
        rows or _default_rows(roofline),
        max_concurrency,
        tuple(notes),
    )
    if as_json:
        say_json(report.as_dict(), indent=2)
    else:
        say(report.text())


@dataclass(frozen=True)
class _Model:
    """Which model is meant: a reference, or sizes as options. `sizes` holds those that were given, by option name."""

    ref: str | None
    params: float | None
    no_attention: bool
    sizes: dict[str, Any]

    def check(self) -> None:
        """Raise UsageError where the options contradict each other or one lacks its companions."""
        if self.params is None:
            given = [f"--{name}" for name in self.sizes]
            if given:
                verb = "belongs" if len(given) == 1 else "belong"
                raise UsageError(
                    f"{', '.join(given)} {verb} to --params; a --model says it in its config. Leave it out."
                )
            return
        if self.ref is not None:
            raise UsageError("--model and --params both say how large the model is. Give one of them.")
        self._together(("layers", "kv-heads", "head-dim"), ("heads",), "attention")
        self._together(("active-params", "experts", "experts-per-token"), (), "a mixture")
        heads, kv_heads = self.sizes.get("heads"), self.sizes.get("kv-heads")
        if heads and kv_heads and heads % kv_heads:
            raise UsageError(
                f"--heads {heads} is no multiple of --kv-heads {kv_heads}: every such head serves as many."
            )
        if "experts" in self.sizes:
            self._check_mixture()

    def _together(self, needed: Sequence[str], more: Sequence[str], what: str) -> None:
        given = [name for name in (*needed, *more) if name in self.sizes]
        missing = [f"--{name}" for name in needed if name not in self.sizes]
        if given and missing:
            raise UsageError(f"--{given[0]} describes {what}, which also needs {' and '.join(missing)}.")

    def _check_mixture(self) -> None:
        experts, chosen, active = (self.sizes[n] for n in ("experts", "experts-per-token", "active-params"))
        assert self.params is not None
        if chosen >= experts:
            raise UsageError(
                f"--experts-per-token {chosen} of --experts {experts} chooses all of them: leave out the three options of a mixture."
            )
        least = self.params * chosen / experts
        if not least <= active <= self.params:
            raise UsageError(
                f"--active-params {active:g} does not fit: with {chosen} of {experts} experts per token and --params {self.params:g} "
                f"it lies between {least:g} (all parameters in experts) and {self.params:g} (none)."
            )

    def resolve(self) -> tuple[str, Dimensions, list[str]]:
        """(name, sizes, notes)."""
        from dllm_audit.models.dimensions import Dimensions

        if self.params is None:
            return self._from_config()
        get = self.sizes.get
        found = Dimensions.of_size(
            self.params, get("active-params"), get("experts", 0), get("experts-per-token", 0)
        )  # fmt: skip
        notes = ["Every parameter counts as multiplied with every position, the vocabulary head too."]
        if "layers" in self.sizes:
            kv_heads = self.sizes["kv-heads"]
            found = replace(
                found, layers=self.sizes["layers"], kv_heads=kv_heads, head_dim=self.sizes["head-dim"],
                heads=get("heads", kv_heads),
            )  # fmt: skip
            if "heads" not in self.sizes:
                notes.append("Without --heads there are as many query heads as --kv-heads, which is the least.")
        elif not self.no_attention:
            notes.append(
                "Attention, keys and values are left out: give --layers, --kv-heads and --head-dim to count them."
            )
        return "given by its size", replace(found, vocab=get("vocab", 0)), notes

    def _from_config(self) -> tuple[str, Dimensions, list[str]]:
        from dllm_audit.cli.opening import installed
        from dllm_audit.models.loading import dimensions_of, find_model

        ref = self.ref if self.ref is not None else DEFAULT_MODEL
        notes = [] if self.ref is not None else [f"Neither --model nor --params is given: the embedded {ref} is taken."]
        return ref, dimensions_of(find_model(ref, installed().families, weights=False)), notes


def _device(device: str | None, spec: str | None, dtype: str) -> tuple[DeviceSpeed, str]:
    """(the device, the number format that was meant): from a datasheet, or measured here and now."""
    if spec is not None:
        if device is not None:
            raise UsageError("--device measures this machine and --device-spec takes a datasheet. Give one of them.")
        return _datasheet(spec, "bfloat16" if dtype == "auto" else dtype)
    if dtype == "float8":
        raise UsageError("float8 can only be modelled from a datasheet. Give --device-spec NAME, or another --dtype.")
    from dllm_audit.measure.environment import describe
    from dllm_audit.measure.roofline_device import measure_device
    from dllm_audit.models.loading import pick_device, pick_dtype

    chosen = pick_device(device or "auto")
    number_format = pick_dtype(dtype, chosen)
    facts = describe(chosen)
    click.echo("Measuring what this machine reads and multiplies ...", err=True)
    name = str(facts.get("gpu") or facts.get("cpu") or chosen)
    return measure_device(chosen, number_format, name), str(number_format).removeprefix("torch.")


def _datasheet(spec: str, dtype: str) -> tuple[DeviceSpeed, str]:
    from dllm_audit.claims.hardware import DEVICES

    known = {device.name.lower().replace(" ", "-"): device for device in DEVICES}
    found = known.get(spec.strip().lower().replace(" ", "-"))
    if found is None:
        raise UsageError(f"There is no datasheet of {spec!r} here. {did_you_mean(spec.lower(), known)}")
    if dtype == "float32":
        raise UsageError(
            "The datasheets here have the peaks of 16-bit and 8-bit numbers. Use --dtype bfloat16 or float8."
        )
    if dtype == "float8" and found.fp8 is None:
        raise UsageError(f"{found.name} has no 8-bit units. Use --dtype bfloat16.")
    return found.speed(_BYTES[dtype]), dtype


def _whole_numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--concurrency {text!r} is no list of whole numbers, such as 1,8,64.") from None
    if not all(1 <= number <= MOST_IN_FLIGHT for number in numbers):
        raise UsageError(f"--concurrency {text}: from 1 to {MOST_IN_FLIGHT} requests can be in flight.")
    return list(dict.fromkeys(numbers))


def _default_rows(roofline: Roofline) -> list[int]:
    """Powers of two, and the knee: there autoregressive decoding is at its best."""
    knee = roofline.knee()
    extra = [round(knee)] if knee is not None and knee <= MOST_IN_FLIGHT else []
    return sorted({1, 2, 4, 8, 16, 32, 64, 128, 256, *extra})
