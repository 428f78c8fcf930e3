"""Build the report: one HTML page that needs no network, runs no script and opens from disk."""

from __future__ import annotations

import base64
import hashlib
import shlex

from dllm_audit.analysis.baseline import MATERIALLY_SLOWER
from dllm_audit.analysis.pairing import SINGLE_RUN_NOISE
from dllm_audit.analysis.plain import visible
from dllm_audit.report.formats import interval, number, percent, points, probability, seconds, token_text
from dllm_audit.report.page import Report
from dllm_audit.report.sections.checks import quantity
from dllm_audit.report.sections.claims import seen_in
from dllm_audit.resources import resource_folder


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
        probability=probability,
        vis=visible,
        token=token_text,
        svg=Markup,
        quantity=quantity,
        quoted=shlex.quote,
        seen_in=seen_in,
    )
    environment.globals.update(
        interval=interval,
        num=number,
        pct=percent,
        sec=seconds,
        materially_slower=MATERIALLY_SLOWER,
        single_run_noise=SINGLE_RUN_NOISE,
    )
    page = environment.get_template("report.html.j2").render(
        report=report, style=Markup(style), style_hash=_hash(style), rows=report.rows
    )
    # A lone surrogate cannot be written as UTF-8; `vis` spells those out, this is the last net.
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


def _hash(style: str) -> str:
    """What a Content-Security-Policy needs to allow exactly this style sheet."""
    return "sha256-" + base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
