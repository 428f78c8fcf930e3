"""Build the report: one HTML page that needs no network, runs no script and opens from disk."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dllm_audit import __version__
from dllm_audit.analysis.pairing import DEFAULT_MARGIN
from dllm_audit.analysis.plain import visible
from dllm_audit.errors import UsageError
from dllm_audit.report.checks import quantity
from dllm_audit.report.contexts import Report, TokenTexts, newest_runs, report_context, seen_in
from dllm_audit.report.formats import interval, number, percent, points, seconds, token_text
from dllm_audit.resources import resource_folder

if TYPE_CHECKING:
    from dllm_audit.claims.registry import Registry
    from dllm_audit.claims.traps import Trap
    from dllm_audit.store.database import Store


def build_report(
    store: Store,
    registry: Registry,
    runs: Sequence[Mapping[str, Any]] | None = None,
    *,
    token_texts: TokenTexts | None = None,
    margin: float = DEFAULT_MARGIN,
    made_at: dt.datetime | None = None,
    traps: Sequence[Trap] | None = None,
) -> str:
    """The report of `runs` (rows of the store; by default the newest of each content) as one HTML text.

    token_texts: gives the texts of single tokens for the traced example; without it their ids are shown.
    traps: those that claims are searched for, by default those of the package.
    Raises UsageError when there is no run.
    """
    return render(gather(store, registry, runs, token_texts=token_texts, margin=margin, made_at=made_at, traps=traps))


def gather(
    store: Store,
    registry: Registry,
    runs: Sequence[Mapping[str, Any]] | None = None,
    *,
    token_texts: TokenTexts | None = None,
    margin: float = DEFAULT_MARGIN,
    made_at: dt.datetime | None = None,
    traps: Sequence[Trap] | None = None,
) -> Report:
    """What the report says, before it is laid out. Arguments as of `build_report`.

    Claims are checked against the named runs only, or against all that are stored, as `claims check` does.
    """
    stored = store.runs()
    chosen = newest_runs(stored) if runs is None else list(runs)
    if not chosen:
        raise UsageError(
            f"There are no runs in {store.path}. Make some with: dllm-audit run --backend dualcache --task gsm_mini"
        )
    moment = made_at or dt.datetime.now(dt.UTC)
    return report_context(
        store,
        registry,
        chosen,
        token_texts or (lambda run, ids: None),
        version=__version__,
        made_at=f"{moment:%Y-%m-%d %H:%M} UTC",
        margin=margin,
        left_out=len(stored) - len(chosen) if runs is None else 0,
        traps=traps,
        checked_runs=stored if runs is None else chosen,
    )


def render(report: Report) -> str:
    """The page: templates only lay out what `report` says."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    folder = resource_folder("reports")
    style = (folder / "report.css").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number,
        percent=percent,
        seconds=seconds,
        points=points,
        vis=visible,
        token=token_text,
        svg=Markup,
        quantity=quantity,
        quoted=shlex.quote,
        seen_in=seen_in,
    )
    environment.globals.update(interval=interval, num=number, pct=percent, sec=seconds)
    page = environment.get_template("report.html.j2").render(
        report=report, style=Markup(style), style_hash=_hash(style), rows=report.rows
    )
    # A lone surrogate cannot be written as UTF-8; `vis` spells those out, this is the last net.
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def _hash(style: str) -> str:
    """What a Content-Security-Policy needs to allow exactly this style sheet."""
    return "sha256-" + base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
