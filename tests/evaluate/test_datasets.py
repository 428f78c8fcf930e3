"""Local data sets: copied with their hash, replaced only by what can be read, and refused with line and reason."""

from __future__ import annotations

import hashlib
import json

import pyarrow
import pyarrow.parquet
import pytest

from dllm_audit.errors import TaskError
from dllm_audit.evaluate.datasets import data_folder, find_data, import_data, list_data

GOOD = '{"question": "1+1?", "answer": "2"}\n\n{"question": "2+2?", "answer": "4"}\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DLLM_AUDIT_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def write(tmp_path, content: str | bytes, name: str = "test.jsonl"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(*arguments) -> str:
    with pytest.raises(TaskError) as error:
        import_data(*arguments)
    return str(error.value)


def test_a_data_set_is_copied_with_its_hash_and_its_number_of_documents(tmp_path, folder):
    path = write(tmp_path, GOOD)
    data = import_data("gsm8k", path, path)
    assert (data.task, data.folder) == ("gsm8k", folder / "gsm8k")
    assert (data.test.file, data.test.source, data.test.rows) == ("test.jsonl", "test.jsonl", 2)
    assert data.test.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()
    assert data.fewshot.file == "fewshot.jsonl"
    assert (folder / "gsm8k" / "test.jsonl").read_text() == GOOD
    assert find_data("gsm8k") == data
    assert list(list_data()) == [data]
    path.unlink()
    assert find_data("gsm8k") == data  # a copy


def test_parquet_is_taken_too(tmp_path):
    path = tmp_path / "test.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"question": ["a", "b", "c"]}), path)
    assert import_data("gsm8k", path).test.rows == 3


def test_a_new_import_replaces_an_old_one_and_a_bad_one_leaves_it(tmp_path):
    first = import_data("gsm8k", write(tmp_path, GOOD), write(tmp_path, GOOD, "train.jsonl"))
    refused("gsm8k", write(tmp_path, "not json", "bad.jsonl"))
    assert find_data("gsm8k") == first
    second = import_data("gsm8k", write(tmp_path, GOOD + '{"question": "3", "answer": "3"}'))
    assert (find_data("gsm8k"), second.test.rows, second.fewshot) == (second, 3, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"q": 1}\n{"q": \n', "test.jsonl, line 2: no JSON (Expecting value at column 6)."),
        ('{"q": 1}\n\n[1]\n', "test.jsonl, line 3: a document is a JSON object, and this is none."),
        ('{"q": 1, "a": 2}\n{"q": 1}\n', "test.jsonl, line 2: field 'a' is not in every document."),
        ('{"q": 1}\n{"q": 1, "b": 3}\n', "test.jsonl, line 2: field 'b' is not in every document."),
        ("", "test.jsonl holds no documents."),
        ("\n \n", "test.jsonl holds no documents."),
        (b"\xff\xfe", "test.jsonl is not UTF-8 text: "),
        ('{"q": ' + "[" * 100_000 + "]" * 100_000 + "}", "test.jsonl, line 1: it is nested too deeply."),
    ],
    ids=["half a line", "no object", "a field less", "a field more", "empty", "blank", "not utf-8", "too deep"],
)  # fmt: skip
def test_a_file_that_is_no_data_set_is_refused_with_line_and_reason(tmp_path, content, message):
    assert refused("gsm8k", write(tmp_path, content)).startswith(message)
    assert list(list_data()) == []


def test_a_byte_order_mark_is_taken_off(tmp_path):
    data = import_data("gsm8k", write(tmp_path, b"\xef\xbb\xbf" + GOOD.encode()))
    first = (data.folder / data.test.file).read_text().splitlines()[0]
    assert json.loads(first) == {"question": "1+1?", "answer": "2"}


def test_other_kinds_of_files_are_refused(tmp_path):
    assert refused("gsm8k", write(tmp_path, GOOD, "test.json")) == (
        "test.json is neither .jsonl nor .parquet. Rename it, or convert it to one of them."
    )
    assert refused("gsm8k", write(tmp_path, GOOD, "test.parquet")).startswith(
        "test.parquet cannot be read as Parquet: "
    )
    assert refused("gsm8k", tmp_path) == f"There is no file {tmp_path}. Give a JSONL or Parquet file."


@pytest.mark.parametrize("task", ["..", ".", "", "a/b", "../x", ".hidden", "a b"])
def test_a_task_name_cannot_lead_out_of_the_data_folder(tmp_path, folder, task):
    """An import for '..' would once have removed the folder above."""
    import_data("kept", write(tmp_path, GOOD))
    assert refused(task, write(tmp_path, GOOD)) == (
        f"{task!r} is no task name: use letters, digits, '_', '-' and '.', beginning with a letter or digit."
    )
    assert [data.task for data in list_data()] == ["kept"]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"test": 3}', '{"test": {"file": "x"}}'])
def test_a_damaged_import_is_said(tmp_path, folder, content):
    import_data("gsm8k", write(tmp_path, GOOD))
    (folder / "gsm8k" / "manifest.json").write_text(content)
    with pytest.raises(TaskError) as error:
        find_data("gsm8k")
    assert str(error.value).startswith(f"The imported data set in {folder / 'gsm8k'} is damaged (")
    assert str(error.value).endswith("Import it again.")


def test_an_import_that_lost_its_file_is_said(tmp_path, folder):
    import_data("gsm8k", write(tmp_path, GOOD))
    (folder / "gsm8k" / "test.jsonl").unlink()
    with pytest.raises(TaskError) as error:
        find_data("gsm8k")
    assert str(error.value) == f"The imported data set in {folder / 'gsm8k'} lacks test.jsonl. Import it again."


def test_the_data_folder_is_the_persons_own(monkeypatch, tmp_path):
    assert data_folder() == tmp_path / "data"
    monkeypatch.delenv("DLLM_AUDIT_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert data_folder() == tmp_path / "xdg" / "dllm-audit" / "data"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_folder() == tmp_path / "home" / ".local" / "share" / "dllm-audit" / "data"


def test_a_data_folder_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    blocked = write(tmp_path, "a file, no folder", "blocked")
    monkeypatch.setenv("DLLM_AUDIT_DATA", str(blocked))
    message = refused("gsm8k", write(tmp_path, GOOD))
    assert message.startswith(f"The data set could not be copied into {blocked / 'gsm8k'}: ")
    assert message.endswith("Make room or set DLLM_AUDIT_DATA to a folder that can be written.")
