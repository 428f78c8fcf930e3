"""The known ways in which a figure says more than was measured.

A trap is a rule on the fields of one claim: it returns the sentence to show, or None. It says how the figure
may mislead, not that anybody meant to. What could not be read never fires a trap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dllm_audit.analysis.words import listed
from dllm_audit.claims.questions import describe
from dllm_audit.claims.schema import Claim, Figure, Gap, Quantity, Stated, bounds_of, number_of
from dllm_audit.measure.roofline import touched_share
from dllm_audit.statistics.power import decidable_margin

Rule = Callable[[Claim], str | None]

TIME_UNITS = ("s", "ms")
"""Units in which less is faster."""


LENGTH_TOLERANCE = 0.10
"""Answers that are shorter by more than this make a speed doubtful."""

STRONGER = 1.05
"""A rival that is faster by less than this factor is as good as the baseline."""


@dataclass(frozen=True)
class Trap:
    """A rule with a title; `source` is where the trap was met, in public. Its id is the name of the rule."""

    title: str
    source: str
    rule: Rule

    @property
    def id(self) -> str:
        return self.rule.__name__


@dataclass(frozen=True)
class TrapFinding:
    """A trap that a claim walks into, with one sentence about this claim."""

    id: str
    title: str
    sentence: str
    source: str


def load_traps() -> tuple[tuple[Trap, ...], tuple[str, ...]]:
    """The built-in traps and those of installed plugins, and a sentence for each that had to be left out."""
    from dllm_audit.plugins import collect, get_plugin_manager

    manager, problems = get_plugin_manager()
    traps = {trap.id: trap for trap in TRAPS}
    for plugin, trap in collect(manager, "dllm_audit_claim_traps", problems):
        if not isinstance(trap, Trap):
            problems.append(f"Plugin {plugin!r}: dllm_audit_claim_traps gave a {type(trap).__name__}, not a Trap.")
        elif trap.id in traps:
            problems.append(f"Trap {trap.id!r} of plugin {plugin!r} is left out: there is one of that name.")
        else:
            traps[trap.id] = trap
    return tuple(traps.values()), tuple(problems)


def find_traps(claim: Claim, traps: Sequence[Trap] | None = None) -> list[TrapFinding]:
    """The traps that this claim walks into, in the order of `traps` (all of `TRAPS` by default)."""
    found = []
    for trap in TRAPS if traps is None else traps:
        sentence = trap.rule(claim)
        if sentence:
            found.append(TrapFinding(trap.id, trap.title, sentence, trap.source))
    return found


def other_gpu(claim: Claim) -> str | None:
    if claim.baseline is None or claim.baseline.same_gpu != "no":
        return None
    device = "the model" if isinstance(claim.hardware.device, Gap) else claim.hardware.device
    return f"The baseline ({claim.baseline.model}) ran on other hardware than {device}."


def other_engine(claim: Claim) -> str | None:
    if claim.baseline is None or claim.baseline.same_engine != "no":
        return None
    return f"The engines of the two sides differ ({claim.baseline.engine}): the engine may explain the gap."


def weak_baseline(claim: Claim) -> str | None:
    baseline = claim.baseline
    if baseline is None or not claim.about_speed:
        return None
    if baseline.synthetic == "yes":
        return f"The baseline ({baseline.model}) is partly assumed, not measured."
    if baseline.share_of_bound is not None and baseline.share_of_bound < 0.5:
        return f"The baseline reaches {baseline.share_of_bound * 100:.0f} % of what its hardware allows."
    rival = baseline.stronger
    if rival is None:
        return None
    ours, theirs = number_of(baseline.value), bounds_of(rival.value)[rival.unit in TIME_UNITS]
    if ours is None or theirs is None or rival.unit != (baseline.unit or claim.unit):
        return None
    stronger = theirs * STRONGER < ours if rival.unit in TIME_UNITS else theirs > ours * STRONGER
    if not stronger:
        return None
    return (
        f"The baseline runs at {ours:g} {rival.unit}, but {rival.model}, "
        f"at {_amount(rival.value, rival.unit)} ({rival.where})."
    )


def uncached_baseline(claim: Claim) -> str | None:
    if claim.baseline is None or not claim.about_speed or claim.baseline.kv_cache != "no":
        return None
    return f"The baseline ({claim.baseline.model}) recomputes everything at every step: it has no KV cache."


def assembled_estimate(claim: Claim) -> str | None:
    if claim.assembly is None:
        return "The figure is an estimate; nothing was run." if claim.status == "estimated" else None
    sentence = f"The figure was put together from {listed(claim.assembly.parts)}, never run as a whole"
    if claim.assembly.left_out:
        sentence += f"; left out: {listed(claim.assembly.left_out)}"
    return sentence + "."


def batch_1_only(claim: Claim) -> str | None:
    if not claim.about_speed or claim.concurrency != 1:
        return None
    return "One request at a time, which leaves compute idle: with more requests the comparison changes."


def concurrency_unknown(claim: Claim) -> str | None:
    if not claim.about_speed:
        return None
    if claim.concurrency is Gap.NOT_STATED:
        return "The source does not say how many requests ran at once, so the figure has no place on any curve."
    if isinstance(claim.concurrency, Stated) and claim.concurrency.qualifier == "words":
        return f"The concurrency is given only as {describe(claim.concurrency)}."
    return None


def prompt_tokens_counted(claim: Claim) -> str | None:
    met = [name for name in ("prompt", "padding") if getattr(claim.counts, name) == "yes"]
    suspected = [name for name in ("prompt", "padding") if getattr(claim.counts, name) == "suspected"]
    if met:
        return f"The rate counts {listed(met)} tokens as if they had been generated."
    if suspected:
        return f"The rate is suspected of counting {listed(suspected)} tokens as if they had been generated."
    return None


def prefill_excluded(claim: Claim) -> str | None:
    return "The time to process the prompt is left out." if claim.time_includes.prefill == "no" else None


def commit_pass_excluded(claim: Claim) -> str | None:
    if claim.time_includes.commit_pass != "no":
        return None
    return "The pass that writes or refreshes the cache after each block is left out."


def overhead_excluded(claim: Claim) -> str | None:
    if claim.time_includes.fixed_overhead != "no":
        return None
    seconds, rate = claim.time_includes.overhead_seconds, number_of(claim.value)
    if not seconds or not rate or claim.unit != "tok/s":
        return "Fixed costs of every request are left out."
    short, long = (tokens / (tokens / rate + seconds) for tokens in (200, 1000))
    return (
        f"{seconds:g} s a request are left out: with them 200 tokens come at {short:.0f} tok/s "
        f"and 1,000 tokens at {long:.0f} tok/s."
    )


def fixed_steps_without_quality(claim: Claim) -> str | None:
    if not claim.about_speed or claim.decode.schedule != "fixed" or _is_one_token_per_step(claim):
        return None
    if claim.quality is not None and claim.quality.at_speed is not Gap.NOT_STATED:
        return None
    return (
        f"The steps were fixed beforehand ({describe(claim.decode.steps)}), the fewer the faster, "
        "and no quality is given for that number."
    )


def _is_one_token_per_step(claim: Claim) -> bool:
    """Whether the schedule is the slowest that there is, by its tokens per step or by as many steps as tokens."""
    steps, tokens = number_of(claim.decode.steps), number_of(claim.output_tokens)
    return claim.decode.tokens_per_step == 1 or (steps is not None and tokens is not None and steps >= tokens)


def speed_and_quality_apart(claim: Claim) -> str | None:
    if claim.quality is None or claim.quality.same_runs != "no":
        return None
    return "The quality quoted was obtained with other settings or on other tasks than the speed."


def range_quoted_by_its_end(claim: Claim) -> str | None:
    if claim.kind == "quality":
        return None
    parts = [figure for figure in claim.figures if figure.relation == "part" and figure.unit == claim.unit]
    spread = f": they run from {_spread(parts, claim.unit)}" if len(parts) > 1 else ""
    if claim.aggregate == "best" and claim.best_of != "tasks":
        return f"The figure is the best of several{spread}."
    flattering = ("below",) if _less_is_better(claim) else ("up to", "above", "at least")
    if isinstance(claim.value, Stated) and claim.value.qualifier in flattering:
        return f"The figure is the end of a range ({claim.value.wording}){spread}."
    return None


def best_task_as_the_whole(claim: Claim) -> str | None:
    if claim.best_of != "tasks" or claim.aggregate != "best":
        return None
    parts = [figure for figure in claim.figures if figure.relation == "part" and figure.unit == claim.unit]
    spread = f": they run from {_spread(parts, claim.unit)}" if len(parts) > 1 else ""
    return f"The figure is that of the best task, not of all{spread}."


def shorter_answers(claim: Claim) -> str | None:
    length = claim.answer_length
    if length is None or not claim.about_speed:
        return None
    if length.ours is None or not length.baseline:
        return "The answers are shorter than the baseline's." if length.compared == "shorter" else None
    if length.ours / length.baseline >= 1 - LENGTH_TOLERANCE:
        return None
    return (
        f"The answers are {100 - 100 * length.ours / length.baseline:.0f} % shorter than the baseline's "
        f"({length.ours:g} against {length.baseline:g} {length.unit}): less work, not only faster work."
    )


def other_checkpoint(claim: Claim) -> str | None:
    if claim.checkpoint is None:
        return None
    how = {"other": "another", "distilled": "a distilled", "quantised": "a quantised", "fine-tuned": "a fine-tuned"}
    return f"The figure belongs to {how[claim.checkpoint.relation]} checkpoint: {claim.checkpoint.what.rstrip('.')}."


def benchmark_subset(claim: Claim) -> str | None:
    quality = claim.quality
    if quality is None or quality.documents is None or quality.documents_scored is None:
        return None
    if quality.documents_scored >= quality.documents:
        return None
    return f"The quality is over {quality.documents_scored:,} of the {quality.documents:,} documents of {quality.benchmark}."


def prefix_shared_on_one_side(claim: Claim) -> str | None:
    sharing = claim.prefix_sharing
    if sharing is None or {sharing.ours, sharing.baseline} != {"yes", "no"}:
        return None
    side = "the model's" if sharing.ours == "yes" else "the baseline's"
    return f"Only {side} requests share the work on the common beginning of their prompts."


def experts_of_one_token(claim: Claim) -> str | None:
    experts = claim.experts
    if experts is None or experts.reads_counted != "experts of one token":
        return None
    positions = number_of(claim.decode.block_length) or 32
    counted, touched = experts.per_token / experts.total, touched_share(experts.total, experts.per_token, positions)
    return (
        f"Weight reads are counted as if one token chose the experts ({counted * 100:.0f} %): "
        f"{positions:g} positions touch {touched * 100:.0f} % of the {experts.total} if they choose independently."
    )


def several_devices(claim: Claim) -> str | None:
    devices = number_of(claim.hardware.count)
    if not claim.about_speed or devices is None or devices <= 1 or claim.rate_of == "one device":
        return None
    if claim.kind == "speedup" and claim.baseline:
        theirs = claim.baseline.devices
        if number_of(theirs) == devices or theirs is Gap.UNREADABLE:
            return None
    return f"The figure takes {devices:g} devices ({claim.hardware.device}) as if they were one."


def contradicting_figures(claim: Claim) -> str | None:
    findings = [text for figure in claim.figures if (text := _contradiction(claim, figure))]
    findings += [contradiction.finding.rstrip(".") for contradiction in claim.contradicts]
    if not findings:
        return None
    return f"Claimed is {_amount(claim.value, claim.unit)}, but {'; '.join(findings)}."


def self_reported_only(claim: Claim) -> str | None:
    if claim.kind == "artifact" or claim.reported_by == "third-party" or claim.replications:
        return None
    who = "the vendor reports" if claim.reported_by == "vendor" else "the authors report"
    return f"Only {who} it: no other run of it is known."


def undecidable_margin(claim: Claim) -> str | None:
    quality = claim.quality
    documents = None if quality is None else quality.documents_scored or quality.documents
    if quality is None or documents is None or _GRADED.search(str(quality.metric)):
        return None
    margin = _margin_points(claim)
    least = decidable_margin(documents).margin * 100
    if margin is None or margin >= least:
        return None
    had = "was scored on" if quality.documents_scored else "has"
    return (
        f"{quality.benchmark} {had} {documents:,} documents, which decide a loss of {least:.1f} points "
        f"(10 % discordance, one-sided 5 %, power 80 %), not one of {margin:.2g} points."
    )


#: Metrics that are not right or wrong per document, to which the arithmetic of paired proportions does not apply.
_GRADED = re.compile(r"perplex|\bppl\b|bits|nats|bleu|rouge|likelihood|entropy|similarity", re.IGNORECASE)


def _less_is_better(claim: Claim) -> bool:
    return claim.unit in TIME_UNITS or claim.kind == "perplexity"


def _margin_points(claim: Claim) -> float | None:
    """The loss that the claim asks to be believed: the margin it states, else the difference it shows."""
    quality = claim.quality
    if quality is None:
        return None
    if quality.claimed_margin_points is not None:
        return bounds_of(quality.claimed_margin_points)[1]
    ours, theirs = number_of(quality.at_speed), number_of(quality.reference)
    return None if ours is None or theirs is None else abs(ours - theirs)


def _contradiction(claim: Claim, figure: Figure) -> str | None:
    """How a figure of the same thing disagrees with the claim, or None.

    Rounding is allowed for: 0.5 % for a figure given directly, 5 % for a ratio of two rounded figures.
    """
    if figure.relation == "part" and claim.aggregate == "best" and figure.unit == claim.unit:
        return _better_than_the_best(claim, figure)
    if figure.relation != "same":
        return None
    if figure.unit == claim.unit:
        value, tolerance, text = figure.value, 0.005, f"{_amount(figure.value, figure.unit)} ({figure.what})"
    else:
        ratio = _ratio(figure) if claim.unit == "x" else None
        if ratio is None:
            return None
        pair = f"{figure.value:g} against {figure.baseline_value:g} {figure.unit}"
        value, tolerance, text = ratio, 0.05, f"{pair}, which is {ratio:.3g}x"
    low, high = bounds_of(claim.value)
    below = low is not None and value < low * (1 - tolerance)
    above = high is not None and value > high * (1 + tolerance)
    return f"{figure.where} gives {text}" if below or above else None


def _ratio(figure: Figure) -> float | None:
    """How many times faster a pair of figures says the first is."""
    if not figure.baseline_value or not figure.value:
        return None
    faster = figure.baseline_value / figure.value
    return faster if figure.unit in TIME_UNITS else 1 / faster


def _better_than_the_best(claim: Claim, figure: Figure) -> str | None:
    low, high = bounds_of(claim.value)
    if _less_is_better(claim):
        better = low is not None and figure.value < low
    else:
        better = high is not None and figure.value > high
    if not better:
        return None
    return f"{figure.where} has a better one, {_amount(figure.value, figure.unit)} ({figure.what})"


def _amount(value: Quantity, unit: str) -> str:
    """A value with its unit; the source's own wording is taken to carry it."""
    if isinstance(value, Stated):
        return value.wording
    return f"{describe(value)}{'' if unit == 'x' else ' '}{unit}"


def _spread(parts: Sequence[Figure], unit: str) -> str:
    values = [figure.value for figure in parts]
    return f"{min(values):g} to {_amount(max(values), unit)}"


TRAPS: tuple[Trap, ...] = (
    Trap(
        "Other GPU",
        "Mercury report, arXiv:2506.17298: rivals' speeds are medians over cloud providers",
        other_gpu,
    ),
    Trap(
        "Other engine",
        "LLaDA2.0 report, arXiv:2512.15745, and SGLang post of 2025-12-19: 2.1x on two engines, 1.9x on one",
        other_engine,
    ),
    Trap(
        "Weak or synthetic baseline",
        "vLLM post of 2026-06-10: a rival whose acceptance rate was assumed, not measured",
        weak_baseline,
    ),
    Trap(
        "Uncached baseline",
        "Fast-dLLM, arXiv:2505.22618, Tables 1 to 4: every ratio is over a decoder without cache",
        uncached_baseline,
    ),
    Trap(
        "Estimate assembled from parts",
        "Towards AI article on LLaDA on an A100, section 5: block-cached rows",
        assembled_estimate,
    ),
    Trap(
        "Batch 1 only",
        "Kim et al., arXiv:2510.04146: LLaDA stops gaining at a batch of about 8, LLaMA-3 gains at 16",
        batch_1_only,
    ),
    Trap(
        "Concurrency unknown",
        "Gemini Diffusion model page, 2025-05: a rate without batch, prompt or hardware",
        concurrency_unknown,
    ),
    Trap(
        "Prompt or padding tokens counted",
        "NVlabs/Fast-dLLM issue 15",
        prompt_tokens_counted,
    ),
    Trap(
        "Prefill excluded",
        "vLLM post of 2026-06-10, footnote to the performance figure",
        prefill_excluded,
    ),
    Trap(
        "Commit pass excluded",
        "DiffusionGemma developer guide: every finished block costs one more causal pass",
        commit_pass_excluded,
    ),
    Trap(
        "Fixed overhead excluded",
        "Gemini Diffusion model page, 2025-05: 0.84 s listed apart",
        overhead_excluded,
    ),
    Trap(
        "Steps fixed without quality",
        "Kim et al., arXiv:2510.04146: four tokens at every step cost LLaDA 11.9 points on GSM8K",
        fixed_steps_without_quality,
    ),
    Trap(
        "Speed and quality from different settings",
        "Fast-dLLM v2, arXiv:2509.26328: speed at threshold 0.9, quality table at 1.0",
        speed_and_quality_apart,
    ),
    Trap(
        "Range quoted by its end",
        "DFlash, arXiv:2602.06036: 'above 6x' is MATH-500, the mean of Table 1 is 4.9x",
        range_quoted_by_its_end,
    ),
    Trap(
        "Best task quoted as the whole",
        "LLaDA2.1, arXiv:2602.08676, Table 3: 892 tok/s is one benchmark of nine",
        best_task_as_the_whole,
    ),
    Trap(
        "Shorter answers",
        "vllm-project/recipes, DiffusionGemma: 3.3x end to end while the answers were shorter",
        shorter_answers,
    ),
    Trap(
        "Distilled or other checkpoint",
        "dInfer, arXiv:2510.08666: the fastest rows belong to a trajectory-distilled LLaDA-MoE",
        other_checkpoint,
    ),
    Trap(
        "Benchmark subset",
        "lm-eval's --limit: a score over the first documents carries the benchmark's name",
        benchmark_subset,
    ),
    Trap(
        "Few-shot prefix shared on one side only",
        "SGLang's radix cache is on by default: few-shot prompts are then read once, not once a request",
        prefix_shared_on_one_side,
    ),
    Trap(
        "Expert reads counted for one token",
        "LLaDA-MoE, arXiv:2509.24389, as summarised: 56 of 64 experts idle per token, which no block of tokens sees",
        experts_of_one_token,
    ),
    Trap(
        "Several devices counted as one",
        "dInfer, arXiv:2510.08666: eight H800 serve one request",
        several_devices,
    ),
    Trap(
        "Figures that contradict each other",
        "Fast-dLLM, arXiv:2505.22618, Figure 1(c): 266 s and 12 s beside 27.6x",
        contradicting_figures,
    ),
    Trap(
        "Self-reported only",
        "NVlabs/Fast-dLLM issue 49: a rerun reached 71 % of the published rate",
        self_reported_only,
    ),
    Trap(
        "Quality margin that the benchmark cannot decide",
        "Power of a paired non-inferiority test (Liu et al. 2002); GSM8K has 1,319 documents",
        undecidable_margin,
    ),
)
