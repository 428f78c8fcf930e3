"""Find the plugins and what they add. A plugin that breaks is reported and left out; the others work."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pluggy

from dllm_audit import hookspecs
from dllm_audit.errors import did_you_mean

if TYPE_CHECKING:
    from dllm_audit.backend import Backend
    from dllm_audit.models.families import ModelFamily

GROUP = "dllm_audit"

#: The package of the built-in plugins.
BUILT_IN = "plugins"

#: What a backend must have to be listed, checked and opened; see backend.Backend.
_OF_A_BACKEND = (
    "name",
    "summary",
    "provenance",
    "kind",
    "families",
    "default_model",
    "settings",
    "own_settings",
    "waivers",
    "check_model",
    "resolve",
    "open",
)


@dataclass(frozen=True)
class Plugins:
    """What the installed plugins add. origins: backend name -> where it was registered. problems: one sentence each."""

    backends: dict[str, Backend]
    families: tuple[ModelFamily, ...]
    origins: dict[str, str]
    problems: tuple[str, ...]


def get_plugin_manager() -> tuple[pluggy.PluginManager, list[str]]:
    """A manager with every entry point of the group registered, and a sentence for each that could not be."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    problems = []
    # The same distribution can be on the path twice (an editable install beside its metadata): count it once.
    entries = {(entry.name, entry.value): entry for entry in metadata.entry_points(group=GROUP)}
    for (name, value), entry in sorted(entries.items()):
        try:
            manager.register(entry.load(), name=name)
        except (
            Exception,
            SystemExit,
        ) as error:  # a plugin is foreign code: whatever it raises must not end the program
            problems.append(f"Plugin {name!r} ({value}) is left out: {type(error).__name__}: {error}")
    known = [name for name, hook in vars(manager.hook).items() if getattr(hook, "spec", None) is not None]
    for name, hook in vars(manager.hook).items():
        if name in known:
            continue
        # A misspelt hook would never be called, and nobody would know why.
        for implementation in hook.get_hookimpls():
            problems.append(
                f"Plugin {implementation.plugin_name!r}: there is no hook {name!r}. {did_you_mean(name, known)}"
            )
    return manager, problems


def plugin_of(trace: TracebackType | None) -> str | None:
    """The installed plugin, none of the built-in ones, whose code a traceback goes through last; None where it goes through none."""
    modules = {
        entry.value.partition(":")[0].strip(): entry.name
        for entry in metadata.entry_points(group=GROUP)
        if entry.value.partition(".")[0] != BUILT_IN
    }
    found = None
    for frame, _ in traceback.walk_tb(trace):
        name = str(frame.f_globals.get("__name__"))
        while name and name not in modules:
            name = name.rpartition(".")[0]
        found = modules.get(name, found)
    return found


def load_plugins() -> Plugins:
    """Everything that the installed plugins add: the built-in backends and families, and anybody's."""
    from dllm_audit.models.families import FAMILIES

    manager, problems = get_plugin_manager()
    backends: dict[str, Backend] = {}
    origins: dict[str, str] = {}
    for plugin, backend in collect(manager, "dllm_audit_backends", problems):
        wrong = _wrong_with(backend)
        if wrong is not None:
            problems.append(
                f"Plugin {plugin!r}: dllm_audit_backends returned {backend!r}, which is no Backend: {wrong}."
            )
            continue
        if backend.name in backends:
            problems.append(
                f"Backend {backend.name!r} of plugin {plugin!r} is left out: {origins[backend.name]} has that name."
            )
            continue
        backends[backend.name] = backend
        origins[backend.name] = f"plugin {plugin!r}"
    families = [
        *FAMILIES,
        *(family for _, family in collect(manager, "dllm_audit_model_families", problems)),
    ]
    return Plugins(backends, tuple(families), origins, tuple(problems))


def _wrong_with(backend: Any) -> str | None:
    """Why an object is no Backend, as a clause; None where it is one."""
    from dllm_audit.backend import PROVENANCES

    found = {}
    for name in _OF_A_BACKEND:
        try:
            found[name] = getattr(backend, name)
        except AttributeError:
            return f"it has no {name}"
        except Exception as error:  # foreign code, as above
            return f"its {name} fails with {type(error).__name__}: {error}"
    for name in ("name", "summary", "kind"):
        if not isinstance(found[name], str) or not found[name]:
            return f"its {name} is {found[name]!r} and no text"
    if found["provenance"] not in PROVENANCES:
        return f"its provenance is {found['provenance']!r} and none of {', '.join(PROVENANCES)}"
    if not isinstance(found["settings"], Mapping):
        return f"its settings are {found['settings']!r} and no mapping of names to defaults"
    for name in ("families", "own_settings", "waivers"):
        if not isinstance(found[name], list | tuple):
            return f"its {name} are {found[name]!r} and no tuple"
    return None


def collect(manager: pluggy.PluginManager, hook: str, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """(plugin name, item) for every item that an implementation of `hook` returns."""
    for implementation in getattr(manager.hook, hook).get_hookimpls():
        try:
            items = list(implementation.function())
        except (Exception, SystemExit) as error:  # foreign code, as above
            problems.append(f"Plugin {implementation.plugin_name!r}: {hook} failed: {type(error).__name__}: {error}")
            continue
        for item in items:
            yield implementation.plugin_name, item
