"""Which runs are held against a library's own decoding of the same prompts, each configuration once a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dllm_audit.errors import AuditError
from dllm_audit.measure.library import GEN_LENGTH, PROMPTS, compare_with_library

if TYPE_CHECKING:
    from dllm_audit.evaluate.execution import Cell
    from dllm_audit.evaluate.work import Decoding
    from dllm_audit.models.loading import LoadedModel


class LibraryObservations:
    """What transformers' `generate` does beside the autoregressive runs of one command.

    Repeats and controls of a configuration share one observation, since they share weights, prompts and process.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], Mapping[str, Any]] = {}

    def beside(self, cell: Cell, work: Decoding, model: LoadedModel) -> Mapping[str, Any]:
        """The facts for the manifest of a run that is comparable: what was observed, or the "reason" why nothing could be."""
        settings = repr(sorted(work.resolution.as_dict().items()))
        key = (cell.source.folder, cell.backend.name, cell.task_name, cell.concurrency, settings)
        if key not in self._found:
            self._found[key] = _observe(cell, work, model)
        return self._found[key]


def is_comparable(cell: Cell) -> bool:
    """Whether a run that decodes text does so with an autoregressive model on this machine, as `generate` does."""
    return cell.backend.kind == "autoregressive" and cell.backend.provenance == "reference"


def _observe(cell: Cell, work: Decoding, model: LoadedModel) -> Mapping[str, Any]:
    from dllm_audit.decode.recipe import end_token_ids
    from dllm_audit.decode.session import encode_text

    settings = work.resolution.settings
    if settings.temperature:
        return {
            "reason": f"it samples at temperature {settings.temperature:g}, and only greedy decoding gives one answer"
        }
    if model.engine == "compile":
        return {"reason": "--engine compile compiles anew for every call, which would take minutes"}
    number = PROMPTS if cell.concurrency == 1 else cell.concurrency
    try:
        prompts = [encode_text(model, item.prompt) for item in work.items[:number]]
        return compare_with_library(
            work.session,
            model,
            prompts,
            batch=min(cell.concurrency, len(prompts)),
            gen_length=min(GEN_LENGTH, settings.gen_length),
            end_ids=end_token_ids(settings, model.traits) if settings.stop_at_eos else (),
        ).as_dict()
    except AuditError as error:
        return {"reason": str(error)}
    except Exception as error:  # transformers has exceptions of its own, and none of them may cost a run that is done
        return {"reason": (str(error).strip().splitlines() or [type(error).__name__])[0]}
