"""Which of the settings that were typed belong to which run of `run`; what belongs to none is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from dllm_audit.errors import SettingError, UsageError, did_you_mean
from dllm_audit.settings import CORE_SETTINGS, LIKELIHOOD_SETTINGS

if TYPE_CHECKING:
    from dllm_audit.backend import Backend
    from dllm_audit.cli.opening import Choice
    from dllm_audit.measure.load import Load

_OF_LIKELIHOODS = {setting.name: setting for setting in LIKELIHOOD_SETTINGS}
_SETTINGS = {**CORE_SETTINGS, **_OF_LIKELIHOODS}


def variants_of(given: Mapping[str, Any], several: Sequence[str] = ("threshold",)) -> list[dict[str, Any]]:
    """The settings of each run: one set per value of a setting in `several`, in all combinations."""
    lists = {}
    for name in several:
        if name in given:
            parts = lists[name] = [part.strip() for part in str(given[name]).split(",")]
            if len(set(parts)) != len(parts):
                option = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{option} {given[name]} names one value twice. Use --repeats to run it several times."
                )
    return [{**given, **dict(zip(lists, values, strict=True))} for values in product(*lists.values())]


def check_settings(choices: Sequence[Choice], given: Mapping[str, Any]) -> None:
    """A setting must be known to at least one backend of the command; a lone backend must know all of them.

    Whether settings of log-likelihoods have a place is known only when the tasks are: see `check_against_tasks`.
    """
    for name in given:
        if name not in _OF_LIKELIHOODS and not any(
            name in _declared(choice.backend, scored) for choice in choices for scored in (False, True)
        ):
            choices[0].backend.resolve({name: given[name]}, traits=choices[0].source.traits)
            raise SettingError(f"No backend of this command has a setting {name!r}.")
    for choice in choices:
        choice.backend.resolve(own_settings(choice, given, False), traits=choice.source.traits)


def check_against_tasks(
    choices: Sequence[Choice], given: Mapping[str, Any], scored: Mapping[str, bool], backends: Mapping[str, Backend]
) -> None:
    """A setting must also be for something that the tasks ask for.

    scored: by task, whether it asks for log-likelihoods. backends: those that are installed, to name one that would do.
    """
    from dllm_audit.backend import likelihoods_of

    kinds = set(scored.values())
    for name in given:
        if not any(name in _declared(choice.backend, kind) for choice in choices for kind in kinds):
            raise SettingError(_out_of_place(name, choices, scored, backends))
    for choice in choices if True in kinds else ():
        likelihoods_of(choice.backend).resolve_likelihoods(own_settings(choice, given, True))


def check_loads(loads: Sequence[Load], scored: Mapping[str, bool]) -> None:
    """Given answers are scored in a closed loop only. scored: by task, whether it asks for log-likelihoods."""
    names = [name for name, likelihoods in scored.items() if likelihoods]
    if names and any(load.kind != "closed" for load in loads):
        raise UsageError(
            f"{names[0]} asks for log-likelihoods, which are computed in a closed loop, where nobody queues. "
            "Leave out --load and --arrival-rate."
        )


def own_settings(choice: Choice, given: Mapping[str, Any], scored: bool) -> dict[str, Any]:
    """The given settings that this backend declares for decoding, or `scored` for log-likelihoods; parsed."""
    declared = _declared(choice.backend, scored)
    kept = {name: value for name, value in given.items() if name in declared}
    return {n: _SETTINGS[n].parse(v) if n in _SETTINGS else v for n, v in kept.items()}


def distinct_settings(choice: Choice, variants: Sequence[Mapping[str, Any]], scored: bool) -> list[dict[str, Any]]:
    """One set of settings per run of this backend: a sweep of a setting that it does not have is one run."""
    out: list[dict[str, Any]] = []
    for variant in variants:
        own = own_settings(choice, variant, scored)
        if own not in out:
            out.append(own)
    return out


def _declared(backend: Backend, scored: bool) -> set[str]:
    """Names of the settings that a backend has for decoding, or for log-likelihoods."""
    if scored:
        return set(getattr(backend, "likelihood_settings", ()))
    return {*backend.settings, *(setting.name for setting in backend.own_settings)}


def _out_of_place(
    name: str, choices: Sequence[Choice], scored: Mapping[str, bool], backends: Mapping[str, Backend]
) -> str:
    """Why no run of the command would use a setting that its backends have."""
    tasks = " and ".join(scored)
    if not any(scored.values()):
        if name in _OF_LIKELIHOODS:
            return f"Setting {name} is about log-likelihoods, and {tasks} asks for text. Leave it out."
        used = " and ".join(repr(one) for one in dict.fromkeys(choice.backend.name for choice in choices))
        family = choices[0].source.traits.family
        able = [one for one, b in backends.items() if name in _declared(b, False) and family in b.families]
        instead = f"Use {' or '.join(map(repr, able))}, or leave it out." if able else "Leave it out."
        return (
            f"{used} cannot decode text with {name}, which is there for log-likelihoods alone, and {tasks} asks for text. "
            f"{instead}"
        )
    known = {known for choice in choices for known in _declared(choice.backend, True)}
    if not known:
        exact = "An autoregressive model states them exactly, so nothing can be set about them."
        return f"Setting {name} means nothing for log-likelihoods, which {tasks} asks for. {exact}"
    return (
        f"Setting {name} is about decoding text, and {tasks} asks for log-likelihoods of given answers. Leave it out. "
        + did_you_mean(name, known)
    )
