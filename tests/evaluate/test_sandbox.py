"""Code that a model wrote runs where it can do little harm, and whatever it does, the audit goes on."""

from __future__ import annotations

import json
import os
import time

import psutil
import pytest

from dllm_audit.errors import AuditError
from dllm_audit.evaluate import sandbox
from dllm_audit.evaluate.loading import load_tasks
from dllm_audit.evaluate.prompts import build_prompts
from dllm_audit.evaluate.sandbox import Isolation, SandboxError, contained, isolation, sandboxed

#: For each program; long enough for a busy machine to start a process in.
LIMIT_SECONDS = 4.0

SCORER = """
def run(document, responses):
    names = {}
    try:
        exec(responses[0], names)
    except Exception as error:
        return {"passed": 0.0}
    if names.get("answer") == "metric":
        return {"passed": 1 / 0}
    return {"passed": float(names.get("answer") == document["want"])}
"""

TASK = """
task: programs
dataset_path: json
dataset_kwargs:
  data_files:
    test: documents.jsonl
test_split: test
output_type: generate_until
unsafe_code: true
doc_to_text: "{{q}}"
doc_to_target: "{{want}}"
process_results: !function scorer.run
generation_kwargs:
  until: ["END"]
metric_list:
  - metric: passed
    aggregation: mean
    higher_is_better: true
"""

HARMLESS = {
    "right": "answer = 2",
    "uses_the_library": "import heapq, statistics, tempfile; tempfile.mkdtemp(); answer = len([1, 2])",
    "writes_into_its_own_folder": "open('mine', 'w').write('x'); answer = 2",
    "starts_a_process": "import subprocess; answer = int(subprocess.run(['echo', '2'], capture_output=True).stdout)",
    "sees_no_environment": "import os; answer = 2 if set(os.environ) <= {'HF_ALLOW_CODE_EVAL'} else 3",
    "sees_an_empty_folder": "import os; answer = 2 if os.listdir() == [] else 3",
    "prints": "print('noise' * 100000); answer = 2",
}

WRONG = {
    "wrong": "answer = 3",
    "no_program": "answer =",
    "takes_memory": "x = b'x' * (8 << 30); answer = 2",
    "writes_a_large_file": "open('mine', 'wb').write(b'x' * (64 << 20)); answer = 2",
    "speaks_to_the_network": "import socket; socket.create_connection(('127.0.0.1', PORT), 2); answer = 2",
}

STOPPED = {
    "loops": ("while True: pass", f"ran for {LIMIT_SECONDS:g} s"),
    "leaves": ("import os; os._exit(0)", "ended the process that scored it"),
    "kills_itself": ("import os; os.kill(os.getpid(), 9)", "ended the process that scored it"),
    "ends_the_interpreter": ("raise SystemExit(0)", "ended the process that scored it"),
}


def make_task(folder, documents=2):
    (folder / "scorer.py").write_text(SCORER)
    (folder / "documents.jsonl").write_text(
        "".join(json.dumps({"q": str(n), "want": 2}) + "\n" for n in range(documents))
    )
    (folder / "programs.yaml").write_text(TASK)
    (task,) = load_tasks(str(folder / "programs.yaml"), allow_code=True).values()
    return task


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module", params=["with namespaces", "without namespaces"])
def scored(request, task):
    """(scores of a program, why answers were stopped, whether there are namespaces)."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "without namespaces":
            patch.setattr(sandbox, "isolation", lambda: Isolation((), "a test has none"))
        elif not isolation().command:
            pytest.skip(isolation().missing)
        with sandboxed(task, LIMIT_SECONDS) as (inside, stopped):

            def run(program: str) -> dict:
                return inside.process_results({"q": "0", "want": 2}, [program])

            yield run, stopped, request.param == "with namespaces"


@pytest.mark.parametrize("name", HARMLESS)
def test_a_right_program_passes_and_may_do_what_programs_do(scored, name):
    run, _, _ = scored
    assert run(HARMLESS[name]) == {"passed": 1.0}


@pytest.mark.parametrize("name", WRONG)
def test_a_program_that_is_wrong_or_takes_too_much_is_wrong(scored, name):
    import socket

    run, stopped, isolated = scored
    before = stopped.total()
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = WRONG[name].replace("PORT", str(server.getsockname()[1]))
        expected = 1.0 if name == "speaks_to_the_network" and not isolated else 0.0
        assert run(program) == {"passed": expected}
    assert stopped.total() == before


@pytest.mark.parametrize("name", STOPPED)
def test_a_program_that_does_not_end_by_itself_is_a_wrong_answer_and_the_next_one_is_scored(scored, name):
    run, stopped, _ = scored
    program, why = STOPPED[name]
    before = stopped[why]
    assert run(program) == {"passed": 0.0}
    assert stopped[why] == before + 1
    assert run("answer = 2") == {"passed": 1.0}


def test_what_a_program_started_ends_with_it(scored):
    run, _, _ = scored
    mark = f"{os.getpid()}.{time.monotonic_ns()}"
    program = (
        "import os, subprocess\n"
        "for _ in range(10):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        f"        subprocess.run(['sleep', '600'], env={{'MARK': '{mark}'}})\n"
        "answer = 2"
    )
    assert run(program) == {"passed": 1.0}
    left = []
    for process in psutil.process_iter():
        try:
            left += [process] if process.environ().get("MARK") == mark else []
        except psutil.Error:
            continue
    assert left == []


def test_a_program_that_kills_the_scorer_is_a_wrong_answer_and_a_new_one_goes_on(scored):
    run, _, _ = scored
    assert run("import os\nos.kill(os.getppid(), 9)\nwhile True: pass") == {"passed": 0.0}
    assert run("answer = 2") == {"passed": 1.0}


def test_no_file_outside_can_be_written_removed_or_made_writable(scored, tmp_path):
    run, _, isolated = scored
    if not isolated:
        pytest.skip("files are protected by namespaces")
    kept = tmp_path / "kept"
    kept.write_text("mine")
    tmp_path.chmod(0o777)
    for attempt in (
        f"open({str(kept)!r}, 'w')",
        f"import os; os.remove({str(kept)!r})",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        "import ctypes; assert ctypes.CDLL(None).mount(b'none', b'/', None, 32 | 4096, None) == 0",
    ):
        assert run(f"{attempt}; answer = 2") == {"passed": 0.0}
    assert kept.read_text() == "mine"
    assert os.listdir(tmp_path) == ["kept"]


def test_a_program_cannot_speak_for_other_answers(scored):
    """It may find the pipe of its own scorer, and none beyond."""
    run, _, _ = scored
    forge = 'import os\nfor n in range(3, 64):\n  try: os.write(n, b\'{"scores": {"passed": 9.0}}\\n\')\n  except OSError: pass\nos._exit(0)'
    assert run(forge)["passed"] in (0.0, 9.0)
    assert run("answer = 3") == {"passed": 0.0}


def test_a_metric_that_breaks_is_a_failure_and_no_wrong_answer(scored):
    run, _, _ = scored
    with pytest.raises(SandboxError) as error:
        run("answer = 'metric'")
    assert str(error.value) == (
        "The answers of task 'programs' could not be scored: ZeroDivisionError: division by zero. "
        "They are stored; --resume scores them again."
    )


def test_a_sandbox_that_does_not_start_is_a_failure_with_its_reason(task, monkeypatch):
    monkeypatch.setattr(sandbox, "isolation", lambda: Isolation(("sh", "-c", "echo no such thing >&2; exit 1"), ""))
    with pytest.raises(SandboxError) as error, sandboxed(task):
        pass
    assert str(error.value) == (
        "The subprocess that executes the code of answers did not start (no such thing). "
        "The answers are stored; --resume scores them."
    )
    assert (error.value.exit_status, AuditError.exit_status) == (3, 3)


def test_the_scores_of_a_task_come_from_the_sandbox_with_a_note_of_what_was_stopped(tmp_path):
    from dllm_audit.evaluate.scoring import score

    task = make_task(tmp_path, documents=3)
    prompts = build_prompts(task, None, False, None)
    texts = {0: "answer = 2", 1: "answer = 3", 2: "import os; os._exit(0)"}
    scores = score("programs", task, prompts, texts, unsafe=True)
    assert {a["doc_id"]: a["value"] for a in scores.answers} == {0: 1.0, 1: 0.0, 2: 0.0}
    assert [(m["metric"], round(m["value"], 6), m["documents"]) for m in scores.metrics] == [("passed", 0.333333, 3)]
    assert scores.notes == ["Stopped and wrong: 1 answer whose program ended the process that scored it."]


def test_only_a_task_that_says_so_is_scored_in_a_sandbox():
    (task,) = load_tasks("gsm_mini").values()
    with contained(task) as (scorer, stopped):
        assert scorer is task
        assert not stopped


def test_where_namespaces_are_not_permitted_that_is_said(monkeypatch, tmp_path):
    tool = tmp_path / "unshare"
    tool.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert isolation().words == (
        "but with your files and the network within its reach, since namespaces are not permitted here "
        "(unshare: unshare failed: Operation not permitted)"
    )
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert isolation() == Isolation((), "this system has no unshare")
