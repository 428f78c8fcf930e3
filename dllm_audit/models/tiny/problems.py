"""Seeded generators of what the embedded models learn: short word problems in GSM8K's form, and exercises on
lists of words.

Everything is a function of a `random.Random`, so a seed reproduces it. Which split a problem belongs to is a
function of its prompt alone (`split_of`), so training and test problems cannot overlap, whatever the seeds.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TEST_SEED = 2024
"""Seed of the test problems in the data of the embedded tasks."""
SPLITS = ("test", "fewshot", "train")
LIST_KINDS = ("shuffle", "replace", "copy", "reverse", "sort")
LIST_LENGTH = 8

NAMES = {
    "She": ["Ada", "Mia", "Zoe", "Eva", "Lily", "Nina", "Ruth", "Vera"],
    "He": ["Tom", "Ben", "Max", "Leo", "Sam", "Paul", "Omar", "Hugo"],
}
THINGS = [
    "flowers", "pens", "books", "coins", "shells", "cards", "stamps", "apples", "plums", "pears",
    "marbles", "buttons", "beads", "stickers", "tickets", "candles",
]  # fmt: skip
GAINS = ["finds", "buys", "gets", "picks"]
LOSSES = ["sells", "loses", "gives away", "drops"]
PACKS = ["boxes", "bags"]
TIMES = {2: "two", 3: "three", 4: "four"}

# Several share a first letter, so that sorting needs more than it.
ITEMS = [
    "ant", "apple", "ball", "bear", "bell", "cat", "clock", "cup", "deer", "dog", "drum", "eagle",
    "egg", "fish", "fox", "frog", "gate", "goat", "hat", "horse", "ice", "jar", "kite", "lamp",
    "leaf", "lion", "map", "moon", "mouse", "nest", "nut", "owl", "pear", "pig", "queen", "rain",
    "ring", "rose", "ship", "snow", "star", "tent", "tree", "urn", "van", "wolf", "yak", "zebra",
]  # fmt: skip


@dataclass(frozen=True)
class WordProblem:
    """A word problem in GSM8K's form.

    `question` and `answer` are its two fields; the answer ends with `#### ` and the result. `results` holds
    the results of the steps in order, the last of them the answer.
    """

    question: str
    answer: str
    results: tuple[int, ...]

    @property
    def prompt(self) -> str:
        """The prompt as the task `gsm_mini` renders it without examples."""
        return f"Question: {self.question}\nAnswer:"


@dataclass(frozen=True)
class ListExercise:
    """An exercise on a list of words.

    kind: one of LIST_KINDS. items: distinct words. new_item: the word that must replace one item when kind is
    "replace", empty otherwise. answer: one right answer; for "shuffle" and "replace" one of many.
    """

    kind: str
    items: tuple[str, ...]
    new_item: str
    answer: str

    @property
    def prompt(self) -> str:
        """The prompt as the tasks `lists_*` render it without examples."""
        verb = f"Replace one by {self.new_item}" if self.kind == "replace" else self.kind.capitalize()
        return f"{verb}: {' '.join(self.items)}\nAnswer:"


def split_of(prompt: str) -> str:
    """Return the split ("test", "fewshot" or "train") a prompt belongs to.

    A sixteenth of all prompts is kept for testing, another for examples; the models train on the rest.
    """
    bucket = zlib.crc32(prompt.encode()) % 16
    return "test" if bucket == 0 else "fewshot" if bucket == 1 else "train"


def word_problems(seed: int, split: str) -> Iterator[WordProblem]:
    """Yield word problems of a split without end; equal seeds yield equal problems."""
    rng = random.Random(f"word problems {seed}")
    while True:
        problem = make_word_problem(rng)
        if split_of(problem.prompt) == split:
            yield problem


def list_exercises(seed: int, split: str, kind: str | None = None) -> Iterator[ListExercise]:
    """Yield list exercises of a split without end, of one kind or, when None, of all kinds at random."""
    rng = random.Random(f"list exercises {seed}")
    while True:
        exercise = make_list_exercise(rng, kind or rng.choices(LIST_KINDS, weights=(3, 3, 1, 1, 2))[0])
        if split_of(exercise.prompt) == split:
            yield exercise


def make_list_exercise(rng: random.Random, kind: str) -> ListExercise:
    """Return one exercise of the given kind with LIST_LENGTH distinct items."""
    *items, spare = rng.sample(ITEMS, LIST_LENGTH + 1)
    new_item = spare if kind == "replace" else ""
    right = list(items)
    if kind == "shuffle":
        # Of all other orders only the seven rotations: as hard to decode in parallel, much easier to learn.
        turn = rng.randrange(1, LIST_LENGTH)
        right = items[turn:] + items[:turn]
    elif kind == "replace":
        right[rng.randrange(LIST_LENGTH)] = spare
    elif kind == "reverse":
        right.reverse()
    elif kind == "sort":
        right.sort()
    elif kind != "copy":
        raise ValueError(f"Unknown kind of list exercise: {kind!r}. Choose one of {', '.join(LIST_KINDS)}.")
    return ListExercise(kind, tuple(items), new_item, " ".join(right))


def make_word_problem(rng: random.Random) -> WordProblem:
    """Return one problem of two or three steps.

    Given numbers are 2..99 and every step's result is 10..99, so a result always has two digits and its place
    in the answer does not depend on its value. The wording of an answer is drawn too: several wordings of
    different lengths are right, which tokens decoded in parallel have to agree on.
    """
    while True:
        problem = try_word_problem(rng)
        if problem is not None:
            return problem


def try_word_problem(rng: random.Random) -> WordProblem | None:
    """Return one problem, or None when the drawn numbers leave 10..99."""
    pronoun = rng.choice(("She", "He"))
    name = rng.choice(NAMES[pronoun])
    other = rng.choice([n for names in NAMES.values() for n in names if n != name])
    thing, other_thing = rng.sample(THINGS, 2)
    steps = 2 if rng.random() < 0.6 else 3

    value = rng.randint(10, 60)
    told = [f"{name} has {value} {thing}."]
    lines: list[str] = []
    results: list[int] = []

    def step(left: int, sign: str, right: int, ending: str) -> bool:
        nonlocal value
        value = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[sign]
        sum_text = f"<<{left}{sign}{right}={value}>>{value}"
        if ending == "packs":
            opening = rng.choice(["That is", "They hold"])
        else:
            opening = rng.choice([f"{pronoun} now has", f"Then {pronoun.lower()} has", "That makes"])
        lines.append(f"{opening} {sum_text} {thing}.")
        results.append(value)
        return 10 <= value <= 99

    while len(results) < steps:
        kind = rng.choices(["gain", "loss", "packs", "times", "half"], weights=[4, 4, 3, 2, 1])[0]
        before = value
        if kind == "gain":
            amount = rng.randint(2, 60)
            told.append(f"{pronoun} {rng.choice(GAINS)} {amount} more.")
            fits = step(before, "+", amount, "")
        elif kind == "loss":
            amount = rng.randint(2, 60)
            told.append(f"{pronoun} {rng.choice(LOSSES)} {amount}.")
            fits = step(before, "-", amount, "")
        elif kind == "packs":
            if len(results) + 2 > steps:
                continue
            count, size = rng.randint(2, 6), rng.randint(3, 15)
            told.append(f"{pronoun} {rng.choice(GAINS)} {count} {rng.choice(PACKS)} of {size}.")
            fits = step(count, "*", size, "packs") and step(before, "+", value, "")
        elif kind == "times":
            factor = rng.choice(list(TIMES))
            told.append(f"{pronoun} then has {TIMES[factor]} times as many.")
            fits = step(before, "*", factor, "")
        else:
            if before % 2:
                return None
            told.append(f"{pronoun} {rng.choice(LOSSES)} half.")
            fits = step(before, "/", 2, "")
        if not fits:
            return None

    if rng.random() < 0.4:
        place = rng.randint(1, len(told))
        told.insert(place, f"{other} has {rng.randint(2, 99)} {rng.choice([thing, other_thing])}.")
        if place + 1 < len(told):  # a pronoun there would point at the other person
            told[place + 1] = told[place + 1].replace(pronoun, name, 1)
    question = rng.choice([f"How many {thing} does {name} have now?", f"How many {thing} does {name} have in the end?"])
    lines.append(f"#### {value}")
    return WordProblem(" ".join([*told, question]), "\n".join(lines), tuple(results))


def is_valid_list(kind: str, items: Sequence[str], new_item: str, answer: str) -> bool:
    """Say whether `answer` is right: any right answer counts, its words are separated by white space.

    shuffle: the same items in another order. replace: exactly one item replaced by `new_item`, the others
    unchanged and in order. copy, reverse, sort: the one right order. An unknown `kind` raises ValueError.
    """
    given, items = answer.split(), list(items)
    if kind == "shuffle":
        return sorted(given) == sorted(items) and given != items
    if kind == "replace":
        changed = [new for old, new in zip(items, given, strict=False) if old != new]
        return len(given) == len(items) and changed == [new_item]
    if kind == "copy":
        return given == items
    if kind == "reverse":
        return given == items[::-1]
    if kind == "sort":
        return given == sorted(items)
    raise ValueError(f"Unknown kind of list exercise: {kind!r}. Choose one of {', '.join(LIST_KINDS)}.")
