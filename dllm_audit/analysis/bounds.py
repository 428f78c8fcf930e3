"""How close a run came to what its device allows, and whether an algorithm or an engine made one run faster than another.

The bound of every forward that a run made is modelled (measure.roofline) from its stored shape, the model's sizes and the
device's speed; what it took was measured. Their ratio says how much of the time a perfect engine would have needed too.
Padding counts as work: it is the forward as it ran that is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, log10, prod
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
    """`count` forwards of one kind and shape, which took `seconds` together; `work` is what each computed for its `rows`."""

    kind: str
    count: int
    seconds: float
    work: Work
    rows: int


@dataclass(frozen=True)
class BoundShares:
    """The share of the bound that a run reached, by kind of forward and in total.

    total: bound / measured seconds of all forwards, with the reason where it is unknown or means nothing.
    kinds, roofline: empty and None where nothing could be bounded. ran: empty where the forwards are not known either.
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
    if not complete:
        return _unknown("a sitting was killed before its log of forwards was stored")
    attention = str(_group(run["manifest"], "model").get("attention", ""))
    ran = [
        Ran(
            s.kind,
            s.count,
            s.seconds,
            work_of(s, attention, _grid(run), bool(run["settings"].get("cfg_scale"))),
            s.rows,
        )
        for s in shapes
        if s.count
        and s.rows
        and all(sound(value) for value in (s.count, s.rows, s.width, s.seconds, s.decided, s.keys))
    ]
    if not ran:
        return _unknown("the engine stored no log of its forwards")
    roofline = _recorded(run)
    if roofline is None:
        return _unknown("the model's sizes or the device's speed were not recorded with the run", ran)
    return bound_forwards(roofline, ran)


def bound_forwards(roofline: Roofline, ran: Sequence[Ran]) -> BoundShares:
    """The share of the bound of forwards that ran, under this roofline."""
    kinds = []
    for name in _kinds_of(ran):
        of_kind = [(forwards, roofline.bound(forwards.work)) for forwards in ran if forwards.kind == name]
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


#: Names and units of the factors of a throughput, where both sides are bounded and where they are not.
_BOUNDED = (
    ("tokens per forward", "tokens/forward"),
    ("forwards per second at the bound", "forwards/s"),
    ("bound over wall time", "share"),
)
_MEASURED = (
    ("tokens per forward", "tokens/forward"),
    ("forwards per second of their own time", "forwards/s"),
    ("share of the wall time in forwards", "share"),
)


@dataclass(frozen=True)
class KindTime:
    """Forwards of one kind: how many, what they took, and the least that they could take. Seconds, summed.

    bound_seconds: None where that is not known or means nothing.
    """

    kind: str
    count: int
    measured_seconds: float
    bound_seconds: float | None


@dataclass(frozen=True)
class Side:
    """One side of a decomposition: its answered tokens, its wall time, and its forwards."""

    tokens: int
    wall_seconds: float
    kinds: tuple[KindTime, ...]

    @property
    def forwards(self) -> int:
        """Forward passes of the batch."""
        return sum(kind.count for kind in self.kinds)

    @property
    def measured_seconds(self) -> float:
        return sum(kind.measured_seconds for kind in self.kinds)

    @property
    def bound_seconds(self) -> float | None:
        """None where a kind has none."""
        seconds = [kind.bound_seconds for kind in self.kinds if kind.bound_seconds is not None]
        return sum(seconds) if len(seconds) == len(self.kinds) else None

    @property
    def factors(self) -> tuple[float, float, float]:
        """Answered tokens per second as a product, see `Decomposition`."""
        at_best = self.bound_seconds
        seconds = self.measured_seconds if at_best is None else at_best
        return self.tokens / self.forwards, self.forwards / seconds, seconds / self.wall_seconds

    @property
    def outside_seconds(self) -> float:
        """Wall time in no forward: sampling, the host, text to tokens and back."""
        return self.wall_seconds - self.measured_seconds

    def as_dict(self) -> dict[str, Any]:
        return {
            "answered_tokens": self.tokens,
            "wall_seconds": self.wall_seconds,
            "forwards": self.forwards,
            "outside_forwards_seconds": self.outside_seconds,
            "kinds": [vars(kind) for kind in self.kinds],
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
    bound over wall time: bound seconds / wall seconds, the engine's part. What each kind of forward and the rest took of the
    wall time was measured, and stands in `candidate` and `baseline`.
    Where no bound holds for both sides, `reason` says why, and the last two are measured: forwards per second of the time
    that forwards took, and the share of the wall time that they took. factors: empty where the forwards are not known.
    """

    factors: tuple[Factor, ...] = ()
    candidate: Side | None = None
    baseline: Side | None = None
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """Product of the factors: candidate's answered tokens per second / baseline's."""
        return prod(factor.ratio for factor in self.factors) if self.factors else None

    @property
    def bounded(self) -> bool:
        """Whether the last two factors are about the bound, which tells an algorithm from an engine."""
        return bool(self.factors) and not self.reason

    @property
    def algorithm(self) -> float | None:
        """The part that two perfect engines would leave: tokens per forward x forwards per second at the bound."""
        return self.factors[0].ratio * self.factors[1].ratio if self.bounded else None

    @property
    def engine(self) -> float | None:
        """The part that comes from how close each side is to its bound."""
        return self.factors[2].ratio if self.bounded else None

    @property
    def sentence(self) -> str:
        """What is the algorithm's and what the engine's, or why that cannot be told."""
        if not self.factors:
            return f"Where the speed comes from is not known: {self.reason}."
        first, second, third = self.factors
        if self.algorithm is not None and self.engine is not None:
            return (
                f"Two perfect engines would leave {self.algorithm:.3g}x, which is the algorithm's part; {self.engine:.3g}x is the "
                f"engine's, since the candidate's bound is {third.candidate:.0%} of its wall time and the baseline's {third.baseline:.0%}."
            )
        return (
            f"The candidate answers {first.ratio:.3g}x the tokens per forward, its forwards run at {second.ratio:.3g}x the rate, "
            f"and they take {third.candidate:.0%} of its time against {third.baseline:.0%} of the baseline's. What of that is the "
            f"algorithm's and what the engine's cannot be told: {self.reason}."
        )

    def texts(self, shown: Callable[[float], str]) -> tuple[str, ...]:
        """The ratios of the factors with as many digits, three at least, as it takes for their product to be `shown` alike."""
        ratios = [factor.ratio for factor in self.factors]
        for digits in range(3, 12):
            found = tuple(_significant(value, digits) for value in ratios)
            if shown(prod(map(float, found))) == shown(prod(ratios)):
                return found
        return tuple(map(repr, ratios))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        sides = (("candidate", self.candidate), ("baseline", self.baseline))
        return {
            "status": "modelled" if self.bounded else "measured",
            "ratio": self.ratio,
            "algorithm": self.algorithm,
            "engine": self.engine,
            "factors": [{**vars(factor), "ratio": factor.ratio} for factor in self.factors],
            **{name: side.as_dict() for name, side in sides if side is not None},
            **({"reason": self.reason} if self.reason else {}),
            "sentence": self.sentence,
        }


def _significant(value: float, digits: int) -> str:
    """A positive number with so many significant digits, without an exponent."""
    return f"{value:.{max(0, digits - 1 - floor(log10(value)))}f}"


def decompose(candidate: Sequence[RunSummary], baseline: Sequence[RunSummary]) -> Decomposition:
    """Tell an algorithm from an engine: the factors of the candidate's throughput over the baseline's.

    Each side is one run or its repeats, whose tokens and times add up. All are bounded by one device: of several
    measurements of it the highest bandwidth and the highest peak.
    """
    every = [*candidate, *baseline]
    if not candidate or not baseline:
        return Decomposition(reason="one side has no run")
    for run in every:
        if run.likelihoods is not None:
            return Decomposition(reason="given answers were scored, so no token was decoded")
        if not (run.answered_tokens and run.makespan_seconds.value):
            return Decomposition(reason=f"{run.run_id} has no tokens or no time")
        if not sum(forwards.seconds for forwards in run.bound.ran):
            return Decomposition(reason=f"of {run.run_id}, {run.bound.total.reason or 'no forward was timed'}")
    reason = _why_unbounded(every)
    ours, theirs = (_side(runs, [] if reason else every) for runs in (candidate, baseline))
    factors = tuple(
        Factor(name, unit, mine, other)
        for (name, unit), mine, other in zip(
            _MEASURED if reason else _BOUNDED, ours.factors, theirs.factors, strict=True
        )
    )
    return Decomposition(factors, ours, theirs, reason)


def _why_unbounded(runs: Sequence[RunSummary]) -> str:
    """Why no bound holds for all of these runs; empty where one does."""
    for run in runs:
        if not run.bound.applicable:
            why = run.bound.total.reason.removeprefix("not applicable: ")
            return f"of {run.run['model']}, {why}" if run.bound.roofline else why
    if len({_device_of(run) for run in runs}) > 1:
        return "the runs were made on different devices"
    return ""


def _side(runs: Sequence[RunSummary], every: Sequence[RunSummary]) -> Side:
    """One side, bounded by the fastest that any of `every` run measured; not bounded where that is empty."""
    ran = [forwards for run in runs for forwards in run.bound.ran]
    devices = [run.bound.roofline.device for run in every if run.bound.roofline is not None]
    own = runs[0].bound.roofline
    bounds: dict[str, float] = {}
    if own is not None and devices:
        fastest = replace(
            own.device,
            bandwidth=max(device.bandwidth for device in devices),
            peak=max(device.peak for device in devices),
        )
        found = bound_forwards(replace(own, device=fastest), ran)
        bounds = {kind.kind: kind.bound_seconds for kind in found.kinds}
    kinds = tuple(
        KindTime(
            name,
            sum(forwards.count for forwards in ran if forwards.kind == name),
            sum(forwards.seconds for forwards in ran if forwards.kind == name),
            bounds.get(name),
        )
        for name in _kinds_of(ran)
    )
    return Side(sum(run.answered_tokens for run in runs), sum(run.makespan_seconds.value or 0.0 for run in runs), kinds)


def _kinds_of(ran: Sequence[Ran]) -> list[str]:
    """Kinds of forward that ran, in the order in which they are shown."""
    there = dict.fromkeys(forwards.kind for forwards in ran)
    return [*(kind for kind in FORWARD_KINDS if kind in there), *(kind for kind in there if kind not in FORWARD_KINDS)]


def _device_of(run: RunSummary) -> tuple[Any, ...]:
    return tuple(run.environment.get(name) for name in ("device", "gpu", "cpu"))


def _unknown(reason: str, ran: Sequence[Ran] = ()) -> BoundShares:
    return BoundShares(Figure(None, "share", "modelled", reason=reason), ran=tuple(ran))


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
