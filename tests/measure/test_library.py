"""transformers' own decoding beside ours, on one loaded model."""

import json

import pytest

from dllm_audit.errors import AuditError
from dllm_audit.measure.library import LibraryComparison, Turns, compare_with_library
from dllm_audit.models.loading import find_model, load_model
from dllm_audit.plugins import load_plugins

#: Unequal lengths, so that a batch needs padding.
TEXTS = ("Question: Tom has 3 pens. He buys 4 more. How many pens does he have?\nAnswer:", "Question: 2 + 2?\nAnswer:")


@pytest.fixture(scope="module")
def model():
    return load_model(find_model("tiny-ar"), "cpu", "float32")


def compared(model, batch, **changed):
    prompts = [tuple(model.tokenizer.encode(text)) for text in TEXTS]
    session = load_plugins().backends["ar"].open(model, {"stop_at_eos": True})
    options = {"gen_length": 12, "end_ids": model.traits.end_token_ids, "rounds": 2, "most_seconds": 1e9, **changed}
    return compare_with_library(session, model, prompts, batch=batch, **options)


def test_one_at_a_time_generate_and_prompt_lookup_give_our_tokens(model):
    found = compared(model, 1)
    assert [(side.name, side.provenance, side.equal) for side in found.sides] == [
        ("ours", "reference", 2),
        ("generate", "library", 2),
        ("prompt lookup", "library", 2),
    ]
    assert (found.batch, found.prompts, found.gen_length) == (1, 2, 12)
    assert all(len(side.seconds) == 2 and min(side.seconds) > 0 for side in found.sides)
    assert len({side.tokens for side in found.sides}) == 1


def test_a_padded_batch_gives_our_tokens_and_prompt_lookup_takes_no_part(model):
    found = compared(model, 2)
    assert [(side.name, side.equal) for side in found.sides] == [("ours", 2), ("generate", 2)]


def test_an_answer_ends_where_the_runs_answers_end(model):
    full, ended = (
        compared(model, 2, rounds=1, end_ids=ids).side("generate") for ids in ((), model.traits.end_token_ids)
    )
    assert (full.tokens, ended.equal) == (24, 2)
    assert ended.tokens < 24


def test_where_time_is_short_fewer_prompts_and_tokens_are_decoded_and_eight_of_one_batch_are_the_least(model):
    found = compared(model, 1, most_seconds=0.0)
    assert (found.prompts, found.gen_length) == (1, 8)


def test_the_model_is_left_as_it_was(model):
    before = model.module.config.is_causal, model.module.generation_config
    compared(model, 2, rounds=1)
    assert (model.module.config.is_causal, model.module.generation_config) == before


def test_a_prompt_that_ours_cannot_decode_is_an_error(model):
    session = load_plugins().backends["ar"].open(model, {})
    with pytest.raises(AuditError, match="positions"):
        compare_with_library(session, model, [(5,) * 5000], batch=1, gen_length=8)


FOUND = LibraryComparison(1, 1, 8, "5.24.0", (Turns("ours", "reference", 8, 1, (1.0, 1.5)),))


def test_what_is_stored_reads_back():
    assert LibraryComparison.of_facts(json.loads(json.dumps(FOUND.as_dict()))) == FOUND


@pytest.mark.parametrize(
    "damage", [{"sides": None}, {"sides": []}, {"batch": "1"}, {"prompts": 0}, {"sides": [{"name": "ours"}]},
               {"sides": [{**FOUND.as_dict()["sides"][0], "seconds": [0.0]}]},
               {"sides": [FOUND.as_dict()["sides"][0], {**FOUND.as_dict()["sides"][0], "seconds": [1.0]}]}]
)  # fmt: skip
def test_what_was_damaged_reads_as_nothing(damage):
    assert LibraryComparison.of_facts({**FOUND.as_dict(), **damage}) is None
    assert LibraryComparison.of_facts({"reason": "it samples"}) is None
