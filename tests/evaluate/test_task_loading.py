"""Tasks by name: only the asked-for one is built, and whatever keeps it from loading is a sentence."""

from __future__ import annotations

import json
import tempfile
import time

import pytest
import yaml

from dllm_audit.errors import ModelError, TaskError
from dllm_audit.evaluate.datasets import import_data
from dllm_audit.evaluate.loading import embedded_task_names, lm_eval_folder, load_tasks, task_names
from dllm_audit.evaluate.prompts import build_prompts, chat_template_of
from dllm_audit.evaluate.sandbox import isolation

EMBEDDED = ["gsm_mini", "lists_copy", "lists_replace", "lists_reverse", "lists_shuffle", "lists_sort"]


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("DLLM_AUDIT_DATA", str(tmp_path / "data"))
    return tmp_path


def refused(name: str, **options) -> str:
    with pytest.raises(TaskError) as error:
        load_tasks(name, **options)
    assert error.value.exit_status == 2
    return str(error.value)


def own_task(folder, name: str = "own", documents=("a", "b", "c"), extra: str = "") -> str:
    (folder / "docs.jsonl").write_text("".join(json.dumps({"q": q, "a": q.upper()}) + "\n" for q in documents))
    path = folder / f"{name}.yaml"
    path.write_text(
        f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: docs.jsonl\ntest_split: test\n"
        "fewshot_split: test\noutput_type: generate_until\ndoc_to_text: 'Q: {{q}} A:'\ndoc_to_target: '{{a}}'\n"
        'generation_kwargs:\n  until: ["\\n"]\nmetric_list:\n  - metric: exact_match\n' + extra
    )
    return str(path)


def gsm8k(folder, number: int = 6):
    rows = [{"question": f"What is {n}+{n}?", "answer": f"It is {2 * n}. #### {2 * n}"} for n in range(number)]
    path = folder / "gsm8k.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# -- by name --


def test_the_embedded_tasks_load_by_name():
    assert embedded_task_names() == EMBEDDED
    for name in EMBEDDED:
        (loaded,) = load_tasks(name).items()
        assert loaded[0] == name


def test_names_are_read_from_lm_evals_files_without_its_index():
    began = time.perf_counter()
    names = task_names(lm_eval_folder())
    assert {"gsm8k", "mmlu", "humaneval", "hellaswag", "ifeval", "minerva_math"} <= names.keys()
    assert len(names) > 5000
    assert time.perf_counter() - began < 20


def test_loading_a_task_never_builds_the_full_index(monkeypatch, data):
    import lm_eval.tasks

    asked = []
    inner = lm_eval.tasks.TaskManager

    def manager(*args, **options):
        asked.append(options.get("include_defaults", True))
        return inner(*args, **options)

    monkeypatch.setattr(lm_eval.tasks, "TaskManager", manager)
    import_data("gsm8k", gsm8k(data), gsm8k(data))
    load_tasks("gsm_mini")
    load_tasks("gsm8k")
    load_tasks(own_task(data))
    assert asked == [False, False, False]


def test_an_unknown_task_gets_the_nearest_and_the_embedded_ones():
    message = refused("gsm8")
    assert message.startswith("There is no task 'gsm8'. Did you mean ")
    assert "'gsm8k'" in message
    assert message.endswith(f"Embedded tasks: {', '.join(EMBEDDED)}.")


def test_a_persons_own_task_file_loads_with_its_data_beside_it(data, monkeypatch, tmp_path_factory):
    path = own_task(data)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    (loaded,) = load_tasks(path).values()
    prompts = build_prompts(loaded, None, False, None)
    assert [prompt.prompt for prompt in prompts] == ["Q: a A:", "Q: b A:", "Q: c A:"]
    assert [prompt.until for prompt in prompts] == [("\n",)] * 3
    assert {prompt.gen_length for prompt in prompts} == {None}


# -- what keeps a task from loading --


def test_a_task_file_that_is_not_there_or_no_yaml(data):
    assert refused(str(data / "x.yaml")) == f"There is no task file {data / 'x.yaml'}."
    (data / "x.yaml").write_text("task: [")
    assert refused(str(data / "x.yaml")).startswith(f"{data / 'x.yaml'} cannot be read as YAML: ")
    (data / "x.yaml").write_text("- a\n")
    assert refused(str(data / "x.yaml")) == f"{data / 'x.yaml'} names no task: it needs a line 'task: NAME'."


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "a\\b", "red\x1b[31m"])
def test_the_name_of_a_task_is_no_path_and_writes_nothing_anywhere(data, monkeypatch, name):
    (data / "below").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(data / "below"))
    (data / "x.yaml").write_text(json.dumps({"task": name}))
    assert refused(str(data / "x.yaml")) == (
        f"{data / 'x.yaml'} names its task {name!r}: a name has no slashes and only characters that can be printed."
    )
    assert [path.name for path in data.rglob("*.yaml")] == ["x.yaml"]


@pytest.mark.parametrize(
    "fields",
    [{"include": 5}, {"dataset_kwargs": "x"}, {"dataset_kwargs": {"data_files": {"test": 5}}}, {"dataset_kwargs": [1]}],
    ids=json.dumps,
)
def test_a_field_of_another_kind_than_lm_eval_wants_is_a_sentence(data, fields):
    (data / "x.yaml").write_text(json.dumps({"task": "x", "dataset_path": "json", "test_split": "test", **fields}))
    assert refused(str(data / "x.yaml")).startswith("Task ")


def test_a_task_file_that_is_nested_without_end_is_a_sentence(data):
    (data / "x.yaml").write_text("task: x\nq: " + "[" * 2000 + "]" * 2000)
    assert refused(str(data / "x.yaml")) == f"{data / 'x.yaml'} cannot be read as YAML: it is nested too deeply."


def test_a_task_file_without_its_data_is_a_sentence(data):
    path = own_task(data)
    (data / "docs.jsonl").unlink()
    message = refused(path)
    assert message.startswith("Task 'own'") or message.startswith(f"Task {path!r}")
    assert "docs.jsonl" in message


@pytest.mark.parametrize("includes", ["loop.yaml", ["loop.yaml", "back.yaml"]])
def test_task_files_that_include_each_other_are_a_sentence(data, includes):
    (data / "loop.yaml").write_text(json.dumps({"task": "loop", "include": includes}))
    (data / "back.yaml").write_text(json.dumps({"include": "loop.yaml"}))
    assert refused(str(data / "loop.yaml")).startswith("Task ")


def test_a_hub_task_without_network_says_what_is_missing_and_how_to_import_it(monkeypatch, data):
    import datasets

    def unreachable(*args, **options):
        raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub\nlong story")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    assert refused("gsm8k") == (
        "Task 'gsm8k' needs data from the hub, which cannot be reached (Couldn't reach 'openai/gsm8k' on the Hub). "
        "Import a local copy: dllm-audit data import gsm8k TEST.jsonl --fewshot TRAIN.jsonl "
        f"(it goes to {data / 'data' / 'gsm8k'})."
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("No module named 'antlr4'", name="antlr4"), "Task 'gsm_mini' needs the package 'antlr4', which is not installed. Install it: pip install antlr4"),
        (FileNotFoundError("Couldn't find metric code_eval"), "Task 'gsm_mini' needs the metric 'code_eval' from the hub, which cannot be reached. Run it once with network, so that the metric is kept."),
        (RuntimeError("first line\nsecond"), "Task 'gsm_mini' could not be loaded: lm-eval ends with RuntimeError: first line. See its YAML file."),
    ],
    ids=["package", "metric", "anything"],
)  # fmt: skip
def test_whatever_a_library_raises_while_loading_is_a_sentence(monkeypatch, error, message):
    from dllm_audit.evaluate import loading

    def fail(*args):
        raise error

    monkeypatch.setattr(loading, "_build", fail)
    assert refused("gsm_mini") == message


@pytest.mark.parametrize("name", ["humaneval", "mbpp", "humaneval_instruct", "humaneval_plus"])
def test_a_task_that_executes_what_the_model_wrote_needs_a_persons_consent(name, monkeypatch):
    """Also one that inherits this from another file."""
    import datasets

    def never(*args, **options):
        raise AssertionError("consent is asked for before anything is loaded")

    monkeypatch.setattr(datasets, "load_dataset", never)
    assert refused(name) == (
        f"Task {name!r} scores answers by executing the code that the model wrote: in subprocesses with limits on time, "
        f"memory and files, {isolation().words}. If you accept that, add --allow-code-execution."
    )


# -- imported data --


def test_an_imported_data_set_makes_a_hub_task_work_without_network(data):
    path = gsm8k(data)
    import_data("gsm8k", path, path)
    (task,) = load_tasks("gsm8k").values()
    prompts = build_prompts(task, None, False, 2)
    assert len(prompts) == 2
    assert prompts[0].prompt.endswith("Question: What is 0+0?\nAnswer:")
    assert prompts[0].prompt.count("Question:") == 6  # gsm8k shows five worked examples
    assert "Question:" in prompts[0].until


def test_worked_examples_that_were_not_imported_are_asked_for(data):
    import_data("gsm8k", gsm8k(data))
    assert refused("gsm8k") == (
        "Task 'gsm8k' shows 5 worked examples, and none were imported. "
        "Import them with --fewshot, or run with --num-fewshot 0."
    )
    (task,) = load_tasks("gsm8k", num_fewshot=0).values()
    assert [prompt.prompt for prompt in build_prompts(task, None, False, 1)] == ["Question: What is 0+0?\nAnswer:"]


# -- prompts --


def test_a_prompt_depends_on_nothing_that_was_loaded_or_built_before(data):
    path = gsm8k(data, 30)
    import_data("gsm8k", path, path)

    def prompts(task, limit):
        return [prompt.prompt for prompt in build_prompts(task, None, False, limit)]

    (first,) = load_tasks("gsm8k").values()
    fresh = prompts(first, 8)
    assert prompts(first, 8) == fresh  # built again from the same task
    assert prompts(first, 3) == fresh[:3]  # another limit
    load_tasks("gsm_mini")
    (second,) = load_tasks("gsm8k").values()
    assert prompts(second, 8) == fresh  # loaded again, after another
    assert len(set(fresh)) == 8


def test_a_key_is_the_content_of_a_request_and_tells_repetitions_apart(data):
    (task,) = load_tasks(own_task(data, documents=("a", "b", "a"))).values()
    first, second, again = build_prompts(task, None, False, None)
    assert first.prompt == again.prompt
    assert len({first.key, second.key, again.key}) == 3
    assert [p.key for p in build_prompts(task, None, False, 2)] == [first.key, second.key]
    assert first.prompt_sha256 == again.prompt_sha256 != second.prompt_sha256
    (longer,) = load_tasks(own_task(data, extra="")).values()
    longer.set_config(key="generation_kwargs", value={"max_gen_toks": 7}, update=True)
    assert build_prompts(longer, None, False, 1)[0].key != first.key


def test_what_a_task_asks_for_counts_where_a_person_says_nothing(data):
    (task,) = load_tasks(own_task(data)).values()
    task.set_config(
        key="generation_kwargs", value={"max_gen_toks": 7, "temperature": 0.5, "do_sample": True}, update=True
    )
    prompt = build_prompts(task, None, False, 1)[0]
    assert (prompt.gen_length, prompt.temperature) == (7, 0.5)
    assert dict(prompt.request({}).settings) == {"gen_length": 7, "temperature": 0.5}
    assert dict(prompt.request({"gen_length": 99}).settings) == {"temperature": 0.5}
    assert prompt.request({}).key == prompt.key


@pytest.mark.parametrize(("until", "stops"), [("END", ("END",)), (["a", "", "b"], ("a", "b")), (None, ()), ([], ())])
def test_until_may_be_a_text_a_list_or_nothing(data, until, stops):
    (task,) = load_tasks(own_task(data)).values()
    task.set_config(key="generation_kwargs", value={"until": until})
    assert build_prompts(task, None, False, 1)[0].until == stops


@pytest.mark.parametrize("until", [[3], ["a", {}], 7])
def test_until_of_another_kind_is_a_sentence(data, until):
    (task,) = load_tasks(own_task(data)).values()
    task.set_config(key="generation_kwargs", value={"until": until})
    with pytest.raises(TaskError, match=r"^The prompts of task 'own' could not be rendered: "):
        build_prompts(task, None, False, 1)


def test_a_limit_keeps_the_first_documents(data):
    (task,) = load_tasks(own_task(data)).values()
    assert [prompt.doc_id for prompt in build_prompts(task, None, False, 2)] == [0, 1]
    assert len(build_prompts(task, None, False, 99)) == 3


class Tokenizer:
    def __init__(self, chat_template: str | None) -> None:
        self.chat_template = chat_template


@pytest.mark.parametrize(
    ("template", "wish", "used"),
    [("x", "auto", True), (None, "auto", False), ("", "auto", False), ("x", "off", False), ("x", "on", True)],
)
def test_the_chat_template_is_used_when_there_is_one_unless_a_person_says_otherwise(template, wish, used):
    assert chat_template_of(Tokenizer(template), wish, "m") is used


def test_a_chat_template_that_is_not_there_cannot_be_asked_for():
    for tokenizer in (Tokenizer(None), None):
        with pytest.raises(ModelError, match=r"^m has no chat template\. Use --chat-template off\.$"):
            chat_template_of(tokenizer, "on", "m")
    assert chat_template_of(None, "auto", "m") is False


def test_a_chat_template_that_never_ends_is_a_sentence_after_a_while(data, monkeypatch):
    from dllm_audit.evaluate import deadline
    from dllm_audit.models.loading import load_tokenizer
    from dllm_audit.models.tiny import EMBEDDED_MODELS

    tokenizer = load_tokenizer(EMBEDDED_MODELS["tiny-ar"])
    rounds = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    tokenizer.chat_template = "{{ messages[0]['content'] }}" + rounds
    monkeypatch.setattr(deadline, "TEMPLATE_SECONDS", 0.2)
    (task,) = load_tasks(own_task(data)).values()
    with pytest.raises(TaskError) as error:
        build_prompts(task, tokenizer, True, 1)
    assert str(error.value) == (
        "The model's chat template did not end within 0.2 s for one document. Use --chat-template off."
    )
    tokenizer.chat_template = "<{{ messages[0]['content'] }}>"
    monkeypatch.setattr(deadline, "TEMPLATE_SECONDS", 30.0)
    assert build_prompts(task, tokenizer, True, 1)[0].prompt == "<Q: a A:>"


@pytest.mark.parametrize("content", ["", " \n\n"])
def test_a_task_without_documents_says_which_file_is_empty(tmp_path, content):
    """It was once a StopIteration of the library that reads it."""
    path = own_task(tmp_path)
    (tmp_path / "docs.jsonl").write_text(content)
    assert refused(path) == f"Task {path!r} has no documents to decode: {tmp_path / 'docs.jsonl'} is empty."


ENDLESS = "{% for i in range(10**12) %}{% endfor %}"


@pytest.mark.parametrize(
    "fields",
    [
        {"doc_to_text": ENDLESS},
        {"doc_to_target": ENDLESS},
        {"description": ENDLESS},
        {"gen_prefix": ENDLESS},
        {"output_type": "multiple_choice", "doc_to_target": "0", "doc_to_choice": ENDLESS},
        {"num_fewshot": 1, "fewshot_config": {"doc_to_text": ENDLESS}},
        {"num_fewshot": 1, "fewshot_config": {"doc_to_target": ENDLESS}},
    ],
    ids=lambda fields: "+".join(fields),
)
def test_a_template_of_a_task_that_never_ends_is_a_sentence_after_a_while(data, monkeypatch, fields):
    """It was once an endless "Loading tasks ..."."""
    from dllm_audit.evaluate import deadline

    monkeypatch.setattr(deadline, "TEMPLATE_SECONDS", 0.2)
    path = own_task(data)
    (data / "own.yaml").write_text(yaml.safe_dump({**yaml.safe_load((data / "own.yaml").read_text()), **fields}))
    with pytest.raises(TaskError) as error:
        build_prompts(load_tasks(path)["own"], None, False, 1)
    name = str(error.value).split("'")[1]
    assert name in (path, "own")
    assert str(error.value) == (
        f"A template of task {name!r} did not end within 0.2 s for one document. "
        f"Mend it in the task's YAML file: {ENDLESS!r}"
    )


def test_a_template_that_ends_is_bounded_no_longer_once_its_task_was_rendered(data):
    from lm_eval import utils

    render = utils.apply_template
    (task,) = load_tasks(own_task(data)).values()
    build_prompts(task, None, False, 1)
    assert utils.apply_template is render
