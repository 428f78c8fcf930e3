"""From a task's name to lm-eval's task objects, building only what was asked for.

lm-eval's own index of its 14,000 names takes 14 to 27 seconds; reading the names out of its YAML files takes half a
second, and then only the folder that holds the task is indexed.
"""

from __future__ import annotations

import io
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import util
from pathlib import Path
from typing import Any

import yaml

from dllm_audit.errors import TaskError, did_you_mean
from dllm_audit.evaluate.datasets import ImportedData, data_folder, find_data
from dllm_audit.evaluate.deadline import task_templates_end
from dllm_audit.evaluate.mistakes import ended, fields_of, late_mistakes, mistake_of
from dllm_audit.evaluate.sandbox import isolation
from dllm_audit.files import refuse_special

EMBEDDED_TASKS = Path(__file__).parent / "tasks"

_NAME = re.compile(rb"^(?:task|group|tag):[ \t]*[\"']?([\w.\-]+)", re.MULTILINE)


def embedded_task_names() -> list[str]:
    """Names of the tasks that come with the package."""
    return sorted(path.stem for path in EMBEDDED_TASKS.glob("*.yaml"))


def lm_eval_folder() -> Path:
    """Where lm-eval keeps its task files, without importing it."""
    spec = util.find_spec("lm_eval")
    assert spec is not None, "lm-eval is a dependency"
    assert spec.origin is not None
    return Path(spec.origin).parent / "tasks"


def task_names(folder: Path) -> dict[str, Path]:
    """Every task, group and tag name in the YAML files below `folder`, with the first file that names it."""
    names: dict[str, Path] = {}
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            path = Path(parent) / file
            if path.suffix in (".yaml", ".yml", ""):
                for match in _NAME.finditer(path.read_bytes()):
                    names.setdefault(match[1].decode(), path)
    return names


def is_task_file(name: str) -> bool:
    """Whether a task is given as a file: it may name Python functions, which run when it is loaded."""
    return name.endswith((".yaml", ".yml"))


def load_tasks(name: str, num_fewshot: int | None = None, allow_code: bool = False) -> dict[str, Any]:
    """lm-eval task objects of a task, group, tag or YAML file, by task name. Raises TaskError with a sentence.

    num_fewshot: overrides the task's own number of worked examples. allow_code: load tasks that execute model output.
    """
    path = _find(name)
    if lm_eval_folder() not in path.parents:
        _refuse_special_files(path)
        _refuse_missing_includes(name, path)
    if not allow_code and _executes_code(path):
        raise _needs_consent(name)
    quiet()
    if allow_code:
        # What the metric code_eval of the hub asks for; `sandbox` is where it executes anything of a model.
        os.environ["HF_ALLOW_CODE_EVAL"] = "1"
    # Beside what it raises it prints.
    with _explained(name, path), task_templates_end(name), redirect_stdout(io.StringIO()):
        tasks = _build(name, path)
    if not tasks:
        raise TaskError(f"Task {name!r} holds no task.")
    from_lm_eval = lm_eval_folder() in path.parents
    for task_name, task in tasks.items():
        # A group or tag may hold such a task too.
        if not allow_code and getattr(task, "UNSAFE_CODE", False):
            raise _needs_consent(task_name)
        wrong = None if from_lm_eval else next(late_mistakes(fields_of(task)), None)
        if wrong is not None:
            raise TaskError(f"Task {task_name!r} cannot be used: {ended(wrong)} See its YAML file.")
        if num_fewshot is not None:
            task.set_config(key="num_fewshot", value=num_fewshot)
        # Imported data stand in for the hub's, never for those that a task file of one's own names.
        data = find_data(task_name) if from_lm_eval else None
        if data is not None and data.fewshot is None and (task.config.num_fewshot or 0) > 0:
            raise TaskError(
                f"Task {task_name!r} shows {task.config.num_fewshot} worked examples, and none were imported. "
                f"Import them with --fewshot, or run with --num-fewshot 0."
            )
        task.set_fewshot_seed(seed=1234)
    return tasks


def _executes_code(path: Path, above: frozenset[Path] = frozenset()) -> bool:
    """Whether a task file, or one that it includes, says that scoring executes what the model wrote."""
    fields = _plain_yaml(path)
    if "unsafe_code" in fields:
        return bool(fields["unsafe_code"])
    above |= {path.resolve()}
    files = _included(path, fields)
    return any(file.is_file() and file not in above and _executes_code(file, above) for file in files)


def _included(path: Path, fields: dict[str, Any]) -> list[Path]:
    """The task files that a task file with these fields includes."""
    named = fields.get("include") or []
    named = named if isinstance(named, list) else [named]
    return [(path.parent / str(file)).resolve() for file in named]


def _refuse_missing_includes(name: str, path: Path) -> None:
    for file in _included(path, _plain_yaml(path)):
        if not file.is_file() or file == path.resolve():
            raise TaskError(f"Task {name!r} includes {file.name}, which is no other file beside it. See its YAML file.")


def _refuse_special_files(path: Path, above: frozenset[Path] = frozenset()) -> None:
    """Raise TaskError where a task file, one that it includes, or one of its data is a pipe or a device."""
    above |= {path.resolve()}
    data = _relative_files(path).get("dataset_kwargs", {}).get("data_files", {}).values()
    included = [file for file in _included(path, _plain_yaml(path)) if file not in above]
    for file in (*map(Path, data), *included):
        refuse_special(file, TaskError)
    for file in included:
        if file.is_file():
            _refuse_special_files(file, above)


def _needs_consent(name: str) -> TaskError:
    return TaskError(
        f"Task {name!r} scores answers by executing the code that the model wrote: in subprocesses with limits on time, "
        f"memory and files, {isolation().words}. If you accept that, add --allow-code-execution."
    )


def quiet() -> None:
    """Keep the libraries' own progress and advice off the terminal."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # lm-eval's bootstrap would fork this process, with the model in it, once for every core.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    # What lm-eval calls an error comes as an exception too, and is said in a sentence.
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)
    for logger in ("datasets", "transformers", "huggingface_hub", "httpx", "filelock"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    import datasets
    import huggingface_hub

    # Its loggers take their level when it is imported, whatever was set before.
    huggingface_hub.logging.set_verbosity_error()
    datasets.disable_progress_bars()


def _find(name: str) -> Path:
    """The YAML file of a task, group or tag."""
    if name in embedded_task_names():
        return EMBEDDED_TASKS / f"{name}.yaml"
    if is_task_file(name):
        path = Path(name)
        refuse_special(path, TaskError)
        if not path.is_file():
            raise TaskError(f"There is no task file {name}.")
        return path.resolve()
    known = task_names(lm_eval_folder())
    if name not in known:
        raise TaskError(
            f"There is no task {name!r}. {did_you_mean(name, [*known, *embedded_task_names()])} "
            f"Embedded tasks: {', '.join(embedded_task_names())}."
        )
    return known[name]


def _build(name: str, path: Path) -> dict[str, Any]:
    if lm_eval_folder() not in path.parents:
        return _load_overlay(path, _task_of(path), _relative_files(path))
    data = find_data(name)
    if data is not None:
        return _load_overlay(path, name, _imported(path, data))
    from lm_eval.tasks import TaskManager

    inside = path.relative_to(lm_eval_folder()).parts[0]
    return TaskManager(include_defaults=False, include_path=str(lm_eval_folder() / inside)).load(name)["tasks"]


def _load_overlay(base: Path, name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Load the task in `base` with `changes` on top, by lm-eval's own `include`."""
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as folder:
        overlay = {"include": str(base.resolve()), "task": name, **changes}
        (Path(folder) / "overlay.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
        return TaskManager(include_defaults=False, include_path=folder).load(name)["tasks"]


def _plain_yaml(path: Path) -> dict[str, Any]:
    """A task file's plain fields; functions and includes are lm-eval's business."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: _Function())
    try:
        fields = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TaskError(f"{path} cannot be read as YAML: {error}.") from error
    except RecursionError as error:
        raise TaskError(f"{path} cannot be read as YAML: it is nested too deeply.") from error
    return fields if isinstance(fields, dict) else {}


class _Function:
    """Stands for a Python function that a task file names."""

    def __call__(self) -> None: ...


def _whole_file(path: Path, above: frozenset[Path] = frozenset()) -> dict[str, Any]:
    """A task file's fields with those of the files that it includes."""
    above |= {path.resolve()}
    fields: dict[str, Any] = {}
    for file in _included(path, _plain_yaml(path)):
        if file.is_file() and file not in above:
            fields |= _whole_file(file, above)
    return fields | _plain_yaml(path)


def _task_of(path: Path) -> str:
    name = _plain_yaml(path).get("task")
    if not isinstance(name, str):
        raise TaskError(f"{path} names no task: it needs a line 'task: NAME'.")
    if "/" in name or "\\" in name or not name.isprintable():
        raise TaskError(
            f"{path} names its task {name!r}: a name has no slashes and only characters that can be printed."
        )
    return name


def _empty_file(path: Path) -> Path | None:
    """A data file of a task file that holds nothing but white space, if there is one."""
    data = _relative_files(path).get("dataset_kwargs", {}).get("data_files", {}).values()
    for file in map(Path, data):
        if file.is_file() and file.stat().st_size < 1024 and not file.read_bytes().strip():
            return file
    return None


def _relative_files(path: Path) -> dict[str, Any]:
    """The overlay that makes data files, given relative to the task file, absolute."""
    arguments = _plain_yaml(path).get("dataset_kwargs") or {}
    files = arguments.get("data_files") if isinstance(arguments, dict) else None
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        return {}
    absolute = {split: str((path.parent / file).resolve()) for split, file in files.items()}
    return {"dataset_kwargs": {**arguments, "data_files": absolute}}


def _imported(path: Path, data: ImportedData) -> dict[str, Any]:
    """The overlay that replaces a hub data set by an imported one."""
    fields = _plain_yaml(path)
    test = fields.get("test_split") or fields.get("validation_split") or "test"
    fewshot = fields.get("fewshot_split") or fields.get("training_split") or "train"
    files = {test: str(data.folder / data.test.file)}
    if data.fewshot is not None and fewshot != test:
        files[fewshot] = str(data.folder / data.fewshot.file)
    changes: dict[str, Any] = {
        "dataset_path": "parquet" if data.test.file.endswith(".parquet") else "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files},
    }
    for key in ("training_split", "validation_split", "fewshot_split"):
        if fields.get(key) is not None and fields[key] not in files:
            changes[key] = None
    return changes


@contextmanager
def _explained(name: str, path: Path) -> Iterator[None]:
    """Turn what lm-eval and its libraries raise while loading into sentences."""
    try:
        yield
    except TaskError:
        raise
    except ModuleNotFoundError as error:
        raise TaskError(
            f"Task {name!r} needs the package {error.name!r}, which is not installed. Install it: pip install {error.name}"
        ) from error
    except (ConnectionError, FileNotFoundError) as error:
        if "code_eval" in str(error):
            raise TaskError(
                f"Task {name!r} needs the metric 'code_eval' from the hub, which cannot be reached. "
                "Run it once with network, so that the metric is kept."
            ) from error
        if lm_eval_folder() not in path.parents and _relative_files(path):
            raise TaskError(
                f"Task {name!r} names data files that cannot be read ({_first_line(error)}). "
                "Check data_files in its YAML file; they are relative to that file."
            ) from error
        raise TaskError(
            f"Task {name!r} needs data from the hub, which cannot be reached ({_first_line(error)}). "
            f"Import a local copy: dllm-audit data import {name} TEST.jsonl --fewshot TRAIN.jsonl "
            f"(it goes to {data_folder() / name})."
        ) from error
    except Exception as error:
        # datasets has no word for a file without records.
        if lm_eval_folder() not in path.parents and (empty := _empty_file(path)):
            raise TaskError(f"Task {name!r} has no documents to decode: {empty} is empty.") from error
        own = lm_eval_folder() not in path.parents
        mistake = mistake_of(error, _whole_file(path) if own else {})
        raise TaskError(
            f"Task {name!r} could not be loaded: {mistake}" + (" See its YAML file." if own else "")
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
