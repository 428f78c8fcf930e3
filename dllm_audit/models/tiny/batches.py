"""Training batches of the embedded models: rows of one fixed length, and the three ways of hiding tokens in
them.

A row is a prompt, its answer, and `<|endoftext|>` up to the row's length, as in LLaDA's fine-tuning (arXiv
2502.09992, section 2.3); no padding is needed. Rows of several lengths train windows of several lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from tokenizers import Tokenizer

from dllm_audit.models.tiny import problems
from dllm_audit.models.tiny.tokenizer import EOS_ID, MASK_ID

PROBLEM_LENGTHS = (80, 96, 112)
LIST_ROW_LENGTH = 32
# No answer starts earlier in rows of these lengths: prompts of problems exceed 24 tokens, of lists 8.
FIRST_ANSWER_POSITION = {32: 8, 80: 8, 96: 24, 112: 24}


@dataclass(frozen=True)
class Row:
    """A tokenised example; `values` gives, for each step's result, its places in `answer` (token indices).

    In an exercise that replaces an item, the new item is the one value. Other exercises have none.
    """

    prompt: list[int]
    answer: list[int]
    values: list[list[int]]


@dataclass(frozen=True)
class Batch:
    """Rows of one length L with what is hidden in them.

    tokens: int64 [B, L], clean. noisy: int64 [B, L], some tokens replaced by the mask. weight: float32 [B,
    L], 1 where a prediction counts. first: position from which any weight may be non-zero.
    """

    tokens: np.ndarray
    noisy: np.ndarray
    weight: np.ndarray
    first: int


class Encoder:
    """Turns examples into rows."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.digits = {tokenizer.token_to_id(digit) for digit in "0123456789"}
        self.equals = tokenizer.token_to_id("=")

    def rows(self, examples: list[problems.WordProblem | problems.ListExercise]) -> list[Row]:
        """Tokenise examples; the answer starts with the space that follows `Answer:`."""
        prompts = self.tokenizer.encode_batch([example.prompt for example in examples])
        answers = self.tokenizer.encode_batch([f" {example.answer}" for example in examples])
        found = []
        for example, prompt, answer in zip(examples, prompts, answers, strict=True):
            if isinstance(example, problems.WordProblem):
                values = self.value_places(answer.ids)
            elif example.new_item:
                values = [[example.answer.split().index(example.new_item)]]
            else:
                values = []
            found.append(Row(prompt.ids, answer.ids, values))
        return found

    def value_places(self, answer: list[int]) -> list[list[int]]:
        """Return, for each number after `=`, the token indices of it and of its later repetitions."""
        places: list[list[int]] = []
        group_of: dict[tuple[int, ...], list[int]] = {}
        start = 0
        while start < len(answer):
            if answer[start] not in self.digits:
                start += 1
                continue
            end = start
            while end < len(answer) and answer[end] in self.digits:
                end += 1
            number = tuple(answer[start:end])
            if answer[start - 1] == self.equals:
                group_of[number] = []
                places.append(group_of[number])
            if number in group_of:
                group_of[number].extend(range(start, end))
            start = end
        return places


def problem_rows(encoder: Encoder, seed: int, tight: bool, count: int) -> Iterator[tuple[int, list[Row]]]:
    """Yield (length, `count` rows) of word problems, with a few list exercises among the shortest rows.

    tight: rows are as short as their examples allow. Otherwise short examples also go into long rows, so that
    the number of masks says little about the length of the answer.
    """
    rng = np.random.default_rng([seed, 1])
    stream = problems.word_problems(seed, "train")
    lists = problems.list_exercises(seed + 1, "train")
    waiting: dict[int, list[Row]] = {length: [] for length in PROBLEM_LENGTHS}
    shares = dict(zip(PROBLEM_LENGTHS, (1.0, 0.0, 0.0) if tight else (0.3, 0.35, 0.35), strict=True))
    while True:
        for row in encoder.rows(list(islice(stream, 256))):
            needed = len(row.prompt) + len(row.answer) + 1
            fitting = [length for length in PROBLEM_LENGTHS if length >= needed]
            chances = np.array([shares[length] for length in fitting]) + 1e-9 * (np.array(fitting) == fitting[0])
            length = int(rng.choice(fitting, p=chances / chances.sum()))
            waiting[length].append(row)
            if len(waiting[length]) == count:
                rows = waiting[length]
                if length == PROBLEM_LENGTHS[0]:
                    few = count // 8
                    rows[:few] = encoder.rows(list(islice(lists, few)))
                yield length, rows
                waiting[length] = []


def list_rows(encoder: Encoder, seed: int, count: int) -> Iterator[tuple[int, list[Row]]]:
    """Yield (length, `count` rows) of list exercises of all kinds."""
    stream = problems.list_exercises(seed, "train")
    while True:
        yield LIST_ROW_LENGTH, encoder.rows(list(islice(stream, count)))


def lay_out(rows: list[Row], length: int, eos: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens [B, L] and the position [B] of each answer's first token."""
    tokens = np.full((len(rows), length), eos, dtype=np.int64)
    starts = np.array([len(row.prompt) for row in rows])
    for i, row in enumerate(rows):
        tokens[i, : starts[i]] = row.prompt
        tokens[i, starts[i] : starts[i] + len(row.answer)] = row.answer
    return tokens, starts


def causal_batch(rows: list[Row], length: int, encoder: Encoder) -> Batch:
    """Return a batch whose weight at position i counts the prediction of token i + 1: answer and one EOS."""
    tokens, starts = lay_out(rows, length, EOS_ID)
    weight = np.zeros(tokens.shape, dtype=np.float32)
    for i, row in enumerate(rows):
        weight[i, starts[i] - 1 : starts[i] + len(row.answer)] = 1
    return Batch(tokens, tokens, weight, FIRST_ANSWER_POSITION[length])


def masked_batch(rows: list[Row], length: int, encoder: Encoder, rng: np.random.Generator) -> Batch:
    """Return a batch for masked diffusion: half of the rows uniformly masked, half with value masking.

    Uniform: each token of the window with probability t, t uniform in 0..1, and every token in a tenth of
    these rows. Value masking: every place of the results of the chosen steps, and each other token with
    probability t squared. Without it the objective is solved by copying: a result occurs twice in
    `<<35+27=62>>62`, and the other copy is mostly visible. List exercises without values hide a uniform
    number of items instead.
    """
    tokens, starts = lay_out(rows, length, EOS_ID)
    B = len(rows)
    rate = rng.random(B)
    rate[rng.random(B) < 0.1] = 1.0
    by_value = rng.random(B) < 0.5
    rate[by_value] = rng.random(int(by_value.sum())) ** 2
    hidden = rng.random(tokens.shape) < rate[:, None]
    for i in np.flatnonzero(by_value):
        hide_values(hidden[i], rows[i], starts[i], rng)
    hidden &= np.arange(length)[None, :] >= starts[:, None]
    return hide(tokens, hidden, length, MASK_ID)


def block_batch(rows: list[Row], length: int, encoder: Encoder, rng: np.random.Generator, block_length: int) -> Batch:
    """Return a batch for block diffusion: a rate per row and block, and value masking in half of the rows.

    Blocks start at multiples of `block_length` from position 0. An eighth of the blocks is wholly masked, as
    each is when its decoding starts.
    """
    tokens, starts = lay_out(rows, length, EOS_ID)
    B, blocks = len(rows), length // block_length
    rate = rng.random((B, blocks))
    by_value = rng.random(B) < 0.5
    rate[by_value] **= 2
    rate[rng.random((B, blocks)) < 0.125] = 1.0
    hidden = rng.random(tokens.shape) < np.repeat(rate, block_length, axis=1)
    for i in np.flatnonzero(by_value):
        hide_values(hidden[i], rows[i], starts[i], rng)
    hidden &= np.arange(length)[None, :] >= starts[:, None]
    return hide(tokens, hidden, length, MASK_ID)


def hide_values(hidden: np.ndarray, row: Row, start: int, rng: np.random.Generator) -> None:
    """Mark in `hidden` (bool [L]) all places of some results, or some items of a list."""
    steps = len(row.values)
    if steps == 0:
        chosen = rng.permutation(len(row.answer))[: rng.integers(1, len(row.answer) + 1)]
        hidden[start : start + len(row.answer)] = False
        hidden[start + chosen] = True
        return
    if rng.random() < 0.7:
        chosen_steps = np.arange(rng.integers(steps), steps)
    else:
        chosen_steps = np.flatnonzero(rng.random(steps) < 0.5)
    for step in chosen_steps:
        hidden[start + np.array(row.values[step])] = True


def hide(tokens: np.ndarray, hidden: np.ndarray, length: int, mask: int) -> Batch:
    """Return the batch where `hidden` (bool [B, L]) tokens are masked and counted."""
    return Batch(tokens, np.where(hidden, mask, tokens), hidden.astype(np.float32), FIRST_ANSWER_POSITION[length])
