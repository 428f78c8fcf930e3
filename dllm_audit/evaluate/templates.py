"""Other wordings of a task's prompts, and other numbers of worked examples: does a ranking of decoders hold under them?

Prompt templates can flip which decoder looks better (arXiv 2606.29228). A template is Jinja over the fields of a document; it
runs in a sandbox, and its file is plain YAML that names no code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dllm_audit.errors import TaskError, UsageError, did_you_mean
from dllm_audit.evaluate.deadline import template_ends
from dllm_audit.evaluate.loading import load_tasks
from dllm_audit.evaluate.mistakes import named
from dllm_audit.files import refuse_special

if TYPE_CHECKING:
    from jinja2 import Environment

BUILTIN = "builtin"

EXAMPLES = 4
"""Worked examples of the built-in templates where the task itself shows none."""

#: Word problems: the field that holds the problem, and wordings of our own.
_FIELD = "question"
_WORDINGS = {
    "problem": "Problem: {{question}}\nSolution:",
    "short": "Q: {{question}}\nA:",
    "instruction": "Solve this problem step by step. End with #### and the number.\n\n{{question}}\n",
}

_KEYS = ("name", "doc_to_text", "num_fewshot")
_LONGEST_NAME = 40
_MOST_BYTES = 64 * 1024


@dataclass(frozen=True)
class Template:
    """One way to ask. doc_to_text: Jinja over a document's fields, None for the task's own; num_fewshot: None likewise."""

    name: str
    doc_to_text: str | None = None
    num_fewshot: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest of a run. The number of examples is there already."""
        return {"name": self.name, "doc_to_text": self.doc_to_text}


def read_templates(path: Path) -> list[Template]:
    """The templates of a YAML file: a list of mappings with name, doc_to_text and num_fewshot.

    Raises UsageError with a sentence for everything else, also for tags such as `!function` that would run code.
    """
    refuse_special(path, UsageError)
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"--templates {path} cannot be read: {error.strerror}. Give a YAML file, or builtin."
        ) from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"--templates {path} is larger than {_MOST_BYTES // 1024} kB, which no list of prompts is.")
    try:
        listed = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" (line {line + 1})"
        what = str(getattr(error, "problem", None) or "no valid YAML")
        if "could not determine a constructor" in what:
            what = "it has a tag, and templates are text that runs no code"
        raise UsageError(f"--templates {path} cannot be used{where}: {what}.") from error
    if not isinstance(listed, list) or len(listed) < 2:
        raise UsageError(
            f"--templates {path} must be a list of two templates or more, each with a name and doc_to_text or num_fewshot."
        )
    templates = [_template(path, number, entry) for number, entry in enumerate(listed, 1)]
    names = [template.name for template in templates]
    if len(set(names)) != len(names):
        raise UsageError(f"--templates {path} names {max(names, key=names.count)!r} twice.")
    return templates


def _template(path: Path, number: int, entry: Any) -> Template:
    what = f"--templates {path}: template {number}"
    if not isinstance(entry, Mapping):
        raise UsageError(f"{what} is no mapping with name and doc_to_text.")
    for key in entry:
        if key not in _KEYS:
            raise UsageError(f"{what} has the field {key!r}, which means nothing here. {did_you_mean(str(key), _KEYS)}")
    name, text, examples = (entry.get(key) for key in _KEYS)
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise UsageError(f"{what} needs a name of 1 to {_LONGEST_NAME} printable characters.")
    if text is None and examples is None:
        raise UsageError(f"{what} ({name}) changes nothing: give doc_to_text, num_fewshot or both.")
    if text is not None and (not isinstance(text, str) or not text.strip()):
        raise UsageError(f"{what} ({name}) has a doc_to_text that is no text.")
    if examples is not None and (not isinstance(examples, int) or isinstance(examples, bool) or examples < 0):
        raise UsageError(f"{what} ({name}) has num_fewshot: {examples}, which is no whole number from 0.")
    return Template(name, text, examples)


def builtin_templates(task: Any) -> list[Template]:
    """The task's own wording without and with worked examples, and other wordings of a word problem.

    Raises UsageError for documents without a field "question".
    """
    fields = _fields(task)
    if _FIELD not in fields:
        raise UsageError(
            f"--templates builtin has wordings of word problems, with a field {_FIELD!r}; documents of "
            f"{task.config.task!r} have {', '.join(fields)}. Write a file of your own: --templates FILE"
        )
    counts = [0]
    if task.has_training_docs() or task.has_validation_docs() or task.config.num_fewshot:
        counts.append(task.config.num_fewshot or EXAMPLES)
    own = [Template(f"own wording {n}-shot", None, n) for n in counts]
    return [*own, *(Template(name, text) for name, text in _WORDINGS.items())]


def load_templated(task_name: str, template: Template, num_fewshot: int | None, allow_code: bool) -> dict[str, Any]:
    """The tasks of a name as `load_tasks` gives them, their prompts worded by a template.

    num_fewshot: worked examples where the template says nothing. Raises UsageError for a field that documents lack.
    """
    examples = num_fewshot if template.num_fewshot is None else template.num_fewshot
    tasks = load_tasks(task_name, examples, allow_code)
    if template.doc_to_text is not None:
        for task in tasks.values():
            word(task, template)
    return tasks


def word(task: Any, template: Template) -> None:
    """Make a task ask as the template has it, in its worked examples too."""
    from jinja2 import TemplateError, UndefinedError, meta

    environment = _sandbox()
    try:
        names = meta.find_undeclared_variables(environment.parse(template.doc_to_text or ""))
        compiled = environment.from_string(template.doc_to_text or "")
    except TemplateError as error:
        raise UsageError(f"Template {template.name!r} is no valid Jinja: {error}.") from error
    fields = _fields(task)
    for name in sorted(names.difference(fields)):
        raise UsageError(
            f"Template {template.name!r} asks for the field {name!r}, which documents of {task.config.task!r} do not "
            f"have. {did_you_mean(name, fields)}"
        )

    def doc_to_text(doc: Mapping[str, Any]) -> str:
        try:
            with template_ends(f"Template {template.name!r}"):
                return str(compiled.render(**doc))
        except UndefinedError as error:
            raise TaskError(f"Template {template.name!r} asks for what a document does not have: {error}.") from error
        except (TemplateError, ArithmeticError, TypeError, ValueError, MemoryError, RecursionError) as error:
            raise TaskError(f"Template {template.name!r} cannot word a document ({named(error)}).") from error

    task.set_config(key="doc_to_text", value=doc_to_text)
    # lm-eval took a copy of the wording for the worked examples.
    task.fewshot_cfg.doc_to_text = doc_to_text


def _fields(task: Any) -> Sequence[str]:
    for document in task.eval_docs:
        return list(document)
    return []


def _sandbox() -> Environment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
