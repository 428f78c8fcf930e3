"""Where an answer ends: what is looked for as it grows is what is there when it is whole."""

import pytest

from dllm_audit.decode.stops import StopStrings
from dllm_audit.models.loading import find_model, load_model

TEXTS = [
    "12 + 7 = 19\n\nQ: next",
    "no stop here",
    "é\U0001f600. So the answer is 7",
    "\n",
    "",
    " Q:",
    "aQ: b",
    "Q",
    "a\n \nb",
]


@pytest.fixture(scope="module")
def tokenizer():
    return load_model(find_model("tiny-ar"), "cpu", "float32").tokenizer


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("until", [("\n\n", "Q:"), ("\U0001f600",), ("the ",), ("7", "so"), ("\n \n",)])
@pytest.mark.parametrize("text", TEXTS)
def test_a_stop_string_is_seen_with_the_block_that_completes_it(tokenizer, text, until, width):
    stops, ids = StopStrings(tokenizer, until), tokenizer.encode(text, add_special_tokens=False)
    for end in range(width, len(ids) + width, width):
        there = any(stop in stops.decode(ids[:end]) for stop in until)
        fresh = len(ids[end - width : end])
        assert stops.close(ids[:end], fresh) == there
        if there:
            break


def test_a_text_without_the_last_character_of_a_stop_string_is_never_decoded(tokenizer, monkeypatch):
    stops, ids = StopStrings(tokenizer, ["\n\n"]), tokenizer.encode("1 + 2 = 3, then 4", add_special_tokens=False)
    assert not stops.close(ids, len(ids))
    monkeypatch.setattr(stops, "decode", lambda ids: pytest.fail("the text was looked at again"))
    assert not stops.close(ids, len(ids))


def test_an_empty_stop_string_stops_nothing(tokenizer):
    stops = StopStrings(tokenizer, [""])
    assert not stops
    assert stops.cut(tokenizer.encode("a b", add_special_tokens=False))[2] is False
