"""`run --factorial A,B`: four configurations in which two changes are switched on and off, from one that has both on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.cli.opening import Choice
from dllm_audit.errors import ModelError, UsageError, did_you_mean

if TYPE_CHECKING:
    from dllm_audit.analysis.factorials import Factorial
    from dllm_audit.analysis.summary import RunSummary
    from dllm_audit.plugins import Plugins
    from dllm_audit.store.database import Store

CACHE = "cache"
"""The factor that is no setting: off is `uncached`, on is the named backend."""

_UNCACHED = "uncached"

factorial_option = click.option(
    "--factorial",
    metavar="FACTOR,FACTOR",
    help="Switch two things off and on, four configurations in turns: cache (uncached, or the named backend) or a setting "
    "that is given (left out, or as given). Says what each does to the speed and whether they multiply.",
)


@dataclass(frozen=True)
class Arm:
    """Configurations to run: a backend with its model and settings as typed. levels: which factors are on; empty without any."""

    choice: Choice
    variants: Sequence[Mapping[str, Any]]
    levels: Mapping[str, bool] = field(default_factory=dict)


def arms_of(
    factorial: str | None, choices: Sequence[Choice], variants: Sequence[Mapping[str, Any]], plugins: Plugins
) -> list[Arm]:
    """The candidates of a command; with `factorial` the four in which its factors are off and on.

    Raises UsageError where a factor cannot be switched.
    """
    if factorial is None:
        return [Arm(choice, variants) for choice in choices]
    names = [name.strip().replace("-", "_") for name in factorial.split(",") if name.strip()]
    if len(names) != 2 or names[0] == names[1]:
        raise UsageError(
            f"--factorial {factorial}: name two different factors, for example --factorial cache,threshold."
        )
    if len(choices) != 1:
        raise UsageError(f"--factorial is about one backend, and --backend names {len(choices)}.")
    if len(variants) != 1:
        raise UsageError("--factorial takes one value of each setting. Give one --threshold.")
    on, given = choices[0], dict(variants[0])
    for name in names:
        _check_factor(name, on, given)
    off = _without_cache(on, given, plugins) if CACHE in names else Arm(on, [given])
    arms = []
    for levels in product((False, True), repeat=2):
        # The first factor changes fastest: neither, the first, the second, both.
        switched = dict(zip(names, reversed(levels), strict=True))
        arm = off if not switched.get(CACHE, True) else Arm(on, [given])
        settings = {name: value for name, value in arm.variants[0].items() if switched.get(name, True)}
        arms.append(Arm(arm.choice, [settings], switched))
    return arms


def _check_factor(name: str, choice: Choice, given: Mapping[str, Any]) -> None:
    backend = choice.backend
    if name == CACHE:
        return
    declared = {*backend.settings, *(setting.name for setting in backend.own_settings)}
    if name not in declared:
        raise UsageError(
            f"--factorial {name}: backend {backend.name!r} has no such setting. {did_you_mean(name, [CACHE, *declared])}"
        )
    if name not in given:
        option = "--" + name.replace("_", "-")
        raise UsageError(f"--factorial {name} switches {option} off and on, so give it a value: {option} VALUE.")


def _without_cache(on: Choice, given: Mapping[str, Any], plugins: Plugins) -> Arm:
    """`uncached` with the model and the settings of the cached backend, its own defaults included."""
    from dllm_audit import NoCache, RecipeBackend

    backend, off = on.backend, plugins.backends.get(_UNCACHED)
    if off is None:
        raise UsageError(f"--factorial cache compares with the backend {_UNCACHED!r}, which is not installed.")
    if isinstance(backend, RecipeBackend):
        recipe = backend.make_recipe(backend.resolve(given, on.source.traits).settings, on.source.traits)
        if isinstance(recipe.cache, NoCache):
            raise UsageError(
                f"--factorial cache: backend {backend.name!r} has no cache that could be switched off. "
                "Name one that has, such as dualcache or prefixcache."
            )
    try:
        off.check_model(on.source)
    except ModelError as error:
        raise UsageError(f"--factorial cache compares with {_UNCACHED}, which cannot be: {error}") from None
    foreign = [name for name in given if name not in off.settings]
    if foreign:
        raise UsageError(
            f"--factorial cache: {_UNCACHED} has no setting {foreign[0]!r}, so more than the cache would change. Leave it out."
        )
    own = {
        name: value
        for name, value in backend.settings.items()
        if name in off.settings and off.settings[name] != value and name not in given
    }
    return Arm(Choice(off, on.source), [{**own, **given}])


def factorials_among(store: Store, summaries: Sequence[RunSummary]) -> list[Factorial]:
    """The complete designs among runs that were just made."""
    from dllm_audit.analysis.factorials import factorials_of
    from dllm_audit.analysis.pairing import Comparisons

    return list(factorials_of(store, Comparisons(store, known=summaries), [summary.run for summary in summaries]))


def factorial_text(found: Factorial) -> str:
    """The four configurations and what they say, for a terminal."""
    from dllm_audit.analysis.plain import one_line
    from dllm_audit.analysis.tables import aligned

    rows: list[tuple[str, ...]] = [(*found.factors, "configuration", "tokens/s", "tokens/forward", "quality")]
    for cell in found.cells:
        quality = cell.quality
        rows.append(
            (
                *("on" if on else "off" for on in cell.on),
                cell.name,
                _number(cell.speed.value, ".1f"),
                _number(cell.summary.tokens_per_forward.value, ".2f"),
                "-"
                if quality is None
                else f"{quality.label} {_number(quality.figure.value, '.3f')}{_ends(quality.figure)}",
            )
        )
    title = f"{found.factors[0]} x {found.factors[1]} on {found.task}"
    lines = [title, aligned(rows, right={3, 4}, indent="  "), "  " + found.sentence, *("  " + c for c in found.caveats)]
    return "\n".join(one_line(part, 2000) if part is not lines[1] else part for part in lines)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _ends(figure: Any) -> str:
    return f" ({figure.low:.3f} to {figure.high:.3f})" if figure.has_interval else ""
