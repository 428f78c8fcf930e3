"""lm-eval's own filters and metrics over stored answers: texts, or log-likelihoods of given ones."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from dllm_audit.analysis.words import count
from dllm_audit.errors import TaskError
from dllm_audit.evaluate.prompts import TaskItem
from dllm_audit.evaluate.sandbox import SandboxError, contained

#: What lm-eval takes back for a request: a text; (log-likelihood, whether it is greedy); for a whole text the first alone.
Answer = str | tuple[float, bool] | float


@dataclass(frozen=True)
class Scores:
    """Rows for the tables `answers` (per document, filter and metric) and `metrics` (aggregated); notes in sentences."""

    answers: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)


def score(
    task_name: str, task: Any, items: Sequence[TaskItem], found: Mapping[int, Answer], unsafe: bool = False
) -> Scores:
    """Score the answers in `found` (by ordinal). Documents with an unanswered request are left out, not marked wrong.

    unsafe: the person allowed metrics that execute model output; they do so in a sandbox.
    """
    from lm_eval.evaluator import evaluate

    by_doc: dict[int, list[Answer | None]] = {}
    for item in items:
        by_doc.setdefault(item.doc_id, []).append(found.get(item.ordinal))
    documents = [doc for doc, answers in by_doc.items() if None not in answers]
    if not documents:
        return Scores([], [])
    replay = _replay_class()([by_doc[doc] for doc in documents])
    try:
        # It prints that it draws standard errors, which would stand in the middle of our own output.
        with contained(task) as (scorer, stopped), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
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
    notes = [f"Stopped and wrong: {count(number, 'answer')} whose program {did}." for did, number in stopped.items()]
    return Scores(answers, metrics, [*notes, *_unanswerable(task, results["samples"][task_name])])


def _unanswerable(task: Any, samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note where a document's right answer is none of its choices: lm-eval counts it as wrong, whatever was chosen."""
    if task.OUTPUT_TYPE != "multiple_choice" or getattr(task, "multiple_input", 0):
        return []
    first: dict[int, Mapping[str, Any]] = {}
    for sample in samples:
        first.setdefault(sample["doc_id"], sample)
    wrong = []
    for document, sample in first.items():
        choices = task.doc_to_choice(sample["doc"])
        gold = sample["target"]
        golds = gold if isinstance(gold, list) else [gold]
        if not any(g in choices or (isinstance(g, int) and 0 <= g < len(choices)) for g in golds):
            wrong.append(document)
    if not wrong:
        return []
    return [
        f"Of {count(len(first), 'document')}, {len(wrong)} can only be answered wrong: the right answer is none of the choices "
        f"(document {wrong[0]} is the first). Check doc_to_target and doc_to_choice of the task."
    ]


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

        def __init__(self, answers: Sequence[Sequence[Answer | None]]) -> None:
            super().__init__()
            self.answers = answers

        def generate_until(self, requests: Any) -> list[Any]:
            used: dict[int, int] = {}
            out = []
            for request in requests:
                n = used.get(request.doc_id, 0)
                used[request.doc_id] = n + 1
                answer = self.answers[request.doc_id][n]
                assert answer is not None
                out.append(answer)
            return out

        loglikelihood = generate_until
        loglikelihood_rolling = generate_until

    return Replay
