"""The runs as a LaTeX table (package booktabs), every text escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dllm_audit.analysis.labels import label
from dllm_audit.analysis.plain import one_line
from dllm_audit.analysis.summary import summarise

if TYPE_CHECKING:
    from dllm_audit.analysis.figures import Figure
    from dllm_audit.store.database import Store

#: How a table begins; a file that begins otherwise is none of ours.
MARK = "% dllm-audit"

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{c: "\\" + c for c in "&%$#_{}"},
}


def runs_table(store: Store, runs: Sequence[Mapping[str, Any]]) -> str:
    """A table with one line a run: decoder, model, task, speed, quality, tau, G; intervals are 95 %."""
    lines = [
        f"{MARK}: runs; needs \\usepackage{{booktabs}}",
        "\\begin{tabular}{lllrrrrr}",
        "\\toprule",
        "Decoder & Model & Task & Requests & Tokens/s & Quality & $\\tau$ & $G$ \\\\",
        "\\midrule",
    ]
    for run in runs:
        summary = summarise(store, run["run_id"])
        metric = summary.primary_metric
        requests = str(summary.answered) + (f" ({summary.failed} failed)" if summary.failed else "")
        cells = [
            escape(label(run)),
            escape(run["model"]),
            escape(run["task"]),
            requests,
            _cell(summary.throughput, 1),
            _cell(metric.figure, 3) if metric else "--",
            _cell(summary.committed_per_forward, 2),
            _cell(summary.positions_per_forward, 1),
        ]
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def escape(text: str) -> str:
    """`text` as LaTeX shows it, on one line."""
    return "".join(_SPECIAL.get(c, c) for c in one_line(text))


def _cell(figure: Figure, digits: int) -> str:
    if figure.value is None:
        return "--"
    text = f"{figure.value:.{digits}f}"
    if figure.low is None or figure.high is None:
        return text
    return f"{text} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"
