"""What stored runs say of a claim: a verdict with its reason, the rule, the numbers and the runs.

A recipe names a quantity and where it must lie. The quantity is taken with its interval (95 %, paired by document; for
"loses less than a margin" one-sided 5 %, as Tango's test has it) and set against that:

- wholly inside: reproduced, with a caveat where something else spoils the comparison
- wholly on the other side of no effect, or a loss beyond the margin is shown: contradicted
- wholly outside otherwise: not reproduced
- across the edge: undecided, with the documents that would settle it if the estimate stays where it is

Without runs, on other hardware, or where the reference is no standard, nothing is judged: not comparable here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from math import ceil, log
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dllm_audit.claims.recipes import Run, Sides, candidates, commands, pair, sides_of
from dllm_audit.claims.schema import (
    ABSOLUTES,
    DIFFERENCES,
    RATIOS,
    Claim,
    Expectation,
    Gap,
    Mechanism,
    Recipe,
    bounds_of,
    number_of,
)

if TYPE_CHECKING:
    from dllm_audit.analysis.figures import Figure
    from dllm_audit.analysis.pairing import Comparison, QualityComparison
    from dllm_audit.analysis.summary import RunSummary
    from dllm_audit.store.database import Store

RATIO_SHARE = 0.8
"""Without `expect`, a published ratio or rate counts as reproduced from this share of it upwards."""

DEFAULT_MARGIN_POINTS = 2.0

POWER_FACTOR = 2.3
"""Documents beyond those at which an interval just clears an edge, so that it does so in four of five repetitions:
((z(0.95) + z(0.80)) / z(0.95)) squared."""

MOST_DOCUMENTS = 1_000_000
"""Beyond so many documents a difference is as good as none."""


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    CAVEAT = "reproduced with a caveat"
    NOT_REPRODUCED = "not reproduced"
    CONTRADICTED = "contradicted"
    NOT_COMPARABLE = "not comparable here"
    UNDECIDED = "undecided"


FAILING = (Verdict.NOT_REPRODUCED, Verdict.CONTRADICTED)
"""The verdicts with which `claims check --strict` ends with exit status 1."""


class Obstacle(StrEnum):
    """Why nothing is judged, as the end of "so many claims: ...", furthest from a verdict first."""

    NO_RECIPE = "nobody has written down what to run"
    NO_NUMBER = "the figure is no number that a run could be held against"
    NO_RUNS = "no run of what the recipe asks for"
    OTHER_HARDWARE = "an absolute speed of other hardware"
    NO_FIGURE = "the runs do not give the quantity"
    UNLIKE = "the two sides do not commit alike"
    NO_STANDARD = "the reference hardly ever answers correctly"


@dataclass(frozen=True)
class Number:
    """One number a verdict used. `status`: measured, derived or quoted. None where it is unknown."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    unit: str
    status: str
    basis: str = ""


@dataclass(frozen=True)
class Check:
    """The verdict on one recipe of a claim.

    scope: `claim` for the claim's own checkpoint; `mechanism` for other models, which says something of the cause and
    nothing of the claim's speed. embedded: whether those are the models of the package. shows: what was put to the test.
    next_commands: what would settle it; empty when it is reproduced. obstacle: only with "not comparable here".
    """

    claim: str
    scope: Literal["claim", "mechanism"]
    embedded: bool
    shows: str
    quantity: str
    verdict: Verdict
    reason: str
    rule: str
    numbers: tuple[Number, ...]
    runs: tuple[str, ...]
    caveats: tuple[str, ...]
    next_commands: tuple[str, ...]
    obstacle: Obstacle | None = None

    @property
    def fails(self) -> bool:
        return self.verdict in FAILING

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": str(self.verdict)}


@dataclass(frozen=True)
class _Judged:
    verdict: Verdict
    reason: str
    needed: int | None = None
    again: bool = False
    obstacle: Obstacle | None = None


#: In the basis of a number whose interval was widened.
_NOISE = "widened by"


def check_claims(
    claims: Sequence[Claim],
    store: Store | None,
    database: Path,
    model: str | None = None,
    baseline_model: str | None = None,
    runs: Sequence[Run] | None = None,
) -> list[Check]:
    """The verdict on every recipe of every claim; a claim without one has one "not comparable here".

    store: None when there are no results yet. `model` and `baseline_model` take the place of those of the claims' own
    recipes, never of the mechanisms. runs: those of the store that a side may be, all by default;
    the A/A control beside them counts in any case.
    """
    if runs is None:
        runs = [] if store is None else store.runs()
    checks = []
    for claim in claims:
        if claim.recipe is None and not claim.mechanisms:
            checks.append(_no_recipe(claim))
        if claim.recipe is not None:
            checks.append(_check(claim, claim.recipe, store, runs, database, model, baseline_model))
        checks += [_check(claim, mechanism, store, runs, database) for mechanism in claim.mechanisms]
    return checks


def _no_recipe(claim: Claim) -> Check:
    return Check(
        claim.id,
        "claim",
        False,
        claim.statement,
        claim.metric,
        Verdict.NOT_COMPARABLE,
        "The claim has no recipe: nobody has written down what to run for it.",
        "",
        (),
        (),
        (),
        (f"dllm-audit claims show {claim.id}",),
        Obstacle.NO_RECIPE,
    )


def _check(
    claim: Claim,
    recipe: Recipe,
    store: Store | None,
    runs: Sequence[Run],
    database: Path,
    model: str | None = None,
    baseline_model: str | None = None,
) -> Check:
    mechanism = isinstance(recipe, Mechanism)
    sides = sides_of(recipe, model, baseline_model)
    quantity = recipe.quantity or _default_quantity(claim, recipe)
    expectation = recipe.expect or (_default_expectation(claim, quantity) if quantity else None)
    if quantity in ABSOLUTES:
        sides = Sides(sides.candidate, None)
    blank = Check(
        claim.id,
        "mechanism" if mechanism else "claim",
        recipe.is_embedded,
        recipe.shows if isinstance(recipe, Mechanism) else claim.statement,
        quantity or claim.metric,
        Verdict.NOT_COMPARABLE,
        "",
        _rule(quantity, expectation) if quantity and expectation else "",
        (),
        (),
        (),
        tuple(command.line(database) for command in commands(recipe, sides)),
    )
    if quantity is None or expectation is None:
        return replace(
            blank,
            reason="The claim's value is no number that a run could be held against; its recipe says no other.",
            obstacle=Obstacle.NO_NUMBER,
        )
    found = _find(runs, sides)
    if found is None or store is None:
        return replace(blank, reason=_missing(runs, sides, database), obstacle=Obstacle.NO_RUNS)
    ours, theirs = found
    used = (str(ours["run_id"]),) + ((str(theirs["run_id"]),) if theirs else ())
    elsewhere = _other_hardware(claim, ours) if not mechanism else None
    if elsewhere and quantity == "throughput":
        return replace(
            blank,
            reason=f"Absolute speeds are judged on the same hardware only: {elsewhere}.",
            runs=used,
            next_commands=(f"dllm-audit claims show {claim.id}",),
            obstacle=Obstacle.OTHER_HARDWARE,
        )
    if theirs is None:
        figures = _alone(store, ours, quantity)
        comparison = None
    else:
        comparison = _compare(store, ours, theirs, recipe, claim)
        figures = _between(store, comparison, quantity, expectation)
    judged = _judge(figures[0], quantity, expectation)
    caveats = _caveats(claim, recipe, sides, quantity, comparison, ours, elsewhere, mechanism)
    if comparison is not None:
        judged = _guarded(judged, recipe, quantity, comparison, _promises_quality(claim, recipe, expectation), caveats)
    verdict = Verdict.CAVEAT if judged.verdict is Verdict.REPRODUCED and caveats else judged.verdict
    extra = _quality_numbers(comparison, quantity)
    return replace(
        blank,
        verdict=verdict,
        reason=judged.reason,
        numbers=(*figures, *extra),
        runs=used,
        caveats=tuple(caveats),
        next_commands=_next(verdict, judged, recipe, sides, used, database),
        obstacle=judged.obstacle,
    )


# -- runs --


def _find(runs: Sequence[Run], sides: Sides) -> tuple[Run, Run | None] | None:
    if sides.reference is not None:
        return pair(runs, sides)
    alone = candidates(runs, sides.candidate)
    return (alone[0], None) if alone else None


def _missing(runs: Sequence[Run], sides: Sides, database: Path) -> str:
    both = [side for side in (sides.candidate, sides.reference) if side is not None]
    lacking = [side for side in both if not candidates(runs, side)] or both[1:]
    return f"{database} has no run of {' and none of '.join(map(str, lacking))}."


def _compare(store: Store, ours: Run, theirs: Run, recipe: Recipe, claim: Claim) -> Comparison:
    from dllm_audit.analysis.pairing import compare
    from dllm_audit.analysis.references import control_of

    control = None
    twins = control_of(ours, store.runs())
    if twins is not None:
        alike = compare(store, twins[0]["run_id"], twins[1]["run_id"])
        control = alike.speed.value
    return compare(store, ours["run_id"], theirs["run_id"], _margin_points(claim, recipe) / 100, control)


def _margin_points(claim: Claim, recipe: Recipe) -> float:
    if recipe.margin_points is not None:
        return recipe.margin_points
    if recipe.expect is not None and recipe.quantity == "quality difference" and (recipe.expect.low or 0) < 0:
        return -(recipe.expect.low or 0.0)
    if claim.quality is not None and claim.quality.claimed_margin_points is not None:
        return bounds_of(claim.quality.claimed_margin_points)[1] or DEFAULT_MARGIN_POINTS
    return DEFAULT_MARGIN_POINTS


def _other_hardware(claim: Claim, run: Run) -> str | None:
    """How the machine of a run differs from the claim's, or None when it is the same device."""
    from dllm_audit.claims.hardware import find_device

    environment = run["manifest"].get("environment", {})
    here = environment.get("gpu") or environment.get("cpu") or environment.get("device") or "an unknown device"
    claimed = claim.hardware.device
    if isinstance(claimed, Gap):
        return f"the claim's is {claimed}, this is {here}"
    known = find_device(claimed)
    if known is not None and find_device(str(here)) == known:
        return None
    return f"the claim's is {claimed}, this is {here}"


# -- quantities --


def _alone(store: Store, run: Run, quantity: str) -> tuple[Number, ...]:
    """The quantity of one run, first."""
    from dllm_audit.analysis.summary import summarise

    summary = summarise(store, run["run_id"])
    if quantity == "throughput":
        return (_number("throughput", summary.throughput),)
    if quantity == "tokens per forward":
        return (_tokens_per_forward(store, summary),)
    metric = summary.primary_metric
    if metric is None:
        return (Number("quality", None, None, None, "%", "measured", "the run has no metric"),)
    return (_percent(f"quality ({metric.label})", metric.figure),)


def _between(store: Store, comparison: Comparison, quantity: str, expectation: Expectation) -> tuple[Number, ...]:
    """The quantity of two runs, first, then what it is made of."""
    from dllm_audit.analysis.pairing import noise_bar

    ours, theirs = comparison.candidate, comparison.baseline
    if quantity == "speed ratio":
        parts = (_number("candidate", ours.throughput), _number("reference", theirs.throughput))
        found = _number("speed ratio", comparison.speed)
        return (_beyond_noise(found, noise_bar(comparison.speed, comparison.control)), *parts)
    if quantity == "quality difference":
        return _quality_difference(comparison, expectation)
    rows = [
        {row["doc_id"]: row for row in store.requests(side.run_id) if row["error_type"] is None}
        for side in (ours, theirs)
    ]
    pairs = [(rows[0][doc], rows[1][doc]) for doc in rows[0] if doc in rows[1]]
    if quantity == "agreement":
        return (_agreement(pairs),)
    if quantity == "time ratio":
        return (_ratio_of(quantity, pairs, lambda row: 1.0, lambda row: row["total_seconds"]),)
    found = _ratio_of(quantity, pairs, lambda row: row["committed_tokens"], lambda row: row["committing_forwards"])
    parts = (
        _number("candidate", ours.committed_per_forward),
        _number("reference", theirs.committed_per_forward),
    )
    return (found, *parts)


def _beyond_noise(number: Number, bar: float) -> Number:
    """The interval widened by what runs of one configuration differ by on this machine."""
    if number.low is None or number.high is None or bar <= 1:
        return number
    basis = f"{number.basis}, {_NOISE} {bar:.3f}x for what runs of one configuration differ by"
    return replace(number, low=number.low / bar, high=number.high * bar, basis=basis)


def _ratio_of(name: str, pairs: Sequence[tuple[Any, Any]], over: Any, under: Any) -> Number:
    """sum(over) / sum(under) of the candidate over that of the reference, documents drawn in pairs."""
    import numpy as np

    from dllm_audit.analysis.summary import SEED
    from dllm_audit.statistics.throughput import Batch, speedup_interval

    kept = [pair for pair in pairs if all(over(row) and under(row) for row in pair)]
    if not kept:
        return Number(name, None, None, None, "x", "derived", "the runs have no document in common")
    ours, theirs = ([Batch(over(pair[side]), under(pair[side])) for pair in kept] for side in (0, 1))
    found = speedup_interval([ours], [theirs], level="batch", generator=np.random.default_rng(SEED))
    return Number(
        name, found.ratio, found.low, found.high, "x", "derived", found.reason or f"{len(kept)} paired documents"
    )


def _tokens_per_forward(store: Store, summary: RunSummary) -> Number:
    import numpy as np

    from dllm_audit.analysis.summary import SEED
    from dllm_audit.statistics.throughput import Batch, throughput_interval

    rows = [row for row in store.requests(summary.run_id) if row["error_type"] is None and row["committing_forwards"]]
    if not rows:
        return Number("tokens per forward", None, None, None, "tokens", "measured", "no request was answered")
    batches = [Batch(row["committed_tokens"], row["committing_forwards"]) for row in rows]
    found = throughput_interval([batches], level="batch", generator=np.random.default_rng(SEED))
    basis = found.reason or f"{len(rows)} requests"
    return Number("tokens per forward", found.ratio, found.low, found.high, "tokens", "measured", basis)


def _agreement(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Number:
    """Share of answer tokens that both sides have in the same place; a place that one side lacks is a disagreement."""
    import numpy as np

    from dllm_audit.analysis.summary import SEED
    from dllm_audit.statistics.throughput import Batch, throughput_interval

    batches = []
    for ours, theirs in pairs:
        a, b = ((row["output_ids"] or [])[: row["answered_tokens"]] for row in (ours, theirs))
        places = max(len(a), len(b))
        if places:
            batches.append(Batch(sum(x == y for x, y in zip(a, b, strict=False)), places))
    if not batches:
        return Number("agreement", None, None, None, "share", "measured", "the runs have no document in common")
    found = throughput_interval([batches], level="batch", generator=np.random.default_rng(SEED))
    high = None if found.high is None else min(1.0, found.high)
    basis = found.reason or f"{len(batches)} paired documents"
    return Number("agreement", found.ratio, found.low, high, "share", "measured", basis)


def _quality_difference(comparison: Comparison, expectation: Expectation) -> tuple[Number, ...]:
    quality = comparison.quality
    if quality is None or quality.difference.value is None:
        why = "no metric was scored on both sides"
        return (Number("quality difference", None, None, None, "points", "derived", why),)
    low, high = quality.difference.low, quality.difference.high
    basis = quality.difference.basis or quality.difference.reason
    if quality.counts is not None and _is_margin(expectation):
        from dllm_audit.statistics.paired import non_inferiority

        # One-sided: the bound that the test of the margin rests on.
        test = non_inferiority(quality.counts, -(expectation.low or 0.0) / 100)
        low, high, basis = test.low, test.high, f"{basis}, one-sided 5 %"
    name = f"quality difference ({quality.label})"
    value, low, high = (None if x is None else x * 100 for x in (quality.difference.value, low, high))
    return (Number(name, value, low, high, "points", "derived", basis), *_quality_numbers(comparison, ""))


def _quality_numbers(comparison: Comparison | None, quantity: str) -> tuple[Number, ...]:
    if comparison is None or comparison.quality is None or quantity == "quality difference":
        return ()
    quality = comparison.quality
    out = []
    for name, value in (("candidate", quality.candidate), ("reference", quality.baseline)):
        percent = None if value is None else value * 100
        basis = f"{quality.documents} paired documents"
        out.append(Number(f"{quality.label} of the {name}", percent, None, None, "%", "measured", basis))
    return tuple(out)


def _number(name: str, figure: Figure) -> Number:
    basis = figure.basis or figure.reason
    return Number(name, figure.value, figure.low, figure.high, figure.unit, figure.status, basis)


def _percent(name: str, figure: Figure) -> Number:
    value, low, high = (None if x is None else x * 100 for x in (figure.value, figure.low, figure.high))
    return Number(name, value, low, high, "%", figure.status, figure.basis or figure.reason)


# -- judging --


def _rule(quantity: str, expectation: Expectation) -> str:
    """The rule in words, with what decides it."""
    if quantity in DIFFERENCES and _is_margin(expectation):
        return f"{expectation.wording}, by Tango's test of paired documents, one-sided 5 %"
    return f"{expectation.wording}, with the whole 95 % interval"


def _is_margin(expectation: Expectation) -> bool:
    return expectation.high is None and expectation.low is not None and -100 < expectation.low < 0


def _judge(number: Number, quantity: str, expectation: Expectation) -> _Judged:
    if number.value is None:
        reason = f"The {quantity} cannot be taken: {number.basis}."
        return _Judged(Verdict.NOT_COMPARABLE, reason, obstacle=Obstacle.NO_FIGURE)
    said = _said(number)
    if number.low is None or number.high is None:
        return _Judged(Verdict.UNDECIDED, f"{said} is without an interval: {number.basis}.")
    least = float("-inf") if expectation.low is None else expectation.low
    most = float("inf") if expectation.high is None else expectation.high
    if least <= number.low and number.high <= most:
        return _Judged(Verdict.REPRODUCED, f"{said} lies where the claim has it.")
    if number.high < least or number.low > most:
        if _opposite(number, quantity, expectation):
            return _Judged(Verdict.CONTRADICTED, f"{said} shows the opposite.")
        return _Judged(Verdict.NOT_REPRODUCED, f"{said} lies wholly outside.")
    needed = _needed(number, quantity, least, most)
    if _NOISE in number.basis:
        return _Judged(
            Verdict.UNDECIDED,
            f"{said} lies across the edge, {number.basis.rpartition(', ')[2]}. Run it again when the machine is quiet.",
            again=True,
        )
    reach = "" if needed is None else f" About {needed:,} documents would settle it if the estimate stays."
    return _Judged(Verdict.UNDECIDED, f"{said} lies across the edge.{reach}", needed)


def _opposite(number: Number, quantity: str, expectation: Expectation) -> bool:
    """Whether the whole interval lies on the other side of no effect, or a loss beyond the margin is shown."""
    assert number.low is not None
    assert number.high is not None
    neutral = 1.0 if quantity in RATIOS else 0.0 if quantity in DIFFERENCES else None
    if neutral is None:
        return False
    if quantity in DIFFERENCES and _is_margin(expectation):
        return number.high < (expectation.low or 0.0)
    if expectation.low is not None and expectation.low >= neutral:
        return number.high < neutral
    if expectation.high is not None and expectation.high <= neutral:
        return number.low > neutral
    return False


def _needed(number: Number, quantity: str, least: float, most: float) -> int | None:
    """Documents at which the interval would clear the nearest edge with power 80 %, if the estimate stays.

    None when it lies on the edge, or when the machine's noise keeps the interval wide however many documents there are.
    """
    assert number.value is not None
    assert number.low is not None
    assert number.high is not None
    documents = _documents(number)
    if documents is None or _NOISE in number.basis:
        return None
    scale = log if quantity in RATIOS and number.low > 0 else float
    center, half = scale(number.value), (scale(number.high) - scale(number.low)) / 2
    edges = [scale(edge) for edge in (least, most) if abs(edge) != float("inf") and (scale is float or edge > 0)]
    if not edges or half <= 0:
        return None
    distance = min(abs(center - edge) for edge in edges)
    if distance == 0:
        return None
    needed = max(documents + 1, ceil(documents * POWER_FACTOR * (half / distance) ** 2))
    return needed if needed <= MOST_DOCUMENTS else None


def _documents(number: Number) -> int | None:
    head = number.basis.partition(" ")[0]
    return int(head) if head.isdigit() else None


def _said(number: Number) -> str:
    digits = 2 if number.unit in ("x", "share", "tokens") else 1
    value = f"{number.value:.{digits}f}"
    interval = "" if number.low is None else f" ({number.low:.{digits}f} to {number.high:.{digits}f})"
    unit = {"x": "x", "share": ""}.get(number.unit, f" {number.unit}")
    return f"The {number.name} {value}{unit}{interval}"


def _guarded(
    judged: _Judged, recipe: Recipe, quantity: str, comparison: Comparison, promises: bool, caveats: list[str]
) -> _Judged:
    """The verdict once more, where the two sides must be alike in something, or faster must also be as good."""
    least = recipe.at_least_tokens_per_forward
    ours, theirs = comparison.candidate.committed_per_forward.value, comparison.baseline.committed_per_forward.value
    if least is not None and ours and theirs and ours / theirs < least:
        return _Judged(
            Verdict.NOT_COMPARABLE,
            f"The sides do not commit alike: {ours:.2f} tokens per forward against {theirs:.2f}, "
            f"where at least {least:g} times as many are asked for.",
            obstacle=Obstacle.UNLIKE,
        )
    quality = comparison.quality
    if quantity == "quality difference" and quality is not None and _no_standard(quality):
        return _Judged(
            Verdict.NOT_COMPARABLE,
            f"The reference answers {(quality.baseline or 0) * 100:.0f} % correctly, so there is nothing to lose or keep.",
            obstacle=Obstacle.NO_STANDARD,
        )
    if judged.verdict is not Verdict.REPRODUCED or quantity not in RATIOS or not promises:
        return judged
    margin = f"{(quality.margin if quality else 0) * 100:g} points"
    if quality is None or quality.verdict == "unknown":
        caveats.append("Whether the quality holds is unknown: no metric was scored on both sides.")
    elif _no_standard(quality):
        caveats.append(
            f"The reference answers {(quality.baseline or 0) * 100:.0f} % correctly, so the quality says nothing."
        )
    elif quality.verdict == "worse":
        return _Judged(Verdict.NOT_REPRODUCED, f"{judged.reason} But the quality is worse by more than {margin}.")
    elif quality.verdict == "open":
        needed = f" About {quality.needed:,} documents are needed." if quality.needed else ""
        caveats.append(f"Whether the quality holds within {margin} is not decided.{needed}")
        return replace(judged, needed=quality.needed)
    return judged


def _promises_quality(claim: Claim, recipe: Recipe, expectation: Expectation) -> bool:
    """Whether being faster is claimed together with a quality: by a margin, or by scores of both sides."""
    if expectation.low is None:
        return False
    if recipe.margin_points is not None:
        return True
    quality = claim.quality
    if isinstance(recipe, Mechanism) or quality is None:
        return False
    scores = number_of(quality.at_speed), number_of(quality.reference)
    return quality.claimed_margin_points is not None or None not in scores


def _no_standard(quality: QualityComparison) -> bool:
    from dllm_audit.analysis.pairing import FLOOR

    return quality.counts is not None and (quality.baseline or 0.0) < FLOOR


def _caveats(
    claim: Claim,
    recipe: Recipe,
    sides: Sides,
    quantity: str,
    comparison: Comparison | None,
    run: Run,
    elsewhere: str | None,
    mechanism: bool,
) -> list[str]:
    caveats = []
    if sides.candidate.model != recipe.model:
        caveats.append(f"Another model decoded: {sides.candidate.model} instead of {recipe.model}.")
    if elsewhere and quantity in ("speed ratio", "time ratio"):
        caveats.append(f"A ratio travels between machines with a warning only: {elsewhere}.")
    if not mechanism and recipe.concurrency != (number_of(claim.concurrency) or recipe.concurrency):
        caveats.append(
            f"The claim's concurrency is {number_of(claim.concurrency):g}, the run's is {recipe.concurrency}."
        )
    for side in [run] if comparison is None else [comparison.candidate.run, comparison.baseline.run]:
        if side["status"] != "complete":
            caveats.append(f"The run {side['run_id']} is {side['status']}: it counts with what it has.")
    if comparison is None:
        return caveats
    if comparison.manifests.nuisance:
        names = ", ".join(d.name.rpartition(".")[2].replace("_", " ") for d in comparison.manifests.nuisance[:4])
        caveats.append(f"More than the recipe differs between the runs ({names}).")
    if comparison.unpaired:
        caveats.append(f"{comparison.unpaired} documents were answered on one side only and are left out.")
    # At equal length a shorter answer is part of neither quality nor agreement.
    if quantity in ("speed ratio", "time ratio") and comparison.length_parity is False and comparison.length.value:
        amount = abs(comparison.length.value - 1) * 100
        how = "shorter" if comparison.length.value < 1 else "longer"
        caveats.append(f"The answers are {amount:.0f} % {how} than the reference's.")
    return caveats


def _next(
    verdict: Verdict, judged: _Judged, recipe: Recipe, sides: Sides, used: Sequence[str], database: Path
) -> tuple[str, ...]:
    if verdict is Verdict.REPRODUCED:
        return ()
    if judged.needed is not None:
        return tuple(command.line(database) for command in commands(recipe, sides, judged.needed))
    if judged.again:
        return tuple(command.line(database) for command in commands(recipe, sides))
    if len(used) == 2:
        return (f"dllm-audit compare {used[0]} {used[1]} --db {database}",)
    return (f"dllm-audit show {used[0]} --db {database}",)


# -- what a claim's own value asks for --


def _default_quantity(claim: Claim, recipe: Recipe) -> str | None:
    if recipe.baseline is not None:
        return {
            "speedup": "speed ratio",
            "latency": "time ratio",
            "throughput": "speed ratio",
            "quality": "quality difference",
        }.get(claim.kind)
    return {"throughput": "throughput", "quality": "quality"}.get(claim.kind)


def _default_expectation(claim: Claim, quantity: str) -> Expectation | None:
    """Where the quantity must lie by the claim's own figures; None when they do not say."""
    value = number_of(claim.value)
    base = claim.baseline
    other = number_of(base.value) if base is not None and (base.unit or claim.unit) == claim.unit else None
    if quantity in ("speed ratio", "time ratio"):
        ratio = value if claim.kind == "speedup" and claim.unit == "x" else None
        if ratio is None and value and other:
            ratio = other / value if claim.kind == "latency" else value / other
        if ratio is None:
            return None
        if ratio < 1:
            return Expectation(
                high=round(ratio / RATIO_SHARE, 4), wording=f"at most {ratio / RATIO_SHARE:.3g}x, for {ratio:.3g}x"
            )
        low = round(ratio * RATIO_SHARE, 4)
        return Expectation(low=low, wording=f"at least {low:.3g}x, {RATIO_SHARE * 100:.0f} % of {ratio:.3g}x")
    if quantity == "throughput" and value:
        low = round(value * RATIO_SHARE, 4)
        return Expectation(low=low, wording=f"at least {low:.4g} tokens/s, {RATIO_SHARE * 100:.0f} % of {value:g}")
    if quantity == "quality" and value is not None:
        return Expectation(
            low=value - DEFAULT_MARGIN_POINTS,
            high=value + DEFAULT_MARGIN_POINTS,
            wording=f"within {DEFAULT_MARGIN_POINTS:g} points of {value:g} %",
        )
    if quantity == "quality difference" and value is not None and other is not None:
        difference = value - other
        return Expectation(
            low=difference - DEFAULT_MARGIN_POINTS,
            high=difference + DEFAULT_MARGIN_POINTS,
            wording=f"within {DEFAULT_MARGIN_POINTS:g} points of the published difference of {difference:+.1f}",
        )
    return None
