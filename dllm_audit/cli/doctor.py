"""`dllm-audit doctor`: what this machine is, what can be measured on it, and what would spoil timing."""

from __future__ import annotations

from typing import Any

import click

from dllm_audit.analysis.plain import fact_value, fact_words, one_line
from dllm_audit.cli.opening import installed
from dllm_audit.cli.options import device_option, json_option
from dllm_audit.cli.terminal import say_json


@click.command(epilog="Example: dllm-audit doctor --device auto")
@device_option
@json_option
def command(device: str, as_json: bool) -> None:
    """Show machine, versions and threads, what can be measured here, and warn of what spoils timing.

    Nothing is changed, and nothing runs on the device. What cannot be read says why.
    """
    from dllm_audit.evaluate.sandbox import isolation
    from dllm_audit.measure import environment
    from dllm_audit.measure.energy import find_energy_source
    from dllm_audit.measure.hazards import timing_hazards
    from dllm_audit.measure.memory import PeakMemory
    from dllm_audit.models.loading import pick_device

    plugins = installed()
    chosen = pick_device(device)
    # Before anything of ours is on the device.
    facts = environment.readings(chosen)
    facts = environment.describe(chosen) | facts
    hazards = timing_hazards(facts)
    source = find_energy_source(chosen)
    measured = {
        "energy": f"unknown: {source.reason}" if source.counter is None else source.counter.name,
        "peak_memory": PeakMemory(chosen).read()["peak_memory_of"],
        "code_commit": environment.code_commit() or "unknown: this is no git checkout",
        "weight_hashes": f"remembered in {environment.hash_cache()}",
    }
    if as_json:
        report = {
            "environment": facts,
            "measured_by": measured,
            "backends": sorted(plugins.backends),
            "code_execution": isolation().words,
            "warnings": [*plugins.problems, *hazards],
        }
        say_json(report, indent=2)
        return
    shown: dict[str, Any] = {
        **facts,
        **measured,
        "backends": ", ".join(sorted(plugins.backends)),
        "code_execution": f"in subprocesses {isolation().words}",
    }
    width = max(len(fact_words(name)) for name in shown)
    for name, value in shown.items():
        click.echo(f"{fact_words(name):<{width}}  {one_line(fact_value(name, value), 2000)}")
    click.echo()
    for hazard in hazards:
        click.echo(f"Warning: {one_line(hazard, 2000)}")
    if not hazards:
        click.echo("Nothing was found that spoils timing.")
