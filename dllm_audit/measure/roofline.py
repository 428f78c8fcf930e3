"""The least time that a forward pass can take on a device: the roofline model. Modelled, never measured.

A forward must read what it needs from memory once and multiply it once:

    seconds >= max(bytes / bandwidth, FLOPs / peak)

Read: the weights (of a mixture the distinct experts that its positions touch, of the embedding the looked-up rows, the
vocabulary head where logits are computed), and the keys and values of columns that were computed earlier; written: those
of the window. Multiplied: two FLOPs per weight and position, and attention over the columns that each position sees.
Activations, sampling and every overhead are left out, so the bound errs on the low side.
Source: Williams et al., Roofline (2009), as "Diffusion language models: decoding steps, caching and real speed" applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

from dllm_audit.models.dimensions import Dimensions


def touched_share(total: int, per_token: int, positions: float) -> float:
    """Share, in 0..1, of `total` experts that `positions` touch when each chooses `per_token` independently.

    Top-8 of 64 at 32 positions touch 99 %. Real routers repeat themselves, so this is an upper bound in practice.
    """
    return 1 - (1 - per_token / total) ** positions


@dataclass(frozen=True)
class DeviceSpeed:
    """What a device can do at most: `bandwidth` in bytes/s, `peak` in FLOP/s of matrix products in the number format used.

    status: "measured" or "datasheet". source: how, or which one.
    cache_bytes: its last-level cache, or None where it is unknown or does not matter.
    bandwidth_low, peak_low: of a measured one the lower quartile of the passes, of which the fastest counts.
    """

    name: str
    bandwidth: float
    peak: float
    status: str
    source: str = ""
    cache_bytes: int | None = None
    bandwidth_low: float | None = None
    peak_low: float | None = None

    def times(self, devices: float) -> DeviceSpeed:
        """So many of them that work as one without loss."""
        return replace(self, bandwidth=self.bandwidth * devices, peak=self.peak * devices)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of_facts(facts: Any) -> DeviceSpeed | None:
        """What `as_dict` wrote, read back; None for anything that is not that."""
        fields = DeviceSpeed.__dataclass_fields__
        if not isinstance(facts, Mapping) or not set(facts) <= set(fields):
            return None
        if not all(_is_positive(facts.get(name)) for name in ("bandwidth", "peak")):
            return None
        if not all(isinstance(facts.get(name), str) for name in ("name", "status")):
            return None
        optional = [facts.get(name) for name in ("cache_bytes", "bandwidth_low", "peak_low")]
        return DeviceSpeed(**facts) if all(v is None or _is_positive(v) for v in optional) else None


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0


@dataclass(frozen=True)
class Work:
    """What one forward computes, all of its rows together. Counts, which may be means.

    positions: fed to the network. decided: those whose logits are computed.
    pairs: sum over positions of the columns that each sees, itself included.
    columns_read: keys and values that come from earlier forwards. columns_written: those that are kept for later ones.
    """

    positions: float
    decided: float = 0
    pairs: float = 0
    columns_read: float = 0
    columns_written: float = 0

    def times(self, rows: float) -> Work:
        """So many rows like this one in one forward."""
        return Work(
            self.positions * rows,
            self.decided * rows,
            self.pairs * rows,
            self.columns_read * rows,
            self.columns_written * rows,
        )


def window_work(
    width: float, visible: float, decided: float, attention: str = "full", grid: int = 1, cached: bool = True
) -> Work:
    """One row's window of `width` positions that ends where its `visible` columns end, or lies among them.

    attention: "full" (every position sees every visible column); "causal" or "block", for a window that holds all that it
    sees: every position sees the columns up to itself, or up to the end of its block of `grid` columns.
    cached: keys and values of the other columns are remembered, and those of the window are kept.
    """
    seen = visible
    if attention == "causal":
        seen = (width + 1) / 2
    elif attention == "block":
        seen = min(visible, (width + grid) / 2)
    return Work(
        positions=width,
        decided=decided,
        pairs=width * seen,
        columns_read=max(0.0, visible - width) if cached else 0.0,
        columns_written=width if cached else 0.0,
    )


@dataclass(frozen=True)
class Bound:
    """The least that one forward takes: `bytes` through the memory's bandwidth, `flops` at the device's peak."""

    bytes: float
    flops: float
    memory_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def limited_by(self) -> str:
        """ "memory" or "compute", whichever takes longer."""
        return "memory" if self.memory_seconds > self.compute_seconds else "compute"


@dataclass(frozen=True)
class Roofline:
    """Bounds of one model on one device. weight_bytes: of one weight, and of one number of a key or value."""

    dimensions: Dimensions
    weight_bytes: float
    device: DeviceSpeed

    @property
    def lives_in_cache(self) -> bool:
        """Whether all weights fit into the last-level cache. Then nothing need be read from memory between forwards."""
        cache = self.device.cache_bytes
        return cache is not None and self.dimensions.parameters * self.weight_bytes <= cache

    def bound(self, work: Work) -> Bound:
        """The least that a forward of this work takes; multiplications alone where the weights live in the cache."""
        read, flops = self._bytes(work), self._flops(work)
        memory = 0.0 if self.lives_in_cache else read / self.device.bandwidth
        return Bound(read, flops, memory, flops / self.device.peak)

    def weights_read(self, positions: float, decided: float = 0) -> float:
        """Parameters that a forward over so many positions reads; embedding rows are looked up and not among them."""
        d = self.dimensions
        touched = touched_share(d.expert_count, d.experts_per_token, positions) if d.expert_count else 0.0
        return d.body + d.experts * touched + (d.head if decided else 0.0)

    def _bytes(self, work: Work) -> float:
        d = self.dimensions
        numbers = self.weights_read(work.positions, work.decided) + work.positions * d.hidden
        numbers += (work.columns_read + work.columns_written) * d.kv_elements
        return numbers * self.weight_bytes

    def _flops(self, work: Work) -> float:
        d = self.dimensions
        weights = work.positions * (d.body + d.chosen_experts) + work.decided * d.head
        # Each query head takes a product with the keys and one with the values of every column that a position sees.
        return 2 * weights + 4 * d.layers * d.heads * d.head_dim * work.pairs

    def knee(self) -> float | None:
        """Positions per forward, attention left out and all decided, from which multiplying takes longer than reading.

        None where nothing is read from memory or no number of positions gets there.
        """
        from scipy.optimize import brentq

        if self.lives_in_cache:
            return None

        def surplus(positions: float) -> float:
            bound = self.bound(Work(positions, decided=positions))
            return bound.compute_seconds - bound.memory_seconds

        if surplus(1.0) >= 0:
            return 1.0
        most = 1e9
        return float(brentq(surplus, 1.0, most, xtol=1e-9)) if surplus(most) > 0 else None
