"""Log-likelihoods: exact where they can be, unbiased where they are sampled, the same whatever the batch."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from small_models import END, GRID, MASK, generate, model_of

from dllm_audit import Request
from dllm_audit.decode import likelihood
from dllm_audit.decode.likelihood import (
    LikelihoodSettings,
    ScoringEngine,
    check_answer,
    check_model,
    reference_law,
    score_answer,
    start_id,
    text_steps,
    text_windows,
)
from dllm_audit.errors import ModelError, RequestError, UsageError

PROMPT = (5, 17, 40, 33, 8, 21)
ANSWER = (11, 60, 7, 45, 29)


def score(family, prompt=PROMPT, answer=ANSWER, seed=0, **settings):
    return score_answer(model_of(family), prompt, answer, LikelihoodSettings(**settings), seed)


def log_probabilities(family, ids):
    """Log-softmax of every position of one sequence, by the module alone. Block-causal on the grid for block models."""
    module = model_of(family).module
    mask = None
    if family == "llama-block":
        block = torch.arange(len(ids)) // GRID
        mask = (block[:, None] >= block[None, :])[None, None]
    with torch.inference_mode():
        out = module(torch.tensor([ids]), attention_mask=mask, is_causal=family == "llama", use_cache=False)
    return out.logits[0].double().log_softmax(-1)


def bound_by_hand(family, prompt, answer, shift):
    """The expectation over mask counts and masks, term by term as it is defined."""
    total = 0.0
    for count in range(1, len(answer) + 1):
        sums = []
        for masked in itertools.combinations(range(len(answer)), count):
            ids = [*prompt, *(MASK if i in masked else token for i, token in enumerate(answer))]
            logp = log_probabilities(family, ids)
            sums.append(sum(float(logp[len(prompt) + i - shift, answer[i]]) for i in masked))
        total += len(answer) / count * sum(sums) / len(sums) / len(answer)
    return total


@pytest.mark.parametrize(("family", "shift"), [("dream", 1), ("llada-moe", 0)])
def test_an_exact_value_is_the_definition_summed_by_hand(family, shift):
    result = score(family, exact=True)
    assert result.loglikelihood == pytest.approx(bound_by_hand(family, PROMPT, ANSWER, shift), abs=1e-3)
    assert (result.standard_error, result.samples, result.exact) == (0.0, 31, True)


def test_block_diffusion_adds_up_the_bounds_of_its_blocks_given_what_stands_before():
    """A prompt of 6 on a grid of 8: two tokens of the answer lie in the first block, three in the second."""
    result = score("llama-block", exact=True)
    parts = [(PROMPT, ANSWER[:2]), ((*PROMPT, *ANSWER[:2]), ANSWER[2:])]
    assert result.loglikelihood == pytest.approx(sum(bound_by_hand("llama-block", *p, 0) for p in parts), abs=1e-3)
    assert result.samples == 3 + 7


def test_an_autoregressive_value_is_the_sum_of_the_log_probabilities_of_the_answers_tokens():
    logp = log_probabilities("llama", [*PROMPT, *ANSWER])
    expected = sum(float(logp[len(PROMPT) + i - 1, token]) for i, token in enumerate(ANSWER))
    result = score("llama")
    assert result.loglikelihood == pytest.approx(expected, abs=1e-4)
    assert (result.standard_error, result.samples, result.exact, result.is_greedy) == (0.0, 1, True, False)


@pytest.mark.parametrize(
    ("family", "name", "settings"),
    [
        ("llama", "ar", {}),
        ("dream", "uncached on dream", {"block_length": 64}),
        ("llada-moe", "uncached on llada-moe", {"block_length": 64}),
        ("llama-block", "block", {}),
    ],
)
def test_what_greedy_decoding_answers_is_greedy_and_one_token_else_is_not(family, name, settings):
    results, _ = generate(name, [Request("a", prompt_ids=PROMPT)], {"gen_length": 6, **settings})
    answer = results["a"].output_ids
    assert score(family, answer=answer).is_greedy
    for i in range(6):
        changed = (*answer[:i], (answer[i] + 1) % 90, *answer[i + 1 :])
        assert not score(family, answer=changed).is_greedy


def replies_from(table):
    """Replies without a model: copies of a seven-token answer have the sums of `table`, and nothing is greedy."""
    place = 2 ** torch.arange(7)

    def reply(ask):
        sums = table[((ask.tokens[:, -7:] == MASK) * place).sum(1)]
        # The first position of each copy holds its whole sum.
        first = torch.cat([torch.ones(1, dtype=torch.bool), ask.row[1:] != ask.row[:-1]])
        return likelihood.Reply(torch.zeros_like(ask.target), torch.where(first, sums[ask.row], 0.0))

    return lambda asks: [reply(ask) for ask in asks]


def test_an_estimate_is_unbiased_and_its_standard_error_is_its_spread():
    """300 estimates over a table of all masked copies of a seven-token answer."""
    answer = (11, 60, 7, 45, 29, 3, 88)
    model = model_of("dream")
    copies = torch.tensor(list(itertools.product([False, True], repeat=7)))[1:]
    part = likelihood._Part(model.traits, PROMPT, answer, LikelihoodSettings())
    ask = part.ask(copies)
    with torch.inference_mode():
        engine = likelihood.ScoringEngine(model, LikelihoodSettings(), 127, 13)
        (reply,) = engine.run(engine.prepare([ask]))
    table = torch.zeros(128, dtype=torch.float64)
    table[(copies * 2 ** torch.arange(7)).sum(1)] = torch.zeros(127, dtype=torch.float64).index_add_(
        0, ask.row, reply.value
    )

    def value(seed, **settings):
        found = likelihood.answer_steps(model.traits, PROMPT, answer, LikelihoodSettings(**settings), seed)
        return likelihood.drive(found, replies_from(table))

    exact = score("dream", answer=answer, exact=True).loglikelihood
    assert value(0, exact=True).loglikelihood == pytest.approx(exact, abs=1e-3)
    values = [value(1000 + n, samples=64) for n in range(300)]
    means = torch.tensor([value.loglikelihood for value in values])
    spread = float(means.std())
    assert not any(value.exact for value in values)
    assert abs(float(means.mean()) - exact) < 4 * spread / math.sqrt(300)
    assert sum(value.standard_error for value in values) / 300 == pytest.approx(spread, rel=0.15)


def test_a_value_does_not_depend_on_how_many_copies_share_a_forward():
    values = [score("llada-moe", answer=ANSWER * 2, samples=30, batch_size=b, seed=3).loglikelihood for b in (1, 7, 64)]
    assert values == pytest.approx([values[0]] * 3, abs=1e-3)
    assert score("llada-moe", answer=ANSWER * 2, samples=30, seed=4).loglikelihood != pytest.approx(values[0], abs=1e-2)


def test_short_answers_are_enumerated_where_that_costs_no_more_than_sampling():
    assert score("dream", samples=31).exact
    assert not score("dream", samples=30).exact
    assert not score("dream", samples=64, compat="llada").exact


def test_the_programs_law_of_mask_counts_is_uniform_only_where_the_length_and_the_batch_agree():
    assert reference_law(8, 8) == pytest.approx([1 / 8] * 8)
    # Two tokens in batches of 16: from 1, the values 1, 1.125, ... 2.875 round to 1 four times, to 2 nine times (both 1.5
    # and 2.5 do), and three times to 3, which is 1 again; from 2 it comes out the same.
    assert reference_law(2, 16) == pytest.approx([7 / 16, 9 / 16])
    law = reference_law(7, 4)
    assert sum(law) == pytest.approx(1)
    assert max(law) - min(law) > 0.05


@pytest.mark.parametrize(
    ("family", "prompt", "answer", "said"),
    [
        ("dream", PROMPT, (), "The answer is empty, so there is nothing to score."),
        ("dream", PROMPT, (97,), "Token id 97 is outside this model's vocabulary of 97."),
        ("dream", (5,) * 2000, (5,) * 50, "are 2050 positions, but the model was made for 2048."),
    ],
)
def test_an_answer_that_cannot_be_scored_is_refused_with_a_sentence(family, prompt, answer, said):
    with pytest.raises(RequestError) as error:
        score(family, prompt, answer)
    assert said in str(error.value)


def test_an_autoregressive_answer_without_a_prompt_follows_the_begin_or_else_the_end_of_text():
    """As in lm-eval; a model that has neither is refused."""
    traits = model_of("llama").traits
    assert (traits.bos_token_id, traits.end_token_ids) == (None, (END,))
    assert score("llama", prompt=()).loglikelihood == score("llama", prompt=(END,)).loglikelihood
    assert start_id(replace(traits, bos_token_id=7)) == 7
    assert start_id(replace(traits, bos_token_id=10**6, end_token_ids=(-1, 97, 2))) == 2
    assert start_id(replace(traits, bos_token_id=-1, end_token_ids=(10**6,))) is None
    with pytest.raises(RequestError, match=r"^The prompt is empty, and this model predicts"):
        check_answer(replace(traits, end_token_ids=()), (), (5,), LikelihoodSettings())


def test_the_last_token_of_an_autoregressive_answer_takes_no_room():
    """2048 positions hold a prompt of 2000 and 49 tokens of answer, for the last of them is never fed."""
    check_answer(model_of("llama").traits, (5,) * 2000, (5,) * 49, LikelihoodSettings())
    with pytest.raises(RequestError, match="are 2049 positions, but the model was made for 2048"):
        check_answer(model_of("llama").traits, (5,) * 2000, (5,) * 50, LikelihoodSettings())


def test_a_text_longer_than_the_context_lies_in_windows_that_score_each_of_its_tokens_once():
    """Four positions: those of lm-eval's own example, and one token less each where what is scored is fed too."""
    causal = replace(model_of("llama").traits, max_positions=4)
    assert text_windows(causal, tuple(range(10, 20))) == [
        ((END,), (10, 11, 12, 13)),
        ((13,), (14, 15, 16, 17)),
        ((15, 16, 17), (18, 19)),
    ]
    assert text_windows(causal, (10, 11)) == [((END,), (10, 11))]
    diffusion = replace(model_of("dream").traits, max_positions=4)
    assert text_windows(diffusion, tuple(range(10, 18))) == [
        ((), (10, 11, 12, 13)),
        ((13,), (14, 15, 16)),
        ((14, 15, 16), (17,)),
    ]
    assert text_windows(replace(diffusion, bos_token_id=7), (10, 11, 12, 13)) == [
        ((7,), (10, 11, 12)),
        ((10, 11, 12), (13,)),
    ]


@pytest.mark.parametrize("family", ["llama", "dream", "llama-block"])
def test_the_windows_of_a_text_add_up_and_whether_it_is_greedy_is_not_asked(family):
    model, settings = model_of(family), LikelihoodSettings(exact=True)
    windows = [((5,), (17, 40, 33)), ((33,), (8, 21))]
    steps = text_steps(model.traits, windows, settings, 0)
    engine = ScoringEngine(model, settings, 16, 8)
    found = likelihood.drive(steps, lambda asks: engine.run(engine.prepare(asks)))
    expected = sum(score(family, known, scored, exact=True).loglikelihood for known, scored in windows)
    assert found.loglikelihood == pytest.approx(expected, abs=1e-4)
    assert (found.exact, found.is_greedy) == (True, None)


def test_enumerating_a_long_answer_is_refused_with_its_cost():
    with pytest.raises(RequestError) as error:
        score("dream", answer=(5,) * 20, exact=True)
    assert str(error.value) == (
        "An answer of 20 tokens has 1,048,575 masked copies, and exact enumeration ends at 16 tokens. "
        "Leave --exact out to sample them."
    )


@pytest.mark.parametrize(
    ("family", "settings", "error", "said"),
    [
        ("llama", {"compat": "llada"}, UsageError, "are for diffusion models"),
        ("llama", {"cfg_scale": 1.0}, UsageError, "are for diffusion models"),
        ("llama-block", {"cfg_scale": 1.0}, UsageError, "this one works in blocks"),
        ("dream", {"mask_token_id": 97}, ModelError, "mask_token_id=97 is outside"),
        ("dream", {"mask_token_id": -1}, ModelError, "mask_token_id=-1 is outside"),
    ],
)
def test_settings_that_mean_nothing_for_a_model_are_refused(family, settings, error, said):
    with pytest.raises(error, match=said):
        check_model(model_of(family).traits, LikelihoodSettings(**settings))


@pytest.mark.parametrize("settings", [{"samples": 1}, {"batch_size": 0}, {"compat": "llada", "samples": 40},
                                      {"compat": "llada", "samples": 16}, {"samples": 10**30}, {"batch_size": 10**30},
                                      {"cfg_scale": math.nan}, {"cfg_scale": math.inf}, {"cfg_scale": -1.0}])  # fmt: skip
def test_samples_that_give_no_standard_error_or_no_whole_batch_are_refused(settings):
    """The original divides by zero when it has fewer samples than a batch."""
    with pytest.raises(UsageError):
        LikelihoodSettings(**settings)


def test_a_prompt_can_be_empty_where_the_model_sees_what_follows():
    assert math.isfinite(score("dream", prompt=()).loglikelihood)
