"""The recorded model, loaded once, and a way to decode rows with it while counting from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from golden_cases import FOLDER, MODEL, Decoded, Outside

from dllm_audit import Failure, Generation, Request
from dllm_audit.models.loading import LoadedModel, find_model, load_model
from dllm_audit.plugins import load_plugins


@pytest.fixture(scope="session")
def tiny_llada() -> LoadedModel:
    return load_model(find_model(str(MODEL)), "cpu", "float32")


@pytest.fixture(scope="session")
def tiny_dream() -> LoadedModel:
    return load_model(find_model(str(FOLDER / "tiny-dream")), "cpu", "float32")


@pytest.fixture(scope="session")
def tiny_llada_moe() -> LoadedModel:
    return load_model(find_model(str(FOLDER / "tiny-llada-moe")), "cpu", "float32")


@pytest.fixture(scope="session")
def decode(tiny_llada) -> Callable[..., Decoded]:
    """decode(backend name, requests, settings, concurrency) -> Decoded, with traces."""
    return decoder_of(tiny_llada)


def decoder_of(model: LoadedModel) -> Callable[..., Decoded]:
    """The same for any model."""
    backends = load_plugins().backends

    def run(backend: str, requests: Iterable[Request], settings=None, concurrency: int = 1) -> Decoded:
        network, out, since_last = model.module.model, Decoded(), Outside()
        inner = network.forward

        def counted(*args, **kwargs):
            rows, width = kwargs["input_ids"].shape
            for counter in (since_last, out.total):
                counter.calls += 1
                counter.positions += rows * width
            return inner(*args, **kwargs)

        def keep(result: Generation | Failure) -> None:
            assert result.id not in out.results
            out.results[result.id] = result
            out.outside[result.id] = Outside(since_last.calls, since_last.positions)
            since_last.calls = since_last.positions = 0

        network.forward = counted
        try:
            out.log = backends[backend].open(model, settings or {}).generate(list(requests), keep, concurrency, True)
        finally:
            network.forward = inner
        return out

    return run
