"""lm-eval's own filters and metrics over stored answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dllm_audit.errors import TaskError
from dllm_audit.evaluate.prompts import TaskPrompt
from dllm_audit.evaluate.sandbox import SandboxError, contained


@dataclass(frozen=True)
class Scores:
    """Rows for the tables `answers` (per document, filter and metric) and `metrics` (aggregated); notes in sentences."""

    answers: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)


def score(
    task_name: str, task: Any, prompts: Sequence[TaskPrompt], texts: Mapping[int, str], unsafe: bool = False
) -> Scores:
    """Score the answers in `texts` (by ordinal). Documents with an unanswered request are left out, not marked wrong.

    unsafe: the person allowed metrics that execute model output; they do so in a sandbox.
    """
    from lm_eval.evaluator import evaluate

    by_doc: dict[int, list[str | None]] = {}
    for prompt in prompts:
        by_doc.setdefault(prompt.doc_id, []).append(texts.get(prompt.ordinal))
    documents = [doc for doc, answers in by_doc.items() if None not in answers]
    if not documents:
        return Scores([], [])
    replay = _replay_class()([by_doc[doc] for doc in documents])
    try:
        with contained(task) as (scorer, stopped):
            results = evaluate(
                replay,
                {"tasks": {task_name: scorer}, "groups": {}, "group_map": {}},
                samples={task_name: documents},
                bootstrap_iters=1000,
                confirm_run_unsafe_code=unsafe,
            )
    except SandboxError:
        raise
    except Exception as error:
        raise TaskError(
            f"The answers of task {task_name!r} could not be scored: {type(error).__name__}: {error}. "
            "They are stored; --resume scores them again."
        ) from error
    assert results is not None, "one process is rank 0"
    answers = [
        {
            "task": task_name,
            "doc_id": sample["doc_id"],
            "filter": sample["filter"],
            "metric": metric,
            "value": _number(sample[metric]),
            "response": _text(sample["filtered_resps"]),
            "target": str(sample["target"]),
        }
        for sample in results["samples"][task_name]
        for metric in sample["metrics"]
    ]
    metrics = []
    for name, value in results["results"][task_name].items():
        metric, comma, filter_name = name.partition(",")
        number = _number(value)
        if not comma or metric.endswith("_stderr") or number is None:
            continue
        stderr = _number(results["results"][task_name].get(f"{metric}_stderr,{filter_name}"))
        metrics.append(
            {
                "task": task_name,
                "metric": metric,
                "filter": filter_name,
                "value": number,
                "stderr": stderr,
                "documents": len(documents),
            }
        )
    notes = [f"Answers that were stopped, and are wrong, since {why}: {number}." for why, number in stopped.items()]
    return Scores(answers, metrics, notes)


def _number(value: Any) -> float | None:
    if isinstance(value, bool | int | float):
        return float(value)
    try:
        return float(value.item())
    except (AttributeError, ValueError, TypeError):
        return None


def _text(filtered: Any) -> str:
    while isinstance(filtered, list | tuple) and len(filtered) == 1:
        filtered = filtered[0]
    return filtered if isinstance(filtered, str) else str(filtered)


def _replay_class() -> type:
    from lm_eval.api.model import LM

    class Replay(LM):
        """Hands stored answers to lm-eval, document by document in the order of its requests; it never decodes."""

        def __init__(self, answers: Sequence[Sequence[str | None]]) -> None:
            super().__init__()
            self.answers = answers

        def generate_until(self, requests: Any) -> list[str]:
            used: dict[int, int] = {}
            out = []
            for request in requests:
                n = used.get(request.doc_id, 0)
                used[request.doc_id] = n + 1
                answer = self.answers[request.doc_id][n]
                assert answer is not None
                out.append(answer)
            return out

        def loglikelihood(self, requests: Any) -> list[tuple[float, bool]]:
            raise TaskError("Stored answers have no log-likelihoods.")

        def loglikelihood_rolling(self, requests: Any) -> list[float]:
            raise TaskError("Stored answers have no log-likelihoods.")

    return Replay
