"""lm-eval's own filters and metrics over stored answers: texts, or log-likelihoods of given ones."""

from __future__ import annotations

import copy
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from dllm_audit.analysis.words import count
from dllm_audit.errors import TaskError
from dllm_audit.evaluate.deadline import task_templates_end
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
    by_doc: dict[int, list[Answer | None]] = {}
    for item in items:
        by_doc.setdefault(item.doc_id, []).append(found.get(item.ordinal))
    documents = [doc for doc, answers in by_doc.items() if None not in answers]
    if not documents:
        return Scores([], [])
    replay = _replay_class()([by_doc[doc] for doc in documents])
    samples, stopped = _scored(task_name, task, replay, documents, unsafe)
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
        for sample in samples
        for metric in sample["metrics"]
    ]
    metrics, without_value = _aggregated(task, samples)
    known = {"task": task_name, "documents": len(documents)}
    notes = [f"Stopped and wrong: {count(number, 'answer')} whose program {did}." for did, number in stopped.items()]
    return Scores(answers, [known | row for row in metrics], [*notes, *without_value, *_unanswerable(task, samples)])


def _scored(
    task_name: str, task: Any, replay: Any, documents: Sequence[int], unsafe: bool
) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, int]]:
    """(lm-eval's sample of every document and filter, what stopped programs did, with their numbers)."""
    from lm_eval.evaluator import evaluate

    try:
        with contained(task) as (inside, stopped), task_templates_end(task_name), _silenced():
            scorer = copy.copy(inside)
            # `_aggregated` does that, so that a metric without a value leaves the others theirs.
            scorer.aggregation = lambda: defaultdict(lambda: len)
            results = evaluate(
                replay,
                {"tasks": {task_name: scorer}, "groups": {}, "group_map": {}},
                samples={task_name: documents},
                bootstrap_iters=0,
                confirm_run_unsafe_code=unsafe,
            )
    except (SandboxError, TaskError):
        raise
    except Exception as error:
        raise TaskError(
            f"The answers of task {task_name!r} could not be scored: {type(error).__name__}: {error}. "
            "They are stored; --resume scores them again."
        ) from error
    assert results is not None, "one process is rank 0"
    return results["samples"][task_name], stopped


def _aggregated(task: Any, samples: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Every metric over all documents by lm-eval's own functions, and a note for each that has no value.

    Such a metric has the value None: a perplexity may be too large for a number, for example of a text of few words.
    """
    from lm_eval.api.metrics import mean, stderr_for_metric

    by_metric: dict[tuple[str, str], list[Any]] = {}
    for sample in samples:
        for metric in sample["metrics"]:
            by_metric.setdefault((metric, sample["filter"]), []).append(sample[metric])
    rows, notes = [], []
    for (metric, filter_name), values in by_metric.items():
        aggregate = task.aggregation().get(metric, mean)
        value = _computed(aggregate, values)
        if value is None:
            # Some metrics are no numbers.
            continue
        label = metric if filter_name == "none" else f"{metric}, {filter_name}"
        if isinstance(value, str):
            notes.append(f"Metric {label!r} has no value: {value}. Judge by another metric of the task.")
        # As lm-eval: such metrics take long.
        draws = 100 if metric in ("bleu", "chrf", "chrf++", "ter") else 1000
        deviation = stderr_for_metric(aggregate, draws)
        drawn = _computed(deviation, values) if deviation is not None and len(values) > 1 else None
        rows.append(
            {
                "metric": metric,
                "filter": filter_name,
                "value": None if isinstance(value, str) else value,
                "stderr": None if isinstance(drawn, str) or isinstance(value, str) else drawn,
            }
        )
    return rows, notes


@contextmanager
def _silenced() -> Iterator[None]:
    """lm-eval prints that it draws standard errors, which would stand in the middle of our own output."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def _computed(function: Callable[[Any], Any], values: Sequence[Any]) -> float | str | None:
    """What `function` makes of `values`; None where that is no number, and in words why there is none that is finite."""
    try:
        with _silenced():
            number = _number(function(values))
    except OverflowError:
        return "it is too large for a floating-point number"
    except Exception as error:  # a task may bring a function of its own
        return f"computing it failed ({type(error).__name__}: {error})"
    return number if number is None or math.isfinite(number) else f"it came out as {number}"


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
