"""What `dllm-audit roofline` prints: the same facts as tables and as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dllm_audit.analysis.plain import one_line
from dllm_audit.analysis.tables import aligned
from dllm_audit.measure.roofline import Bound, Roofline
from dllm_audit.measure.roofline_plans import Crossing, Plan, RequestShape, Step, crossings

#: Lengths of the generation window for which memory is shown.
_WINDOWS = (256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class RooflineReport:
    """Everything that was modelled. `name` of the model, `dtype` of its weights.

    plans: what decoders run in the decode phase at `context`, autoregressive first; requests: for one request as it is.
    rows: requests in flight for which throughput is shown. most: how far a crossover is looked for.
    """

    name: str
    dtype: str
    roofline: Roofline
    shape: RequestShape
    context: int | None
    plans: tuple[Plan, ...]
    requests: tuple[Plan, ...]
    rows: Sequence[int]
    most: int
    notes: tuple[str, ...]

    @cached_property
    def crossings(self) -> dict[str, Crossing]:
        """Decoder -> at which concurrencies it is faster than autoregressive decoding, in the decode phase."""
        return crossings(self.roofline, self.plans, self.most)

    @cached_property
    def knee(self) -> float | None:
        return self.roofline.knee()

    @property
    def weights_bytes(self) -> float:
        return self.roofline.dimensions.parameters * self.roofline.weight_bytes

    def memory(self) -> list[dict[str, Any]]:
        """Bytes by length of the generation window, for one request in flight; None where sizes are not known."""
        d, each = self.roofline.dimensions, self.roofline.weight_bytes
        out = []
        for window in sorted({*_WINDOWS, self.shape.gen_length}):
            columns = self.shape.prompt + window
            kv = columns * d.kv_elements * each if d.kv_elements else None
            block = min(self.shape.block_length, window) * d.vocab * each if d.vocab else None
            canvas = columns * d.vocab * each if d.vocab else None
            out.append(
                {
                    "window": window,
                    "columns": columns,
                    "weights_bytes": self.weights_bytes,
                    "kv_bytes": kv,
                    "logits_of_block_bytes": block,
                    "logits_of_canvas_bytes": canvas,
                    "total_bytes": self.weights_bytes + (kv or 0) + (block or 0),
                }
            )
        return out

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values. Times and rates have the digits that are shown; seconds have all of them."""
        d = self.roofline.dimensions
        return {
            "status": "modelled",
            "model": {
                "name": self.name,
                "dtype": self.dtype,
                "parameters": d.parameters,
                "active_parameters": d.active,
                "weights_bytes": self.weights_bytes,
                "lives_in_cache": self.roofline.lives_in_cache,
                "attention": "counted" if d.layers else "left out",
                "dimensions": d.as_dict(),
            },
            "device": self.roofline.device.as_dict(),
            "request": {**vars(self.shape), "context": self.context},
            "forwards": [
                {
                    "decoder": plan.decoder,
                    "kind": step.kind,
                    "count": round(step.count),
                    "positions": _digits(step.work.positions),
                    "bytes": bound.bytes,
                    "flops": bound.flops,
                    "milliseconds": _digits(bound.seconds * 1e3),
                    "limited_by": bound.limited_by,
                }
                for plan, step, bound in self._forwards()
            ],
            "latency": [
                {
                    "decoder": plan.decoder,
                    "tokens_per_step": plan.tokens_per_step,
                    "forwards": dict(plan.forwards),
                    "milliseconds": _digits(plan.seconds(self.roofline) * 1e3),
                    "seconds": plan.seconds(self.roofline),
                    "times_faster_than_ar": _digits(self._gain(plan)),
                }
                for plan in self.requests
            ],
            "throughput": [
                {
                    "concurrency": rows,
                    "tokens_per_second": self._rates(rows, prefill=False),
                    "with_prefill": self._rates(rows, prefill=True),
                    "limited_by": {plan.decoder: plan.limited_by(self.roofline, rows) for plan in self.plans},
                }
                for rows in self.rows
            ],
            "knee": None if self.knee is None else _digits(self.knee),
            "crossover": self.crossings["block"].crossover,
            "crossover_words": self._crossing(),
            "crossings": {name: vars(found) for name, found in self.crossings.items()},
            "memory": self.memory(),
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """The tables."""
        parts = (
            self._head(),
            self._forward_table(),
            self._latency_table(),
            self._throughput_table(),
            self._memory_table(),
        )
        return "\n\n".join(parts)

    def _forwards(self) -> list[tuple[Plan, Step, Bound]]:
        """The bound of every forward that a lone request runs."""
        return [
            (plan, step, self.roofline.bound(step.work))
            for plan in self.requests
            for step in (*([plan.prefill] if plan.prefill else []), *plan.steps)
        ]

    def _gain(self, plan: Plan) -> float:
        return self.requests[0].seconds(self.roofline) / plan.seconds(self.roofline)

    def _rates(self, rows: int, prefill: bool) -> dict[str, float]:
        return {p.decoder: _digits(p.tokens_per_second(self.roofline, rows, prefill)) for p in self.plans}

    def _crossing(self) -> str:
        found = self.crossings["block"]
        if found.faster_from is None:
            return f"block is not faster than ar at any concurrency up to {self.most:,}"
        since = f"block is faster than ar from {found.faster_from:,}"
        if found.crossover is None:
            return f"none up to {self.most:,} requests in flight; {since} on"
        return f"{found.crossover:,} requests in flight; {since} to {found.crossover - 1:,}"

    def _head(self) -> str:
        d, speed, shape = self.roofline.dimensions, self.roofline.device, self.shape
        active = f" ({_billions(d.active)} active per token)" if d.experts else ""
        lines = [
            f"Model: {one_line(self.name)}, {_billions(d.parameters)} parameters{active}, {_bytes(self.weights_bytes)} in "
            f"{self.dtype}; attention {'counted' if d.layers else 'left out'}",
            f"Device ({speed.status}): {one_line(speed.name)}, reads {_si(speed.bandwidth)}B/s, multiplies {_si(speed.peak)}FLOP/s"
            + ("" if speed.cache_bytes is None else f", last-level cache {speed.cache_bytes / 2**20:,.4g} MiB"),
            f"  by {one_line(speed.source)}",
        ]
        if speed.bandwidth_low is not None and speed.peak_low is not None:
            lines.append(
                f"  the fastest pass counts; three in four reached {_si(speed.bandwidth_low)}B/s and {_si(speed.peak_low)}FLOP/s"
            )
        lines.append(
            f"Request: prompt of {shape.prompt:,} tokens, {shape.gen_length:,} to generate in blocks of {shape.block_length:,}, "
            f"{shape.tokens_per_step:,} per step"
        )
        if self.knee is None:
            lines.append("Knee (modelled): none.")
        else:
            lines.append(
                f"Knee (modelled): {_shown(self.knee)} positions per forward; with more, multiplying takes longer than reading "
                "the weights."
            )
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def _forward_table(self) -> str:
        rows = [("decoder", "forward", "how many", "positions", "reads", "multiplies", "at least", "limited by")]
        for plan in self.requests:
            found = [forward for forward in self._forwards() if forward[0] is plan]
            for n, (_, step, bound) in enumerate(found):
                alike = [m for m, (_, other, _) in enumerate(found) if other.kind == step.kind]
                if n not in (alike[0], alike[-1]):
                    continue  # of a kind whose width changes from block to block, the first and the last
                rows.append(
                    (
                        plan.decoder, step.kind, f"{round(step.count):,}", _shown(step.work.positions), _bytes(bound.bytes),
                        f"{_si(bound.flops)}FLOP", _time(bound.seconds), bound.limited_by,
                    )
                )  # fmt: skip
        return "Each forward of one request (modelled)\n" + aligned(rows, right={2, 3, 4, 5, 6}, indent="  ")

    def _latency_table(self) -> str:
        rows = [("decoder", "tokens/step", "at least", "against ar", "forwards")]
        for plan in self.requests:
            forwards = " + ".join(f"{n:,} {kind}" for kind, n in plan.forwards.items())
            gain = f"x {self._gain(plan):.3g}"
            rows.append((plan.decoder, str(plan.tokens_per_step), _time(plan.seconds(self.roofline)), gain, forwards))
        return "Latency of one request (modelled)\n" + aligned(rows, right={1, 2, 3}, indent="  ")

    def _throughput_table(self) -> str:
        rows = [("in flight", *(plan.decoder for plan in self.plans))]
        for n in self.rows:
            cells = (
                f"{_shown(p.tokens_per_second(self.roofline, n))} {p.limited_by(self.roofline, n)[0]}"
                for p in self.plans
            )
            rows.append((f"{n:,}", *cells))
        found = self.crossings.values()
        rows.append(("faster than ar from", "", *(f"{_or(c.faster_from, 'never')}  " for c in found)))
        rows.append(("as slow as ar from", "", *(f"{_or(c.crossover, 'none')}  " for c in found)))
        at = f", {self.context:,} columns of every row" if self.context else ""
        return (
            f"Tokens per second at most, decode phase{at} (modelled; m: reading memory limits, c: multiplying)\n"
            + aligned(rows, right=range(1, len(rows[0])), indent="  ")
            + f"\n  Crossover (modelled): {self._crossing()}."
        )

    def _memory_table(self) -> str:
        d = self.roofline.dimensions
        title = f"Memory of one request by length of its window, prompt of {self.shape.prompt:,} (modelled)"
        missing = []
        if not d.kv_elements:
            missing.append("Keys and values are left out.")
        if not d.vocab:
            missing.append("Logits are left out: give --vocab.")
        if len(missing) == 2:
            return f"{title}\n  {_bytes(self.weights_bytes)} of weights. {' '.join(missing)}"
        names = ("window", "weights", "keys and values", "logits of a block", "of all columns", "weights + K/V + block")
        keys = ("weights_bytes", "kv_bytes", "logits_of_block_bytes", "logits_of_canvas_bytes", "total_bytes")
        rows = [names, *((f"{row['window']:,}", *(_bytes(row[key]) for key in keys)) for row in self.memory())]
        table = aligned(rows, right=range(len(names)), indent="  ")
        return "\n".join([title, table, *(f"  {sentence}" for sentence in missing)])


def _or(number: int | None, word: str) -> str:
    return word if number is None else f"{number:,}"


def _digits(value: float) -> float:
    """Four significant digits, and all of those before the point."""
    short = float(f"{value:.4g}")
    return round(value) if abs(value) >= 100 else int(short) if short.is_integer() else short


def _shown(value: float) -> str:
    return f"{_digits(value):,}"


def _time(seconds: float) -> str:
    """A duration in milliseconds, or in microseconds where those would be a small fraction."""
    return f"{_shown(seconds * 1e3)} ms" if seconds >= 1e-5 else f"{_shown(seconds * 1e6)} µs"


def _si(value: float) -> str:
    """A number with four digits and a decimal prefix, to stand before a unit."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}"
    return f"{value:.4g} "


def _bytes(value: float | None) -> str:
    return "-" if value is None else f"{_si(value)}B"


def _billions(parameters: float) -> str:
    """A number of parameters as people say it."""
    factor, letter = (1e9, "B") if parameters >= 1e9 else (1e6, "M") if parameters >= 1e6 else (1.0, "")
    return f"{parameters / factor:.3g}{letter}" if letter else f"{parameters:,.0f}"
