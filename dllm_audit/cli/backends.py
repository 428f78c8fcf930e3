"""`dllm-audit backends`: what can decode, with which settings."""

from __future__ import annotations

from typing import Any

import click

from dllm_audit.analysis.plain import one_line
from dllm_audit.cli.opening import installed
from dllm_audit.cli.options import json_option
from dllm_audit.cli.terminal import say_json


@click.command(epilog="Example: dllm-audit backends --json")
@json_option
def command(as_json: bool) -> None:
    """List the decoder backends: kind, model families, settings with defaults, where each was registered."""
    plugins = installed()
    facts: list[dict[str, Any]] = [
        {
            "name": backend.name,
            "summary": backend.summary,
            "provenance": backend.provenance,
            "kind": backend.kind,
            "families": list(backend.families),
            "default_model": backend.default_model,
            "settings": dict(backend.settings),
            "registered_by": plugins.origins[backend.name],
            "waivers": list(backend.waivers),
        }
        for backend in plugins.backends.values()
    ]
    if as_json:
        say_json(facts, indent=2)
        return

    def line(text: str) -> None:
        # A plugin wrote it.
        click.echo(one_line(text, 2000))

    for fact in facts:
        line(f"{fact['name']}  [{fact['provenance']}, {fact['kind']}]  {fact['summary']}")
        line(f"    families: {', '.join(fact['families'])}; default model: {fact['default_model'] or 'none'}")
        settings = one_line(", ".join(f"{k}={_plain(v)}" for k, v in fact["settings"].items()), 2000)
        click.echo(click.wrap_text(f"settings: {settings}", 100, "    ", "      "))
        line(f"    registered by {fact['registered_by']}")
        for waiver in fact["waivers"]:
            line(f"    waiver: {waiver}")


def _plain(value: object) -> str:
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
