"""Which run is the baseline of which.

Quality has two references: the same model at one token per step (what parallelism costs), and the autoregressive
model (what a buyer compares). A cache that is approximate has a third: the same decoder without it. Among several candidates the one that shares most with the run is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dllm_audit.analysis.asked import asked_alike, is_tuning
from dllm_audit.analysis.manifests import compare_manifests

Run = Mapping[str, Any]

#: Columns that say how requests came to a run.
_CONDITIONS = ("concurrency", "load", "arrival_rate")

#: The backend whose every step recomputes every position.
_UNCACHED = "uncached"


def autoregressive_reference(run: Run, runs: Sequence[Run]) -> Run | None:
    """The autoregressive run of the same task that shares most with `run`; None when there is none."""
    if run["kind"] == "autoregressive":
        return None
    return _nearest(run, runs, lambda other: other["kind"] == "autoregressive")


def one_token_reference(run: Run, runs: Sequence[Run]) -> Run | None:
    """The run of the same model at one token per step, of the same backend if there is one; None when there is none."""
    if run["kind"] != "diffusion" or is_one_token_per_step(run):
        return None

    def fits(other: Run) -> bool:
        return other["kind"] == "diffusion" and other["model"] == run["model"] and is_one_token_per_step(other)

    own = _nearest(run, runs, lambda other: fits(other) and other["backend"] == run["backend"])
    return own or _nearest(run, runs, fits)


def uncached_reference(run: Run, runs: Sequence[Run]) -> Run | None:
    """The run of the same model and settings that recomputes every position; None when there is none.

    A setting that only one of the two backends has must be switched off there.
    """
    if run["kind"] != "diffusion" or run["backend"] == _UNCACHED:
        return None
    return _nearest(run, runs, lambda other: other["backend"] == _UNCACHED and _same_decoding(run, other))


def _same_decoding(run: Run, other: Run) -> bool:
    ours, theirs = run["settings"], other["settings"]
    common = ours.keys() & theirs.keys()
    alone = (ours | theirs).items()
    return (
        run["model"] == other["model"]
        and all(ours[name] == theirs[name] for name in common)
        and not any(value for name, value in alone if name not in common)
    )


def control_of(run: Run, runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """(control, its twin): the A/A pair that was interleaved with `run`; None when there is none."""
    for control in runs:
        if control["role"] != "control" or control["invocation"] != run["invocation"]:
            continue
        same = ("invocation", "backend", "model", "task", *_CONDITIONS, "repeat", "settings")
        for twin in runs:
            is_twin = twin["role"] != "control" and all(twin.get(name) == control.get(name) for name in same)
            if not is_twin or not asked_alike(twin, control) or not asked_alike(twin, run):
                continue
            if all(twin.get(name) == run.get(name) for name in ("task", *_CONDITIONS)):
                return control, twin
    return None


def baseline_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """What `run` is held against when nobody says: the baseline of its own command, else the autoregressive reference."""
    same = ("invocation", "task", *_CONDITIONS, "repeat")
    own = [
        other
        for other in runs
        if other["role"] == "baseline" and all(other.get(n) == run.get(n) for n in same) and asked_alike(run, other)
    ]
    if run["role"] == "candidate" and own:
        return min(own, key=lambda other: len(compare_manifests(run, other).treatment))
    return autoregressive_reference(run, runs)


def newest_pairs(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """(candidate, baseline) for every configuration of the newest command that has any; of repeats the first stands for all.

    runs: oldest first. Those that only helped to choose a setting are no results and left out.
    """
    runs = [run for run in runs if not is_tuning(run)]
    for invocation in reversed(list(dict.fromkeys(run["invocation"] for run in runs))):
        own = [run for run in runs if run["invocation"] == invocation and run["role"] == "candidate"]
        first = min((run["repeat"] for run in own), default=0)
        found = [(run, baseline_of(run, runs)) for run in own if run["repeat"] == first]
        pairs = [(run, baseline) for run, baseline in found if baseline is not None]
        if pairs:
            return pairs
    return []


def is_one_token_per_step(run: Run) -> bool:
    """Whether a diffusion run commits exactly one token in each of its steps."""
    settings = run["settings"]
    if any(settings.get(name) is not None for name in ("threshold", "factor", "entropy_bound")):
        return False
    k, steps, per_block = (settings.get(name) for name in ("tokens_per_step", "steps", "steps_per_block"))
    if k is not None:
        return bool(k == 1)
    if steps is not None:
        return bool(steps == settings.get("gen_length"))
    if per_block is not None:
        return bool(per_block == (settings.get("block_length") or settings.get("gen_length")))
    return True


def spoiling(run: Run, other: Run) -> list[str]:
    """Names of the nuisances between two runs, the version of this package left out: it says nothing of a run's kind."""
    names = [difference.name for difference in compare_manifests(run, other).nuisance]
    return [name for name in names if name not in ("code_commit", "dllm_audit")]


def _nearest(run: Run, runs: Sequence[Run], fits: Callable[[Run], bool]) -> Run | None:
    """The fitting run of the same task with the fewest nuisances; then of the same command; then the newest."""
    found = [
        other
        for other in runs
        if other["run_id"] != run["run_id"]
        and other["task"] == run["task"]
        and other["role"] != "control"
        and not is_tuning(other)
        and fits(other)
    ]
    newest_first = sorted(found, key=lambda other: other["started_at"], reverse=True)
    return min(
        newest_first,
        key=lambda other: (
            len(spoiling(run, other)),
            other["invocation"] != run["invocation"],
            len(compare_manifests(run, other).nuisance),
            other["repeat"] != run["repeat"],
        ),
        default=None,
    )


#: What a run is held against, in words.
AGAINST_AR = "the autoregressive model"
AGAINST_ONE_TOKEN = "one token per step, same model"
AGAINST_UNCACHED = "the same decoder without a cache"

#: How each is found. The last two are of the same model, so tokens compare too.
REFERENCES: Mapping[str, Callable[[Run, Sequence[Run]], Run | None]] = {
    AGAINST_AR: autoregressive_reference,
    AGAINST_ONE_TOKEN: one_token_reference,
    AGAINST_UNCACHED: uncached_reference,
}
