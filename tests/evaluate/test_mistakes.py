"""What is wrong with a task file is said in words: which task, what, and where to look."""

from __future__ import annotations

import pytest
import yaml

from dllm_audit.errors import TaskError
from dllm_audit.evaluate.loading import load_tasks
from dllm_audit.evaluate.mistakes import mistake_of
from dllm_audit.evaluate.prompts import first_item

FIELDS = {
    "task": "own",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "docs.jsonl"}},
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "Q: {{q}}",
    "doc_to_target": "{{a}}",
    "generation_kwargs": {"until": ["\n"]},
    "metric_list": [{"metric": "exact_match"}],
}
CHOICE = {"output_type": "multiple_choice", "generation_kwargs": None, "metric_list": [{"metric": "acc"}]}


@pytest.fixture
def refused(tmp_path):
    """refused(changes, documents) -> what is said of the task file with these changes, its path left out."""

    def load(changes: dict, documents: str = '{"q": "a", "a": "A"}\n{"q": "b", "a": "B"}\n') -> str:
        path = tmp_path / "own.yaml"
        (tmp_path / "docs.jsonl").write_text(documents)
        fields = {name: value for name, value in {**FIELDS, **changes}.items() if value is not None}
        path.write_text(yaml.safe_dump(fields))
        with pytest.raises(TaskError) as error:
            first_item(load_tasks(str(path))["own"])
        return str(error.value).replace(str(path), "own")

    return load


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"doc_to_text": None}, "it lacks the field doc_to_text."),
        ({"dataset_path": None}, "it lacks the field dataset_path."),
        ({"doc_to_text": ["a"]}, "doc_to_text is neither a text nor a function."),
        ({"doc_to_txt": "a"}, "it has the field 'doc_to_txt', which lm-eval does not know. Did you mean 'doc_to_text'"),
        ({"output_type": "generate"}, "output_type 'generate' is none of lm-eval's. Did you mean 'generate_until'?"),
        ({"test_split": None}, "it names no documents to decode: give test_split or validation_split."),
        ({"test_split": "validation"}, "test_split is 'validation', and its data have no such part (there is test)."),
        ({"doc_to_text": "{{question}}"}, "a template of it asks for what a document does not have: 'question' is undefined."),
        ({"doc_to_text": "{{ q "}, "a template of it is no valid Jinja: unexpected end of template, expected 'end of print"),
        ({"doc_to_text": "{{ q | nonsense }}"}, "a template of it is no valid Jinja: No filter named 'nonsense'."),
        ({"filter_list": [{"name": "f", "filter": [{"function": "regx"}]}]}, "it names the function 'regx', which lm-eval does not have. Did you mean 'regex'"),
        ({"filter_list": [{"name": "f"}]}, "filter_list is no list of mappings with name and filter."),
        ({"filter_list": "take_first"}, "filter_list is no list of mappings with name and filter."),
        ({"metric_list": "exact_match"}, "metric_list is no list of mappings with metric."),
        ({"generation_kwargs": "x"}, "generation_kwargs is no mapping, such as {until: [...], max_gen_toks: 64}."),
        ({"num_fewshot": "two"}, "num_fewshot is 'two', which is no whole number from 0."),
        ({**CHOICE, "doc_to_choice": [], "doc_to_target": 0}, "it is of the type multiple_choice and lacks the choices: doc_to_choice."),
        ({**CHOICE, "doc_to_choice": ["", "b"], "doc_to_target": 0}, "one of the choices in doc_to_choice is empty."),
        ({**CHOICE, "doc_to_choice": ["a", "b"], "doc_to_target": 7}, "doc_to_target is 7, and doc_to_choice has 2 choices, from 0."),
        ({**CHOICE, "doc_to_choice": "{{q}}"}, "a template that must give a list, such as doc_to_choice, gives a text that is none."),
        ({"doc_to_text": "{{ 1/0 }}"}, "lm-eval ends with ZeroDivisionError: division by zero."),
    ],
)  # fmt: skip
def test_a_task_that_cannot_be_loaded_says_what_is_wrong(refused, capsys, changes, said):
    """These were once bare exceptions, such as `KeyError: None`."""
    message = refused(changes)
    assert message.startswith(f"Task 'own' could not be loaded: {said}")
    assert message.endswith(" See its YAML file.")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"repeats": 0}, "repeats is 0, which is no whole number from 1."),
        ({"num_fewshot": -1}, "num_fewshot is -1, which is no whole number from 0."),
        ({"filter_list": [{"name": "f", "filter": [{"function": "regex", "regex_pattern": "("}]}]},
         "the regex_pattern of its filter 'f' is no regular expression (missing ), unterminated subpattern at position 0)."),
        (CHOICE, "it is of the type multiple_choice and lacks the choices: doc_to_choice."),
    ],
)  # fmt: skip
def test_what_would_show_only_after_decoding_is_said_when_the_task_is_loaded(refused, changes, said):
    assert refused(changes) == f"Task 'own' cannot be used: {said} See its YAML file."


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ('{"q": "a"\n', "its data cannot be read: JSON parse error: Missing a comma or '}' after an object member. in row 0."),
        ("[1]\n[2]\n", "its data cannot be read: "),
    ],
)  # fmt: skip
def test_data_that_are_no_documents_say_so(refused, documents, said):
    assert refused({}, documents).startswith(f"Task 'own' could not be loaded: {said}")


@pytest.mark.parametrize(("fewshot_split", "asked"), [("test", 2), (None, 3)])
def test_more_worked_examples_than_there_are_is_a_sentence_with_both_numbers(refused, fewshot_split, asked):
    """A document is no example of itself."""
    assert refused({"num_fewshot": asked, "fewshot_split": fewshot_split}) == (
        f"Task 'own' is to show {asked} worked examples with each document, and its data hold 2 to take them from. "
        "Lower --num-fewshot, or num_fewshot in its YAML file."
    )


def test_of_a_task_whose_fields_are_not_known_nothing_is_said_to_lack():
    assert mistake_of(TypeError("first\nsecond"), {}) == "lm-eval ends with TypeError: first."


def test_a_task_that_includes_a_file_that_is_not_there_names_it(refused):
    assert refused({"include": "nowhere.yaml"}) == (
        "Task 'own' includes nowhere.yaml, which is no other file beside it. See its YAML file."
    )
