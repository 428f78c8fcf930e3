"""From a recipe to the stored runs that carry it out, and to the commands that would make them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dllm_audit.analysis.asked import is_tuning, template_of
from dllm_audit.claims.schema import Recipe
from dllm_audit.settings import STEP_SETTINGS

Run = Mapping[str, Any]

#: Settings that say how much a step commits: they are compared by what they come to.
_SCHEDULE = (*STEP_SETTINGS, "threshold", "factor", "entropy_bound")


@dataclass(frozen=True)
class Side:
    """One side of a recipe. inherited: the settings are those of the other side, so this one may lack some of them."""

    backend: str
    model: str
    task: str
    settings: Mapping[str, Any]
    num_fewshot: int | None
    concurrency: int
    inherited: bool = False

    def __str__(self) -> str:
        said = ", ".join(f"{name} {_value(value)}" for name, value in self.settings.items())
        return f"{self.backend} with {self.model} on {self.task}" + (
            f" ({said})" if said and not self.inherited else ""
        )


@dataclass(frozen=True)
class Sides:
    """reference: None for a recipe about the candidate alone."""

    candidate: Side
    reference: Side | None


def sides_of(recipe: Recipe, model: str | None = None, baseline_model: str | None = None) -> Sides:
    """The sides of a recipe; `model` and `baseline_model` take the place of the ones it names."""
    ours = model or recipe.model
    shared = (recipe.task, recipe.num_fewshot, recipe.concurrency)
    task, num_fewshot, concurrency = shared
    candidate = Side(recipe.backend, ours, task, recipe.settings, num_fewshot, concurrency)
    if recipe.baseline is None:
        return Sides(candidate, None)
    # A baseline without a model of its own decodes the candidate's, whichever that is.
    theirs = baseline_model or recipe.baseline_model or ours
    own = recipe.baseline_settings
    reference = Side(
        recipe.baseline,
        theirs,
        task,
        recipe.settings if own is None else own,
        num_fewshot,
        concurrency,
        inherited=own is None,
    )
    return Sides(candidate, reference)


def fits(run: Run, side: Side) -> bool:
    """Whether a stored run did what the side asks for. A setting that only the run was given makes it another one."""
    if run["role"] == "control" or run["status"] == "running":
        return False
    if template_of(run) is not None or is_tuning(run):
        return False
    asked = (side.backend, side.model, side.concurrency)
    if (run["backend"], run["model"], run["concurrency"]) != asked or not _is_of(run, side.task):
        return False
    prompts = run["manifest"].get("prompts") or {}
    if side.num_fewshot is not None and prompts.get("num_fewshot") != side.num_fewshot:
        return False
    # Requests that came when they liked say nothing of so many in flight.
    if run["load"] != "closed":
        return False
    settings = run["settings"]
    for name, value in side.settings.items():
        if name in _SCHEDULE:
            continue
        if name not in settings and side.inherited:
            continue
        if settings.get(name) != value:
            return False
    given = {name for name, source in run["setting_sources"].items() if source == "option"}
    if any(name not in side.settings for name in given.difference(_SCHEDULE)):
        return False
    return run["kind"] != "diffusion" or schedule(settings) == schedule({**_lengths(settings), **side.settings})


def _is_of(run: Run, task: str) -> bool:
    """Whether a run is of a task: by its name, or where that is a file, by the command that named it. It stays closed."""
    if run["task"] == task:
        return True
    # A stored command has no folders.
    file = Path(task).name
    try:
        words = shlex.split(str(run["manifest"].get("command", "")))
    except ValueError:
        return False
    return any(word == f"--task={file}" or (word, after) == ("--task", file) for word, after in pairwise([*words, ""]))


def schedule(settings: Mapping[str, Any]) -> tuple[str, float]:
    """What a step commits: all above a threshold, by a factor, or so many tokens. Factor > threshold > number."""
    for name in ("factor", "threshold", "entropy_bound"):
        if settings.get(name) is not None:
            return name, float(settings[name])
    length, block = settings.get("gen_length"), settings.get("block_length")
    if settings.get("tokens_per_step") is not None:
        return "tokens per step", float(settings["tokens_per_step"])
    if settings.get("steps") and length:
        return "tokens per step", length / settings["steps"]
    if settings.get("steps_per_block") and (block or length):
        return "tokens per step", (block or length) / settings["steps_per_block"]
    return "tokens per step", 1.0


def _lengths(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings.get(name) for name in ("gen_length", "block_length")}


def candidates(runs: Sequence[Run], side: Side) -> list[Run]:
    """The fitting runs, complete ones first, then those with the most requests planned, then the newest."""
    found = sorted((run for run in runs if fits(run, side)), key=lambda run: run["started_at"], reverse=True)
    return sorted(found, key=lambda run: (run["status"] != "complete", -run["planned_requests"]))


def pair(runs: Sequence[Run], sides: Sides) -> tuple[Run, Run] | None:
    """(candidate, reference) with the fewest nuisances between them, then those over the most documents, then those of one
    command; None when one side has no run.
    """
    from dllm_audit.analysis.manifests import compare_manifests

    assert sides.reference is not None
    pairs = [
        (ours, theirs)
        for ours in candidates(runs, sides.candidate)
        for theirs in candidates(runs, sides.reference)
        if ours["run_id"] != theirs["run_id"]
    ]
    return min(
        pairs,
        key=lambda found: (
            len(compare_manifests(*found).nuisance),
            -min(run["planned_requests"] for run in found),
            found[0]["invocation"] != found[1]["invocation"],
            found[0]["repeat"] != found[1]["repeat"],
        ),
        default=None,
    )


@dataclass(frozen=True)
class Command:
    """One `dllm-audit` command: its arguments, and the sides whose runs it makes, over so many documents if it says."""

    arguments: tuple[str, ...]
    makes: tuple[Side, ...]
    limit: int | None

    def is_done(self, runs: Sequence[Run]) -> bool:
        """Whether every run that it would make is stored and complete, over as many documents or more."""
        return all(any(fits(run, side) and self._is_enough(run) for run in runs) for side in self.makes)

    def _is_enough(self, run: Run) -> bool:
        # What was stopped when it was decided, or left documents out to choose a setting on, has fewer than its limit.
        if run["manifest"].get("sequential") or run["manifest"]["prompts"].get("part"):
            return False
        documents = run["manifest"]["prompts"].get("limit")
        return run["status"] == "complete" and (not self.limit or not documents or documents >= self.limit)

    def line(self, database: Path) -> str:
        """What to type."""
        return shlex.join(["dllm-audit", *self.arguments, "--db", str(database)])


def commands(recipe: Recipe, sides: Sides, limit: int | None = None, repeats: int | None = None) -> list[Command]:
    """What makes the runs: one command where both sides share their settings.

    `limit` takes the place of the recipe's; `repeats`: runs of each side, one without it.
    """
    candidate, reference = sides.candidate, sides.reference
    limit = limit or recipe.limit
    if reference is None:
        return [Command(_arguments(candidate, limit, repeats), (candidate,), limit)]
    if reference.inherited:
        both = ("--baseline", reference.backend, "--baseline-model", reference.model)
        return [Command(_arguments(candidate, limit, repeats, both), (candidate, reference), limit)]
    return [Command(_arguments(side, limit, repeats), (side,), limit) for side in (candidate, reference)]


def _arguments(side: Side, limit: int | None, repeats: int | None, more: Sequence[str] = ()) -> tuple[str, ...]:
    arguments = ["run", "--backend", side.backend, "--model", side.model, *more, "--task", side.task]
    if limit is not None:
        arguments += ["--limit", str(limit)]
    if side.num_fewshot is not None:
        arguments += ["--num-fewshot", str(side.num_fewshot)]
    if side.concurrency != 1:
        arguments += ["--concurrency", str(side.concurrency)]
    if repeats is not None:
        arguments += ["--repeats", str(repeats)]
    for name, value in side.settings.items():
        arguments += _option(name, value)
    return tuple(arguments)


def _option(name: str, value: Any) -> list[str]:
    from dllm_audit.settings import CORE_SETTINGS

    if name not in CORE_SETTINGS:
        return ["--set", f"{name}={_value(value)}"]
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", _value(value)]


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
