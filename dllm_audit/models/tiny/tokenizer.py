"""The tokenizer of the embedded models: known words are one token, digits are single, everything else is
spelled in bytes.

A word carries the space before it. No text is normalised, so decoding what was encoded gives the same text,
for any text.
"""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from dllm_audit.models.tiny import problems

EOS = "<|endoftext|>"
MASK = "<|mask|>"
EOS_ID, MASK_ID = 0, 1
PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s"
MAX_POSITIONS = 4096

PUNCTUATION = [*".,:;?!+-*/=()'\"$%&#", "<<", ">>", " <<", "####"]
EXTRA_WORDS = [
    "the",
    "a",
    "an",
    "and",
    "or",
    "to",
    "in",
    "is",
    "are",
    "it",
    "not",
    "with",
    "for",
    "on",
    "at",
    "by",
]


def build_tokenizer() -> Tokenizer:
    """Return the tokenizer; every call returns the same ids.

    Ids: 0 is `<|endoftext|>` (end and padding), 1 is `<|mask|>`, then 256 bytes, ten digits, and the known
    pieces in order. The two special strings are never parsed in given text: both are spelled in bytes there
    (`encode_special_tokens`), and the ids are only reached by number. A tokenizer loaded through transformers
    does the same (`split_special_tokens`).
    """
    vocabulary = {EOS: EOS_ID, MASK: MASK_ID}
    for piece in [
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"0123456789",
        " ",
        "\n",
        *PUNCTUATION,
        *known_words(),
    ]:
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(EOS, special=True), AddedToken(MASK, special=True)])
    tokenizer.encode_special_tokens = True
    return tokenizer


@functools.cache
def known_words() -> tuple[str, ...]:
    """Return the pieces of generated prompts and answers that are words, in alphabetical order."""
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    examples: list[problems.WordProblem | problems.ListExercise] = [
        *itertools.islice(problems.word_problems(0, "train"), 2000),
        *itertools.islice(problems.list_exercises(0, "train"), 2000),
    ]
    texts = [text for example in examples for text in (example.prompt, f" {example.answer}")]
    found = {piece for text in texts for piece, _ in split.pre_tokenize_str(text) if piece.strip().isalpha()}
    found.update(f" {word}" for word in EXTRA_WORDS)
    return tuple(sorted(found))


def save_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, which transformers loads, into an existing folder."""
    build_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "mask_token": MASK,
        "model_max_length": MAX_POSITIONS,
        "pad_token": EOS,
        "padding_side": "left",
        "split_special_tokens": True,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
