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
    """A table with one line a run: decoder, model, task, speed, quality, tau, G; intervals are 95 %.

    What a reader must know before using the figures of a run (it was not finished, its times do not add up, ...) stands
    under the table as in the HTML report, with a number beside the run.
    """
    notes: dict[str, int] = {}
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
        marks = ",".join(map(str, sorted(notes.setdefault(note, len(notes) + 1) for note in summary.notes)))
        cells = [
            escape(label(run)) + (f"\\textsuperscript{{{marks}}}" if marks else ""),
            escape(run["model"]),
            escape(run["task"]),
            requests,
            _cell(summary.throughput, 1),
            _cell(metric.figure, 3) if metric else "--",
            _cell(summary.committed_per_forward, 2),
            _cell(summary.positions_per_forward, 1),
        ]
        lines.append(" & ".join(cells) + " \\\\")
    under = [
        f"\\par\\noindent{{\\footnotesize\\textsuperscript{{{n}}} {escape(note, 2000)}\\par}}"
        for note, n in notes.items()
    ]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *under, ""])


def escape(text: str, limit: int = 200) -> str:
    """`text` as LaTeX shows it, on one line of at most `limit` characters before they are escaped."""
    return "".join(_SPECIAL.get(c, c) for c in one_line(text, limit))


def _cell(figure: Figure, digits: int) -> str:
    if figure.value is None:
        return "--"
    text = f"{figure.value:.{digits}f}"
    if figure.low is None or figure.high is None:
        return text
    return f"{text} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"
