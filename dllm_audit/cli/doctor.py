"""`dllm-audit doctor`: what this machine is, and what would spoil timing on it."""

from __future__ import annotations

import click

from dllm_audit.analysis.plain import one_line
from dllm_audit.cli.opening import installed
from dllm_audit.cli.options import device_option, json_option
from dllm_audit.cli.terminal import say_json


@click.command(epilog="Example: dllm-audit doctor --device auto")
@device_option
@json_option
def command(device: str, as_json: bool) -> None:
    """Show machine, versions and threads, check that the plugins load, and warn of what spoils timing."""
    from dllm_audit.evaluate.sandbox import isolation
    from dllm_audit.measure.environment import describe, timing_hazards
    from dllm_audit.models.loading import pick_device

    plugins = installed()
    facts = describe(pick_device(device))
    hazards = timing_hazards(facts)
    if as_json:
        report = {
            "environment": facts,
            "backends": sorted(plugins.backends),
            "code_execution": isolation().words,
            "warnings": [*plugins.problems, *hazards],
        }
        say_json(report, indent=2)
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {one_line(str(value), 2000)}")
    for name, value in (
        ("backends", ", ".join(sorted(plugins.backends))),
        ("code_execution", f"in subprocesses {isolation().words}"),
    ):
        click.echo(f"{name:<{width}}  {one_line(value, 2000)}")
    click.echo()
    for hazard in hazards:
        click.echo(f"Warning: {one_line(hazard, 2000)}")
    if not hazards:
        click.echo("Nothing was found that spoils timing.")
