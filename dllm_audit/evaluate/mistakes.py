"""What is wrong with a task file, in words: lm-eval and its libraries say it as bare exceptions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dllm_audit.errors import did_you_mean

#: Fields that name a part of the data.
_SPLITS = ("test_split", "validation_split", "training_split", "fewshot_split")

_LONGEST = 200


def mistake_of(error: BaseException, fields: Mapping[str, Any]) -> str:
    """What `error`, raised by loading or rendering a task with these fields, is about: the end of a sentence.

    Exceptions that say enough come first, then what the fields show (none: nothing), last the exception by name.
    """
    found = _known_split(error, fields) or _template(error) or _data(error)
    found = found or (next(mistakes(fields), None) if fields else None)
    return ended(found or f"lm-eval ends with {named(error)}")


def fields_of(task: Any) -> dict[str, Any]:
    """The fields of a loaded task; none of a task that is a Python class of its own, which may do without them."""
    from lm_eval.api.task import ConfigurableTask

    return dict(vars(task.config)) if type(task) is ConfigurableTask else {}


def ended(clause: str) -> str:
    """A clause with a full stop, unless it has an end of its own."""
    return clause if clause.endswith((".", "?")) else clause + "."


def mistakes(fields: Mapping[str, Any]) -> Iterator[str]:
    """Everything about the fields of a task that lm-eval cannot load, each a clause."""
    from lm_eval.api.registry import FILTER_REGISTRY, METRIC_REGISTRY
    from lm_eval.api.task import ALL_OUTPUT_TYPES, TaskConfig

    known = [field.name for field in dataclasses.fields(TaskConfig)]
    for name in fields:
        if name not in (*known, "include", "group", "class"):
            yield f"it has the field {name!r}, which lm-eval does not know. {did_you_mean(str(name), known)}".rstrip(
                "?."
            )
    if "class" not in fields and fields.get("use_prompt") is None:
        own_data = fields.get("custom_dataset") is not None
        for name in ("doc_to_text", "doc_to_target", *(() if own_data else ("dataset_path",))):
            if fields.get(name) is None:
                yield f"it lacks the field {name}"
        if isinstance(fields.get("doc_to_text"), list | dict):
            yield "doc_to_text is neither a text nor a function"
    kind = fields.get("output_type")
    if kind is not None and kind not in ALL_OUTPUT_TYPES:
        yield f"output_type {kind!r} is none of lm-eval's. {did_you_mean(str(kind), ALL_OUTPUT_TYPES)}"
    if not isinstance(fields.get("generation_kwargs") or {}, dict):
        yield "generation_kwargs is no mapping, such as {until: [...], max_gen_toks: 64}"
    yield from _listed(fields, "metric_list", "metric", METRIC_REGISTRY if not fields.get("process_results") else None)
    filters = fields.get("filter_list")
    if filters is not None and not _mappings(filters, "name", "filter"):
        yield "filter_list is no list of mappings with name and filter"
    else:
        for one in filters or ():
            yield from _listed(one, "filter", "function", FILTER_REGISTRY)
    yield from late_mistakes(fields)


def late_mistakes(fields: Mapping[str, Any]) -> Iterator[str]:
    """What lm-eval loads all the same, and ends at when it asks or scores: after hours of decoding, maybe."""
    if fields.get("output_type") == "multiple_choice" and fields.get("use_prompt") is None and "class" not in fields:
        choices, target = fields.get("doc_to_choice"), fields.get("doc_to_target")
        if not choices:
            yield "it is of the type multiple_choice and lacks the choices: doc_to_choice"
        elif isinstance(choices, list) and not all(choices):
            yield "one of the choices in doc_to_choice is empty"
        elif isinstance(choices, list) and isinstance(target, int) and not 0 <= target < len(choices):
            yield f"doc_to_target is {target}, and doc_to_choice has {len(choices)} choices, from 0"
    for name, least in (("num_fewshot", 0), ("repeats", 1)):
        value = fields.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            yield f"{name} is {value!r}, which is no whole number from {least}"
    filters = fields.get("filter_list") or []
    for one in filters if _mappings(filters, "name", "filter") else ():
        for step in one["filter"] if _mappings(one["filter"]) else ():
            try:
                re.compile(step.get("regex_pattern") or "")
            except (re.error, TypeError) as error:
                yield f"the regex_pattern of its filter {one['name']!r} is no regular expression ({error})"


def _listed(fields: Mapping[str, Any], name: str, key: str, known: Any) -> Iterator[str]:
    """What is wrong with a list of mappings that each name something by `key`. known: None where any name will do."""
    listed = fields.get(name)
    if listed is None:
        return
    if not _mappings(listed, key):
        yield f"{name} is no list of mappings with {key}"
        return
    for entry in listed:
        found = entry[key]
        if isinstance(found, str) and known is not None and found not in known and not entry.get("hf_evaluate"):
            yield f"it names the {key} {found!r}, which lm-eval does not have. {did_you_mean(found, known)}".rstrip(
                "?."
            )


def _mappings(listed: Any, *keys: str) -> bool:
    return isinstance(listed, list) and all(isinstance(e, Mapping) and all(k in e for k in keys) for e in listed)


def _known_split(error: BaseException, fields: Mapping[str, Any]) -> str | None:
    if not isinstance(error, KeyError) or not error.args:
        return None
    used = [name for name in _SPLITS if fields.get(name) == error.args[0]]
    if not used:
        return None
    data = (fields.get("dataset_kwargs") or {}).get("data_files")
    there = f" (there is {', '.join(data)})" if isinstance(data, dict) else ""
    return f"{used[0]} is {error.args[0]!r}, and its data have no such part{there}"


def _template(error: BaseException) -> str | None:
    from jinja2 import TemplateSyntaxError, UndefinedError

    if isinstance(error, UndefinedError):
        return f"a template of it asks for what a document does not have: {_words(error)}"
    if isinstance(error, TemplateSyntaxError):
        return f"a template of it is no valid Jinja: {_words(error)}"
    return None


def _data(error: BaseException) -> str | None:
    if type(error).__name__ == "DatasetGenerationError":
        return f"its data cannot be read: {_words(error.__cause__ or error)}"
    if isinstance(error, StopIteration):
        return "its data hold no documents"
    if isinstance(error, ValueError) and "must have valid or test docs" in str(error):
        return "it names no documents to decode: give test_split or validation_split"
    if isinstance(error, ValueError) and "malformed node" in str(error):
        return "a template that must give a list, such as doc_to_choice, gives a text that is none"
    return None


def _words(error: BaseException) -> str:
    return " ".join((str(error).strip().splitlines() or [""])[0].split())[:_LONGEST].rstrip(".")


def named(error: BaseException) -> str:
    """An exception by its name and the first line of its words."""
    words = _words(error)
    return type(error).__name__ + (f": {words}" if words and words != type(error).__name__ else "")
