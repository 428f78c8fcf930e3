"""What stored runs say of a claim: a verdict with its reason, the rule, the numbers and the runs.

A recipe names a quantity and where it must lie. The quantity is taken with its interval (95 %, paired by document; for
"loses less than a margin" one-sided 5 %, as Tango's test has it) and set against that:

- wholly inside: reproduced, with a caveat where something else spoils the comparison
- wholly on the other side of no effect, or a loss beyond the margin is shown: contradicted
- wholly outside otherwise: not reproduced
- across the edge: undecided, with the documents that would settle it if the estimate stays where it is

A speed is taken from the clock, so it bears what the clock cannot tell apart: what runs of one configuration differ by,
and how far the books of a run are from closing. Books that do not close are a caveat of every verdict on a speed, and no
speed is concluded from books that are far off.

A mechanism is tested with other models and under a rule of its own, mostly a looser one than the published figure. So its
verdict is put in other words ("mechanism seen here", never "reproduced"), and every check says what was tested and what not.

Every verdict stands for itself. Only those that rest on a test of a margin have a p-value: of all that are asked for
together, one that is lost at a false discovery rate of 5 % (Benjamini-Hochberg) is a caveat.

Without runs, on other hardware, or where the reference is no standard, nothing is judged: not comparable here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    from dllm_audit.analysis.pairing import Comparison, Comparisons, QualityComparison
    from dllm_audit.analysis.summary import RunSummary
    from dllm_audit.store.database import Store

RATIO_SHARE = 0.8
"""Without `expect`, a published ratio or rate counts as reproduced from this share of it upwards."""

DEFAULT_MARGIN_POINTS = 2.0

ENOUGH_REPEATS = 5
"""Interleaved repeats from which a speed has an interval that holds from run to run."""

FALSE_DISCOVERIES = 0.05
"""The rate at which margins that are tested together may be shown by chance."""

POWER_FACTOR = 2.3
"""Documents beyond those at which an interval just clears an edge, so that it does so in four of five repetitions:
((z(0.95) + z(0.80)) / z(0.95)) squared."""

WIDER_SAMPLE = 4
"""So many times the documents halve an interval."""

MOST_DOCUMENTS = 1_000_000
"""Beyond so many documents a difference is as good as none."""

EACH_FOR_ITSELF = (
    "Each interval stands for itself: of many at 95 %, one in twenty misses by chance. Margins tested together are held to a "
    "false discovery rate of 5 %."
)
"""How verdicts are to be read where there are several of them."""

TIMED = ("speed ratio", "time ratio", "throughput")
"""Quantities that are taken from the clock."""


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    CAVEAT = "reproduced with a caveat"
    NOT_REPRODUCED = "not reproduced"
    CONTRADICTED = "contradicted"
    NOT_COMPARABLE = "not comparable here"
    UNDECIDED = "undecided"


SEEN = {
    Verdict.REPRODUCED: "mechanism seen here",
    Verdict.CAVEAT: "mechanism seen here with a caveat",
    Verdict.NOT_REPRODUCED: "mechanism not seen here",
    Verdict.CONTRADICTED: "opposite of the mechanism seen here",
}
"""What a verdict on a mechanism is called: no published number was held against anything."""

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
    """One number a verdict used. `status`: measured, derived or quoted. None where it is unknown.

    ends: what `low` and `high` are, where they are not a plain 95 % interval over what `basis` says.
    """

    name: str
    value: float | None
    low: float | None
    high: float | None
    unit: str
    status: str
    basis: str = ""
    ends: str = ""


@dataclass(frozen=True)
class Check:
    """The verdict on one recipe of a claim.

    scope: `claim` for the claim's own checkpoint; `mechanism` for other models, which says something of the cause and
    nothing of the claim's speed. embedded: whether those are the models of the package. shows: what was put to the test.
    tested: what was run, on what. not_tested: what the verdict says nothing of; empty for a claim's own recipe. Both are
    empty without runs.
    next_commands: what would settle it; empty when it is reproduced. obstacle: only with "not comparable here".
    p_value: of the test that the loss is within the margin, where the verdict rests on one.
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
    p_value: float | None = None
    tested: str = ""
    not_tested: str = ""

    @property
    def fails(self) -> bool:
        return self.verdict in FAILING

    @property
    def outcome(self) -> str:
        """The verdict in words that promise no more than was tested."""
        return outcome(self.scope, self.verdict)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": str(self.verdict), "outcome": self.outcome}


def outcome(scope: str, verdict: Verdict) -> str:
    """A verdict in words: of a mechanism it says that it was seen or not, of a claim that it was reproduced or not."""
    return SEEN.get(verdict, str(verdict)) if scope == "mechanism" else str(verdict)


@dataclass(frozen=True)
class _Judged:
    """needed: documents that would settle it. repeats: so many runs of each side would."""

    verdict: Verdict
    reason: str
    needed: int | None = None
    repeats: int | None = None
    obstacle: Obstacle | None = None


#: In the basis of a number whose interval was widened.
_NOISE = "widened by"

#: The basis of a speed over repeats and the documents that they share.
_DRAWN = re.compile(r"\d+ repeats of (\d+) documents")


def check_claims(
    claims: Sequence[Claim],
    store: Store | None,
    database: Path,
    model: str | None = None,
    baseline_model: str | None = None,
    runs: Sequence[Run] | None = None,
    known: Sequence[RunSummary] = (),
) -> list[Check]:
    """The verdict on every recipe of every claim; a claim without one has one "not comparable here".

    store: None when there are no results yet. `model` and `baseline_model` take the place of those of the claims' own
    recipes, never of the mechanisms. runs: those of the store that a side may be, all by default;
    repeats and the A/A control beside them count in any case. known: summaries of runs that were read before.
    """
    from dllm_audit.analysis.pairing import Comparisons

    comparisons = None if store is None else Comparisons(store, known=known)
    if runs is None:
        runs = [] if store is None else store.runs()
    checks = []
    for claim in claims:
        if claim.recipe is None and not claim.mechanisms:
            checks.append(_no_recipe(claim))
        if claim.recipe is not None:
            checks.append(_check(claim, claim.recipe, comparisons, runs, database, model, baseline_model))
        checks += [_check(claim, mechanism, comparisons, runs, database) for mechanism in claim.mechanisms]
    return _together(checks)


def _together(checks: Sequence[Check]) -> list[Check]:
    """The checks, where a margin that was shown is not among those that many tests together still show."""
    from dllm_audit.statistics.multiple import benjamini_hochberg

    tested = [n for n, check in enumerate(checks) if check.p_value is not None]
    counts = benjamini_hochberg([checks[n].p_value or 0.0 for n in tested], FALSE_DISCOVERIES)
    out = list(checks)
    for n, still in zip(tested, counts, strict=True):
        check = checks[n]
        if still or check.verdict not in (Verdict.REPRODUCED, Verdict.CAVEAT):
            continue
        caveat = (
            f"Of the {len(tested)} margins tested together some are shown by chance: at a false discovery rate of "
            f"{FALSE_DISCOVERIES * 100:g} % (Benjamini-Hochberg) this one is not shown, p = {check.p_value:.3g}."
        )
        ask = check.next_commands or (f"dllm-audit claims check {check.claim}",)
        out[n] = replace(check, verdict=Verdict.CAVEAT, caveats=(*check.caveats, caveat), next_commands=ask)
    return out


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
    comparisons: Comparisons | None,
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
    if found is None or comparisons is None:
        return replace(blank, reason=_missing(runs, sides, database), obstacle=Obstacle.NO_RUNS)
    ours, theirs = found
    elsewhere = _other_hardware(claim, ours) if not mechanism else None
    if elsewhere and quantity == "throughput":
        return replace(
            blank,
            reason=f"Absolute speeds are judged on the same hardware only: {elsewhere}.",
            runs=(str(ours["run_id"]),),
            next_commands=(f"dllm-audit claims show {claim.id}",),
            obstacle=Obstacle.OTHER_HARDWARE,
        )
    if theirs is None:
        taken = _alone(comparisons, ours, quantity)
        comparison = None
    else:
        comparison = comparisons.compare(ours["run_id"], theirs["run_id"], _margin_points(claim, recipe) / 100)
        taken = _between(comparisons, comparison, quantity, expectation)
    judged = _judge(taken.figures[0], quantity, expectation, _whole_task(ours, theirs))
    caveats = [*taken.doubts, *_caveats(claim, recipe, sides, quantity, comparison, ours, elsewhere, mechanism)]
    if comparison is not None:
        judged = _guarded(judged, recipe, quantity, comparison, _promises_quality(claim, recipe, expectation), caveats)
    verdict = Verdict.CAVEAT if judged.verdict is Verdict.REPRODUCED and caveats else judged.verdict
    return replace(
        blank,
        verdict=verdict,
        reason=judged.reason,
        numbers=(*taken.figures, *_quality_numbers(comparison, quantity)),
        runs=taken.runs,
        caveats=tuple(caveats),
        next_commands=_next(verdict, judged, recipe, sides, taken.runs, database),
        obstacle=judged.obstacle,
        p_value=None if judged.obstacle else taken.p_value,
        tested=_tested(sides, comparison, recipe),
        not_tested=_not_tested(claim, quantity) if mechanism else "",
    )


def _tested(sides: Sides, comparison: Comparison | None, recipe: Recipe) -> str:
    """What was run, in words."""
    what = str(sides.candidate)
    if sides.reference is not None and comparison is not None:
        what += f" against {sides.reference}; {comparison.documents:,} documents that both answered"
    return what + ("; small models that come with the package" if recipe.is_embedded else "")


def _not_tested(claim: Claim, quantity: str) -> str:
    """What a verdict on a mechanism says nothing of, in words."""
    from dllm_audit.claims.dossier import amount

    model = "" if isinstance(claim.model, Gap) else f", {claim.model}"
    figure = f"{claim.metric}: {amount(claim.value, claim.unit)}{model}"
    return f"the published figure itself ({figure}); the rule on the {quantity} is this check's own"


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
    same = known is not None and find_device(str(here)) == known and known.is_named_by(str(here))
    count = number_of(claim.hardware.count)
    if not same and str(here).casefold() != claimed.casefold():
        return f"the claim's is {claimed}, this is {here}"
    # An engine here decodes on one device.
    if count is not None and count > 1 and claim.rate_of != "one device":
        return f"the claim's is {count:g} x {claimed}, this is one"
    return None


# -- quantities --


@dataclass(frozen=True)
class _Taken:
    """A quantity, first of `figures`, with what it is made of; the runs it is from; why its times are not reliable.

    runs: candidate first, then the reference, then their other repeats. p_value: that a loss is within its margin.
    """

    figures: tuple[Number, ...]
    runs: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    p_value: float | None = None


def _alone(comparisons: Comparisons, run: Run, quantity: str) -> _Taken:
    """The quantity of one run."""
    from dllm_audit.analysis.pairing import with_doubt

    run_id = str(run["run_id"])
    summary = comparisons.summary(run_id)
    if quantity == "throughput":
        group = comparisons.repeats(run_id)
        figure, timed = summary.throughput, [summary]
        if group.throughput.has_interval or not figure.has_interval:
            figure, timed = group.throughput, list(group.summaries)
        figure, doubts = with_doubt(figure, timed)
        numbers = _with_noise(comparisons, _number("throughput", figure), figure, run)
        return _Taken(numbers, _all_of(run_id, timed), tuple(doubts))
    if quantity == "tokens per forward":
        return _Taken((_tokens_per_forward(comparisons, summary),), (run_id,))
    metric = summary.primary_metric
    if metric is None:
        return _Taken((Number("quality", None, None, None, "%", "measured", "the run has no metric"),), (run_id,))
    return _Taken((_hundredfold(f"quality ({metric.label})", metric.figure, "%"),), (run_id,))


def _between(comparisons: Comparisons, comparison: Comparison, quantity: str, expectation: Expectation) -> _Taken:
    """The quantity of two runs."""
    ours, theirs = comparison.candidate, comparison.baseline
    used: tuple[str, ...] = (ours.run_id, theirs.run_id)
    if quantity in TIMED:
        figure = comparison.speed if quantity == "speed ratio" else comparison.time
        found = _with_noise(comparisons, _number(quantity, figure), figure, ours.run)
        parts: list[Number] = []
        if quantity == "speed ratio":
            parts += [_number("candidate", ours.throughput), _number("reference", theirs.throughput)]
        if found[0].ends:
            parts.append(_plain_interval(_number(quantity, figure)))
        if "repeats" in figure.basis or "repeats" in figure.reason:
            used = _all_of(*used, *(s for run in used for s in comparisons.repeats(run).summaries))
        return _Taken((*found, *parts), used, comparison.doubts)
    if quantity == "quality difference":
        figures, p_value = _quality_difference(comparison, expectation)
        return _Taken(figures, used, p_value=p_value)
    pairs = comparisons.pairs(ours.run_id, theirs.run_id)
    if quantity == "agreement":
        return _Taken((_number("agreement", comparison.agreement.tokens),), used)
    found = (
        _ratio_of(quantity, pairs, lambda row: row["committed_tokens"], lambda row: row["committing_forwards"]),
        _number("candidate", ours.committed_per_forward),
        _number("reference", theirs.committed_per_forward),
    )
    return _Taken(found, used)


def _all_of(*runs: str | RunSummary | Sequence[RunSummary]) -> tuple[str, ...]:
    flat = [run for item in runs for run in (item if isinstance(item, tuple | list) else (item,))]
    return tuple(dict.fromkeys(run if isinstance(run, str) else run.run_id for run in flat))


def _with_noise(comparisons: Comparisons, number: Number, figure: Figure, run: Run) -> tuple[Number, ...]:
    """A speed with its interval widened by what runs of one configuration differ by, and the control where one was run."""
    from dllm_audit.analysis.pairing import noise_bar

    control = comparisons.control(run)
    bar = noise_bar(figure, control)
    if number.low is not None and number.high is not None and bar > 1:
        basis = f"{number.basis}, {_NOISE} {bar:.3f}x for what runs of one configuration differ by"
        ends = f"95 %, widened {bar:.2f}x for noise from run to run"
        number = replace(number, low=number.low / bar, high=number.high * bar, basis=basis, ends=ends)
    if control is None:
        return (number,)
    basis = "the same configuration twice, as the A/A control"
    return (number, Number("the same against itself", control, None, None, "x", "derived", basis))


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


def _tokens_per_forward(comparisons: Comparisons, summary: RunSummary) -> Number:
    import numpy as np

    from dllm_audit.analysis.summary import SEED
    from dllm_audit.statistics.throughput import Batch, throughput_interval

    rows = [row for row, _ in comparisons.pairs(summary.run_id, summary.run_id) if row["committing_forwards"]]
    if not rows:
        return Number("tokens per forward", None, None, None, "tokens", "measured", "no request was answered")
    batches = [Batch(row["committed_tokens"], row["committing_forwards"]) for row in rows]
    found = throughput_interval([batches], level="batch", generator=np.random.default_rng(SEED))
    basis = found.reason or f"{len(rows)} requests"
    return Number("tokens per forward", found.ratio, found.low, found.high, "tokens", "measured", basis)


def _plain_interval(number: Number) -> Number:
    """The same number with the 95 % interval that a comparison of the two runs shows."""
    return replace(number, name=f"{number.name} as the comparison has it, 95 %")


def _quality_difference(comparison: Comparison, expectation: Expectation) -> tuple[tuple[Number, ...], float | None]:
    """(the difference with what it is made of, the p-value where a margin was tested)."""
    quality = comparison.quality
    if quality is None or quality.difference.value is None:
        why = "no metric was scored on both sides"
        return (Number("quality difference", None, None, None, "points", "derived", why),), None
    p_value, ends = None, ""
    plain: tuple[Number, ...] = ()
    low, high = quality.difference.low, quality.difference.high
    basis = quality.difference.basis or quality.difference.reason
    # Where a sequential rule stopped the runs there is no p-value, and the interval holds whenever one stops.
    if quality.counts is not None and quality.p_value is not None and _is_margin(expectation):
        from dllm_audit.statistics.paired import non_inferiority

        # One-sided: the bound that the test of the margin rests on.
        test = non_inferiority(quality.counts, -(expectation.low or 0.0) / 100)
        low, high, p_value, ends = test.low, test.high, test.p_value, "one-sided 5 % each"
        plain = (_plain_interval(_hundredfold("quality difference", quality.difference, "points")),)
    name = f"quality difference ({quality.label})"
    value, low, high = (None if x is None else x * 100 for x in (quality.difference.value, low, high))
    number = Number(name, value, low, high, "points", "derived", basis, ends)
    return (number, *_quality_numbers(comparison, ""), *plain), p_value


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


def _hundredfold(name: str, figure: Figure, unit: str) -> Number:
    value, low, high = (None if x is None else x * 100 for x in (figure.value, figure.low, figure.high))
    return Number(name, value, low, high, unit, figure.status, figure.basis or figure.reason)


# -- judging --


def _rule(quantity: str, expectation: Expectation) -> str:
    """The rule in words, with what decides it."""
    if quantity in DIFFERENCES and _is_margin(expectation):
        return f"{expectation.wording}, by Tango's test of paired documents, one-sided 5 %"
    return f"{expectation.wording}, with the whole 95 % interval"


def _is_margin(expectation: Expectation) -> bool:
    return expectation.high is None and expectation.low is not None and -100 < expectation.low < 0


def _whole_task(*runs: Run | None) -> int | None:
    """How many documents the task has, where every run decoded all of them; None where there may be more."""
    prompts = [run["manifest"]["prompts"] for run in runs if run is not None]
    if any(facts.get("limit") is not None or not facts.get("documents") for facts in prompts):
        return None
    return min(int(facts["documents"]) for facts in prompts)


def _judge(number: Number, quantity: str, expectation: Expectation, whole_task: int | None) -> _Judged:
    """The verdict by the interval alone. whole_task: documents beyond which there are none to ask for."""
    if number.value is None:
        reason = f"The {quantity} cannot be taken: {number.basis}."
        return _Judged(Verdict.NOT_COMPARABLE, reason, obstacle=Obstacle.NO_FIGURE)
    said = _said(number)
    timed = quantity in TIMED
    if number.low is None or number.high is None:
        reason = f"{said} is without an interval: {number.basis}."
        return _Judged(Verdict.UNDECIDED, reason, repeats=ENOUGH_REPEATS if timed else None)
    least = float("-inf") if expectation.low is None else expectation.low
    most = float("inf") if expectation.high is None else expectation.high
    if least <= number.low and number.high <= most:
        return _Judged(Verdict.REPRODUCED, f"{said} lies where the rule has it.")
    if number.high < least or number.low > most:
        if _opposite(number, quantity, expectation):
            return _Judged(Verdict.CONTRADICTED, f"{said} shows the opposite.")
        return _Judged(Verdict.NOT_REPRODUCED, f"{said} lies wholly outside.")
    if _NOISE in number.basis:
        return _Judged(
            Verdict.UNDECIDED,
            f"{said} lies across the edge. {ENOUGH_REPEATS} interleaved repeats on a quiet machine say what runs of one "
            "configuration differ by.",
            repeats=ENOUGH_REPEATS,
        )
    needed = _needed(number, quantity, least, most)
    over = "repeats" if timed and "repeats" in number.basis and not _DRAWN.match(number.basis) else "documents"
    clusters = _clusters(number)
    if needed is None and clusters is not None and clusters * WIDER_SAMPLE <= MOST_DOCUMENTS:
        needed = clusters * WIDER_SAMPLE
        reach = f" The estimate lies on the edge or close to it; {needed:,} {over} halve the interval."
    else:
        reach = "" if needed is None else f" About {needed:,} {over} would settle it if the estimate stays."
    if over == "documents" and needed is not None and whole_task is not None and needed > whole_task:
        reach = f" It takes about {needed:,} documents if the estimate stays, and the task has {whole_task:,}."
        needed = None
    reason = f"{said} lies across the edge.{reach}"
    if over == "repeats":
        return _Judged(Verdict.UNDECIDED, reason, repeats=needed)
    return _Judged(Verdict.UNDECIDED, reason, needed)


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
    """Documents, or repeats where those were drawn, at which the interval would clear the nearest edge with power 80 %.

    That is if the estimate stays. None when it lies on the edge, or when nobody could make so many.
    """
    assert number.value is not None
    assert number.low is not None
    assert number.high is not None
    documents = _clusters(number)
    if documents is None:
        return None
    scale = log if quantity in RATIOS and number.low > 0 else float
    center = scale(number.value)
    sides = center - scale(number.low), scale(number.high) - center
    # Where all documents are alike at the end of the scale, the whole interval lies on one side of the estimate.
    half = max(sides) if min(sides) <= 0 else sum(sides) / 2
    edges = [scale(edge) for edge in (least, most) if abs(edge) != float("inf") and (scale is float or edge > 0)]
    if not edges or half <= 0:
        return None
    distance = min(abs(center - edge) for edge in edges)
    if distance == 0:
        return None
    needed = max(documents + 1, ceil(documents * POWER_FACTOR * (half / distance) ** 2))
    return needed if needed <= MOST_DOCUMENTS else None


def _clusters(number: Number) -> int | None:
    """How many documents or repeats the interval of a number is over; of both the documents, which differ more."""
    both = _DRAWN.match(number.basis)
    head = both[1] if both else number.basis.partition(" ")[0]
    return int(head) if head.isdigit() else None


def _said(number: Number) -> str:
    digits = 2 if number.unit in ("x", "share", "tokens") else 1
    value = f"{number.value:.{digits}f}"
    ends = f"; {number.ends}" if number.ends else ""
    interval = "" if number.low is None else f" ({number.low:.{digits}f} to {number.high:.{digits}f}{ends})"
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
    if not mechanism and quantity in TIMED:
        caveats += _other_width(claim, run)
    if quantity not in ("speed ratio", "time ratio", "quality difference"):
        caveats += _stopped(run, *([] if comparison is None else [comparison.baseline.run]))
    if comparison is None:
        if run["status"] != "complete":
            caveats.append(f"The run {run['run_id']} is {run['status']}: it counts with what it has.")
        if (
            not mechanism
            and quantity == "throughput"
            and claim.quality
            and number_of(claim.quality.at_speed) is not None
        ):
            caveats.append("The quality that goes with it was not held against the claim's.")
        return caveats
    caveats += [caveat for caveat in comparison.caveats if caveat not in comparison.doubts]
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
    strength = comparison.strength
    if quantity in ("speed ratio", "time ratio") and strength is not None and strength.verdict in ("weak", "undecided"):
        caveats.append(strength.sentence)
    return caveats


def _stopped(*runs: Run) -> list[str]:
    """That a rule which watched speed or quality stopped the runs, whose other quantities then have no true interval."""
    from dllm_audit.analysis.sequential import stored_facts

    stopped = [str(run["run_id"]) for run in runs if stored_facts(run)]
    if not stopped:
        return []
    return [
        f"A comparison decided when {' and '.join(stopped)} stopped: this interval supposes a number of documents that was "
        "fixed beforehand, and is too sure."
    ]


def _other_width(claim: Claim, run: Run) -> list[str]:
    """That the weights of a run are wider or narrower than the claim's, where both are known."""
    from dllm_audit.claims.hardware import bytes_per_weight

    here = str(run["manifest"].get("model", {}).get("dtype", ""))
    theirs = None if isinstance(claim.precision, Gap) else bytes_per_weight(claim.precision)
    ours = bytes_per_weight(here)
    if theirs is None or ours is None or ours == theirs:
        return []
    return [f"The claim's precision is {claim.precision}, the run's is {here}."]


def _next(
    verdict: Verdict, judged: _Judged, recipe: Recipe, sides: Sides, used: Sequence[str], database: Path
) -> tuple[str, ...]:
    if verdict is Verdict.REPRODUCED:
        return ()
    if judged.needed is not None:
        return tuple(command.line(database) for command in commands(recipe, sides, judged.needed))
    if judged.repeats is not None:
        return tuple(command.line(database) for command in commands(recipe, sides, repeats=judged.repeats))
    if sides.reference is not None:
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
