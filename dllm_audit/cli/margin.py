"""The loss in quality that a comparison allows."""

from __future__ import annotations

import click

margin_option = click.option(
    "--margin",
    type=click.FloatRange(min=0, max=100, min_open=True, max_open=True),
    default=2.0,
    show_default=True,
    metavar="POINTS",
    help="Loss in quality that still counts as not worse; choose it before you look.",
)
