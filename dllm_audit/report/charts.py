"""Charts as static SVG: nothing runs in the reader's browser, and colours follow its light or dark theme.

Each chart comes in two widths, one for a screen and one for a phone; the page shows the one that fits. Colours are
Okabe and Ito's (2008), which people with any colour vision tell apart; shapes and numbers repeat what colours say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dllm_audit.analysis.plain import one_line

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "stroke")

#: Items of a request's clock as the chart groups and colours them.
TIME_GROUPS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("waiting", ("waiting",), "#BBBBBB"),
    ("tokenising", ("tokenise", "detokenise"), "#CC79A7"),
    ("prefill", ("prefill",), "#56B4E9"),
    ("denoise", ("denoise",), "#0072B2"),
    ("refresh", ("refresh",), "#E69F00"),
    ("commit", ("commit",), "#D55E00"),
    ("scoring", ("score",), "#882255"),
    ("sampling", ("sampling",), "#009E73"),
    ("host", ("host",), "#777777"),
)

# The renderer needs a colour; the page replaces this one by the colour of its text.
_INK = "#010203"
_WIDE, _NARROW = 1000, 240


@dataclass(frozen=True)
class Chart:
    """Two SVG texts of the same chart and what it shows in words."""

    wide: str
    narrow: str
    alt: str
    caption: str


@dataclass(frozen=True)
class SpeedPoint:
    """One run in the chart of speed and quality. Ends of intervals are None where unknown."""

    number: int
    backend: str
    speed: float
    speed_low: float | None
    speed_high: float | None
    quality: float
    quality_low: float | None
    quality_high: float | None


@dataclass(frozen=True)
class TimeBar:
    """One run in the chart of times: mean seconds of a request by item."""

    number: int
    label: str
    seconds: Mapping[str, float]


#: What a speed counts, in words, by its unit.
_SPEEDS = {"tokens/s": "answered tokens per second", "requests/s": "requests per second"}


def speed_and_quality(points: Sequence[SpeedPoint], metric: str, is_share: bool, unit: str = "tokens/s") -> Chart:
    """Quality over speed, one numbered point a run, with a bar for every known interval."""
    backends = list(dict.fromkeys(point.backend for point in points))
    rows = [
        {
            "number": str(p.number),
            "backend": one_line(p.backend, 40),
            "x": p.speed,
            "x1": p.speed_low,
            "x2": p.speed_high,
            "y": p.quality,
            "y1": p.quality_low,
            "y2": p.quality_high,
            "dy": dy,
        }
        for p, dy in zip(points, _label_offsets(points), strict=True)
    ]
    speeds = [v for p in points for v in (p.speed, p.speed_low, p.speed_high) if v]
    wide_range = max(speeds) > 8 * min(speeds)
    # Room to the right, where numbers stand beside the points.
    x_scale = (
        {"type": "log", "domain": [min(speeds) / 1.3, max(speeds) * 1.3], "nice": False}
        if wide_range
        else {"domain": [0, max(speeds) * 1.1]}
    )
    x = {
        "field": "x",
        "type": "quantitative",
        "scale": x_scale,
        "title": _SPEEDS[unit] + (", log scale" if wide_range else ""),
        "axis": {"tickCount": 5, "format": "~s"},
    }
    y = {
        "field": "y",
        "type": "quantitative",
        "scale": {"domain": [0, 1]} if is_share else {"zero": False},
        "title": one_line(metric, 60),
        "axis": {"tickCount": 5, **({"format": ".0%"} if is_share else {})},
    }
    colour: dict[str, Any] = {
        "field": "backend",
        "type": "nominal",
        "scale": {"domain": [one_line(b, 40) for b in backends], "range": _cycle(PALETTE, len(backends))},
    }
    shape = {**colour, "scale": {**colour["scale"], "range": _cycle(SHAPES, len(backends))}}

    def spec(width: int, columns: int) -> dict[str, Any]:
        legend = {"orient": "bottom", "title": None, "columns": columns}
        hue = {**colour, "legend": legend}
        return {
            "width": width,
            "height": 280,
            "data": {"values": rows},
            "layer": [
                {
                    "transform": [{"filter": "isValid(datum.x1) && isValid(datum.x2)"}],
                    "mark": {"type": "rule", "strokeWidth": 1.5},
                    "encoding": {"x": {**x, "field": "x1"}, "x2": {"field": "x2"}, "y": y, "color": hue},
                },
                {
                    "transform": [{"filter": "isValid(datum.y1) && isValid(datum.y2)"}],
                    "mark": {"type": "rule", "strokeWidth": 1.5},
                    "encoding": {"x": x, "y": {**y, "field": "y1"}, "y2": {"field": "y2"}, "color": hue},
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
                    "encoding": {"x": x, "y": y, "color": hue, "shape": {**shape, "legend": legend}},
                },
                {
                    "mark": {
                        "type": "text",
                        "align": "left",
                        "dx": 8,
                        "dy": {"expr": "datum.dy"},
                        "fontSize": 12,
                        "fontWeight": "bold",
                        "color": _INK,
                    },
                    "encoding": {"x": x, "y": y, "text": {"field": "number"}},
                },
            ],
        }

    said = "; ".join(
        f"run {p.number} ({one_line(p.backend, 40)}) {p.speed:.3g} {_SPEEDS[unit].removeprefix('answered ')} at "
        + (f"{p.quality * 100:.0f} %" if is_share else f"{p.quality:.3g}")
        for p in points
    )
    return _chart(
        spec,
        alt=f"Quality over speed. {said}.",
        caption="Up is better, right is faster. Bars are 95 % intervals; a point without a bar has none that is known. "
        "Numbers are those of the table.",
    )


def where_time_goes(bars: Sequence[TimeBar]) -> Chart:
    """Mean seconds of a request, stacked by item, one bar a run."""
    used = [g for g in TIME_GROUPS if any(sum(bar.seconds.get(i, 0) for i in g[1]) > 0 for bar in bars)]
    rows = [
        {
            "run": f"{bar.number}  {one_line(bar.label, 40)}",
            "short": str(bar.number),
            "item": name,
            "order": position,
            "seconds": sum(bar.seconds.get(item, 0.0) for item in items),
        }
        for bar in bars
        for position, (name, items, _) in enumerate(used)
    ]
    order = list(dict.fromkeys(str(row["run"]) for row in rows))
    short = list(dict.fromkeys(str(row["short"]) for row in rows))

    def spec(width: int, columns: int) -> dict[str, Any]:
        phone = width == _NARROW
        # The reader's font is not the renderer's: leave room for wide letters.
        extent = 7 * max(len(name) for name in (short if phone else order)) + 6
        return {
            "width": width if phone else width - extent,
            "height": {"step": 26},
            "data": {"values": rows},
            "mark": {"type": "bar", "height": 17},
            "encoding": {
                "y": {
                    "field": "short" if phone else "run",
                    "type": "nominal",
                    "sort": short if phone else order,
                    "title": None,
                    "axis": {"labelLimit": extent, "minExtent": extent, "ticks": False, "domain": False},
                },
                "x": {
                    "field": "seconds",
                    "type": "quantitative",
                    "title": "mean seconds per request",
                    "axis": {"tickCount": 5, "format": "~g"},
                },
                "color": {
                    "field": "item",
                    "type": "nominal",
                    "scale": {"domain": [g[0] for g in used], "range": [g[2] for g in used]},
                    "legend": {"orient": "bottom", "title": None, "columns": columns},
                },
                "order": {"field": "order", "type": "quantitative"},
            },
        }

    said = "; ".join(
        f"run {bar.number}: "
        + ", ".join(
            f"{name} {value:.3g} s"
            for name, items, _ in used
            if (value := sum(bar.seconds.get(i, 0) for i in items)) > 0
        )
        for bar in bars
    )
    return _chart(
        spec,
        alt=f"Mean seconds per request by item. {said}.",
        caption="Shorter is faster. The items of a request add up to its whole time; loading and warm-up are outside.",
    )


@dataclass(frozen=True)
class SweepLine:
    """One side of a sweep: (requests in flight, speed, the ends of its interval or None) at every concurrency."""

    name: str
    points: tuple[tuple[int, float | None, float | None, float | None], ...]


def speed_by_concurrency(lines: Sequence[SweepLine]) -> Chart:
    """Speed over the requests in flight, one line a side, with a bar for every known interval."""
    names = [one_line(line.name, 40) for line in lines]
    rows = [
        {"side": name, "x": x, "y": y, "y1": low, "y2": high}
        for name, line in zip(names, lines, strict=True)
        for x, y, low, high in line.points
    ]
    levels = sorted({x for line in lines for x, *_ in line.points})
    x = {
        "field": "x",
        "type": "quantitative",
        "scale": {"type": "log", "base": 2, "domain": [levels[0] / 1.2, levels[-1] * 1.2], "nice": False},
        "title": "requests in flight, log scale",
        "axis": {"values": levels, "format": "d", "grid": False},
    }
    y = {
        "field": "y",
        "type": "quantitative",
        "scale": {"zero": True},
        "title": "answered tokens per second",
        "axis": {"tickCount": 5, "format": "~s"},
    }
    colour: dict[str, Any] = {
        "field": "side",
        "type": "nominal",
        "scale": {"domain": names, "range": _cycle(PALETTE, len(names))},
    }
    shape = {**colour, "scale": {**colour["scale"], "range": _cycle(SHAPES, len(names))}}

    def spec(width: int, columns: int) -> dict[str, Any]:
        legend = {"orient": "bottom", "title": None, "columns": columns}
        hue = {**colour, "legend": legend}
        return {
            "width": width,
            "height": 220,
            "data": {"values": rows},
            "layer": [
                {"mark": {"type": "line", "strokeWidth": 1.5}, "encoding": {"x": x, "y": y, "color": hue}},
                {
                    "transform": [{"filter": "isValid(datum.y1) && isValid(datum.y2)"}],
                    "mark": {"type": "rule", "strokeWidth": 1.5},
                    "encoding": {"x": x, "y": {**y, "field": "y1"}, "y2": {"field": "y2"}, "color": hue},
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
                    "encoding": {"x": x, "y": y, "color": hue, "shape": {**shape, "legend": legend}},
                },
            ],
        }

    said = "; ".join(
        f"{name} " + ", ".join(f"{y:.3g} at {x}" for x, y, *_ in line.points if y is not None)
        for name, line in zip(names, lines, strict=True)
    )
    return _chart(
        spec,
        alt=f"Answered tokens per second by requests in flight. {said}.",
        caption="Higher is faster. Between the points nothing was measured. Bars are 95 % intervals; a point without a bar has "
        "none that is known.",
    )


def _label_offsets(points: Sequence[SpeedPoint]) -> list[int]:
    """How far above its point each number stands, so that numbers of neighbours do not cover each other."""
    fastest = max(point.speed for point in points)
    heights: dict[int, int] = {}
    placed: list[tuple[SpeedPoint, int]] = []
    for point in sorted(points, key=lambda p: p.speed):
        near = {
            level
            for other, level in placed
            if point.speed - other.speed < 0.06 * fastest and abs(point.quality - other.quality) < 0.1
        }
        level = next(n for n in range(len(points) + 1) if n not in near)
        placed.append((point, level))
        heights[point.number] = -8 - 14 * level
    return [heights[point.number] for point in points]


def _cycle(values: Sequence[str], n: int) -> list[str]:
    return [values[i % len(values)] for i in range(n)]


def _chart(spec: Any, alt: str, caption: str) -> Chart:
    return Chart(_svg(spec(_WIDE, 5)), _svg(spec(_NARROW, 2)), alt, caption)


def _svg(spec: dict[str, Any]) -> str:
    import vl_convert

    config = {
        "background": None,
        "font": "sans-serif",
        "view": {"stroke": None},
        "axis": {
            "labelColor": _INK,
            "titleColor": _INK,
            "titleFontWeight": "normal",
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titlePadding": 10,
            "gridColor": _INK,
            "gridOpacity": 0.12,
            "domainColor": _INK,
            "domainOpacity": 0.4,
            "tickColor": _INK,
            "tickOpacity": 0.4,
        },
        "legend": {"labelColor": _INK, "labelFontSize": 12, "symbolSize": 90, "labelLimit": 220, "columnPadding": 30},
    }
    text = vl_convert.vegalite_to_svg(json.loads(json.dumps({**spec, "config": config})), vl_version="6.1")
    text = text.replace(f'"{_INK}"', '"currentColor"').replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    # The figure around it is the image and has the words; what is inside would be read out piece by piece.
    text = re.sub(r' (?:aria-[a-z]+|role)="[^"]*"', "", text)
    return text.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)
