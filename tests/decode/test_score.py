"""What is proposed, and how sure the model is of it. Numbers are computed by hand."""

import math

import pytest
import torch

from dllm_audit import Score

#: Three tokens with probabilities .5, .3, .2 at one position, and .2, .3, .5 at the next.
PROBABILITIES = [[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]


def logits(rows=PROBABILITIES, dtype=torch.float32):
    # A constant added to all logits of a position changes nothing.
    return torch.tensor(rows, dtype=torch.float64).log().add(3.0).to(dtype)


def score(given=None, generators=(), counts=(), **fields):
    proposals = Score(**fields)(logits() if given is None else given, generators, counts)
    return proposals.token.tolist(), proposals.confidence


def near(tensor, numbers, tolerance=1e-6):
    assert tensor.tolist() == pytest.approx(numbers, abs=tolerance)


def test_the_likeliest_token_is_proposed_with_its_probability():
    tokens, confidence = score()
    assert tokens == [0, 2]
    near(confidence, [0.5, 0.5])


def test_margin_is_the_distance_between_the_two_likeliest():
    tokens, confidence = score(confidence="margin")
    assert tokens == [0, 2]
    near(confidence, [0.2, 0.2])


def test_entropy_is_negative_so_that_higher_is_surer():
    certain = logits([[0.999998, 1e-6, 1e-6], [0.5, 0.3, 0.2]])
    _, confidence = score(certain, confidence="entropy")
    expected = 0.5 * math.log(0.5) + 0.3 * math.log(0.3) + 0.2 * math.log(0.2)
    near(confidence, [0.0, expected], 1e-4)


def test_entropy_in_float16_is_finite_where_most_probabilities_are_zero_there():
    given = torch.tensor([[20.0, 0.0, -20.0, -20.0], [5.0, 5.0, -20.0, -20.0]], dtype=torch.float16)
    _, confidence = score(given, confidence="entropy", dtype="model")
    torch.testing.assert_close(confidence.float(), torch.tensor([0.0, -math.log(2)]), atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "softmax"), [("float32", torch.float32), ("float64", torch.float64), ("model", torch.bfloat16)]
)
@pytest.mark.parametrize("confidence", ["probability", "margin", "entropy"])
def test_the_confidence_has_the_number_format_that_was_asked_for(dtype, softmax, confidence):
    _, sure = score(logits(dtype=torch.bfloat16), confidence=confidence, dtype=dtype)
    assert sure.dtype == softmax


def test_float64_sees_a_difference_that_float32_rounds_away():
    close = torch.tensor([[0.0, -18.0]])
    near(Score(dtype="float32")(close.clone(), [], []).confidence, [1.0], 0)
    double = Score(dtype="float64")(close.clone(), [], []).confidence.item()
    assert double == pytest.approx(1 / (1 + math.exp(-18)), abs=1e-15)
    assert double < 1


@pytest.mark.parametrize("confidence", ["probability", "margin", "entropy", "random"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "model"])
@pytest.mark.parametrize("temperature", [0.0, 5.0])
def test_the_mask_token_is_never_proposed_however_likely(confidence, dtype, temperature):
    many = torch.tensor([[50.0, 1.0, 0.0]]).repeat(200, 1)
    score = Score(confidence=confidence, dtype=dtype, temperature=temperature, mask_token_id=0)
    proposals = score(many, [torch.Generator().manual_seed(1)], [200])
    assert 0 not in proposals.token.tolist()


def test_the_mask_stays_in_the_denominator_of_the_probability():
    tokens, confidence = score(mask_token_id=0)
    assert tokens == [1, 2]
    near(confidence, [0.3, 0.5])


def test_a_margin_is_between_tokens_that_can_be_proposed():
    """A likely mask once made a position look sure of a token that it was not sure of."""
    tokens, confidence = score(logits([[0.9, 0.06, 0.04]]), confidence="margin", mask_token_id=0)
    assert tokens == [1]
    near(confidence, [0.02])


def test_suppressed_logits_of_end_of_text_are_never_proposed_and_leave_the_denominator():
    tokens, confidence = score(eos="suppress_logits", end_ids=(0,))
    assert tokens == [1, 2]
    near(confidence, [0.6, 0.625])


def test_suppressed_logits_hold_back_every_id_that_ends_text_but_only_the_first_in_the_program():
    assert score(eos="suppress_logits", end_ids=(0, 2))[0] == [1, 1]
    assert score(eos="suppress_logits", end_ids=(0, 2), compat=True)[0] == [1, 2]


@pytest.mark.parametrize("confidence", ["probability", "margin"])
def test_suppressed_confidence_proposes_end_of_text_with_no_confidence(confidence):
    tokens, sure = score(eos="suppress_confidence", end_ids=(0,), confidence=confidence)
    assert tokens == [0, 2]
    assert sure[0].item() == 0
    near(sure[1:], [0.5 if confidence == "probability" else 0.2])


def test_suppressed_confidence_ranks_end_of_text_below_any_entropy():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        given = logits(dtype=dtype)
        _, sure = score(given, eos="suppress_confidence", end_ids=(0,), confidence="entropy", dtype="model")
        assert float("-inf") < sure[0].item() < -60_000 < sure[1].item()


@pytest.mark.parametrize("dtype", ["float32", "float64", "model"])
def test_in_the_program_suppressed_confidence_takes_the_mass_of_end_of_text_out_of_every_softmax(dtype):
    tokens, sure = score(eos="suppress_confidence", end_ids=(0,), compat=True, dtype=dtype)
    assert tokens == [0, 2]
    near(sure, [0.0, 0.5 / 0.8])


@pytest.mark.parametrize("dtype", ["float32", "float64", "model"])
def test_the_mass_of_the_mask_stays_in_the_softmax_from_which_the_program_takes_end_of_text(dtype):
    """.2, .3 (the mask), .5: without end-of-text .3 and .5 are left."""
    given = logits(PROBABILITIES[1:])
    tokens, sure = score(given, eos="suppress_confidence", end_ids=(0,), mask_token_id=1, compat=True, dtype=dtype)
    assert tokens == [2]
    near(sure, [0.5 / 0.8])


def test_random_confidence_is_uniform_and_does_not_follow_the_logits():
    many = logits([[0.98, 0.01, 0.01]] * 4000)
    tokens, sure = score(many, [torch.Generator().manual_seed(7)], [4000], confidence="random")
    assert set(tokens) == {0}
    assert 0 <= sure.min().item() < 0.01
    assert 0.99 < sure.max().item() < 1
    assert sure.mean().item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_samples_from_the_softmax_of_logits_over_temperature(temperature):
    n = 40_000
    tokens, _ = score(logits([PROBABILITIES[0]] * n), [torch.Generator().manual_seed(3)], [n], temperature=temperature)
    weights = [p ** (1 / temperature) for p in PROBABILITIES[0]]
    expected = [w / sum(weights) for w in weights]
    assert [tokens.count(token) / n for token in range(3)] == pytest.approx(expected, abs=0.01)


def test_the_confidence_of_a_sampled_token_comes_from_the_logits_without_noise():
    tokens, sure = score(logits([PROBABILITIES[0]] * 300), [torch.Generator().manual_seed(3)], [300], temperature=3.0)
    assert set(tokens) == {0, 1, 2}
    near(sure, [PROBABILITIES[0][token] for token in tokens])


def test_a_rows_draws_come_from_its_own_generator_whatever_stands_beside_it():
    def draw(seeds, counts):
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return score(logits([[0.4, 0.35, 0.25]] * sum(counts)), generators, counts, temperature=1.0)[0]

    alone = draw([5], [50])
    assert draw([5, 6], [50, 9])[:50] == alone
    assert draw([6, 5], [9, 50])[9:] == alone
    assert draw([6], [50]) != alone
