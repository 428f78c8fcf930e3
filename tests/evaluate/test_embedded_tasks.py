"""The embedded tasks: they load in lm-eval, their metrics know right from wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dllm_audit.evaluate import tasks
from dllm_audit.evaluate.loading import load_tasks
from dllm_audit.evaluate.tasks.metrics import score_list
from dllm_audit.models.tiny import problems

FOLDER = Path(tasks.__file__).parent
NAMES = ["gsm_mini", *(f"lists_{kind}" for kind in problems.LIST_KINDS)]
ITEMS = ["cat", "dog", "egg", "fox"]


def score(kind: str, answer: str, new_item: str = "") -> float:
    return score_list({"kind": kind, "items": ITEMS, "new_item": new_item, "answer": ""}, [answer])["valid"]


@pytest.mark.parametrize(
    ("answer", "valid"),
    [
        (" dog cat egg fox", 1.0),
        ("fox egg dog cat\n", 1.0),
        ("cat dog egg fox", 0.0),  # the order given
        ("dog dog egg fox", 0.0),  # an item twice
        ("dog cat egg", 0.0),  # an item missing
        ("dog cat egg fox owl", 0.0),  # an item too many
        ("", 0.0),
    ],
)
def test_a_shuffle_is_the_same_items_in_another_order(answer: str, valid: float) -> None:
    assert score("shuffle", answer) == valid


@pytest.mark.parametrize(
    ("answer", "valid"),
    [
        ("owl dog egg fox", 1.0),
        ("cat dog egg owl", 1.0),
        ("cat dog egg fox", 0.0),  # nothing replaced
        ("owl owl egg fox", 0.0),  # two replaced
        ("cat hat egg fox", 0.0),  # by another word
        ("dog cat egg owl", 0.0),  # the others moved
        ("cat dog egg fox owl", 0.0),  # appended
        ("cat dog owl", 0.0),  # one lost
        ("", 0.0),
    ],
)
def test_a_replacement_changes_one_item_to_the_given_one_and_keeps_the_rest(answer: str, valid: float) -> None:
    assert score("replace", answer, "owl") == valid


@pytest.mark.parametrize(
    ("kind", "right"),
    [("copy", "cat dog egg fox"), ("reverse", "fox egg dog cat"), ("sort", "cat dog egg fox")],
)
def test_controls_accept_the_one_right_order(kind: str, right: str) -> None:
    assert score(kind, f" {right}") == 1.0
    assert score(kind, "dog cat egg fox") == 0.0
    assert score(kind, "cat dog egg") == 0.0


def test_data_paths_are_relative_to_the_yaml_and_exist() -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))
    for name in NAMES:
        task = yaml.load((FOLDER / f"{name}.yaml").read_text("utf-8"), Loader)
        assert task["task"] == name
        for path in task["dataset_kwargs"]["data_files"].values():
            assert (FOLDER / path).is_file()


@pytest.mark.parametrize("name", NAMES)
def test_lm_eval_loads_every_task_and_renders_the_prompts_the_models_learnt(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (task,) = load_tasks(name).values()
    document = next(iter(task.test_docs()))
    if name == "gsm_mini":
        expected = next(problems.word_problems(problems.TEST_SEED, "test"))
        assert len(task.test_docs()) == 500
    else:
        expected = next(problems.list_exercises(problems.TEST_SEED, "test", name.removeprefix("lists_")))
        assert len(task.test_docs()) == 200
        assert task.process_results(document, [f" {expected.answer}"]) == {"valid": 1.0}
    assert task.doc_to_text(document) == expected.prompt
    assert task.doc_to_target(document) == expected.answer
    assert task.config.generation_kwargs["max_gen_toks"] == (64 if name == "gsm_mini" else 16)
