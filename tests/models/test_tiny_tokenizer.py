"""The tokenizer of the embedded models: any text comes back unchanged, none becomes a special token."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dllm_audit.models.tiny import EMBEDDED_MODELS, problems
from dllm_audit.models.tiny.tokenizer import EOS, MASK, build_tokenizer, save_tokenizer

TOKENIZER = build_tokenizer()


def round_trip(text: str) -> str:
    return TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "two  spaces, three   spaces\n\n and\ttabs \r\n",
        "Größe, naïve, 日本語, עברית, 🎉👩‍👩‍👧, ½ ٣ ²",
        "<0x41> <|mask|> <|endoftext|> <<35+27=62>>62",
        "\x00\x7f",
        "unknownWordsGlued2digits",
    ],
)
def test_any_text_comes_back_unchanged(text: str) -> None:
    assert round_trip(text) == text


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_random_text_comes_back_unchanged(text: str) -> None:
    assert round_trip(text) == text


def test_digits_are_single_and_known_words_are_one_token() -> None:
    assert TOKENIZER.encode("She now has <<35+27=62>>62 flowers.").tokens == [
        *(
            "She",
            " now",
            " has",
            " <<",
            "3",
            "5",
            "+",
            "2",
            "7",
            "=",
            "6",
            "2",
            ">>",
            "6",
            "2",
            " flowers",
            ".",
        )
    ]


@pytest.mark.parametrize("kind", problems.LIST_KINDS)
def test_every_list_item_is_one_token(kind: str) -> None:
    for exercise in islice(problems.list_exercises(5, "train", kind), 50):
        assert len(TOKENIZER.encode(f" {exercise.answer}").ids) == problems.LIST_LENGTH


def test_generated_text_needs_no_bytes() -> None:
    first_byte, last_byte = TOKENIZER.token_to_id("<0x00>"), TOKENIZER.token_to_id("<0xFF>")
    for problem in islice(problems.word_problems(6, "train"), 300):
        ids = TOKENIZER.encode(f"{problem.prompt} {problem.answer}").ids
        assert not any(first_byte <= token <= last_byte for token in ids)


def test_special_strings_in_text_are_spelled_not_parsed() -> None:
    ids = TOKENIZER.encode(f"a {MASK} b {EOS}").ids
    assert TOKENIZER.token_to_id(MASK) not in ids
    assert TOKENIZER.token_to_id(EOS) not in ids


def test_building_twice_gives_the_same_ids() -> None:
    assert build_tokenizer().get_vocab() == TOKENIZER.get_vocab()


def test_transformers_loads_the_saved_folder_and_parses_no_special_strings(tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    save_tokenizer(tmp_path)
    loaded = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = f"Question: é {MASK} {EOS}  12\n"
    assert loaded(text)["input_ids"] == TOKENIZER.encode(text).ids
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert (loaded.eos_token_id, loaded.pad_token_id, loaded.mask_token_id) == (0, 0, 1)


@pytest.mark.parametrize("name", EMBEDDED_MODELS)
def test_shipped_tokenizer_is_the_one_the_code_builds(name: str, tmp_path) -> None:
    save_tokenizer(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (EMBEDDED_MODELS[name] / file).read_text("utf-8") == (tmp_path / file).read_text("utf-8")
