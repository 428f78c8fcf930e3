"""Tables for a terminal: aligned columns, nothing that a model wrote acts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dllm_audit.analysis.plain import one_line


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = (), indent: str = "") -> str:
    """Rows as lines with aligned columns, two spaces apart; columns in `right` are flush right."""
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    for row in cells:
        padded = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append((indent + "  ".join(padded)).rstrip())
    return "\n".join(lines)
