"""Texts of single tokens, from the tokenizer file of a model that is at hand. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dllm_audit.report.sections.example import TokenTexts


def token_texts() -> TokenTexts:
    """A function from a run and token ids to their texts; None where the model's tokenizer is not on this machine."""
    loaded: dict[str, Any] = {}

    def texts(run: Mapping[str, Any], ids: Sequence[int]) -> list[str] | None:
        ref = str(run["model"])
        if ref not in loaded:
            loaded[ref] = _tokenizer(ref)
        tokenizer = loaded[ref]
        if tokenizer is None:
            return None
        return [tokenizer.decode([token], skip_special_tokens=False) for token in ids]

    return texts


def _tokenizer(ref: str) -> Any:
    from tokenizers import Tokenizer

    from dllm_audit.models.tiny import EMBEDDED_MODELS

    folder = EMBEDDED_MODELS.get(ref) or Path(ref)
    file = folder / "tokenizer.json" if folder.is_dir() else _cached(ref)
    if file is None or not file.is_file():
        return None
    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # The library raises a bare Exception; the report then shows ids instead.
        return None


def _cached(ref: str) -> Path | None:
    """The tokenizer of a hub model, if it was downloaded before."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(ref, "tokenizer.json")
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
