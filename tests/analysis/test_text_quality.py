"""How answers read: counted by hand in texts of a few words."""

from math import exp, log

import pytest

from dllm_audit.analysis.agreement import token_agreement
from dllm_audit.analysis.code import read_code
from dllm_audit.analysis.summary import summarise
from dllm_audit.analysis.text_quality import text_quality_of_rows
from dllm_audit.records import Failure


def row(text="a b", ids=(1, 2), **changed):
    """A stored request that was answered."""
    return {
        "doc_id": 0,
        "error_type": None,
        "error_message": None,
        "text": text,
        "output_ids": list(ids),
        "answered_tokens": len(ids),
        "residual_masks": 0,
        **changed,
    }


def failed(message):
    return row(text=None, output_ids=None, answered_tokens=None, error_type="RequestError", error_message=message)


def quality(*rows, answers=(), likelihoods=()):
    return text_quality_of_rows(rows, answers, likelihoods)


def test_a_word_twice_in_a_row_is_one_adjacent_repeat():
    # the|the cat sat sat sat: 5 pairs of which 3 repeat; ok then: 1 pair.
    found = quality(row("the the cat sat sat sat"), row("ok then")).adjacent_repeats
    assert found.value == pytest.approx(3 / 6)
    assert (found.unit, found.status) == ("share", "measured")


def test_words_are_what_stands_between_white_space():
    assert quality(row("20 + 20 = 40\n40")).adjacent_repeats.value == pytest.approx(1 / 5)
    assert quality(row("The the, the")).adjacent_repeats.value == 0


def test_bigrams_are_counted_per_answer_and_added_up():
    # a b a b a: ab ba ab ba, 2 of 4 different; a b once more in another answer is its own.
    found = quality(row("a b a b a"), row("a b")).unique_bigrams
    assert found.value == pytest.approx((2 + 1) / (4 + 1))


def test_the_interval_of_a_share_of_words_is_over_answers_and_stays_within_one():
    texts = ["a a b", "a b c", "a b b b", "x y", "k l m n", "p q q"]
    found = quality(*map(row, texts))
    assert found.adjacent_repeats.value == pytest.approx(4 / 13)
    assert 0 <= found.adjacent_repeats.low < found.adjacent_repeats.value < found.adjacent_repeats.high
    assert found.adjacent_repeats.basis == "6 answers"
    assert found.unique_bigrams.high == 1.0


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["a b"] * 4, "interval unknown: 4 of at least 5 answers"),
        (["a b"] * 5, "interval unknown: all 5 answers are alike in it"),
        (["", "word"], "no answer has two words"),
    ],
)
def test_an_interval_or_share_that_nothing_tells_is_unknown_with_the_reason(texts, reason):
    assert quality(*map(row, texts)).adjacent_repeats.reason == reason


def test_answers_that_are_no_text_are_counted_by_how():
    found = quality(
        row(),
        row("", ids=()),
        row(" \n", ids=(0, 0)),
        row("ha ha ha ha", ids=(7, 7, 7, 7)),
        row("111", ids=(7, 7, 7)),  # three digits are a number
        failed("The model's logits are not finite (NaN or infinite), so no token can be chosen."),
        failed("The prompt is too long."),  # says nothing about the text
    )
    assert found.degenerate_kinds == {
        "empty": 1,
        "nothing but padding or white space": 1,
        "one token over and over": 1,
        "not finite": 1,
    }
    assert found.degenerate.value == pytest.approx(4 / 6)
    assert found.degenerate.basis == "6 requests"


def test_where_masks_stayed_in_the_window_its_tokens_are_not_judged():
    assert quality(row("a b", ids=(7, 7, 7, 7), residual_masks=2)).degenerate.value == 0


# -- code --


@pytest.mark.parametrize(
    ("source", "error", "undefined"),
    [
        ("def f(x):\n    return x + len([])", False, ()),
        ("from typing import List\n\ndef f(x: List[int]):\n    return y(x) + z", False, ("y", "z")),
        ("def f():\n    print(a)\n    a = 1", False, ("a",)),
        ("import os\nos.remove('/')", False, ()),  # read, not run
        ("def f(:", True, ()),
        ("x = 1\n  y = 2", True, ()),
        ("x = '\0'", True, ()),
        ("'\ud800'", True, ()),
        ("(" * 9000, True, ()),
        ("-" * 90_000 + "1", True, ()),
        ("a" + "+a" * 90_000, True, ()),
        ("#" * 200_001, True, ()),
        (r"x = '\d'", False, ()),
        ("", False, ()),
    ],
)
@pytest.mark.filterwarnings("error")
def test_code_is_parsed_and_searched_for_names_that_nothing_defines(source, error, undefined):
    found = read_code(source)
    assert (found.syntax_error is not None, found.undefined) == (error, undefined)


def executed(doc, response, metric="pass@1"):
    return {"doc_id": doc, "metric": metric, "filter": "create_test", "response": response, "value": 0.0}


def test_programs_that_a_task_executed_are_read_as_it_executed_them():
    rows = [row("    return a", doc_id=n) for n in range(4)]
    answers = [
        executed(0, "def f(a):\n    return a"),
        executed(1, "def f(a):\n    return b"),
        executed(2, "def f(a)"),
        executed(3, "def f(a):\n    return b + c", "pass_at_1"),
        executed(9, "def f(", "pass@1"),  # its request failed
    ]
    code = quality(*rows, answers=answers).code
    assert (code.programs, code.names) == (4, ("b", "c"))
    assert code.syntax_errors.value == 1 / 4
    assert code.undefined_names.value == 2 / 4
    assert code.undefined_names.basis == "4 programs"


def test_a_task_that_executes_nothing_has_no_code():
    assert quality(row("def f(:"), answers=[executed(0, "5", "exact_match")]).code is None


# -- perplexity --


def likelihood(ordinal, value, tokens, reference="ref"):
    return {"ordinal": ordinal, "reference": reference, "loglikelihood": value, "scored_tokens": tokens}


def test_perplexity_is_over_all_tokens_of_all_answers_together():
    rows = [likelihood(0, 3 * log(0.5), 3), likelihood(1, log(0.125), 1), likelihood(0, -1.0, 1, "other")]
    found = quality(*[row()] * 3, likelihoods=rows).perplexities
    assert [(p.reference, p.answers, p.left_out) for p in found] == [("other", 1, 2), ("ref", 2, 1)]
    # 6 halvings in 4 tokens.
    assert found[1].figure.value == pytest.approx(2**1.5)
    assert found[1].figure.unit == "perplexity"


def test_perplexity_has_an_interval_over_answers():
    rows = [likelihood(n, -float(n), 1) for n in range(1, 7)]
    (found,) = quality(*[row()] * 6, likelihoods=rows).perplexities
    assert found.figure.value == pytest.approx(exp(3.5))
    assert found.figure.low < found.figure.value < found.figure.high
    assert found.figure.basis == "6 answers"


def test_perplexity_beyond_every_number_stays_a_number():
    (found,) = quality(row(), likelihoods=[likelihood(0, -9000.0, 1)]).perplexities
    assert found.figure.value == pytest.approx(exp(700))


# -- agreement --


def pair(ours, theirs, **changed):
    return row(ids=ours, **changed), row(ids=theirs)


def test_agreement_counts_positions_of_the_longer_answer():
    found = token_agreement([pair((1, 2, 3), (1, 9, 3)), pair((1, 2), (1, 2, 3, 4)), pair((5,), (5,))])
    assert found.tokens.value == pytest.approx((2 + 2 + 1) / (3 + 4 + 1))
    assert found.answers.value == pytest.approx(1 / 3)


def test_only_the_answer_is_compared_and_not_what_was_committed_after_it():
    ours, theirs = row(ids=(1, 2)), row(ids=(1, 2))
    ours["output_ids"] += [0, 0]
    theirs["output_ids"] += [0, 5]
    assert token_agreement([(ours, theirs)]).answers.value == 1


def test_two_empty_answers_are_the_same_and_have_no_position():
    found = token_agreement([pair((), ())])
    assert found.answers.value == 1
    assert found.tokens.reason == "no answer has a token"


def test_an_answer_whose_window_kept_masks_is_left_out():
    found = token_agreement([pair((1, 2), (3, 4), residual_masks=1), pair((1, 2), (1, 2))])
    assert (found.tokens.value, found.answers.basis) == (1.0, "1 documents")


def test_runs_without_a_document_in_common_have_no_agreement():
    assert token_agreement([]).tokens.reason == (
        "the two runs have no answered document in common whose tokens are known"
    )


# -- of stored runs --


def test_a_stored_run_knows_how_it_reads(stored):
    found = summarise(stored, "ar-1").text
    assert found.adjacent_repeats.value == 0  # six times "#### 5"
    assert found.degenerate.value == 0
    assert (found.code, found.perplexities) == (None, ())


def test_a_run_of_failures_is_unknown_and_not_perfect(empty_store, build):
    build("add_run", empty_store, build("run_row", "r"), [Failure("0", "RequestError", "No.")])
    found = summarise(empty_store, "r").text
    assert found.degenerate.reason == "there are no requests"
    assert found.unique_bigrams.value is None


def test_a_run_that_scored_given_answers_has_no_text(empty_store, build):
    build("add_scored_run", empty_store, build("run_row", "r"), [[(-1.0, 0.0), (-2.0, 0.0)]])
    assert summarise(empty_store, "r").text is None
