"""What the embedded models learn: reproducible, right, and never the same in training and in tests."""

from __future__ import annotations

import json
import random
import re
from itertools import islice

import pytest

from dllm_audit.evaluate.tasks import generate
from dllm_audit.models.tiny import batches, problems
from dllm_audit.models.tiny.tokenizer import MASK_ID, build_tokenizer

ENCODER = batches.Encoder(build_tokenizer())


def prompts_of(records: dict[str, list[dict]], part: str) -> set[str]:
    """Return the rendered prompts of all data files of a part ("test" or "train")."""
    found = set()
    for name, rows in records.items():
        if not name.endswith(f"_{part}.jsonl"):
            continue
        for row in rows:
            if "question" in row:
                found.add(problems.WordProblem(row["question"], row["answer"], ()).prompt)
            else:
                found.add(problems.ListExercise(row["kind"], tuple(row["items"]), row["new_item"], "").prompt)
    return found


def test_equal_seeds_give_equal_problems_and_other_seeds_others() -> None:
    def draw(seed: int) -> list:
        return [
            *islice(problems.word_problems(seed, "train"), 50),
            *islice(problems.list_exercises(seed, "train"), 50),
        ]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_every_written_step_is_right_and_the_last_is_the_answer() -> None:
    for problem in islice(problems.word_problems(7, "train"), 2000):
        steps = re.findall(r"<<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)", problem.answer)
        assert [int(s[3]) for s in steps] == list(problem.results)
        for left, sign, right, result, repeated in steps:
            a, b = int(left), int(right)
            assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign] == int(result) == int(repeated)
            assert 10 <= int(result) <= 99
        assert problem.answer.endswith(f"\n#### {problem.results[-1]}")


def test_every_number_of_a_step_was_told_or_computed_before() -> None:
    for problem in islice(problems.word_problems(8, "train"), 1000):
        known = {*re.findall(r"\d+", problem.question), "2", "3", "4"}
        for left, right, result in re.findall(r"<<(\d+)[-+*/](\d+)=(\d+)>>", problem.answer):
            assert {left, right} <= known
            known.add(result)


def test_a_story_read_by_hand_has_the_answer_it_says() -> None:
    """Recompute from the sentences alone, without the generator's own bookkeeping."""
    factor = {word: number for number, word in problems.TIMES.items()}
    for problem in islice(problems.word_problems(9, "train"), 1000):
        first, *sentences = problem.question.split(". ")
        name = first.split()[0]
        value = int(first.split()[2])
        for sentence in sentences[:-1]:
            numbers = [int(n) for n in re.findall(r"\d+", sentence)]
            if re.match(r"\w+ has \d+", sentence):
                assert not sentence.startswith(f"{name} ")
            elif sentence.endswith(" more"):
                value += numbers[0]
            elif " of " in sentence:
                value += numbers[0] * numbers[1]
            elif sentence.endswith(" times as many"):
                value *= factor[sentence.split()[-4]]
            elif sentence.endswith(" half"):
                value //= 2
            else:
                value -= numbers[0]
        assert value == problem.results[-1], problem.question


def test_the_split_is_a_function_of_the_prompt_and_streams_respect_it() -> None:
    for split in problems.SPLITS:
        for problem in islice(problems.word_problems(10, split), 200):
            assert problems.split_of(problem.prompt) == split
        for exercise in islice(problems.list_exercises(10, split), 200):
            assert problems.split_of(exercise.prompt) == split


def test_shipped_tests_and_examples_lie_outside_the_training_split() -> None:
    records = generate.data_files()
    assert {problems.split_of(prompt) for prompt in prompts_of(records, "test")} == {"test"}
    assert {problems.split_of(prompt) for prompt in prompts_of(records, "train")} == {"fewshot"}


def test_rows_that_training_reads_lie_in_the_training_split() -> None:
    """The streams training draws from, as it draws from them."""
    tests = prompts_of(generate.data_files(), "test")
    for stream in (
        batches.problem_rows(ENCODER, 0, False, 64),
        batches.problem_rows(ENCODER, 0, True, 64),
        batches.list_rows(ENCODER, 100, 64),
    ):
        for _, rows in islice(stream, 8):
            for row in rows:
                prompt = ENCODER.tokenizer.decode(row.prompt, skip_special_tokens=False)
                assert problems.split_of(prompt) == "train"
                assert prompt not in tests


def test_shipped_data_is_what_the_code_makes() -> None:
    folder = generate.Path(generate.__file__).parent / "data"
    for name, records in generate.data_files().items():
        lines = (folder / name).read_text("utf-8").splitlines()
        assert [json.loads(line) for line in lines] == records


@pytest.mark.parametrize("kind", problems.LIST_KINDS)
def test_generated_list_answers_are_valid(kind: str) -> None:
    for exercise in islice(problems.list_exercises(11, "train", kind), 200):
        assert problems.is_valid_list(kind, exercise.items, exercise.new_item, exercise.answer)


def test_an_unknown_kind_of_list_is_an_error_that_names_the_kinds() -> None:
    with pytest.raises(
        ValueError, match=r"Unknown kind of list exercise: 'rotate'\. Choose one of shuffle, replace, copy"
    ):
        problems.make_list_exercise(random.Random(0), "rotate")


def test_value_places_are_the_result_and_its_later_repetitions() -> None:
    answer = " She now has <<35+27=62>>62 pens.\nThen she has <<62-12=50>>50 pens.\n#### 50"
    ids = ENCODER.tokenizer.encode(answer).ids
    tokens = [ENCODER.tokenizer.id_to_token(i) or "" for i in ids]
    places = ENCODER.value_places(ids)
    assert ["".join(tokens[i] for i in group) for group in places] == ["626262", "505050"]


@pytest.mark.parametrize("make", ["masked", "block"])
def test_hidden_tokens_are_counted_and_prompts_are_never_hidden(make: str) -> None:
    np = batches.np
    length, rows = next(batches.problem_rows(ENCODER, 1, True, 64))
    rng = np.random.default_rng(0)
    if make == "masked":
        batch = batches.masked_batch(rows, length, ENCODER, rng)
    else:
        batch = batches.block_batch(rows, length, ENCODER, rng, 8)
    assert ((batch.noisy == MASK_ID) == (batch.weight == 1)).all()
    assert (batch.noisy == batch.tokens)[batch.weight == 0].all()
    assert batch.weight[:, : batch.first].sum() == 0
    for i, row in enumerate(rows):
        assert batch.noisy[i, : len(row.prompt)].tolist() == row.prompt
