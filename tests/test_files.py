"""A file that somebody names is read only where reading ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dllm_audit.cli.requests import read_requests
from dllm_audit.errors import ModelError, StoreError, TaskError, UsageError
from dllm_audit.evaluate.loading import load_tasks
from dllm_audit.files import refuse_special
from dllm_audit.models.loading import find_model
from dllm_audit.models.tiny import EMBEDDED_MODELS
from dllm_audit.store.database import Store


def pipe(path):
    """A named pipe into which nobody writes: whoever opens it waits."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def is_refused(path, kind: str, error: type[UsageError], read) -> None:
    with pytest.raises(error) as refusal:
        read()
    assert str(refusal.value) == f"{path} is {kind} and no regular file, and reading it might never end. Give a file."


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"])
def test_a_pipe_in_a_model_folder(tmp_path, name):
    (tmp_path / "config.json").write_text((EMBEDDED_MODELS["tiny-mdm"] / "config.json").read_text())
    path = pipe(tmp_path / name)
    is_refused(path, "a named pipe", ModelError, lambda: find_model(str(tmp_path)))


def test_a_pipe_as_a_file_of_requests(tmp_path):
    path = pipe(tmp_path / "requests.jsonl")
    is_refused(path, "a named pipe", UsageError, lambda: list(read_requests(path, dict)))


@pytest.mark.parametrize("write", [False, True])
def test_a_pipe_as_a_results_file(tmp_path, write):
    path = pipe(tmp_path / "results.duckdb")
    is_refused(path, "a named pipe", StoreError, lambda: Store.open(path, write=write))


def test_a_pipe_as_a_task_file_as_one_that_it_includes_and_as_its_data(tmp_path):
    path = pipe(tmp_path / "pipe.yaml")
    task = tmp_path / "task.yaml"
    is_refused(path, "a named pipe", TaskError, lambda: load_tasks(str(path)))
    task.write_text("task: t\ninclude: between.yaml\n")
    (tmp_path / "between.yaml").write_text("include: [pipe.yaml, task.yaml]\n")
    is_refused(path, "a named pipe", TaskError, lambda: load_tasks(str(task)))
    task.write_text("task: t\ndataset_path: json\ndataset_kwargs: {data_files: {test: pipe.yaml}}\n")
    is_refused(path, "a named pipe", TaskError, lambda: load_tasks(str(task)))


def test_devices_and_sockets_are_refused_and_what_is_not_there_is_for_the_reader_to_say(tmp_path):
    from pathlib import Path

    device = Path("/dev/zero")
    is_refused(device, "a device", UsageError, lambda: refuse_special(device, UsageError))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        is_refused(tmp_path / "s", "a socket", UsageError, lambda: refuse_special(tmp_path / "s", UsageError))
    for path in (tmp_path, tmp_path / "nothing", Path("a\0b")):
        refuse_special(path, UsageError)


def test_a_pipe_that_a_shell_made_has_somebody_who_writes_and_is_read():
    script = (
        "from pathlib import Path; from dllm_audit.cli.requests import read_requests; import sys;"
        "print([id for id, _ in read_requests(Path(sys.argv[1]), dict)])"
    )
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -c '{script}' <(echo '{{\"id\": 7}}')"], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[7]\n", "")


def test_no_two_test_files_share_a_name():
    """pytest imports them by their bare names, and stops at the second of a kind."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
