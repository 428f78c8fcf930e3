"""How much work a block takes, and which combinations of choices are refused with a sentence."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dllm_audit import (
    BlockExactCache,
    DualCache,
    EntropyBound,
    Factor,
    FixedK,
    NoCache,
    PrefixCache,
    Schedule,
    Threshold,
    build_recipe,
    end_token_ids,
)
from dllm_audit.decode.order import Span
from dllm_audit.decode.recipe import check_window
from dllm_audit.errors import SettingError
from dllm_audit.models.traits import ModelTraits
from dllm_audit.plugins import load_plugins
from dllm_audit.settings import DecodeSettings

TRAITS = ModelTraits("llada", "bidirectional", 0, 128, 4096, mask_token_id=126, end_token_ids=(121,))


def recipe(cache=None, traits=TRAITS, **settings):
    return build_recipe(DecodeSettings(**{"block_length": 8, "gen_length": 32, **settings}), traits, cache or NoCache())


def refused(cache=None, traits=TRAITS, **settings):
    with pytest.raises(SettingError) as error:
        recipe(cache, traits, **settings)
    return str(error.value)


def test_end_of_text_cannot_be_held_back_by_its_confidence_where_chance_reveals():
    """Chance reveals the positions with the lowest numbers, so a confidence of 0 would put end-of-text first."""
    settings = DecodeSettings(gen_length=32, steps=8, confidence="random", eos="suppress_confidence")
    with pytest.raises(SettingError) as error:
        load_plugins().backends["dream"].make_recipe(settings, dataclasses.replace(TRAITS, shift=1))
    assert str(error.value) == (
        "Positions are revealed by chance, whatever their confidence, so eos=suppress_confidence has nothing to hold back. "
        "Use eos=suppress_logits, or another confidence."
    )


@pytest.mark.parametrize(
    ("schedule", "width", "quotas"),
    [
        (Schedule(), 4, (1, 1, 1, 1)),
        (Schedule(tokens_per_step=5), 32, (5, 5, 5, 5, 5, 5, 2)),
        (Schedule(tokens_per_step=8), 3, (3,)),
        (Schedule(steps_per_block=3), 8, (3, 3, 2)),
        (Schedule(steps_per_block=1), 8, (8,)),
        (Schedule(steps_per_block=8), 3, (1, 1, 1)),
        (Schedule(steps=12), 8, (3, 3, 2)),  # 12 steps over 4 blocks
        (Schedule(steps=4), 8, (8,)),  # one step per block
        (Schedule(steps=400), 8, (1,) * 8),  # more steps than positions
    ],
)
def test_open_positions_are_spread_evenly_with_the_remainder_to_the_first_steps(schedule, width, quotas):
    assert schedule.quotas(Span(10, 10 + width), 4) == quotas


def test_the_law_of_time_gives_each_step_its_share_of_what_is_left_rounded_down_and_the_last_step_the_rest():
    """4 steps from t = 1 to 0.001: shares 0.2497, 0.3329, 0.4990, 1. Of 16: 3.997 -> 3, 4.3 -> 4, 4.5 -> 4, 5."""
    assert Schedule(steps=4, law="time").quotas(Span(5, 21), 1) == (3, 4, 4, 5)
    # Of 2: 0.5, 0.67 and 0.998 round to nothing, and such steps are not made.
    assert Schedule(steps=4, law="time").quotas(Span(0, 2), 1) == (2,)
    assert Schedule(steps_per_block=1, law="time").quotas(Span(0, 8), 2) == (8,)
    assert Schedule(steps=4, law="time", first_alone=True).quotas(Span(0, 16), 1) == (1, 4, 5, 6)
    assert Schedule(steps=2, law="time", first_alone=True).quotas(Span(0, 16), 2) == (1,)


def test_the_law_of_chance_ends_in_certainty():
    assert Schedule(steps=4, law="chance").quotas(Span(0, 9), 1) == pytest.approx(
        (0.24975, 0.33289, 0.49900, 1.0), abs=1e-5
    )
    assert Schedule(law="chance", steps=1).quotas(Span(0, 9), 1) == (1.0,)


@pytest.mark.parametrize("law", ["time", "chance"])
def test_an_absurd_number_of_timed_steps_is_refused(law):
    with pytest.raises(SettingError) as error:
        Schedule(steps=10**12, law=law).quotas(Span(0, 8), 1)
    assert str(error.value) == "steps=1000000000000 is too many for Dream's schedule: at most 100000."


def test_a_carried_quota_must_divide():
    assert Schedule(steps=4, carry=True).quotas(Span(0, 16), 1) == (4, 4, 4, 4)
    with pytest.raises(SettingError) as error:
        Schedule(steps=5, carry=True).steps_of(Span(0, 16), 1)
    assert str(error.value) == (
        "compat=fast-dllm spreads 16 tokens evenly over the steps, and steps=5 does not divide them. "
        "Choose a divisor, or leave compat out."
    )


DREAM = ModelTraits("dream", "bidirectional", 1, 128, 4096, mask_token_id=126, end_token_ids=(125,))


def test_the_program_for_dream_commits_a_blocks_first_token_unasked_and_feeds_no_left_context():
    plain = recipe(DualCache(), DREAM, threshold=0.9)
    program = recipe(DualCache(), DREAM, threshold=0.9, compat="fast-dllm")
    assert (plain.cache, program.cache) == (DualCache(), DualCache(first_alone=True))
    assert not program.left_open
    assert not program.bounded
    fixed = recipe(PrefixCache(), DREAM, confidence="entropy", steps=8, compat="fast-dllm")
    assert fixed.schedule == Schedule(steps=8, law="time", first_alone=True)
    assert fixed.bounded


def test_what_no_program_for_dream_does_is_refused_in_compat():
    assert refused(None, DREAM, compat="llada") == (
        "compat=llada is a program for LLaDA, and this model's head is shifted (Dream)."
    )
    assert refused(None, DREAM, compat="fast-dllm") == (
        "compat=fast-dllm without a cache is the backend 'dream' for this model: use that one."
    )
    assert refused(DualCache(), DREAM, compat="fast-dllm", factor=1.0) == (
        "compat=fast-dllm has no factor for this model: leave out the factor, or compat."
    )
    assert refused(DualCache(), DREAM, compat="fast-dllm", steps=8) == (
        "compat=fast-dllm without a threshold ranks by entropy for this model, whatever it is asked for: "
        "say confidence=entropy, or give a threshold."
    )


def test_steps_count_over_all_blocks():
    assert Schedule(steps=12).steps_of(Span(0, 8), 4) == 3


def test_steps_that_do_not_divide_by_the_blocks_are_refused_with_a_sentence():
    with pytest.raises(SettingError) as error:
        Schedule(steps=10).steps_of(Span(0, 8), 4)
    assert str(error.value) == (
        "steps=10 does not divide by the 4 blocks of this window. "
        "Use a multiple of 4, or say steps_per_block or tokens_per_step."
    )


def test_an_absurd_number_of_steps_costs_no_memory():
    """A billion steps for eight positions once made a list of a billion quotas."""
    assert Schedule(steps=10**12).quotas(Span(0, 8), 1) == (1,) * 8
    assert Schedule(steps_per_block=10**12, keep_empty=True).quotas(Span(0, 8), 1) == (1,) * 8


@given(
    st.integers(1, 64),
    st.one_of(
        st.builds(Schedule, steps_per_block=st.integers(1, 80)),
        st.builds(Schedule, tokens_per_step=st.integers(1, 80)),
        st.just(Schedule()),
    ),
)
def test_the_quotas_of_a_block_add_up_to_its_positions_and_none_is_empty(width, schedule):
    quotas = schedule.quotas(Span(0, width), 1)
    assert sum(quotas) == width
    assert min(quotas) >= 1
    assert len(quotas) <= schedule.steps_of(Span(0, width), 1)
    assert list(quotas) == sorted(quotas, reverse=True)


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({}, FixedK()),
        ({"steps": 8}, FixedK()),
        ({"threshold": 0.9, "steps": 8}, Threshold(0.9)),
        ({"threshold": 0.9, "factor": 1.0, "steps": 8}, Factor(1.0)),
        ({"factor": 1.0, "compat": "fast-dllm"}, Factor(1.0, compat=True)),
        ({"threshold": 0.0}, Threshold(0.0)),
    ],
)
def test_factor_outranks_threshold_outranks_the_quota(settings, policy):
    assert recipe(**settings).commit == policy


@pytest.mark.parametrize(
    ("cache", "compat", "left_open", "bounded", "keep_empty"),
    [
        (NoCache(), None, False, False, False),
        (DualCache(), None, False, False, False),
        (NoCache(), "llada", True, True, True),
        (NoCache(), "fast-dllm", True, False, False),
        (PrefixCache(), "fast-dllm", True, False, False),
        (DualCache(), "fast-dllm", True, True, False),
    ],
)
def test_compat_names_the_quirks_of_a_program(cache, compat, left_open, bounded, keep_empty):
    built = recipe(cache, compat=compat)
    assert (built.left_open, built.bounded, built.schedule.keep_empty) == (left_open, bounded, keep_empty)


def test_the_original_llada_has_no_cache():
    assert refused(DualCache(), compat="llada") == (
        "compat=llada is the original LLaDA program, which has no cache: use the backend 'uncached'."
    )


def test_published_programs_know_steps_only():
    assert refused(compat="fast-dllm", tokens_per_step=2) == (
        "compat=fast-dllm counts steps, not tokens_per_step: say steps or steps_per_block."
    )


@pytest.mark.parametrize("bar", ["threshold", "factor"])
def test_the_original_llada_commits_by_its_schedule_alone(bar):
    """Its steps go on when nothing is left to commit, which would be taken for logits that are not finite."""
    assert refused(compat="llada", **{bar: 0.9}) == (
        f"compat=llada counts steps and has no {bar}: leave out one of the two."
    )


@pytest.mark.parametrize("compat", ["llada", "fast-dllm"])
def test_published_programs_have_whole_blocks_only(compat):
    assert refused(compat=compat, gen_length=12) == (
        f"compat={compat} has whole blocks only, and gen_length=12 is no multiple of block_length=8. "
        "Change one of them, or leave compat out."
    )
    assert recipe(gen_length=12).order.spans(0, 12) == [Span(0, 8), Span(8, 12)]


@pytest.mark.parametrize("confidence", ["entropy", "random"])
@pytest.mark.parametrize("bar", [{"threshold": 0.9}, {"factor": 1.0}])
def test_a_bar_needs_a_confidence_between_0_and_1(confidence, bar):
    assert refused(confidence=confidence, **bar) == (
        f"A threshold or factor needs a confidence between 0 and 1, and confidence={confidence} is not. "
        "Use confidence=probability or margin, or drop the threshold."
    )


def test_an_entropy_bound_needs_entropies():
    assert recipe(entropy_bound=0.5, confidence="entropy").commit == EntropyBound(0.5)
    assert refused(entropy_bound=0.5, confidence="probability") == (
        "entropy_bound adds up entropies, and confidence=probability gives none. Use confidence=entropy, or leave it out."
    )
    assert refused(entropy_bound=0.5, confidence="entropy", compat="llada") == (
        "compat=llada has no entropy bound: leave out one of the two."
    )


@pytest.mark.parametrize("cache", [PrefixCache(), DualCache()])
def test_guidance_needs_every_position_recomputed(cache):
    assert refused(cache, cfg_scale=1.5) == "cfg_scale=1.5 needs every position recomputed: use the backend 'uncached'."


def test_the_mask_is_the_models_unless_a_setting_names_another():
    assert recipe().score.mask_token_id == 126
    assert recipe(mask_token_id=5).score.mask_token_id == 5
    assert refused(mask_token_id=128) == "mask_token_id=128 is outside this model's vocabulary of 128 tokens."
    unmasked = ModelTraits("llada", "bidirectional", 0, 128, 4096)
    assert refused(traits=unmasked) == "This model states no mask token: say --set mask_token_id=N."


def test_ends_of_text_are_the_models_unless_settings_name_others():
    assert end_token_ids(DecodeSettings(), TRAITS) == (121,)
    assert end_token_ids(DecodeSettings(eos_token_id=3), TRAITS) == (3,)
    assert end_token_ids(DecodeSettings(eot_token_id=0), TRAITS) == (0,)
    assert end_token_ids(DecodeSettings(eos_token_id=3, eot_token_id=0), TRAITS) == (3, 0)


def test_an_end_of_text_id_outside_the_vocabulary_is_refused_and_one_of_the_config_ignored():
    """Suppressing the logits of such an id once ended in an IndexError."""
    assert refused(eos_token_id=128) == "End-of-text id 128 is outside this model's vocabulary of 128 tokens."
    odd = ModelTraits("llada", "bidirectional", 0, 128, 4096, mask_token_id=126, end_token_ids=(121, 500))
    assert recipe(traits=odd, eos="suppress_logits").score.end_ids == (121,)


def test_holding_back_end_of_text_needs_one():
    endless = ModelTraits("llada", "bidirectional", 0, 128, 4096, mask_token_id=126)
    assert refused(traits=endless, eos="suppress_logits") == (
        "eos=suppress_logits needs an end-of-text id, and this model states none: say --set eos_token_id=N."
    )


def test_a_block_diffusion_model_is_decoded_on_its_own_grid():
    traits = ModelTraits("llama-block", "block", 0, 128, 4096, mask_token_id=126, block_length=8)
    assert recipe(BlockExactCache(), traits).order.aligned == "absolute"
    assert recipe(DualCache()).order.aligned == "prompt"


def test_steps_are_refused_beforehand_where_they_fit_no_prompt():
    """Sixteen positions on a grid of eight are two blocks, or three where the prompt ends within one."""
    traits = ModelTraits("llama-block", "block", 0, 128, 4096, mask_token_id=126, block_length=8)
    for steps in (4, 6, 9):
        check_window(recipe(BlockExactCache(), traits, block_length=8, steps=steps), 16, traits)
    with pytest.raises(SettingError, match=r"^steps=7 does not divide by the 2 blocks of this window\."):
        check_window(recipe(BlockExactCache(), traits, block_length=8, steps=7), 16, traits)


def test_a_window_longer_than_the_models_positions_is_refused_beforehand():
    traits = ModelTraits("llada", "bidirectional", 0, 128, 64, mask_token_id=126)
    check_window(recipe(DualCache(), traits), 64, traits)
    with pytest.raises(SettingError) as error:
        check_window(recipe(DualCache(), traits), 65, traits)
    assert str(error.value) == (
        "gen_length=65 is more than the 64 positions that the model was made for, and the prompt comes on top. Lower it."
    )


@pytest.mark.parametrize("block_length", [3, 16])
def test_a_block_that_reaches_across_the_models_grid_is_refused(block_length):
    """Its tokens would see each other in a way that the model never learned, and finished keys would not be exact."""
    traits = ModelTraits("llama-block", "block", 0, 128, 4096, mask_token_id=126, block_length=8)
    assert refused(BlockExactCache(), traits, block_length=block_length) == (
        f"block_length={block_length} does not divide the blocks of 8 that this model was trained with, "
        "so a block would reach across two of them. Use 8 or a divisor of it."
    )
    assert recipe(BlockExactCache(), traits, block_length=4).order.block_length == 4


def test_recipes_are_values_so_that_equal_ones_share_a_batch():
    assert recipe(DualCache(), threshold=0.9) == recipe(DualCache(), threshold=0.9)
    assert len({recipe(DualCache(), threshold=0.9), recipe(DualCache(), threshold=0.9), recipe(DualCache())}) == 2
