"""The loss in quality that a comparison allows."""

from __future__ import annotations

from typing import Any

import click

#: A number from here up to 1 is neither: hardly anybody allows 20 points, or can decide a fifth of one.
_LARGEST_SHARE = 0.2


class Margin(click.ParamType):
    """Points from 1 upwards (2), or a share (0.02); either way a share comes out."""

    name = "margin"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is no number, such as 2 for two points.", param, ctx)
        if 0 < number <= _LARGEST_SHARE:
            return number
        if 1 <= number < 100:
            return number / 100
        if _LARGEST_SHARE < number < 1:
            self.fail(
                f"{value} could be {number:g} points or {number * 100:g}. Write {number / 100:g} or {number * 100:g}.",
                param,
                ctx,
            )
        self.fail(f"{value} is no loss between 0 and 100 points.", param, ctx)


margin_option = click.option(
    "--margin",
    type=Margin(),
    metavar="POINTS",
    help="Loss in quality that still counts as not worse, in points (2) or as a share (0.02); choose it before you look "
    "[default: 2, or what --until-decided was given].",
)
