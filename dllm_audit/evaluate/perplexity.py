"""How likely an autoregressive model finds answers that were stored: scored afterwards, outside every clock, and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dllm_audit.analysis.rows import asks_for_likelihoods
from dllm_audit.decode.questions import QuestionSession
from dllm_audit.errors import ModelError, UsageError
from dllm_audit.measure.environment import file_sha256
from dllm_audit.models.loading import LoadedModel, ModelSource, weight_files
from dllm_audit.records import Failure, Question, ScoredAnswer
from dllm_audit.settings import LikelihoodSettings

if TYPE_CHECKING:
    from dllm_audit.store.database import Store

#: Answers are stored in groups of so many, so that an interruption loses few of them.
_GROUP = 64


def check_reference(source: ModelSource) -> None:
    """Raise ModelError where a model states no exact likelihood of a text, or takes no text."""
    if source.traits.attention != "causal":
        raise ModelError(
            f"{source.ref} is no autoregressive model: its likelihoods are bounds, and a perplexity made of them compares with "
            "no other. Give one that predicts each token from those before it, for example tiny-ar."
        )


def score_answers(
    store: Store,
    run_id: str,
    reference: LoadedModel,
    concurrency: int,
    tell: Callable[[int, int], None] = lambda done, planned: None,
) -> list[str]:
    """Score the answers of a run that `reference` did not score yet, and store what was found.

    The answer follows the prompt that the run gave, as text, in the reference's own tokens. tell(done, planned): progress.
    Returns why answers were left out, one reason each. Raises UsageError for a run that has no answers of its own.
    """
    run = store.run(run_id)
    if asks_for_likelihoods(run):
        raise UsageError(f"{run['run_id']} scored given answers and has none of its own, so they have no perplexity.")
    if reference.tokenizer is None:
        raise ModelError(
            f"{reference.source.ref} has no tokenizer, and answers are text. Put its tokenizer.json there."
        )
    known = {
        "reference": reference.source.ref,
        "reference_sha256": _weights(reference.source),
        "dtype": str(reference.dtype).removeprefix("torch."),
    }
    scored = {
        row["ordinal"]
        for row in store.text_likelihoods(run["run_id"])
        if all(row[name] == value for name, value in known.items())
    }
    pending = [row for row in store.answered(run["run_id"]) if row["ordinal"] not in scored]
    session = QuestionSession(reference, LikelihoodSettings())
    reasons: list[str] = []
    for first in range(0, len(pending), _GROUP):
        found: list[ScoredAnswer | Failure] = []
        session.score([_question(row) for row in pending[first : first + _GROUP]], found.append, concurrency)
        reasons += [result.message for result in found if isinstance(result, Failure)]
        store.add_text_likelihoods(run["run_id"], _rows(found, known))
        tell(min(first + _GROUP, len(pending)), len(pending))
    return reasons


def _question(row: Mapping[str, Any]) -> Question:
    return Question(str(row["ordinal"]), answer=row["text"] or "", prompt=row["prompt"] or "")


def _rows(found: Sequence[ScoredAnswer | Failure], known: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "ordinal": int(result.id),
            "scored_tokens": result.scored_tokens,
            "loglikelihood": result.loglikelihood,
            **known,
        }
        for result in found
        if isinstance(result, ScoredAnswer)
    ]


def _weights(source: ModelSource) -> str:
    """One hash of all weight files, in hex."""
    digests = [file_sha256(path) for path in weight_files(source.folder, source.ref)]
    return hashlib.sha256("".join(digests).encode()).hexdigest()
