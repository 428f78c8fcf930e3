"""Prompt templates: what a file may say, what is refused, and what a task then asks."""

from __future__ import annotations

import pytest

from dllm_audit.errors import UsageError
from dllm_audit.evaluate.loading import load_tasks
from dllm_audit.evaluate.prompts import build_prompts
from dllm_audit.evaluate.templates import Template, builtin_templates, load_templated, read_templates

TWO = "- name: plain\n  doc_to_text: '{{question}}'\n- name: examples\n  num_fewshot: 2\n"


@pytest.fixture
def file(tmp_path):
    """file(text) -> a file of templates."""

    def write(text: str):
        path = tmp_path / "templates.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_file_lists_wordings_and_numbers_of_examples(file):
    assert read_templates(file(TWO)) == [Template("plain", "{{question}}", None), Template("examples", None, 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "- name: a\n  doc_to_text: !function os.system\n" + TWO,
            "it has a tag, and templates are text that runs no code",
        ),
        (
            "- !!python/object/apply:os.system ['true']\n" + TWO,
            "it has a tag, and templates are text that runs no code",
        ),
        ("name: a\n", "must be a list of two templates or more"),
        ("- name: a\n  doc_to_text: x\n", "must be a list of two templates or more"),
        ("- name: a\n  doc_to_txt: x\n" + TWO, "template 1 has the field 'doc_to_txt', which means nothing here."),
        ("- name: a\n" + TWO, r"template 1 \(a\) changes nothing"),
        ("- name: ''\n  num_fewshot: 1\n" + TWO, "template 1 needs a name"),
        ("- name: a\n  num_fewshot: -1\n" + TWO, "num_fewshot: -1, which is no whole number from 0"),
        ("- name: plain\n  num_fewshot: 1\n" + TWO, "names 'plain' twice"),
        ("- [\n", r"cannot be used \(line 2\)"),
    ],
)
def test_a_file_that_is_no_list_of_templates_is_a_sentence(file, text, message):
    with pytest.raises(UsageError, match=message):
        read_templates(file(text))


def test_a_template_words_the_question_and_the_worked_examples():
    task = load_templated("gsm_mini", Template("mine", "Q: {{question}}\nA:", 1), None, False)["gsm_mini"]
    (prompt,) = build_prompts(task, None, False, 1)
    assert prompt.prompt.count("Q: ") == prompt.prompt.count("\nA:") == 2
    assert "Question:" not in prompt.prompt
    assert prompt.prompt.endswith("\nA:")


def test_a_field_that_documents_lack_is_named_before_anything_runs():
    with pytest.raises(UsageError, match=r"asks for the field 'questoin', .*Did you mean 'question'\?"):
        load_templated("gsm_mini", Template("mine", "{{questoin}}"), None, False)


def test_a_template_that_reaches_for_python_is_stopped_by_the_sandbox():
    task = load_templated("gsm_mini", Template("mine", "{{question.__class__.__mro__}}"), None, False)["gsm_mini"]
    with pytest.raises(UsageError, match=r"cannot word a document|asks for what a document does not have"):
        build_prompts(task, None, False, 1)


def test_the_built_in_templates_have_no_and_some_examples_and_other_wordings():
    templates = builtin_templates(load_tasks("gsm_mini")["gsm_mini"])
    assert [(t.name, t.num_fewshot) for t in templates if t.doc_to_text is None] == [
        ("own wording 0-shot", 0),
        ("own wording 4-shot", 4),
    ]
    assert len({t.doc_to_text for t in templates if t.doc_to_text is not None}) == 3


def test_the_built_in_templates_are_for_word_problems():
    with pytest.raises(UsageError, match="Write a file of your own: --templates FILE"):
        builtin_templates(load_tasks("lists_copy")["lists_copy"])
