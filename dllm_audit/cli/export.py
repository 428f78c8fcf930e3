"""`dllm-audit export`: the results for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dllm_audit.cli.options import database_option
from dllm_audit.cli.output import (
    check_target,
    could_not_copy,
    could_not_write,
    is_special,
    is_stdout,
    spare_results,
    write_whole,
)
from dllm_audit.errors import StoreWriteError, UsageError

if TYPE_CHECKING:
    from dllm_audit.store.database import Store

DEFAULT_FOLDER = "dllm-audit-export"

MANIFEST = "dllm-audit-export.json"
"""Beside the tables of an export: which files are its own, so that the next one may replace them."""


@click.command(epilog="Example: dllm-audit export --format parquet -o results && dllm-audit export --format latex")
@click.option(
    "--format", "form", type=click.Choice(["parquet", "csv", "json", "latex"]), required=True, help="What to write."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help=f"Folder, or a name that ends in .zip [default: {DEFAULT_FOLDER}]; for latex a file [default: stdout].",
)
@database_option
def command(form: str, output: Path | None, database: Path) -> None:
    """Write the results as Parquet, CSV or JSON, one file per table, or as a LaTeX table of runs.

    The tables are runs, requests, forward_shapes, sittings, trace_forwards, trace_commits, answers,
    metrics and text_likelihoods; run_id joins them.
    They go into a folder, or into one archive if the name ends in .zip; only an earlier export is replaced. The LaTeX table needs the package booktabs.
    """
    from dllm_audit.store.database import Store

    with Store.open(database) as store:
        if form == "latex":
            _latex(store, output)
        else:
            _tables(store, form, output or Path(DEFAULT_FOLDER))


def _latex(store: Store, output: Path | None) -> None:
    from dllm_audit.report.latex import MARK, runs_table
    from dllm_audit.report.sections.runs import newest_runs

    runs = newest_runs(store.runs())
    if not runs:
        raise UsageError(
            f"There are no runs in {store.path}. Make some with: dllm-audit run --backend dualcache --task gsm_mini"
        )
    if output is not None:
        check_target(output, store.path, lambda path: _begins(path, MARK.encode()), "table", "runs.tex")
    text = runs_table(store, runs)
    if output is None:
        click.echo(text, nl=False)
        return
    write_whole(output, text)
    click.echo(str(output), err=is_stdout(output))


def _begins(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(mark)) == mark


def _is_archive(path: Path) -> bool:
    """Whether a file is an archive that an earlier export made."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return MANIFEST in archive.namelist()
    except zipfile.BadZipFile:
        return False


def _written_before(folder: Path) -> list[str]:
    """Names of the files that earlier exports wrote into `folder`."""
    import json

    try:
        return list(map(str, json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []


def _tables(store: Store, form: str, output: Path) -> None:
    """Every table in `form`, into a folder or a zip archive."""
    import os
    import shutil
    import tempfile

    names = [f"{table}.{form}" for table in store.export_tables()]
    zipped = output.suffix == ".zip"
    spare_results(output, store.path)
    target = Path(os.path.realpath(output))
    if not target.parent.is_dir() and not is_special(output):
        raise UsageError(f"The folder {output.parent} does not exist. Make it, or give another -o.")
    if output.exists() and zipped == output.is_dir():
        raise UsageError(f"{output} is a {'folder' if output.is_dir() else 'file'}. Give another -o.")
    if zipped:
        check_target(output, store.path, _is_archive, "export", "results.zip")
    else:
        _check_folder(target, output, names, store.path)
    parent = Path(tempfile.gettempdir()) if is_special(output) else target.parent
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".export-") as scratch:
            folder = Path(scratch) / "tables"
            folder.mkdir()
            for table, name in zip(store.export_tables(), names, strict=True):
                store.copy_table(table, folder / name, form)
            if zipped:
                _say_ours(folder, names)
                archive = shutil.make_archive(str(Path(scratch) / "archive"), "zip", folder)
                write_whole(output, Path(archive).read_bytes())
            else:
                target.mkdir(exist_ok=True)
                # First the list: were the rest cut off, the next export would still know these files as its own.
                _say_ours(target, sorted({*_written_before(target), *names}))
                for name in names:
                    (folder / name).replace(target / name)
    except StoreWriteError as error:
        raise could_not_copy(output, str(error).partition(" could not be written: ")[2]) from error
    except OSError as error:
        raise could_not_write(output, error) from error
    click.echo(f"{output}: {', '.join(names)}")


def _say_ours(folder: Path, names: list[str]) -> None:
    import json

    from dllm_audit import __version__

    facts = {"made_by": f"dllm-audit {__version__}", "files": names}
    (folder / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _check_folder(folder: Path, shown: Path, names: list[str], database: Path) -> None:
    """Raise UsageError where a file is in the way that no export made."""
    known = _written_before(folder)
    for name in names:
        spare_results(folder / name, database)
    foreign = [name for name in names if name not in known and _exists(folder / name)]
    if (folder / MANIFEST).exists() and not known:
        foreign.append(MANIFEST)
    if foreign:
        raise UsageError(
            f"{shown} holds {', '.join(foreign)}, which no export of this tool is known to have written, "
            "so nothing is replaced. Give another folder with -o, or remove them first."
        )


def _exists(path: Path) -> bool:
    """Whether anything is there, also a link that leads nowhere."""
    return path.exists() or path.is_symlink()
