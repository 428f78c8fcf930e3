"""Local data sets that a person imported, so that a task works without network."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dllm_audit.errors import TaskError

_SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True)
class ImportedFile:
    """One file of an imported data set. `source`: the file's name where it came from; rows: its documents."""

    file: str
    source: str
    sha256: str
    rows: int


@dataclass(frozen=True)
class ImportedData:
    """A data set in the user's data folder. `fewshot` is None when none was imported."""

    task: str
    folder: Path
    test: ImportedFile
    fewshot: ImportedFile | None


def data_folder() -> Path:
    """Where imported data sets live: $DLLM_AUDIT_DATA, else $XDG_DATA_HOME/dllm-audit/data."""
    if os.environ.get("DLLM_AUDIT_DATA"):
        return Path(os.environ["DLLM_AUDIT_DATA"])
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "dllm-audit" / "data"


def import_data(task: str, test: Path, fewshot: Path | None = None) -> ImportedData:
    """Copy a data set with its hash; replaces an earlier import of the same task only when the new one is readable."""
    if not re.fullmatch(r"\w[\w.\-]*", task):
        raise TaskError(
            f"{task!r} is no task name: use letters, digits, '_', '-' and '.', beginning with a letter or digit."
        )
    rows = {name: _rows(path) for name, path in (("test", test), ("fewshot", fewshot)) if path is not None}
    target = data_folder() / task
    fresh = target.with_name(f".{task}.new")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        files = {}
        for name, path in (("test", test), ("fewshot", fewshot)):
            if path is None:
                continue
            copy = fresh / f"{name}{path.suffix}"
            _copy(path, copy)
            with copy.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            files[name] = ImportedFile(copy.name, path.name, digest, rows[name])
        manifest = {"task": task, **{name: asdict(file) for name, file in files.items()}}
        (fresh / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    except OSError as error:
        raise TaskError(
            f"The data set could not be copied into {target}: {error}. "
            "Make room or set DLLM_AUDIT_DATA to a folder that can be written."
        ) from error
    found = find_data(task)
    assert found is not None
    return found


def _copy(path: Path, copy: Path) -> None:
    """Copy a data file, without the byte-order mark that some editors put first and the readers of JSONL refuse."""
    with path.open("rb") as source, copy.open("wb") as target:
        start = source.read(len(codecs.BOM_UTF8))
        target.write(b"" if path.suffix == ".jsonl" and start == codecs.BOM_UTF8 else start)
        shutil.copyfileobj(source, target)


def find_data(task: str) -> ImportedData | None:
    """The imported data set of `task`, or None."""
    folder = data_folder() / task
    try:
        fields = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        test = ImportedFile(**fields["test"])
        fewshot = ImportedFile(**fields["fewshot"]) if "fewshot" in fields else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TaskError(f"The imported data set in {folder} is damaged ({error}). Import it again.") from error
    for file in (test, fewshot):
        if file is not None and not (folder / file.file).exists():
            raise TaskError(f"The imported data set in {folder} lacks {file.file}. Import it again.")
    return ImportedData(task, folder, test, fewshot)


def list_data() -> Iterator[ImportedData]:
    """Every imported data set, by name."""
    folder = data_folder()
    if folder.is_dir():
        for entry in sorted(folder.iterdir()):
            if entry.is_dir() and not entry.name.startswith("."):
                found = find_data(entry.name)
                if found is not None:
                    yield found


def _rows(path: Path) -> int:
    """Number of documents in a data file. Raises TaskError when it cannot be read as one."""
    if not path.is_file():
        raise TaskError(f"There is no file {path}. Give a JSONL or Parquet file.")
    if path.suffix not in _SUFFIXES:
        raise TaskError(f"{path.name} is neither .jsonl nor .parquet. Rename it, or convert it to one of them.")
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _jsonl_rows(path)
    if rows == 0:
        raise TaskError(f"{path.name} holds no documents.")
    return rows


def _parquet_rows(path: Path) -> int:
    import pyarrow
    import pyarrow.parquet

    try:
        return int(pyarrow.parquet.ParquetFile(path).metadata.num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise TaskError(f"{path.name} cannot be read as Parquet: {error}.") from error


def _jsonl_rows(path: Path) -> int:
    first: dict[str, Any] | None = None
    rows = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                document = json.loads(line.rstrip())
                if not isinstance(document, dict):
                    raise TaskError(f"{path.name}, line {number}: a document is a JSON object, and this is none.")
                first = first if first is not None else document
                if set(document) != set(first):
                    odd = sorted(set(document) ^ set(first))[0]
                    raise TaskError(f"{path.name}, line {number}: field {odd!r} is not in every document.")
                rows += 1
    except UnicodeDecodeError as error:
        raise TaskError(f"{path.name} is not UTF-8 text: {error}.") from error
    except RecursionError:
        raise TaskError(f"{path.name}, line {number}: it is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise TaskError(f"{path.name}, line {number}: no JSON ({error.msg} at column {error.colno}).") from error
    return rows
