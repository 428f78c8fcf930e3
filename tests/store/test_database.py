"""The results file: what was stored stays stored, older files open, and whatever cannot be done is said in a sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import duckdb
import pytest

from dllm_audit import EngineLog, Failure, Forward, Generation
from dllm_audit.errors import StoreError, StoreWriteError
from dllm_audit.evaluate.prompts import TaskItem
from dllm_audit.records import TIME_ITEMS, Commit, ForwardShape, ScoredAnswer, Trace
from dllm_audit.store import database
from dllm_audit.store.database import Store, migrations

SCORED = (
    "continuation",
    "choice",
    "scored_tokens",
    "loglikelihood",
    "standard_error",
    "samples",
    "is_exact",
    "is_greedy",
)
SECONDS = {item: 0.25 * n for n, item in enumerate(TIME_ITEMS)} | {"total": 9.0}


def run_values(run_id: str = "run-a", **changes):
    return {
        "run_id": run_id,
        "invocation": "i",
        "content_key": "content",
        "backend": "dualcache",
        "provenance": "reference",
        "kind": "diffusion",
        "fidelity": "paper",
        "model": "tiny-mdm",
        "task": "gsm_mini",
        "role": "candidate",
        "concurrency": 1,
        "repeat": 0,
        "settings": {"gen_length": 8, "threshold": None},
        "setting_sources": {"gen_length": "task", "threshold": "default"},
        "manifest": {"environment": {"cores_usable": 2}},
        "planned_requests": 3,
    } | changes


def answer(id: str = "0", elapsed: float = 9.0, **changes) -> Generation:
    fields = {
        "id": id,
        "prompt_tokens": 5,
        "output_ids": (7, 8, 0),
        "answer_ids": (7, 8),
        "text": "a😀\x00b",
        "answered_tokens": 2,
        "committed_tokens": 3,
        "residual_masks": 0,
        "forwards": {"refresh": 1, "denoise": 2},
        "query_positions": 14,
        "committing_forwards": 3,
        "guaranteed_commits": 1,
        "seconds": SECONDS,
        "ttft_seconds": 0.5,
        "delivered_seconds": 0.75,
        "block_seconds": (0.75, 1.5),
        "queue_seconds": 0.125,
        "elapsed_seconds": elapsed,
        "stop": "eos",
        "trace": Trace(
            (Forward("refresh", 8, 0), Forward("denoise", 3, 0)), (Commit(0, 5, 7, 0.5), Commit(1, 6, 8, 0.9))
        ),
    }
    return Generation(**(fields | changes))


def add(store: Store, ordinal: int, result, run_id: str = "run-a", sitting: int = 1) -> None:
    store.add_result(run_id, ordinal, sitting, f"key {ordinal}", 10 + ordinal, "prompt?", "f00", result)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "results.duckdb"


@pytest.fixture
def store(path):
    with Store.open(path, write=True) as store:
        store.begin_run(run_values())
        yield store


def refused(path: Path, write: bool = False, kind: type = StoreError) -> str:
    with pytest.raises(kind) as error:
        Store.open(path, write=write)
    return str(error.value)


# -- what goes in comes out --


def test_a_run_comes_back_as_it_was_stored(store):
    run = store.run("run-a")
    assert {name: run[name] for name in run_values()} == run_values()
    assert (run["status"], run["sittings"], run["ended_at"], run["makespan_seconds"]) == ("running", 1, None, None)
    assert store.runs() == [run]


def test_an_answer_comes_back_with_every_count_and_every_second(store):
    add(store, 0, answer())
    (row,) = store.requests("run-a")
    finished = row.pop("finished_at")
    assert finished is not None
    assert row == {
        "run_id": "run-a",
        "ordinal": 0,
        "request_key": "key 0",
        "sitting": 1,
        "doc_id": 10,
        "prompt": "prompt?",
        "prompt_sha256": "f00",
        "text": "a😀\x00b",
        "output_ids": [7, 8, 0],
        "stop": "eos",
        "prompt_tokens": 5,
        "answered_tokens": 2,
        "answered_characters": 4,
        "committed_tokens": 3,
        "residual_masks": 0,
        "prefill_forwards": 0,
        "denoise_forwards": 2,
        "refresh_forwards": 1,
        "commit_forwards": 0,
        "score_forwards": 0,
        "cfg_forwards": 0,
        "committing_forwards": 3,
        "guaranteed_commits": 1,
        "query_positions": 14,
        **{f"{item}_seconds": seconds for item, seconds in SECONDS.items()},
        "ttft_seconds": 0.5,
        "delivered_seconds": 0.75,
        "block_seconds": [0.75, 1.5],
        "queue_seconds": 0.125,
        "error_type": None,
        "error_message": None,
        "elapsed_seconds": 9.0,
        **dict.fromkeys(SCORED),
    }


def test_a_scored_answer_comes_back_and_answers_and_commits_no_token(store):
    scored = ScoredAnswer("0", 5, 3, -4.5, 0.25, 128, False, True, {"score": 130}, 1040, SECONDS, 9.0)
    store.add_result("run-a", 0, 1, "key 0", 10, "prompt?", "f00", scored, " an answer", 2)
    store.add_result("run-a", 1, 1, "key 1", 10, "prompt?", "f00", Failure("1", "RequestError", "no"), " another", 3)
    row, failed = store.requests("run-a")
    assert {name: row[name] for name in SCORED} == {
        "continuation": " an answer",
        "choice": 2,
        "scored_tokens": 3,
        "loglikelihood": -4.5,
        "standard_error": 0.25,
        "samples": 128,
        "is_exact": False,
        "is_greedy": True,
    }
    assert (row["score_forwards"], row["denoise_forwards"], row["query_positions"]) == (130, 0, 1040)
    assert (row["answered_tokens"], row["committed_tokens"], row["text"], row["stop"]) == (0, 0, None, None)
    assert (failed["continuation"], failed["choice"], failed["loglikelihood"]) == (" another", 3, None)


def test_a_failure_is_a_row_with_its_reason_and_no_numbers(store):
    add(store, 1, Failure("1", "RequestError", "too long"))
    (row,) = store.requests("run-a")
    assert (row["error_type"], row["error_message"]) == ("RequestError", "too long")
    assert row["total_seconds"] is row["answered_tokens"] is row["text"] is None


def test_requests_come_back_in_the_tasks_order(store):
    for ordinal in (2, 0, 1):
        add(store, ordinal, answer(str(ordinal)))
    assert [row["ordinal"] for row in store.requests("run-a")] == [0, 1, 2]


def test_a_request_is_stored_once(store):
    add(store, 0, answer())
    with pytest.raises(StoreWriteError):
        add(store, 0, answer())
    assert len(store.requests("run-a")) == 1


def test_shapes_of_two_sittings_are_added_up(store):
    first = EngineLog((ForwardShape("denoise", 8, 2, 10, 1.0, 80, 300),), 1.5, 0.25, {})
    second = EngineLog(
        (ForwardShape("denoise", 8, 2, 1, 0.5, 8, 30), ForwardShape("refresh", 64, 2, 1, 2.0, 8, 64)), 3.0, 0.5, {}
    )
    store.add_log("run-a", 1, first)
    store.add_log("run-a", 2, second)
    assert store.shapes("run-a") == [
        ForwardShape("denoise", 8, 2, 11, 1.5, 88, 330),
        ForwardShape("refresh", 64, 2, 1, 2.0, 8, 64),
    ]
    assert store.run("run-a")["store_seconds"] == 0.75


def test_what_the_rows_of_each_sitting_did_comes_back(store):
    store.add_log("run-a", 1, EngineLog((), 9.0, 0.0, {"idle": 2.0}, 4, 0.5, 1.5, 1))
    store.add_log("run-a", 2, EngineLog((), 9.0, 0.0, {}))
    names = ("rows", "ramp_seconds", "drain_seconds", "idle_seconds", "compiled_graphs")
    assert [tuple(row[name] for name in names) for row in store.sittings("run-a")] == [
        (4, 0.5, 1.5, 2.0, 1),
        (None, None, None, 0.0, 0),
    ]


def test_a_run_of_before_loads_were_told_apart_was_a_closed_loop(store):
    assert (store.run("run-a")["load"], store.run("run-a")["arrival_rate"]) == ("closed", None)


def test_shapes_that_came_with_the_requests_of_a_killed_sitting_are_kept_and_those_of_a_whole_one_replaced(store):
    row = {"run_id": "run-a", "key": "k", "doc_id": 0, "prompt": "", "prompt_sha256": ""}
    seen = [ForwardShape("denoise", 8, 2, 3, 0.5, 24, 90, 6)], [ForwardShape("denoise", 8, 2, 2, 0.25, 16, 60, 4)]
    for ordinal, shapes in enumerate(seen):
        store.add_result(**row, ordinal=ordinal, sitting=1, result=answer(), shapes=shapes)
    assert store.shapes("run-a") == [ForwardShape("denoise", 8, 2, 5, 0.75, 40, 150, 10)]
    store.add_result(**row, ordinal=2, sitting=2, result=answer(), shapes=seen[0])
    whole = ForwardShape("denoise", 8, 2, 4, 1.0, 32, 120, 8)
    store.add_log("run-a", 2, EngineLog((whole,), 1.0, 0.0, {}))
    assert store.shapes("run-a") == [ForwardShape("denoise", 8, 2, 9, 1.75, 72, 270, 18)]


def test_a_trace_comes_back_in_order_and_replaces_an_earlier_one(store):
    store.add_trace("run-a", 0, answer())
    store.add_trace("run-a", 0, answer())
    forwards, commits = store.trace("run-a", 0)
    assert [(f["step"], f["kind"], f["width"], f["block"]) for f in forwards] == [
        (0, "refresh", 8, 0),
        (1, "denoise", 3, 0),
    ]
    assert [(c["step"], c["position"], c["token"], c["confidence"]) for c in commits] == [
        (0, 5, 7, 0.5),
        (1, 6, 8, 0.9),
    ]
    assert store.trace("run-a", 1) == ([], [])


def test_scores_replace_earlier_ones(store):
    answers = [{"task": "t", "doc_id": 3, "filter": "f", "metric": "m", "value": 1.0, "response": "r", "target": "x"}]
    metrics = [{"task": "t", "metric": "m", "filter": "f", "value": 0.5, "stderr": None, "documents": 2}]
    for _ in range(2):
        store.add_scores("run-a", answers, metrics)
    assert store.answers("run-a") == [{"run_id": "run-a", **answers[0]}]
    assert store.metrics("run-a") == [{"run_id": "run-a", **metrics[0]}]


def test_the_makespan_of_a_run_is_the_sum_over_its_sittings_of_the_last_answers_time(store):
    add(store, 0, answer(elapsed=2.0))
    add(store, 1, answer("1", elapsed=5.0))
    assert store.resume_run("run-a") == 2
    add(store, 2, answer("2", elapsed=1.5), sitting=2)
    store.end_run("run-a", "complete")
    run = store.run("run-a")
    assert (run["status"], run["makespan_seconds"], run["sittings"]) == ("complete", 6.5, 2)
    assert run["ended_at"] >= run["started_at"]


def test_resuming_tries_failed_requests_again_and_keeps_answered_ones(store):
    add(store, 0, answer())
    add(store, 1, Failure("1", "RequestError", "too long"))
    store.end_run("run-a", "failed")
    store.resume_run("run-a")
    assert [row["ordinal"] for row in store.requests("run-a")] == [0]
    assert store.run("run-a")["status"] == "running"


def test_the_newest_run_of_a_content_is_the_one_to_resume(store):
    store.begin_run(run_values("run-b"))
    store.begin_run(run_values("run-c", content_key="other"))
    assert store.unfinished("content")["run_id"] == "run-b"
    assert store.unfinished("unknown") is None


def test_a_manifest_can_be_completed_after_the_run(store):
    store.set_manifest("run-a", {"books": {"gap": 0.01}})
    assert store.run("run-a")["manifest"] == {"books": {"gap": 0.01}}


def test_a_run_is_found_by_the_beginning_of_its_id(store):
    store.begin_run(run_values("run-ab"))
    store.begin_run(run_values("other"))
    assert store.run("oth")["run_id"] == "other"
    assert store.run("run-a")["run_id"] == "run-a"
    with pytest.raises(StoreError) as error:
        store.run("run")
    assert str(error.value) == "Several runs begin with 'run': run-a, run-ab. Type more of it."
    with pytest.raises(StoreError) as error:
        store.run("rum-ab")
    assert str(error.value).startswith(f"There is no run 'rum-ab' in {store.path}. Did you mean 'run-ab'")


def test_a_query_gives_rows_by_name_and_a_bad_one_a_sentence(store):
    assert store.query("SELECT run_id, concurrency FROM runs WHERE backend = ?", ["dualcache"]) == [
        {"run_id": "run-a", "concurrency": 1}
    ]
    with pytest.raises(StoreError) as error:
        store.query("SELECT nothing FROM runs")
    assert str(error.value).startswith(f"{store.path} could not be read: ")
    assert "nothing" in str(error.value)


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_every_table_can_be_written_out(store, tmp_path, format):
    add(store, 0, answer(text='one, "two"\nthree'))
    for table in store.export_tables():
        store.copy_table(table, tmp_path / f"{table}.{format}", format)
    reader = {"parquet": "read_parquet", "csv": "read_csv", "json": "read_json"}[format]
    texts = duckdb.sql(f"SELECT text FROM {reader}('{tmp_path / f'requests.{format}'}')").fetchall()
    assert texts == [('one, "two"\nthree',)]
    with pytest.raises(StoreWriteError, match=r"^.*nowhere.* could not be written: "):
        store.copy_table("runs", tmp_path / "nowhere" / "x", format)


def test_every_table_with_results_can_be_written_out(store):
    made = {row["name"] for row in store.query("SELECT table_name AS name FROM duckdb_tables()")}
    assert set(store.export_tables()) == made - {"schema_migrations"}


def test_a_table_that_cannot_be_read_is_no_fault_of_the_place_where_it_should_be_written(path, tmp_path):
    """A file that was cut off: the advice was once to write elsewhere."""
    with Store.open(path, write=True) as store:
        store.begin_run(run_values())
        add(store, 0, answer(text=os.urandom(600_000).hex()))
    os.truncate(path, path.stat().st_size // 3)
    with Store.open(path) as store, pytest.raises(StoreError) as error:
        store.copy_table("requests", tmp_path / "requests.csv", "csv")
    assert str(error.value).startswith(f"{path} is cut off: a part of it is missing")


# -- files that cannot be used --


def test_reading_a_file_that_is_not_there_says_how_to_make_one(path):
    assert refused(path) == (
        f"There are no results in {path}. Make some with: dllm-audit run --backend dualcache --task gsm_mini"
    )
    assert not path.exists()


def test_a_folder_that_is_not_there(tmp_path):
    path = tmp_path / "nowhere" / "results.duckdb"
    assert refused(path, write=True) == (
        f"The folder {path.parent} for the results file does not exist. Make it, or give another --db."
    )


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("content", [b"not a database", b"x" * 100_000, b"SQLite format 3\x00" + b"\x00" * 4096])
def test_a_file_that_is_no_database_is_left_as_it_was(path, content, write):
    path.write_bytes(content)
    message = refused(path, write)
    assert message.startswith(f"{path} is no readable DuckDB file: ")
    assert message.endswith("Give another --db.")
    assert path.read_bytes() == content


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", "a,b\n1,2\n"), ("a.json", '{"a": 1}'), ("a.jsonl", '{"a": 1}\n')]
)
def test_a_data_file_is_no_results_file(tmp_path, name, content, write):
    """DuckDB opens one as a view in memory: a run once stored everything there, said so, and forgot it."""
    path = tmp_path / name
    path.write_text(content)
    assert refused(path, write).startswith(f"{path} is no readable DuckDB file: ")
    assert path.read_text() == content


@pytest.mark.parametrize("name", [":memory:", "md:results", "a?b=c"])
def test_any_name_is_a_file_that_keeps_what_is_stored(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with Store.open(name, write=True) as store:
        store.begin_run(run_values())
    assert (tmp_path / name).is_file()
    with Store.open(name) as store:
        assert store.run("run-a")["task"] == "gsm_mini"


@pytest.mark.parametrize("write", [False, True])
def test_a_database_of_something_else_is_left_as_it_was(path, write):
    with duckdb.connect(str(path)) as other:
        other.execute("CREATE TABLE mine (a INTEGER)")
    assert refused(path, write) == f"{path} is a DuckDB file of something else. Give another --db."
    with duckdb.connect(str(path)) as other:
        assert other.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [("mine",)]


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE schema_migrations (version VARCHAR); INSERT INTO schema_migrations VALUES ('20240101')",
        "CREATE TABLE schema_migrations (id INTEGER)",
        "CREATE TABLE schema_migrations (version INTEGER, name VARCHAR, applied_at TIMESTAMP); "
        "INSERT INTO schema_migrations VALUES (3, 'theirs', now())",
        "CREATE SCHEMA other; CREATE TABLE other.schema_migrations (version INTEGER)",
        "CREATE VIEW runs AS SELECT 1 AS run_id",
    ],
)
def test_a_database_that_looks_like_one_of_ours_is_left_as_it_was(path, made, write):
    """Many programs keep a table of that name: theirs once ended in a traceback, or in advice about a full disk."""
    with duckdb.connect(str(path)) as other:
        other.execute(made)
    before = path.read_bytes()
    assert refused(path, write) == f"{path} is a DuckDB file of something else. Give another --db."
    assert path.read_bytes() == before


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ("ALTER TABLE requests DROP COLUMN committed_tokens", "requests has no column committed_tokens"),
        ("DROP TABLE metrics", "metrics has no column documents"),
    ],
)
def test_a_file_in_which_a_column_is_missing_is_damaged(path, change, missing, write):
    Store.open(path, write=True).close()
    with duckdb.connect(str(path)) as other:
        other.execute(change)
    assert refused(path, write) == (
        f"{path} is damaged: its table {missing}. Restore it from a copy, or give another --db."
    )


@pytest.mark.parametrize("broken", ['{"a": ', "[1]", "null", ""])
def test_a_run_whose_manifest_is_no_json_object_is_named(path, broken):
    with Store.open(path, write=True) as store:
        store.begin_run(run_values())
    with duckdb.connect(str(path)) as other:
        other.execute("UPDATE runs SET manifest = ?", [broken])
    with Store.open(path) as store, pytest.raises(StoreError) as error:
        store.runs()
    assert str(error.value) == (
        f"{path} is damaged: manifest of run 'run-a' is no JSON object. "
        "Restore the file from a copy, or give another --db."
    )


@pytest.mark.parametrize("write", [False, True])
def test_a_name_that_is_no_utf8_is_refused(tmp_path, write):
    path = tmp_path / "\udcff.duckdb"
    path.write_bytes(b"")
    assert refused(path, write) == (f"{str(path)!r} is no name in UTF-8, and DuckDB opens no other. Rename the file.")


@pytest.mark.parametrize("write", [False, True])
def test_a_file_of_a_newer_version_is_refused(path, write):
    Store.open(path, write=True).close()
    with duckdb.connect(str(path)) as other:
        other.execute("INSERT INTO schema_migrations VALUES (9999, 'future', now())")
    newest = migrations()[-1][0]
    assert refused(path, write) == (
        f"{path} was written by a newer dllm-audit (schema 9999, this one knows {newest}). Upgrade dllm-audit."
    )


def test_a_truncated_database_gets_a_sentence(path):
    with Store.open(path, write=True) as store:
        store.begin_run(run_values())
    path.write_bytes(path.read_bytes()[:5000])
    assert refused(path).startswith(f"{path} ")


# -- the schema --


def test_migrations_are_numbered_without_a_gap():
    assert [number for number, _, _ in migrations()] == list(range(1, len(migrations()) + 1))


def tables(path: Path) -> dict[str, list[tuple[str, str]]]:
    with duckdb.connect(str(path)) as connection:
        rows = connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() ORDER BY table_name, column_index"
        ).fetchall()
    found: dict[str, list[tuple[str, str]]] = {}
    for table, column, type in rows:
        found.setdefault(table, []).append((column, type))
    return found


@pytest.mark.parametrize("reading", [True, False])
@pytest.mark.parametrize("version", range(len(migrations())))
def test_a_file_of_any_older_version_opens_and_is_brought_up_to_date(path, tmp_path, version, reading, monkeypatch):
    if version == 0:
        duckdb.connect(str(path)).close()
    else:
        every = migrations()
        monkeypatch.setattr(database, "migrations", lambda: every[:version])
        Store.open(path, write=True).close()
        monkeypatch.setattr(database, "migrations", lambda: every)
    with Store.open(path, write=not reading) as store:
        assert store.runs() == []
        assert store.writable is not reading
    fresh = tmp_path / "fresh.duckdb"
    Store.open(fresh, write=True).close()
    assert tables(path) == tables(fresh)


def test_an_older_file_that_cannot_be_brought_up_to_date_says_so_to_whoever_reads_it(path, monkeypatch):
    every = migrations()
    monkeypatch.setattr(database, "migrations", lambda: every[:1])
    Store.open(path, write=True).close()
    monkeypatch.setattr(database, "migrations", lambda: every)
    connect = duckdb.connect

    def refuse(name, read_only=False, **options):
        if name == str(path) and not read_only:
            raise duckdb.IOException(f'IO Error: Cannot open file "{name}": Read-only file system')
        return connect(name, read_only=read_only, **options)

    monkeypatch.setattr(database.duckdb, "connect", refuse)
    message = refused(path)
    assert message.startswith(
        f"{path} was written by an older dllm-audit (schema 1), and reading it brings it up to date first. "
        "That was not possible, and a copy elsewhere may help: "
    )
    assert "Read-only file system" in message


def test_a_migration_that_fails_leaves_the_file_as_it_was(path, monkeypatch):
    with Store.open(path, write=True) as store:
        store.begin_run(run_values())
    before = tables(path)
    every = migrations()
    broken = (len(every) + 1, "broken", "ALTER TABLE runs ADD COLUMN extra INTEGER; SELECT * FROM missing;")
    monkeypatch.setattr(database, "migrations", lambda: [*every, broken])
    assert refused(path, write=True, kind=StoreWriteError).startswith(f"{path} could not be written: ")
    monkeypatch.setattr(database, "migrations", lambda: every)
    assert tables(path) == before
    with Store.open(path) as store:
        assert store.run("run-a")["backend"] == "dualcache"


def test_opening_an_up_to_date_file_for_writing_changes_nothing(path):
    with Store.open(path, write=True) as store:
        applied = store.query("SELECT * FROM schema_migrations")
    with Store.open(path, write=True) as store:
        assert store.query("SELECT * FROM schema_migrations") == applied


# -- other processes --


def child(code: str, *arguments: str) -> subprocess.Popen:
    prelude = "import sys, os, signal\nsys.path[:0] = [sys.argv[1]]\nfrom test_database import *\n"
    return subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(code), str(Path(__file__).parent), *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("write", [False, True])
def test_a_file_that_another_process_writes_names_that_process(path, write):
    holder = child("store = Store.open(sys.argv[2], write=True); print('open', flush=True); input()", str(path))
    try:
        assert holder.stdout.readline() == "open\n"
        message = refused(path, write)
        assert message.startswith(f"{path} is being written by the process {holder.pid} (")
        assert message.endswith(
            "Wait until it has ended, or give another --db; a report or table can be made afterwards."
        )
    finally:
        holder.communicate("\n")
    with Store.open(path, write=write):
        pass


def test_several_processes_read_at_once(path):
    Store.open(path, write=True).close()
    reader = child("store = Store.open(sys.argv[2]); print(len(store.runs()), flush=True); input()", str(path))
    try:
        assert reader.stdout.readline() == "0\n"
        with Store.open(path) as store:
            assert store.runs() == []
    finally:
        reader.communicate("\n")


def test_what_was_stored_survives_a_killed_process(path):
    code = """
    store = Store.open(sys.argv[2], write=True)
    store.begin_run(run_values())
    add(store, 0, answer())
    add(store, 1, answer("1"))
    store._connection.execute("BEGIN")
    store._connection.execute("DELETE FROM requests")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    process = child(code, str(path))
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    with Store.open(path) as store:
        assert [row["output_ids"] for row in store.requests("run-a")] == [[7, 8, 0], [7, 8, 0]]
        # Whoever can read the file knows that nobody writes it: the run was cut off.
        assert store.run("run-a")["status"] == "interrupted"


def test_a_torn_end_of_the_write_ahead_log_costs_nothing_that_was_committed(path):
    code = """
    store = Store.open(sys.argv[2], write=True)
    store.begin_run(run_values())
    add(store, 0, answer())
    os.kill(os.getpid(), signal.SIGKILL)
    """
    child(code, str(path)).communicate()
    log = path.with_name(path.name + ".wal")
    with log.open("ab") as file:
        file.write(b"torn")
    with Store.open(path, write=True) as store:
        assert len(store.requests("run-a")) == 1


def test_a_file_that_may_only_be_read_gives_results_but_takes_none(path, monkeypatch):
    with Store.open(path, write=True) as store:
        store.begin_run(run_values())
    if os.geteuid() == 0:
        # Permissions do not bind the superuser, so the refusal is played by the library.
        connect = duckdb.connect

        def refuse(name, read_only=False, **options):
            if not read_only:
                raise duckdb.IOException(f'IO Error: Cannot open file "{name}": Permission denied')
            return connect(name, read_only=read_only, **options)

        monkeypatch.setattr(database.duckdb, "connect", refuse)
    path.chmod(0o444)
    with Store.open(path) as store:
        assert store.run("run-a")["task"] == "gsm_mini"
    message = refused(path, write=True)
    assert message.startswith(f"{path} could not be opened: ")
    assert "Permission denied" in message


def test_a_full_disk_is_no_wrong_use_and_keeps_what_was_stored(path):
    """Files of this process may not grow beyond a limit, which is how a full disk looks to the library."""
    code = """
    import resource
    store = Store.open(sys.argv[2], write=True)
    store.begin_run(run_values())
    stored = 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
    try:
        while stored < 2000:
            add(store, stored, answer(str(stored), text=str(stored) * 4000))
            stored += 1
    except StoreWriteError as error:
        print(json.dumps([stored, error.exit_status, str(error)]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    said, _ = child(code, str(path)).communicate()
    stored, status, message = json.loads(said)
    assert status == 3
    assert message.startswith(f"{path} could not be written: ")
    assert message.endswith("What was stored before is kept; make room or give another --db, then go on with --resume.")
    assert stored > 3
    with Store.open(path, write=True) as store:
        assert [row["ordinal"] for row in store.requests("run-a")] == list(range(stored))


@pytest.mark.parametrize("error", [RuntimeError("Query interrupted"), duckdb.InterruptException("Interrupted!")])
@pytest.mark.parametrize("doing", ["reading", "writing", "copying"])
def test_ctrl_c_in_the_middle_of_a_statement_is_ctrl_c(store, tmp_path, monkeypatch, doing, error):
    """DuckDB makes an error of its own of it, which once ended in a traceback."""

    class Pressed:
        def execute(self, sql, *parameters):
            if sql in ("BEGIN", "ROLLBACK"):
                return None
            raise error

        def close(self):
            pass

    with monkeypatch.context() as patched:
        patched.setattr(store, "_connection", Pressed())
        act = {
            "reading": store.runs,
            "writing": lambda: store.end_run("run-a", "complete"),
            "copying": lambda: store.copy_table("runs", tmp_path / "runs.csv", "csv"),
        }[doing]
        with pytest.raises(KeyboardInterrupt):
            act()


def test_ctrl_c_between_two_statements_leaves_a_file_that_can_be_written_on(store, monkeypatch):
    """The transaction once stayed open, so that nothing more could be stored, not even that the run was interrupted."""

    def pressed(table, values):
        raise KeyboardInterrupt

    metrics = [{"task": "t", "metric": "m", "filter": "f", "value": 0.5, "stderr": None, "documents": 2}]
    store.add_scores("run-a", [], metrics)
    with monkeypatch.context() as patched:
        patched.setattr(store, "_insert", pressed)
        with pytest.raises(KeyboardInterrupt):
            store.add_scores("run-a", [], metrics)
    assert len(store.metrics("run-a")) == 1
    store.end_run("run-a", "interrupted")
    assert store.run("run-a")["status"] == "interrupted"


def test_half_a_character_in_a_prompt_costs_no_run(tmp_path):
    """A chat template may make one: the request then fails, and it once took the whole run along."""
    item = TaskItem(0, 0, "a \ud800 b", "key")
    with Store.open(tmp_path / "results.duckdb", write=True) as store:
        store.begin_run(run_values())
        failure = Failure("0", "RequestError", "no tokens")
        store.add_result("run-a", 0, 1, item.key, item.doc_id, item.prompt, item.prompt_sha256, failure)
        (row,) = store.requests("run-a")
    assert row["prompt"] == "a \N{REPLACEMENT CHARACTER} b"
    assert len(row["prompt_sha256"]) == 64


def test_who_writes_to_a_file_that_is_cut_off_is_not_told_to_make_room(path):
    with Store.open(path, write=True) as store:
        store.begin_run(run_values())
        for ordinal in range(4):
            add(store, ordinal, answer(text=os.urandom(600_000).hex()))
    os.truncate(path, path.stat().st_size // 3)
    with Store.open(path, write=True) as store, pytest.raises(StoreError) as error:
        add(store, 9, answer(text="more"))
    assert "make room" not in str(error.value)
    assert "is cut off: a part of it is missing" in str(error.value)
