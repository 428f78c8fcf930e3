"""How strong an autoregressive baseline is: beside transformers' own `generate`, and against what the device allows.

"Faster than a weak baseline" is not "faster". A baseline is weak (the trap `weak_baseline`) when it is materially slower
than transformers' `generate` on the same weights, prompts and batch: the whole interval of its speed over that of `generate`
lies below MATERIALLY_SLOWER. Or when it takes more than twice as long as the device needs at least. Or when it is made to
decode on after its answers have ended, one forward a token, which costs a diffusion decoder next to nothing. Where the interval
lies on both sides of MATERIALLY_SLOWER, or is not known, that is undecided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dllm_audit.analysis.figures import Figure, ratio
from dllm_audit.analysis.rows import speed_alone
from dllm_audit.measure.library import GENERATE, LOOKUP, OURS, LibraryComparison, Turns
from dllm_audit.statistics.throughput import MINIMUM_CLUSTERS, Batch, speedup_interval

if TYPE_CHECKING:
    from dllm_audit.analysis.summary import RunSummary

MATERIALLY_SLOWER = 0.95
"""A baseline whose speed over that of `generate` lies below this, interval and all, is weak. A decoder that is a per cent or
two slower is no weaker than the next version of a library makes it, and no verdict on a speed hangs on so little."""

LEAST_SHARE = 0.5
"""Below this share of what the device allows a baseline is weak; the traps of published claims use the same."""

MOST_BEYOND = 0.1
"""A baseline of whose tokens more than this share come after the end of its answers is weak: nobody would run it so."""

_SEED = 20251130

StrengthVerdict = Literal["weak", "not weak", "undecided", "unknown"]


@dataclass(frozen=True)
class Strength:
    """How strong an autoregressive run is as a baseline.

    generate: its speed over that of transformers' `generate`; lookup: over that with prompt lookup, unknown where more
    than one request is in flight. Both in tokens/s, of provenance "library". same_tokens: whether `generate` gave the
    same ones. share: the least seconds of its forwards over its whole wall time. beyond: share of its tokens that it decoded
    after its answers had ended, where its settings did not let it stop there; 0 where they did.
    observed: what they were observed on; None where nothing was. verdict: "weak" where one of the three rules fires,
    "undecided" where none does and the turns beside `generate` cannot tell, "unknown" where neither could be looked at.
    """

    observed: LibraryComparison | None
    generate: Figure
    lookup: Figure
    same_tokens: bool | None
    share: Figure
    beyond: float = 0.0

    @property
    def slower_than_generate(self) -> bool:
        """Whether it is materially slower than `generate`, beyond what the turns differ by."""
        return self.generate.high is not None and self.generate.high < MATERIALLY_SLOWER

    @property
    def undecided_beside_generate(self) -> bool:
        """Whether the turns cannot tell if it is materially slower than `generate`."""
        figure = self.generate
        return figure.value is not None and (
            figure.low is None or figure.high is None or figure.low < MATERIALLY_SLOWER <= figure.high
        )

    @property
    def below_half_of_the_bound(self) -> bool:
        return self.share.value is not None and self.share.value < LEAST_SHARE

    @property
    def goes_on(self) -> bool:
        """Whether it was made to decode on after its answers had ended."""
        return self.beyond > MOST_BEYOND

    @property
    def verdict(self) -> StrengthVerdict:
        if self.slower_than_generate or self.below_half_of_the_bound or self.goes_on:
            return "weak"
        if self.undecided_beside_generate:
            return "undecided"
        return "unknown" if self.generate.value is None and self.share.value is None else "not weak"

    @property
    def sample(self) -> str:
        """What was decoded beside the library, in words; empty where nothing was."""
        seen = self.observed
        if seen is None:
            return ""
        prompts = f"{seen.prompts} prompt" + ("s" if seen.prompts > 1 else "")
        together = f"{seen.batch} at a time, " if seen.batch > 1 else ""
        rounds = len(seen.sides[0].seconds)
        return (
            f"{prompts}, {together}up to {seen.gen_length} new tokens, {rounds} turns each, transformers {seen.version}"
        )

    @property
    def sentence(self) -> str:
        """The verdict with its reasons."""
        beside, bound = self._beside_generate(), self._against_the_bound()
        if self.verdict == "weak":
            on = f"{self.beyond:.0%} of its tokens come after the end of its answers, where stop_at_eos would have let it stop"
            rules = (
                (beside, self.slower_than_generate),
                (bound, self.below_half_of_the_bound),
                (on, self.goes_on),
            )
            why = [text for text, fires in rules if fires]
            return f"The baseline is weak: {' and '.join(why)}."
        if self.verdict == "undecided":
            return f"Whether the baseline is weak is undecided: {beside}; {bound}."
        if self.verdict == "unknown":
            return f"How strong the baseline is is not known: {beside}; {bound}."
        return f"The baseline is not shown to be weak: {beside}; {bound}."

    def _beside_generate(self) -> str:
        figure = self.generate
        if figure.value is None:
            return figure.reason
        tokens = "the same tokens" if self.same_tokens else "not always the same tokens"
        limit = f"{MATERIALLY_SLOWER:g}x"
        where = f", not below {limit}"
        if self.slower_than_generate:
            where = f", all below {limit}: materially slower"
        elif self.undecided_beside_generate:
            where = f", on both sides of {limit}" if figure.has_interval else ""
        return f"it runs at {figure.value:.2f}x the speed of transformers' generate ({_ends(figure)}{where}; {tokens})"

    def _against_the_bound(self) -> str:
        figure = self.share
        if figure.value is None:
            return f"its share of what the device allows is {_after_is(figure.reason)}"
        return f"it reaches {figure.value:.0%} of what the device allows (bound over wall time)"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `weak_baseline` is null where it is undecided or neither rule could be looked at."""
        figures = (("generate", self.generate), ("prompt_lookup", self.lookup), ("share_of_bound", self.share))
        return {
            "weak_baseline": {"weak": True, "not weak": False}.get(self.verdict),
            "verdict": self.verdict,
            "materially_slower_below": MATERIALLY_SLOWER,
            "sentence": self.sentence,
            "provenance": "library",
            **{name: {k: v for k, v in vars(figure).items() if v != ""} for name, figure in figures},
            "same_tokens": self.same_tokens,
            "beyond_the_answers": self.beyond,
            "observed": None if self.observed is None else self.observed.as_dict(),
        }


def strength_of(baseline: RunSummary) -> Strength | None:
    """How strong a run is as a baseline; None for one that is not autoregressive, or that decoded no text."""
    if baseline.run["kind"] != "autoregressive" or baseline.likelihoods is not None:
        return None
    facts = baseline.run["manifest"].get("library")
    observed = LibraryComparison.of_facts(facts)
    if observed is None:
        reason = "it was not held against transformers' generate"
        if isinstance(facts, Mapping) and facts.get("reason"):
            reason += f" ({str(facts['reason']).rstrip('.')})"
        nothing = Figure(None, "x", "measured", reason=reason)
        return Strength(None, nothing, nothing, None, _share(baseline), _beyond(baseline))
    lookup = speed_over(observed, LOOKUP, "prompt lookup decodes one request at a time")
    theirs = observed.side(GENERATE)
    same = None if theirs is None else theirs.equal == observed.prompts
    return Strength(observed, speed_over(observed, GENERATE), lookup, same, _share(baseline), _beyond(baseline))


def speed_over(observed: LibraryComparison, name: str, missing: str = "it was not observed") -> Figure:
    """Speed of ours over that of a side of the library, with an interval over the turns. missing: why, where there is none."""
    ours, theirs = observed.side(OURS), observed.side(name)
    if ours is None or theirs is None:
        return Figure(None, "x", "measured", reason=missing)
    found = speedup_interval(*(_turns(side) for side in (ours, theirs)), generator=np.random.default_rng(_SEED))
    if found.low is None:
        reason = f"interval unknown: {found.clusters} of at least {MINIMUM_CLUSTERS} turns"
        return Figure(found.ratio, "x", "measured", reason=reason)
    return Figure(found.ratio, "x", "measured", found.low, found.high, basis=f"{found.clusters} turns")


def _turns(side: Turns) -> list[list[Batch]]:
    return [[Batch(side.tokens, seconds)] for seconds in side.seconds]


def _beyond(baseline: RunSummary) -> float:
    """Share of the tokens of a run that came after its answers and what ended each; 0 where it could stop, or had fixed work."""
    if baseline.run["settings"].get("stop_at_eos") is not False or speed_alone(baseline.run):
        return 0.0
    after = baseline.committed_tokens - baseline.answered_tokens - baseline.answered
    return max(0, after) / baseline.committed_tokens if baseline.committed_tokens else 0.0


def _share(baseline: RunSummary) -> Figure:
    """The least seconds of its forwards over the wall time, or why that is unknown or means nothing."""
    total = baseline.bound.total
    if total.value is None:
        return total
    wall = baseline.makespan_seconds.value or 0.0
    share = ratio(baseline.bound.bound_seconds, wall, "share", "modelled", "no time was measured")
    return replace(share, reason=total.reason) if total.reason else share


def _ends(figure: Figure) -> str:
    return f"{figure.low:.2f} to {figure.high:.2f}" if figure.has_interval else figure.reason


def _after_is(reason: str) -> str:
    """A reason as it goes on after "is"."""
    return reason if reason.startswith("not applicable") else f"unknown: {reason}"
