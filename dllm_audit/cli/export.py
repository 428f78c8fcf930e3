"""`dllm-audit export`: the results for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dllm_audit.cli.options import database_option
from dllm_audit.errors import AuditError, UsageError

if TYPE_CHECKING:
    from dllm_audit.store.database import Store

DEFAULT_FOLDER = "dllm-audit-export"


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

    The tables are runs, requests, forward_shapes, trace_forwards, trace_commits, answers and metrics; run_id joins them.
    They go into a folder, or into one archive if the name ends in .zip. The LaTeX table needs the package booktabs.
    """
    from dllm_audit.store.database import Store

    with Store.open(database) as store:
        if form == "latex":
            _latex(store, output)
        else:
            _tables(store, form, output or Path(DEFAULT_FOLDER))


def _latex(store: Store, output: Path | None) -> None:
    from dllm_audit.cli.report import write_whole
    from dllm_audit.report.contexts import newest_runs
    from dllm_audit.report.latex import runs_table

    runs = newest_runs(store.runs())
    if not runs:
        raise UsageError(
            f"There are no runs in {store.path}. Make some with: dllm-audit run --backend dualcache --task gsm_mini"
        )
    text = runs_table(store, runs)
    if output is None:
        click.echo(text, nl=False)
        return
    if output.is_dir():
        raise UsageError(f"{output} is a folder. Give a file with -o, for example -o {output / 'runs.tex'}")
    if not output.parent.is_dir():
        raise UsageError(f"The folder {output.parent} does not exist. Make it, or give another file with -o.")
    write_whole(output, text)
    click.echo(str(output))


def _tables(store: Store, form: str, output: Path) -> None:
    """Every table in `form`, into a folder or a zip archive."""
    import shutil
    import tempfile

    if not output.parent.is_dir():
        raise UsageError(f"The folder {output.parent} does not exist. Make it, or give another -o.")
    if output.exists() and (output.suffix == ".zip") == output.is_dir():
        raise UsageError(f"{output} is a {'folder' if output.is_dir() else 'file'}. Give another -o.")
    names = [f"{table}.{form}" for table in store.export_tables()]
    try:
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".export-") as scratch:
            folder = Path(scratch) / "tables"
            folder.mkdir()
            for table, name in zip(store.export_tables(), names, strict=True):
                store.copy_table(table, folder / name, form)
            if output.suffix == ".zip":
                Path(shutil.make_archive(str(Path(scratch) / "archive"), "zip", folder)).replace(output)
            else:
                output.mkdir(exist_ok=True)
                for name in names:
                    (folder / name).replace(output / name)
    except OSError as error:
        raise AuditError(
            f"{output} could not be written: {error.strerror or error}. Make room, or give another -o."
        ) from error
    click.echo(f"{output}: {', '.join(names)}")
