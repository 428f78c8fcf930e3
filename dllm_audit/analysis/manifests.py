"""What differs between two runs: the treatment that is compared, and the nuisances that spoil the comparison.

The treatment is what somebody chose to compare: backend, model and decode settings. Everything else that differs is a
nuisance, and then a difference in speed or quality cannot be put down to the treatment. Clock readings and free memory
differ between any two moments; they are shown as drift and spoil nothing by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dllm_audit.analysis.plain import fact_value

#: Facts of a model that come with choosing it. Its dtype is not among them: that is chosen beside it.
_MODEL_FACTS = (
    "ref",
    "provenance",
    "revision",
    "family",
    "attention",
    "parameters",
    "weight_bytes",
    "weights_sha256",
    "config_sha256",
    "tokenizer_sha256",
)

#: Columns of a run that are compared, and whether they are what somebody chose to compare.
_TREATMENT_COLUMNS = ("backend", "model", "kind", "fidelity")
_NUISANCE_COLUMNS = ("provenance", "task", "concurrency", "load", "arrival_rate")

#: Words in the name of an environment fact that make it a reading of the moment.
_READINGS = frozenset(
    [
        "before",
        "after",
        "mhz",
        "clock",
        "clocks",
        "temperature",
        "power",
        "load",
        "free",
        "available",
        "used",
        "utilization",
        "processes",
        "time",
        "date",
    ]
)


@dataclass(frozen=True)
class Difference:
    """One fact that differs, by its dotted name. None: not recorded on that side."""

    name: str
    candidate: Any
    baseline: Any


@dataclass(frozen=True)
class ManifestDifference:
    """What differs between two runs, by what it means for a comparison."""

    treatment: tuple[Difference, ...]
    nuisance: tuple[Difference, ...]
    drift: tuple[Difference, ...]


def compare_manifests(candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> ManifestDifference:
    """Sort every difference of two runs (rows of the store) into treatment, nuisance and drift."""
    ours, theirs = _facts(candidate), _facts(baseline)
    same_model = candidate["model"] == baseline["model"]
    sorted_out: dict[str, list[Difference]] = {"treatment": [], "nuisance": [], "drift": []}
    for name in dict.fromkeys([*ours, *theirs]):
        mine, other = ours.get(name), theirs.get(name)
        if mine != other:
            sorted_out[_role(name, same_model)].append(Difference(name, mine, other))
    return ManifestDifference(*(tuple(found) for found in sorted_out.values()))


def _facts(run: Mapping[str, Any]) -> dict[str, Any]:
    """Every comparable fact of a run under a dotted name."""
    facts = {name: run.get(name) for name in (*_TREATMENT_COLUMNS, *_NUISANCE_COLUMNS)}
    facts |= {f"settings.{name}": value for name, value in run["settings"].items() if value is not None}
    manifest = run["manifest"]
    facts |= {"seed": manifest["seed"]} if "seed" in manifest else {}
    return facts | _surroundings(manifest) | mixed_facts(run) | _grouped(manifest, "model", "engine", "prompts")


def _grouped(manifest: Mapping[str, Any], *groups: str) -> dict[str, Any]:
    """The facts of some groups of a manifest under dotted names."""
    found = {group: manifest.get(group) for group in groups}
    return {
        f"{g}.{name}": value for g, facts in found.items() if isinstance(facts, dict) for name, value in facts.items()
    }


def _surroundings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What is recorded of every sitting: the code and the machine."""
    code = {name: manifest[name] for name in ("dllm_audit", "code_commit") if name in manifest}
    return code | _grouped(manifest, "environment")


def mixed_facts(run: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Facts of the code and the machine in which the sittings of a resumed run differ, each with its values in order."""
    later = run["manifest"].get("resumed_with")
    manifests = [run["manifest"], *(later if isinstance(later, list) else [])]
    sittings = [_surroundings(manifest) for manifest in manifests if isinstance(manifest, dict)]
    mixed = {}
    for name in sittings[0]:
        values = [sitting[name] for sitting in sittings if name in sitting]
        distinct = [value for place, value in enumerate(values) if value not in values[:place]]
        if len(distinct) > 1 and not is_reading(name.rpartition(".")[2]):
            mixed[name] = distinct
    return mixed


def resumed_words(run: Mapping[str, Any]) -> str:
    """What being resumed did to the times of a run, for after "was resumed: "; empty where it was made in one go."""
    if run["sittings"] <= 1:
        return ""
    words = f"{run['sittings']} sittings, whose times are added up."
    mixed = mixed_facts(run)
    return words + (
        f" They differ in {', '.join(mixed)}, so its times are of no one machine and code." if mixed else ""
    )


def difference_value(difference: Difference, value: Any) -> str:
    """One side of a difference in words."""
    if value is None and difference.name.startswith("settings."):
        return "unset"
    return fact_value(difference.name.rpartition(".")[2], value)


def _role(name: str, same_model: bool) -> str:
    group, _, fact = name.partition(".")
    if name in _TREATMENT_COLUMNS or group == "settings" or (group == "model" and fact in _MODEL_FACTS):
        return "treatment"
    # Template and tokenizer belong to the model: the same messages then give other prompts.
    if fact in ("chat_template", "prompts_sha256") and group == "prompts" and not same_model:
        return "treatment"
    if group == "environment" and is_reading(fact):
        return "drift"
    return "nuisance"


def is_reading(fact: str) -> bool:
    """Whether a fact of the environment is a reading of the moment, which differs between any two runs."""
    return bool(_READINGS & set(fact.lower().replace("-", "_").split("_")))
