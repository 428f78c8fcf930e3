"""How close a run came to what its device allows, and whether an algorithm or an engine made one run faster than another.

The bound of every forward that a run made is modelled (measure.roofline) from its stored shape, the model's sizes and the
device's speed; what it took was measured. Their ratio says how much of the time a perfect engine would have needed too.
Padding counts as work: it is the forward as it ran that is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from dllm_audit.analysis.figures import Figure, ratio
from dllm_audit.analysis.rows import sound
from dllm_audit.measure.roofline import DeviceSpeed, Roofline, Work, window_work
from dllm_audit.models.dimensions import Dimensions
from dllm_audit.records import FORWARD_KINDS, ForwardShape

if TYPE_CHECKING:
    from dllm_audit.analysis.summary import RunSummary


@dataclass(frozen=True)
class KindShare:
    """Forwards of one kind: how many, the least they could take, and what they took. Seconds, summed.

    memory_seconds: of the bound, the part in forwards that reading bounds; the rest is bounded by multiplying.
    """

    kind: str
    count: int
    bound_seconds: float
    memory_seconds: float
    measured_seconds: float

    @property
    def share(self) -> float | None:
        """Bound / measured; None where no time was measured."""
        return self.bound_seconds / self.measured_seconds if self.measured_seconds > 0 else None

    @property
    def limited_by(self) -> str:
        """ "memory" or "compute": what most of the bound comes from."""
        return "memory" if self.memory_seconds > self.bound_seconds / 2 else "compute"


@dataclass(frozen=True)
class Ran:
    """`count` forwards of one kind and shape, which took `seconds` together; `work` is what each computed."""

    kind: str
    count: int
    seconds: float
    work: Work


@dataclass(frozen=True)
class BoundShares:
    """The share of the bound that a run reached, by kind of forward and in total.

    total: bound / measured seconds of all forwards, with the reason where it is unknown or means nothing.
    kinds, ran, roofline: empty and None where nothing could be bounded.
    """

    total: Figure
    kinds: tuple[KindShare, ...] = ()
    ran: tuple[Ran, ...] = ()
    roofline: Roofline | None = None

    @property
    def applicable(self) -> bool:
        """Whether the weights are read from memory; where they live in the cache the bound is of multiplying alone."""
        return self.roofline is not None and not self.roofline.lives_in_cache

    @property
    def forwards(self) -> int:
        return sum(kind.count for kind in self.kinds)

    @property
    def bound_seconds(self) -> float:
        return sum(kind.bound_seconds for kind in self.kinds)

    @property
    def measured_seconds(self) -> float:
        return sum(kind.measured_seconds for kind in self.kinds)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "value": self.total.value,
            "status": self.total.status,
            **({"reason": self.total.reason} if self.total.reason else {}),
            "kinds": [
                {
                    "kind": kind.kind,
                    "count": kind.count,
                    "bound_seconds": kind.bound_seconds,
                    "measured_seconds": kind.measured_seconds,
                    "share": kind.share if self.applicable else None,
                    "limited_by": kind.limited_by,
                }
                for kind in self.kinds
            ],
            "device": None if self.roofline is None else self.roofline.device.as_dict(),
        }


def shares_of_bound(run: Mapping[str, Any], shapes: Sequence[ForwardShape], complete: bool = True) -> BoundShares:
    """The share of the bound that a stored run reached.

    run: its row of the store; the manifest's group "roofline" has the model's sizes and the device's speed.
    complete: whether the log of every sitting was stored.
    """
    roofline = _recorded(run)
    if roofline is None:
        return _unknown("the model's sizes or the device's speed were not recorded with the run")
    if not complete:
        return _unknown("a sitting was killed before its log of forwards was stored")
    attention = str(_group(run["manifest"], "model").get("attention", ""))
    ran = [
        Ran(s.kind, s.count, s.seconds, work_of(s, attention, _grid(run), bool(run["settings"].get("cfg_scale"))))
        for s in shapes
        if s.count
        and s.rows
        and all(sound(value) for value in (s.count, s.rows, s.width, s.seconds, s.decided, s.keys))
    ]
    if not ran:
        return _unknown("the engine stored no log of its forwards")
    return bound_forwards(roofline, ran)


def bound_forwards(roofline: Roofline, ran: Sequence[Ran]) -> BoundShares:
    """The share of the bound of forwards that ran, under this roofline."""
    kinds = []
    for name in dict.fromkeys([*FORWARD_KINDS, *(forwards.kind for forwards in ran)]):
        of_kind = [(forwards, roofline.bound(forwards.work)) for forwards in ran if forwards.kind == name]
        if of_kind:
            kinds.append(
                KindShare(
                    name,
                    sum(forwards.count for forwards, _ in of_kind),
                    sum(forwards.count * bound.seconds for forwards, bound in of_kind),
                    sum(forwards.count * bound.seconds for forwards, bound in of_kind if bound.limited_by == "memory"),
                    sum(forwards.seconds for forwards, _ in of_kind),
                )
            )
    return BoundShares(_total(roofline, kinds), tuple(kinds), tuple(ran), roofline)


def _total(roofline: Roofline, kinds: Sequence[KindShare]) -> Figure:
    if roofline.lives_in_cache:
        weights = roofline.dimensions.parameters * roofline.weight_bytes
        reason = (
            f"not applicable: the weights ({_mib(weights)}) fit into the last-level cache "
            f"({_mib(roofline.device.cache_bytes or 0)}), so a share of what memory allows means nothing"
        )
        return Figure(None, "share", "modelled", reason=reason)
    share = ratio(
        sum(kind.bound_seconds for kind in kinds),
        sum(kind.measured_seconds for kind in kinds),
        "share",
        "modelled",
        "no time was measured",
    )
    if share.value is not None and share.value > 1:
        return replace(share, reason="above 1: the device was faster in the run than when its speed was measured")
    return share


def work_of(shape: ForwardShape, attention: str, grid: int, guided: bool) -> Work:
    """What a forward of this shape computes on average.

    attention: "bidirectional", "block" or "causal", as the model was trained. grid: block length of a block-causal one.
    guided: classifier-free guidance runs every row twice in one forward.
    """
    visible = max(shape.width, shape.keys / shape.count)
    rows = shape.rows * (2 if guided else 1)
    decided = shape.decided * (2 if guided else 1) / shape.count
    # Only a decoder without a cache denoises all that is visible; what it computes is kept for nobody.
    cached = not (shape.kind in ("denoise", "score") and shape.width == visible)
    own = "full" if shape.kind not in ("prefill", "score") or attention == "bidirectional" else attention
    return window_work(shape.width, visible, decided / rows, own, grid, cached).times(rows)


#: Names and units of the factors of a throughput.
_FACTORS = (
    ("tokens per forward", "tokens/forward"),
    ("forwards per second at the bound", "forwards/s"),
    ("share of the bound", "share"),
)


@dataclass(frozen=True)
class Side:
    """One side of a decomposition: its answered tokens, its wall time, and its forwards against their bound."""

    tokens: int
    wall_seconds: float
    shares: BoundShares

    @property
    def factors(self) -> tuple[float, float, float]:
        """Answered tokens per second as a product, see `Decomposition`."""
        shares = self.shares
        return (
            self.tokens / shares.forwards,
            shares.forwards / shares.bound_seconds,
            shares.bound_seconds / self.wall_seconds,
        )

    @property
    def outside_seconds(self) -> float:
        """Wall time in no forward: sampling, the host, text to tokens and back."""
        return self.wall_seconds - self.shares.measured_seconds

    def as_dict(self) -> dict[str, Any]:
        return {
            "answered_tokens": self.tokens,
            "wall_seconds": self.wall_seconds,
            "outside_forwards_seconds": self.outside_seconds,
            "forwards": self.shares.as_dict(),
        }


@dataclass(frozen=True)
class Factor:
    """One of the factors of a throughput, on each side."""

    name: str
    unit: str
    candidate: float
    baseline: float

    @property
    def ratio(self) -> float:
        return self.candidate / self.baseline


@dataclass(frozen=True)
class Decomposition:
    """Where a ratio of throughputs comes from: three factors of each side whose ratios multiply to it exactly.

    tokens per forward: answered tokens / forwards of the batch, the algorithm's gain.
    forwards per second at the bound: what the device allows of the forwards that ran; wide or many rows cost here.
    share of the bound: bound seconds / wall seconds, the engine's part. What each kind of forward and the rest took of the
    wall time was measured, and stands in `candidate` and `baseline`.
    factors: empty where `reason` says why there are none. caveat: what to know before reading them.
    """

    factors: tuple[Factor, ...] = ()
    candidate: Side | None = None
    baseline: Side | None = None
    reason: str = ""
    caveat: str = ""

    @property
    def ratio(self) -> float | None:
        """Product of the factors: candidate's answered tokens per second / baseline's."""
        return prod(factor.ratio for factor in self.factors) if self.factors else None

    @property
    def algorithm(self) -> float | None:
        """The part that two perfect engines would leave: tokens per forward x forwards per second at the bound."""
        return self.factors[0].ratio * self.factors[1].ratio if self.factors else None

    @property
    def engine(self) -> float | None:
        """The part that comes from how close each side is to its bound."""
        return self.factors[2].ratio if self.factors else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        sides = (("candidate", self.candidate), ("baseline", self.baseline))
        return {
            "status": "modelled",
            "ratio": self.ratio,
            "algorithm": self.algorithm,
            "engine": self.engine,
            "factors": [{**vars(factor), "ratio": factor.ratio} for factor in self.factors],
            **{name: side.as_dict() for name, side in sides if side is not None},
            **({"reason": self.reason} if self.reason else {}),
            **({"caveat": self.caveat} if self.caveat else {}),
        }


def decompose(candidate: Sequence[RunSummary], baseline: Sequence[RunSummary]) -> Decomposition:
    """Tell an algorithm from an engine: the factors of the candidate's throughput over the baseline's.

    Each side is one run or its repeats, whose tokens and times add up. All are bounded by one device: of several
    measurements of it the highest bandwidth and the highest peak.
    """
    every = [*candidate, *baseline]
    if not candidate or not baseline:
        return Decomposition(reason="one side has no run")
    for run in every:
        if run.bound.roofline is None:
            return Decomposition(reason=f"of {run.run_id}, {run.bound.total.reason}")
        if not (run.answered_tokens and run.makespan_seconds.value and run.bound.bound_seconds):
            return Decomposition(reason=f"{run.run_id} has no tokens, no time or no forwards")
    if len({_device_of(run) for run in every}) > 1:
        return Decomposition(reason="the runs were made on different devices")
    ours, theirs = _side(candidate, every), _side(baseline, every)
    factors = tuple(
        Factor(name, unit, mine, other)
        for (name, unit), mine, other in zip(_FACTORS, ours.factors, theirs.factors, strict=True)
    )
    in_cache = [name for name, side in (("candidate", ours), ("baseline", theirs)) if not side.shares.applicable]
    caveat = (
        f"The weights of the {' and the '.join(in_cache)} fit into the last-level cache: the bound there is of multiplying "
        "alone, and the last two factors say nothing of a model that does not fit."
        if in_cache
        else ""
    )
    return Decomposition(factors, ours, theirs, caveat=caveat)


def _side(runs: Sequence[RunSummary], every: Sequence[RunSummary]) -> Side:
    """One side, bounded by the fastest that any of `every` run measured."""
    devices = [run.bound.roofline.device for run in every if run.bound.roofline is not None]
    own = runs[0].bound.roofline
    assert own is not None
    fastest = replace(
        own.device,
        bandwidth=max(device.bandwidth for device in devices),
        peak=max(device.peak for device in devices),
    )
    shares = bound_forwards(replace(own, device=fastest), [forwards for run in runs for forwards in run.bound.ran])
    return Side(
        sum(run.answered_tokens for run in runs), sum(run.makespan_seconds.value or 0.0 for run in runs), shares
    )


def _device_of(run: RunSummary) -> tuple[Any, ...]:
    return tuple(run.environment.get(name) for name in ("device", "gpu", "cpu"))


def _unknown(reason: str) -> BoundShares:
    return BoundShares(Figure(None, "share", "modelled", reason=reason))


def _recorded(run: Mapping[str, Any]) -> Roofline | None:
    """What the manifest holds for the roofline; None where it is missing or damaged."""
    facts = _group(run["manifest"], "roofline")
    dimensions = Dimensions.of_facts(facts.get("dimensions"))
    device = DeviceSpeed.of_facts(facts.get("device"))
    weight_bytes = facts.get("bytes_per_weight")
    if dimensions is None or device is None or not sound(weight_bytes) or not weight_bytes:
        return None
    return Roofline(dimensions, float(weight_bytes), device)


def _grid(run: Mapping[str, Any]) -> int:
    """Block length of a block-causal model's attention, which decodes in blocks of that length."""
    length = run["settings"].get("block_length")
    return int(length) if sound(length) and length >= 1 else 1


def _group(manifest: Any, name: str) -> Mapping[str, Any]:
    found = manifest.get(name) if isinstance(manifest, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _mib(size: float) -> str:
    return f"{size / 2**20:.3g} MiB"
