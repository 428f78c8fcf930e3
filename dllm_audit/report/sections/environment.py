"""Machines, software and settings of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dllm_audit.analysis.manifests import is_reading
from dllm_audit.analysis.plain import fact_value, fact_words, short_value
from dllm_audit.report.sections.runs import RunRow


@dataclass(frozen=True)
class SettingRow:
    name: str
    value: str
    source: str


@dataclass(frozen=True)
class EnvironmentColumn:
    """Facts of one machine and the runs that they hold for."""

    runs: tuple[RunRow, ...]
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RunDetails:
    """Settings, model, engine, prompts and warm-up of one run."""

    row: RunRow
    settings: tuple[SettingRow, ...]
    facts: tuple[tuple[str, str], ...]


def environment_columns(rows: Sequence[RunRow]) -> tuple[EnvironmentColumn, ...]:
    """One column per machine and software; readings of the moment are shown as their range."""
    grouped: dict[tuple[tuple[str, str], ...], list[RunRow]] = {}
    for row in rows:
        facts = tuple(_fact(name, value) for name, value in row.summary.environment.items() if not is_reading(name))
        grouped.setdefault(facts, []).append(row)
    return tuple(EnvironmentColumn(tuple(found), (*facts, *_readings(found))) for facts, found in grouped.items())


def run_details(row: RunRow) -> RunDetails:
    run = row.summary.run
    sources = run["setting_sources"]
    settings = tuple(
        SettingRow(name, short_value(value) if value is not None else "unset", str(sources.get(name, "")))
        for name, value in run["settings"].items()
    )
    facts: list[tuple[str, str]] = [
        ("run", row.summary.run_id),
        ("status", str(run["status"])),
        ("started", f"{run['started_at']:%Y-%m-%d %H:%M} UTC"),
        ("provenance", str(run["provenance"])),
        ("fidelity", str(run["fidelity"])),
    ]
    manifest = run["manifest"]
    for name in ("dllm_audit", "code_commit", "load_seconds"):
        if manifest.get(name) is not None:
            facts.append((_fact_name(name), short_value(manifest[name])))
    if row.summary.discrepancy is not None:
        facts.append(("books: parts against wall time", f"{row.summary.discrepancy * 100:+.1f} %"))
    for group in ("model", "engine", "prompts", "warm_up"):
        found = manifest.get(group)
        if isinstance(found, dict):
            shown = (_fact(name, value) for name, value in found.items() if value is not None)
            facts += [(f"{group.replace('_', ' ')}: {name}", text) for name, text in shown]
    return RunDetails(row, settings, tuple(facts))


def _readings(rows: Sequence[RunRow]) -> tuple[tuple[str, str], ...]:
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.summary.environment.items():
            if is_reading(name):
                values.setdefault(name, []).append(value)
    return tuple((_fact(name, found[0])[0], _range(name, found)) for name, found in values.items())


def _range(name: str, values: Sequence[Any]) -> str:
    distinct = list(dict.fromkeys(_fact(name, value)[1] for value in values))
    if len(distinct) > 1 and all(isinstance(value, int | float) for value in values):
        return f"{_fact(name, min(values))[1]} to {_fact(name, max(values))[1]}"
    return ", ".join(distinct)


def _fact(name: str, value: Any) -> tuple[str, str]:
    """Name and value of a fact as the page shows them."""
    return _fact_name(fact_words(name)), fact_value(name, value)


#: Names of facts that read badly as they are stored.
_FACT_NAMES = {
    "lm_eval": "lm-eval",
    "dllm_audit": "dllm-audit",
}


def _fact_name(name: str) -> str:
    """The name of a fact as a person writes it: "cpu_mhz_after" is "CPU clock (MHz) after"."""
    if name.startswith("env_"):
        return name.removeprefix("env_")
    if name.lower() in _FACT_NAMES:
        return _FACT_NAMES[name.lower()]
    words = {"cpu": "CPU", "gpu": "GPU", "mhz": "clock (MHz)", "cuda": "CUDA", "ram": "RAM", "id": "id"}
    return " ".join(words.get(word, word) for word in name.split("_"))
