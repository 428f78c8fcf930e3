"""From names on the command line to a backend and a loaded model."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dllm_audit.analysis.plain import one_line
from dllm_audit.backend import Backend, find_backend
from dllm_audit.cli.terminal import say, warn
from dllm_audit.errors import ModelError
from dllm_audit.plugins import Plugins, load_plugins

if TYPE_CHECKING:
    from dllm_audit.models.loading import LoadedModel, ModelSource


@dataclass(frozen=True)
class Choice:
    """A backend with the model it shall decode, both found and checked, nothing loaded yet."""

    backend: Backend
    source: ModelSource


def installed() -> Plugins:
    """The installed plugins; what is wrong with any of them goes to stderr."""
    plugins = load_plugins()
    for problem in plugins.problems:
        warn(problem)
    return plugins


def choose(plugins: Plugins, backend_name: str, model: str | None) -> Choice:
    """Find backend and model and check that they fit. Says so when the model is the default one."""
    from dllm_audit.models.loading import find_model

    backend = find_backend(backend_name, plugins.backends)
    ref = backend.default_model if model is None else model
    if ref is None:
        raise ModelError(f"Backend {backend.name!r} has no default model: say --model REF.")
    source = find_model(ref, plugins.families)
    backend.check_model(source)
    if model is None:
        say(f"{one_line(backend.name)}: no --model given, so the embedded model {one_line(ref)} is used.", err=True)
    return Choice(backend, source)


def spare_threads(sources: Iterable[ModelSource]) -> None:
    """Decode with one thread where every model is an embedded one, unless OMP_NUM_THREADS says otherwise.

    They are far too small to share a forward: two threads on two busy cores wait for each other most of the time.
    """
    import torch

    tiny = all(source.provenance == "embedded" for source in sources)
    if tiny and "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > 1:
        torch.set_num_threads(1)
        say("Embedded models run on one thread; OMP_NUM_THREADS changes that.", err=True)


def load(choice: Choice, device: str, dtype: str, engine: str = "eager") -> LoadedModel:
    """Load the chosen model, saying how long it took."""
    return load_source(choice.source, device, dtype, engine)


def load_source(source: ModelSource, device: str, dtype: str, engine: str = "eager") -> LoadedModel:
    """Load a model that was found, saying how long it took."""
    import time

    from dllm_audit.models.loading import load_model

    began = time.perf_counter()
    model = load_model(source, device, dtype, engine=engine)
    seconds = time.perf_counter() - began
    say(
        f"Loaded {one_line(source.ref, 1000)} ({model.parameters / 1e6:.1f} M parameters, {str(model.dtype).removeprefix('torch.')}, "
        f"{model.device}) in {seconds:.1f} s.",
        err=True,
    )
    return model
