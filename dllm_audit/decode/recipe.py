"""A decoder as a value: order, cache, score, commit, and how much work a block may take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from dllm_audit.decode.cache import BlockExactCache, CachePolicy, DualCache, NoCache, PrefixCache
from dllm_audit.decode.commit import CommitPolicy, EntropyBound, Factor, FixedK, Reveal, Threshold
from dllm_audit.decode.order import Blocks, Span
from dllm_audit.decode.score import Score
from dllm_audit.errors import SettingError

if TYPE_CHECKING:
    from dllm_audit.models.traits import ModelTraits
    from dllm_audit.settings import DecodeSettings


#: Above this Dream's schedule would cost more than the decoding; it has nothing left to divide long before.
MOST_TIMED_STEPS = 100_000


@dataclass(frozen=True)
class Schedule:
    """How many denoising steps a block takes, and how many tokens each of them commits.

    At most one of `steps` (total over all blocks), `steps_per_block` and `tokens_per_step` is set; none means one token
    per step. keep_empty: steps without a token are run as well, and the block ends after its last step, as in
    ML-GSAI/LLaDA b7e6c35; otherwise a step commits at least one token and a block ends when nothing is open.
    law: "even" spreads the tokens evenly; "time" and "chance" follow the times of Dream, see `timed_quotas` and
    `chances`. first_alone: the first step commits one token, whatever the law says.
    carry: what a step left of its quota is added to that of the next.
    """

    steps: int | None = None
    steps_per_block: int | None = None
    tokens_per_step: int | None = None
    keep_empty: bool = False
    law: str = "even"
    first_alone: bool = False
    carry: bool = False

    def steps_of(self, block: Span, blocks: int) -> int:
        """Steps planned for `block`, one of `blocks`. Raises SettingError when the steps do not divide."""
        steps = self._steps_of(block, blocks)
        if self.law != "even" and steps > MOST_TIMED_STEPS:
            raise SettingError(f"steps={steps} is too many for Dream's schedule: at most {MOST_TIMED_STEPS}.")
        if self.carry and block.width % steps:
            raise SettingError(
                f"compat=fast-dllm spreads {block.width} tokens evenly over the steps, and steps={steps} does not divide "
                "them. Choose a divisor, or leave compat out."
            )
        return steps

    def _steps_of(self, block: Span, blocks: int) -> int:
        if self.steps is not None:
            if self.steps % blocks:
                raise SettingError(
                    f"steps={self.steps} does not divide by the {blocks} blocks of this window. "
                    f"Use a multiple of {blocks}, or say steps_per_block or tokens_per_step."
                )
            return self.steps // blocks
        if self.steps_per_block is not None:
            return self.steps_per_block
        return -(-block.width // (self.tokens_per_step or 1))

    def quotas(self, block: Span, blocks: int) -> tuple[float, ...]:
        """Tokens of each step: the open positions spread evenly, the remainder to the first steps.

        With law "time", tokens of each step that commits any; with law "chance", the chance of each position.
        """
        steps = self.steps_of(block, blocks)
        if self.tokens_per_step is not None:
            # k means k: 32 positions at 5 per step are 5,5,5,5,5,5,2.
            left = block.width
            quotas = []
            while left > 0:
                quotas.append(min(self.tokens_per_step, left))
                left -= quotas[-1]
            return tuple(quotas)
        if self.law == "chance":
            return chances(steps)
        if self.law == "time":
            return timed_quotas(block.width, steps, self.first_alone)
        base, rest = divmod(block.width, steps)
        # Steps beyond the number of positions have nothing to commit, however many were asked for.
        return tuple(base + (i < rest) for i in range(min(steps, block.width)))


@lru_cache(maxsize=64)
def chances(steps: int) -> tuple[float, ...]:
    """Chance that a step reveals a position which is still a mask: 1 - s/t for `steps` equal steps from t = 1 to 0.001.

    The last step reveals everything. In float32, whose rounding decides how many tokens a step of `timed_quotas` gets.
    Source: Dream (DreamModel, generation_utils.py, `_sample`; eps = 0.001).
    """
    import torch

    times = torch.linspace(1, 1e-3, steps + 1)
    return (*(1 - times[1:] / times[:-1]).tolist()[:-1], 1.0)


@lru_cache(maxsize=256)
def timed_quotas(masks: int, steps: int, first_alone: bool) -> tuple[int, ...]:
    """Tokens of each step of Dream: its chance times the masks that are left, rounded down; the last step takes the rest.

    Steps without a token are left out. first_alone: the first step takes one token, as in Fast-dLLM's Dream.
    """
    import torch

    left, quotas = masks, []
    for step, chance in enumerate(torch.tensor(chances(steps))):
        quota = int(left * chance) if step < steps - 1 else left
        quota = min(1, left) if first_alone and step == 0 else quota
        left -= quota
        quotas.append(quota)
    return tuple(quota for quota in quotas if quota)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides which tokens a decoder commits, in which order and at what cost.

    left_open: candidates of a forward over the whole canvas have no left bound, so masks of the prompt or of earlier
    blocks compete for the quota (compat).
    bounded: a block ends after the planned steps even if masks are left (compat).
    """

    order: Blocks
    cache: CachePolicy
    score: Score
    commit: CommitPolicy
    schedule: Schedule
    stop_at_eos: bool = False
    end_ids: tuple[int, ...] = ()
    cfg_scale: float = 0.0
    left_open: bool = False
    bounded: bool = False

    def __post_init__(self) -> None:
        if self.commit.confidences and self.score.confidence not in self.commit.confidences:
            if isinstance(self.commit, EntropyBound):
                raise SettingError(
                    f"entropy_bound adds up entropies, and confidence={self.score.confidence} gives none. "
                    "Use confidence=entropy, or leave it out."
                )
            raise SettingError(
                f"A threshold or factor needs a confidence between 0 and 1, and confidence={self.score.confidence} is not. "
                "Use confidence=probability or margin, or drop the threshold."
            )
        if isinstance(self.commit, Reveal) and self.score.eos == "suppress_confidence":
            # Its low numbers are revealed first, so end-of-text would come first and not last.
            raise SettingError(
                "Positions are revealed by chance, whatever their confidence, so eos=suppress_confidence has nothing to hold "
                "back. Use eos=suppress_logits, or another confidence."
            )
        if self.cfg_scale and not isinstance(self.cache, NoCache):
            raise SettingError(
                f"cfg_scale={self.cfg_scale:g} needs every position recomputed: use the backend 'uncached'."
            )


def build_recipe(settings: DecodeSettings, traits: ModelTraits, cache: CachePolicy) -> Recipe:
    """The recipe of the masked-diffusion and block-diffusion decoders for these settings and this model."""
    end_ids = end_token_ids(settings, traits)
    llada = settings.compat == "llada"
    fast_dllm = settings.compat == "fast-dllm"
    if llada and not isinstance(cache, NoCache):
        raise SettingError(
            "compat=llada is the original LLaDA program, which has no cache: use the backend 'uncached'."
        )
    if settings.compat and traits.shift:
        cache = _as_fast_dllm_runs_dream(settings, cache)
    if settings.compat and settings.entropy_bound is not None:
        raise SettingError(f"compat={settings.compat} has no entropy bound: leave out one of the two.")
    bar = next((name for name in ("factor", "threshold") if getattr(settings, name) is not None), None)
    if llada and bar:
        raise SettingError(f"compat=llada counts steps and has no {bar}: leave out one of the two.")
    if settings.compat and settings.tokens_per_step is not None:
        raise SettingError(f"compat={settings.compat} counts steps, not tokens_per_step: say steps or steps_per_block.")
    if settings.compat and settings.block_length and settings.gen_length % settings.block_length:
        raise SettingError(
            f"compat={settings.compat} has whole blocks only, and gen_length={settings.gen_length} is no multiple of "
            f"block_length={settings.block_length}. Change one of them, or leave compat out."
        )
    if settings.eos != "keep" and not end_ids:
        raise SettingError(
            f"eos={settings.eos} needs an end-of-text id, and this model states none: say --set eos_token_id=N."
        )
    grid = traits.block_length
    if isinstance(cache, BlockExactCache) and grid and settings.block_length and grid % settings.block_length:
        raise SettingError(
            f"block_length={settings.block_length} does not divide the blocks of {grid} that this model was trained with, "
            f"so a block would reach across two of them. Use {grid} or a divisor of it."
        )
    commit: CommitPolicy
    if settings.factor is not None:
        commit = Factor(settings.factor, compat=fast_dllm)
    elif settings.threshold is not None:
        commit = Threshold(settings.threshold)
    elif settings.entropy_bound is not None:
        commit = EntropyBound(settings.entropy_bound)
    else:
        commit = FixedK()
    aligned = "absolute" if isinstance(cache, BlockExactCache) else "prompt"
    shifted = fast_dllm and traits.shift > 0
    timed = shifted and isinstance(commit, FixedK) and not isinstance(cache, NoCache)
    return Recipe(
        order=Blocks(settings.block_length, aligned),
        cache=cache,
        score=Score(
            confidence=settings.confidence,
            dtype=settings.confidence_dtype,
            temperature=settings.temperature,
            mask_token_id=mask_token_id(settings, traits),
            end_ids=end_ids,
            eos=settings.eos,
            compat=llada,
        ),
        commit=commit,
        schedule=Schedule(
            settings.steps,
            settings.steps_per_block,
            settings.tokens_per_step,
            keep_empty=llada,
            law="time" if timed else "even",
            first_alone=timed,
        ),
        stop_at_eos=settings.stop_at_eos,
        end_ids=end_ids,
        cfg_scale=settings.cfg_scale,
        left_open=llada or (fast_dllm and not shifted),
        bounded=timed or llada or (fast_dllm and not shifted and isinstance(cache, DualCache)),
    )


def check_window(recipe: Recipe, gen_length: int, traits: ModelTraits) -> None:
    """Raise SettingError where no prompt, however long, lets the recipe decode a window of `gen_length`."""
    if gen_length > traits.max_positions:
        raise SettingError(
            f"gen_length={gen_length} is more than the {traits.max_positions} positions that the model was made for, and the "
            "prompt comes on top. Lower it."
        )
    # On an absolute grid the blocks of a window, and so whether steps divide by them, depend on where the prompt ends.
    order = recipe.order
    refused: SettingError | None = None
    for start in range(1 if order.aligned == "prompt" else min(order.block_length or 1, traits.max_positions)):
        blocks = order.spans(start, start + gen_length)
        try:
            recipe.schedule.steps_of(blocks[0], len(blocks))
        except SettingError as error:
            refused = refused or error
        else:
            return
    if refused is not None:
        raise refused


def _as_fast_dllm_runs_dream(settings: DecodeSettings, cache: CachePolicy) -> CachePolicy:
    """The cache of Fast-dLLM's program for Dream. Raises SettingError for what that program does not do."""
    if settings.compat != "fast-dllm":
        raise SettingError(
            f"compat={settings.compat} is a program for LLaDA, and this model's head is shifted (Dream)."
        )
    if settings.factor is not None:
        raise SettingError("compat=fast-dllm has no factor for this model: leave out the factor, or compat.")
    if not isinstance(cache, PrefixCache | DualCache):
        if settings.block_length is not None:
            raise SettingError("compat=fast-dllm without a cache is the backend 'dream' for this model: use that one.")
        return cache
    if settings.threshold is None and settings.confidence != "entropy":
        raise SettingError(
            "compat=fast-dllm without a threshold ranks by entropy for this model, whatever it is asked for: "
            "say confidence=entropy, or give a threshold."
        )
    return replace(cache, first_alone=True)


def end_token_ids(settings: DecodeSettings, traits: ModelTraits) -> tuple[int, ...]:
    """Ids that end an answer: those of the settings, else the model's. Raises SettingError for one it does not have."""
    asked = tuple(i for i in (settings.eos_token_id, settings.eot_token_id) if i is not None)
    outside = next((i for i in asked if i >= traits.vocab_size), None)
    if outside is not None:
        raise SettingError(
            f"End-of-text id {outside} is outside this model's vocabulary of {traits.vocab_size} tokens."
        )
    return asked or tuple(i for i in traits.end_token_ids if i < traits.vocab_size)


def mask_token_id(settings: DecodeSettings, traits: ModelTraits) -> int:
    """The id that stands for "not decided yet". Raises SettingError when neither settings nor model name one."""
    chosen = settings.mask_token_id if settings.mask_token_id is not None else traits.mask_token_id
    if chosen is None:
        raise SettingError("This model states no mask token: say --set mask_token_id=N.")
    if not 0 <= chosen < traits.vocab_size:
        raise SettingError(f"mask_token_id={chosen} is outside this model's vocabulary of {traits.vocab_size} tokens.")
    return chosen
