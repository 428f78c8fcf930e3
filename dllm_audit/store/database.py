"""One DuckDB file with every run, request, forward shape, answer and metric.

A request is stored as soon as it is finished, in a transaction of its own, so that a killed run loses nothing that had
ended. One process writes at a time; that is DuckDB's rule, and the message then names the process.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb

from dllm_audit.errors import StoreError, StoreWriteError, did_you_mean
from dllm_audit.files import refuse_special
from dllm_audit.records import (
    FORWARD_KINDS,
    TIME_ITEMS,
    EngineLog,
    Failure,
    ForwardShape,
    Generation,
    ScoredAnswer,
)


def now() -> dt.datetime:
    """The present time in UTC, without a zone, as the database keeps it."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)


def migrations() -> list[tuple[int, str, str]]:
    """(version, name, SQL) of every migration, in order."""
    found = []
    for file in resources.files("dllm_audit.store").joinpath("migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name)
        if match:
            found.append((int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return sorted(found)


class Store:
    """An open results file. Use as a context manager; every method raises StoreError with a sentence."""

    def __init__(self, path: Path, connection: duckdb.DuckDBPyConnection, writable: bool) -> None:
        self.path = path
        self.writable = writable
        self._connection = connection

    @staticmethod
    def open(path: Path | str, write: bool = False) -> Store:
        """Open `path`; with `write`, create it if need be and bring its schema up to date.

        Reading an older schema is done by upgrading it, so a file that cannot be written must have the newest one.
        """
        path = Path(path)
        refuse_special(path, StoreError)
        if not write and not path.exists():
            raise StoreError(
                f"There are no results in {path}. Make some with: dllm-audit run --backend dualcache --task gsm_mini"
            )
        if write and not path.parent.is_dir():
            raise StoreError(
                f"The folder {path.parent} for the results file does not exist. Make it, or give another --db."
            )
        known = migrations()
        newest = known[-1][0]
        connection = _connect(path, write)
        store = Store(path, connection, write)
        try:
            version = store._version()
            if version > newest:
                raise StoreError(
                    f"{path} was written by a newer dllm-audit (schema {version}, this one knows {newest}). Upgrade dllm-audit."
                )
            store._refuse_gaps(version)
            if version < newest and not write:
                connection.close()
                _upgrade(path, version)
                return Store.open(path)
            for number, name, sql in known:
                if number > version:
                    store._migrate(number, name, sql)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close the file. Nothing is lost: every change was committed when it was made."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _version(self) -> int:
        """Number of the newest migration in the file; 0 where it is empty. Raises StoreError where it is no results file."""
        there = {tuple(row.values()) for row in self.query(_COLUMNS)}
        if not there:
            return 0
        foreign = StoreError(f"{self.path} is a DuckDB file of something else. Give another --db.")
        # Other programs keep a table of that name too.
        if not {("main", "schema_migrations", name) for name in ("version", "name", "applied_at")} <= there:
            raise foreign
        version = self.query("SELECT max(version) AS version FROM schema_migrations")[0]["version"]
        if not isinstance(version, int) or version < 1 or ("main", "runs", "run_id") not in there:
            raise foreign
        return version

    def _refuse_gaps(self, version: int) -> None:
        """Raise StoreError where a column is missing that the migrations up to `version` made."""
        there = {tuple(row.values()) for row in self.query(_COLUMNS)}
        made = _columns_of(tuple(sql for number, _, sql in migrations() if number <= version))
        for _, table, column in sorted(made - there):
            raise StoreError(
                f"{self.path} is damaged: its table {table} has no column {column}. "
                "Restore it from a copy, or give another --db."
            )

    def _migrate(self, number: int, name: str, sql: str) -> None:
        with self._transaction():
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations "
                "(version INTEGER PRIMARY KEY, name VARCHAR NOT NULL, applied_at TIMESTAMP NOT NULL)"
            )
            self._connection.execute(sql)
            self._connection.execute("INSERT INTO schema_migrations VALUES (?, ?, ?)", [number, name, now()])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. Raises StoreWriteError when it could not be kept (a full disk, a file that was taken away)."""
        try:
            self._connection.execute("BEGIN")
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            # The failed statement may have ended the transaction already; what counts is the first error.
            with suppress(duckdb.Error):
                self._connection.execute("ROLLBACK")
            if _is_ctrl_c(error):
                raise KeyboardInterrupt from None
            if not isinstance(error, duckdb.Error):
                raise
            if _is_cut_off(error):
                raise self._unreadable(error) from error
            raise StoreWriteError(
                f"{self.path} could not be written: {_first_line(error)} What was stored before is kept; "
                "make room or give another --db, then go on with --resume."
            ) from error

    def _insert(self, table: str, values: Mapping[str, Any]) -> None:
        names = ", ".join(values)
        marks = ", ".join("?" for _ in values)
        self._connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", [*map(_storable, values.values())])

    # -- writing --

    def begin_run(self, run: Mapping[str, Any]) -> None:
        """Store a new run. `run` has the columns of table `runs` that are known at the start; dicts become JSON."""
        values = {k: json.dumps(v) if isinstance(v, dict) else v for k, v in run.items()}
        with self._transaction():
            self._insert("runs", {**values, "status": "running", "sittings": 1, "started_at": now()})

    def resume_run(self, run_id: str) -> int:
        """Reopen an unfinished run; returns the number of this sitting."""
        with self._transaction():
            self._connection.execute(
                "UPDATE runs SET sittings = sittings + 1, status = 'running' WHERE run_id = ?", [run_id]
            )
            # A request that failed is tried again; one that was answered is never repeated.
            self._connection.execute("DELETE FROM requests WHERE run_id = ? AND error_type IS NOT NULL", [run_id])
        return int(self.run(run_id)["sittings"])

    def add_result(
        self,
        run_id: str,
        ordinal: int,
        sitting: int,
        key: str,
        doc_id: int | None,
        prompt: str,
        prompt_sha256: str,
        result: Generation | ScoredAnswer | Failure,
        continuation: str | None = None,
        choice: int | None = None,
        shapes: Sequence[ForwardShape] = (),
    ) -> None:
        """Store one finished request: answered, scored or failed.

        continuation: the answer that was to be scored. choice: its place among the answers of its document.
        shapes: the forwards since the result before, which `add_log` replaces by those of the whole sitting.
        """
        values: dict[str, Any] = {
            "run_id": run_id,
            "ordinal": ordinal,
            "request_key": key,
            "sitting": sitting,
            "doc_id": doc_id,
            "prompt": prompt,
            "prompt_sha256": prompt_sha256,
            "continuation": continuation,
            "choice": choice,
            "finished_at": now(),
        }
        if isinstance(result, Failure):
            values |= {"error_type": result.type, "error_message": result.message}
        else:
            values |= _scored(result) if isinstance(result, ScoredAnswer) else _generated(result)
            values |= {
                "prompt_tokens": result.prompt_tokens,
                "query_positions": result.query_positions,
                "total_seconds": result.seconds["total"],
                "elapsed_seconds": result.elapsed_seconds,
            }
            values |= {f"{kind}_forwards": result.forwards.get(kind, 0) for kind in FORWARD_KINDS}
            values |= {f"{item}_seconds": result.seconds.get(item, 0.0) for item in TIME_ITEMS}
        with self._transaction():
            self._insert("requests", values)
            self._extend("forward_shapes", [(run_id, sitting, *_shape_row(shape)) for shape in shapes])

    def add_trace(self, run_id: str, ordinal: int, result: Generation) -> None:
        """Store the step trace of a request that was decoded again for it."""
        if result.trace is None:
            return
        forwards = [(run_id, ordinal, n, f.kind, f.width, f.block) for n, f in enumerate(result.trace.forwards)]
        commits = [(run_id, ordinal, c.step, c.position, c.token, c.confidence) for c in result.trace.commits]
        with self._transaction():
            for table, rows in (("trace_forwards", forwards), ("trace_commits", commits)):
                self._connection.execute(f"DELETE FROM {table} WHERE run_id = ? AND ordinal = ?", [run_id, ordinal])
                self._extend(table, rows)

    def add_log(self, run_id: str, sitting: int, log: EngineLog) -> None:
        """Store what the engine did in one sitting, in place of what `add_result` stored of it."""
        with self._transaction():
            self._connection.execute("DELETE FROM forward_shapes WHERE run_id = ? AND sitting = ?", [run_id, sitting])
            self._extend("forward_shapes", [(run_id, sitting, *_shape_row(shape)) for shape in log.shapes])
            self._connection.execute("DELETE FROM sittings WHERE run_id = ? AND sitting = ?", [run_id, sitting])
            self._insert(
                "sittings",
                {
                    "run_id": run_id,
                    "sitting": sitting,
                    "rows": log.rows,
                    "ramp_seconds": log.ramp_seconds,
                    "drain_seconds": log.drain_seconds,
                    "idle_seconds": log.seconds.get("idle", 0.0),
                    "compiled_graphs": log.compiled_graphs,
                },
            )
            self._connection.execute(
                "UPDATE runs SET store_seconds = coalesce(store_seconds, 0) + ? WHERE run_id = ?",
                [log.store_seconds, run_id],
            )

    def add_scores(
        self, run_id: str, answers: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Any]]
    ) -> None:
        """Store the answers and metrics of a run, replacing earlier ones of the same run."""
        with self._transaction():
            for table, rows in (("answers", answers), ("metrics", metrics)):
                self._connection.execute(f"DELETE FROM {table} WHERE run_id = ?", [run_id])
                for row in rows:
                    self._insert(table, {"run_id": run_id, **row})

    def add_text_likelihoods(self, run_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store how likely another model finds answers of a run.

        What a model of that name with other weights, or in another number format, said before is forgotten.
        """
        with self._transaction():
            for row in rows:
                self._connection.execute(
                    "DELETE FROM text_likelihoods WHERE run_id = ? AND reference = ? "
                    "AND (reference_sha256 != ? OR dtype != ?)",
                    [run_id, row["reference"], row["reference_sha256"], row["dtype"]],
                )
                self._insert("text_likelihoods", {"run_id": run_id, **row, "scored_at": now()})

    def set_manifest(self, run_id: str, manifest: Mapping[str, Any]) -> None:
        """Replace the manifest of a run, for what is known only after it."""
        with self._transaction():
            self._connection.execute("UPDATE runs SET manifest = ? WHERE run_id = ?", [json.dumps(manifest), run_id])

    def end_run(self, run_id: str, status: str) -> None:
        """Say how a run ended (complete, interrupted or failed), and how long its sittings took.

        The makespan of a sitting ends with its last answer, so that it is known even where the sitting was killed.
        """
        with self._transaction():
            self._connection.execute(
                "UPDATE runs SET status = ?, ended_at = ?, makespan_seconds = (SELECT sum(seconds) FROM "
                "(SELECT max(elapsed_seconds) AS seconds FROM requests WHERE run_id = ? GROUP BY sitting)) "
                "WHERE run_id = ?",
                [status, now(), run_id, run_id],
            )

    def _extend(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        for first in range(0, len(rows), 500):
            # One statement for many rows: DuckDB takes about a millisecond for each statement.
            some = rows[first : first + 500]
            marks = ", ".join(["(" + ", ".join("?" for _ in some[0]) + ")"] * len(some))
            self._connection.execute(f"INSERT INTO {table} VALUES {marks}", [value for row in some for value in row])

    # -- reading --

    def _parsed(self, row: dict[str, Any]) -> dict[str, Any]:
        """A run with its JSON parsed. A reader proves that nobody writes, so what is still running there was cut off."""
        parsed = {**row, **{name: self._json(row, name) for name in ("settings", "setting_sources", "manifest")}}
        if not self.writable and row["status"] == "running":
            parsed["status"] = "interrupted"
        return parsed

    def _json(self, row: Mapping[str, Any], name: str) -> dict[str, Any]:
        """A column of a run that holds a JSON object. Raises StoreError where it holds anything else."""
        with suppress(ValueError):
            value = json.loads(row[name])
            if isinstance(value, dict):
                return value
        raise StoreError(
            f"{self.path} is damaged: {name} of run {row['run_id']!r} is no JSON object. "
            "Restore the file from a copy, or give another --db."
        )

    def query(self, sql: str, parameters: Iterable[Any] = ()) -> list[dict[str, Any]]:
        """Rows of a SELECT as dicts by column name."""
        try:
            cursor = self._connection.execute(sql, list(parameters))
            names = [column[0] for column in cursor.description or []]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        except (duckdb.Error, RuntimeError) as error:
            if _is_ctrl_c(error):
                raise KeyboardInterrupt from None
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> StoreError:
        if _is_cut_off(error):
            return StoreError(
                f"{self.path} is cut off: a part of it is missing, as after a copy that did not end. Put back a whole copy, or "
                "give another --db."
            )
        return StoreError(f"{self.path} could not be read: {_first_line(error)}")

    def runs(self) -> list[dict[str, Any]]:
        """Every run, oldest first; settings, sources and manifest parsed."""
        return [self._parsed(row) for row in self.query("SELECT * FROM runs ORDER BY started_at, run_id")]

    def run(self, run_id: str) -> dict[str, Any]:
        """One run, by its id or by a beginning of it that no other run has."""
        rows = self.query("SELECT * FROM runs WHERE starts_with(run_id, ?) ORDER BY run_id", [run_id])
        exact = [row for row in rows if row["run_id"] == run_id]
        if exact or len(rows) == 1:
            return self._parsed((exact or rows)[0])
        known = [row["run_id"] for row in self.query("SELECT run_id FROM runs")]
        if rows:
            raise StoreError(
                f"Several runs begin with {run_id!r}: {', '.join(r['run_id'] for r in rows[:5])}. Type more of it."
            )
        raise StoreError(f"There is no run {run_id!r} in {self.path}. {did_you_mean(run_id, known)}")

    def requests(self, run_id: str) -> list[dict[str, Any]]:
        """Stored requests of a run in the task's order."""
        return self.query("SELECT * FROM requests WHERE run_id = ? ORDER BY ordinal", [run_id])

    def answered(self, run_id: str) -> list[dict[str, Any]]:
        """Stored requests of a run that were answered, in the task's order."""
        return [row for row in self.requests(run_id) if row["error_type"] is None]

    def traced(self, run_id: str) -> set[int]:
        """Places of the requests of a run that have a step trace."""
        rows = self.query("SELECT DISTINCT ordinal FROM trace_forwards WHERE run_id = ?", [run_id])
        return {row["ordinal"] for row in rows}

    def shapes(self, run_id: str) -> list[ForwardShape]:
        """Forward shapes of a run, sittings added up."""
        rows = self.query(
            "SELECT kind, width, rows, sum(count)::BIGINT AS count, sum(seconds) AS seconds, "
            "sum(decided)::BIGINT AS decided, sum(keys)::BIGINT AS keys, sum(in_flight)::BIGINT AS in_flight FROM forward_shapes WHERE run_id = ? GROUP BY ALL ORDER BY kind, width, rows",
            [run_id],
        )
        return [ForwardShape(**row) for row in rows]

    def sittings(self, run_id: str) -> list[dict[str, Any]]:
        """What the rows of each sitting of a run did, as far as its log was stored."""
        return self.query("SELECT * FROM sittings WHERE run_id = ? ORDER BY sitting", [run_id])

    def answers(self, run_id: str) -> list[dict[str, Any]]:
        """Scored answers of a run: one row per document, filter and metric."""
        return self.query("SELECT * FROM answers WHERE run_id = ? ORDER BY doc_id, filter, metric", [run_id])

    def text_likelihoods(self, run_id: str) -> list[dict[str, Any]]:
        """How likely other models find the answers of a run: one row per answer and model."""
        return self.query("SELECT * FROM text_likelihoods WHERE run_id = ? ORDER BY reference, ordinal", [run_id])

    def metrics(self, run_id: str) -> list[dict[str, Any]]:
        """Aggregated metrics of a run."""
        return self.query("SELECT * FROM metrics WHERE run_id = ? ORDER BY metric, filter", [run_id])

    def trace(self, run_id: str, ordinal: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """(forwards, commits) of a traced request; both empty when it was not traced."""
        where = "WHERE run_id = ? AND ordinal = ? ORDER BY step"
        return (
            self.query(f"SELECT * FROM trace_forwards {where}", [run_id, ordinal]),
            self.query(f"SELECT * FROM trace_commits {where}, position", [run_id, ordinal]),
        )

    def unfinished(self, content_key: str) -> dict[str, Any] | None:
        """The run with this content that --resume goes on with: an unfinished one before a complete one, then the newest."""
        rows = self.query(
            "SELECT * FROM runs WHERE content_key = ? ORDER BY status = 'complete', started_at DESC LIMIT 1",
            [content_key],
        )
        return self._parsed(rows[0]) if rows else None

    def export_tables(self) -> tuple[str, ...]:
        """Names of the tables that hold results."""
        return (
            "runs",
            "requests",
            "forward_shapes",
            "sittings",
            "trace_forwards",
            "trace_commits",
            "answers",
            "metrics",
            "text_likelihoods",
        )

    def copy_table(self, table: str, target: Path, format: str) -> None:
        """Write a whole table to `target` as parquet, csv or json. Raises StoreWriteError where `target` cannot be written."""
        assert table in self.export_tables()
        options = {
            "parquet": "FORMAT parquet",
            "csv": "FORMAT csv, HEADER",
            "json": "FORMAT json, ARRAY true",
        }[format]
        try:
            self._connection.execute(f"COPY (SELECT * FROM {table}) TO ? ({options})", [str(target)])
        except (duckdb.Error, RuntimeError) as error:
            if _is_ctrl_c(error):
                raise KeyboardInterrupt from None
            if str(self.path.absolute()) in str(error):
                raise self._unreadable(error) from error
            raise StoreWriteError(f"{target} could not be written: {_first_line(error)}") from error


def _generated(result: Generation) -> dict[str, Any]:
    """The columns of a request that was answered with text."""
    return {
        "text": result.text,
        "output_ids": list(result.output_ids),
        "stop": result.stop,
        "answered_tokens": result.answered_tokens,
        "answered_characters": len(result.text or ""),
        "committed_tokens": result.committed_tokens,
        "residual_masks": result.residual_masks,
        "committing_forwards": result.committing_forwards,
        "guaranteed_commits": result.guaranteed_commits,
        "ttft_seconds": result.ttft_seconds,
        "delivered_seconds": result.delivered_seconds,
        "block_seconds": list(result.block_seconds),
        "queue_seconds": result.queue_seconds,
    }


def _scored(result: ScoredAnswer) -> dict[str, Any]:
    """The columns of a request that was scored: it answers and commits no token."""
    return {
        "answered_tokens": 0,
        "committed_tokens": 0,
        "scored_tokens": result.scored_tokens,
        "loglikelihood": result.loglikelihood,
        "standard_error": result.standard_error,
        "samples": result.samples,
        "is_exact": result.exact,
        "is_greedy": result.is_greedy,
    }


def _shape_row(shape: ForwardShape) -> tuple[Any, ...]:
    return (shape.kind, shape.width, shape.rows, shape.count, shape.seconds, shape.decided, shape.keys, shape.in_flight)


#: Schema, table and name of every column that somebody made.
_COLUMNS = "SELECT schema_name, table_name, column_name FROM duckdb_columns() WHERE NOT internal"


@cache
def _columns_of(scripts: tuple[str, ...]) -> frozenset[tuple[Any, ...]]:
    """The columns that migrations make: (schema, table, name) of each."""
    with duckdb.connect(":memory:") as connection:
        for sql in scripts:
            connection.execute(sql)
        return frozenset(connection.execute(_COLUMNS).fetchall())


def _upgrade(path: Path, version: int) -> None:
    """Bring a file that is only to be read up to date."""
    try:
        Store.open(path, write=True).close()
    except StoreError as error:
        raise type(error)(
            f"{path} was written by an older dllm-audit (schema {version}), and reading it brings it up to date first. "
            f"That was not possible, and a copy elsewhere may help: {error}"
        ) from error


#: A file of another kind (SQLite, say) makes DuckDB fetch an extension from the network to read it: never.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


def _connect(path: Path, write: bool) -> duckdb.DuckDBPyConnection:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise StoreError(f"{str(path)!r} is no name in UTF-8, and DuckDB opens no other. Rename the file.") from None
    try:
        # Absolute: ":memory:" and "md:name" are names of files here, not places where results would be lost.
        connection = duckdb.connect(str(path.absolute()), read_only=not write, config=_CONFIG)
        # A data file (x.csv, x.json) is opened as a view in a database in memory, which would forget every result.
        (where,) = connection.execute("SELECT path FROM duckdb_databases() WHERE NOT internal").fetchone() or (None,)
        if where is None:
            connection.close()
            raise StoreError(f"{path} is no readable DuckDB file: it holds data of another kind. Give another --db.")
        return connection
    except duckdb.Error as error:
        message = str(error)
        holder = re.search(r"held in (.*?)\s*\(PID (\d+)\)", message)
        if "lock on file" in message:
            who = f"the process {holder[2]} ({holder[1]})" if holder else "another process"
            raise StoreError(
                f"{path} is being written by {who}. Wait until it has ended, or give another --db; "
                "a report or table can be made afterwards."
            ) from error
        if re.search("not a valid DuckDB|corrupt|checksum|extension|in-memory database", message, re.IGNORECASE):
            raise StoreError(f"{path} is no readable DuckDB file: {_first_line(error)} Give another --db.") from error
        raise StoreError(f"{path} could not be opened: {_first_line(error)}") from error


def _is_cut_off(error: BaseException) -> bool:
    """Whether DuckDB wants to read where the file has ended."""
    return "Could not read enough bytes from file" in str(error)


def _is_ctrl_c(error: BaseException) -> bool:
    """Whether a statement ended because somebody pressed Ctrl-C: DuckDB makes an error of its own of that."""
    return isinstance(error, duckdb.InterruptException) or (type(error) is RuntimeError and "interrupted" in str(error))


def _storable(value: Any) -> Any:
    """A value as it is; of a text each half of a surrogate pair, which is no character and has no bytes, as a replacement."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _first_line(error: Exception) -> str:
    line = str(error).strip().splitlines()[0].strip()
    return line if line.endswith((".", "!")) else line + "."
