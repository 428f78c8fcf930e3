"""What a run says that scored given answers: how sure its log-likelihoods are, and which choices are chance.

A diffusion model's log-likelihoods are estimated from random masked copies. Where another answer of a document lies within
two standard errors of the likeliest, other copies might have chosen it: that document's score is Monte Carlo noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Any

from dllm_audit.analysis.figures import Figure
from dllm_audit.statistics.proportions import wilson_interval

UNDECIDED_WITHIN = 2.0
"""Standard errors of the difference of two answers within which the likelier one is not told from the other."""

#: What lm-eval divides a log-likelihood by before it chooses, by metric. The delimiter before an answer is no part of it.
_PER: Mapping[str, Callable[[str], int]] = {
    "acc": lambda answer: 1,
    "acc_norm": len,
    "acc_bytes": lambda answer: len(answer.encode()),
}


@dataclass(frozen=True)
class Likelihoods:
    """exact, estimated: requests by how their value came about. samples: masked copies behind the estimated ones.

    standard_error: mean of the estimated ones, in nats. total: sum over all requests, with the interval of its Monte Carlo
    error. undecided: by metric, the share of documents with another answer within two standard errors of the chosen one.
    """

    exact: int
    estimated: int
    samples: int
    standard_error: Figure
    total: Figure
    undecided: Mapping[str, Figure]


def likelihoods_of_rows(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> Likelihoods:
    """The figures of the scored requests `rows` of a run whose metrics have these names."""
    estimated = [row for row in rows if not row["is_exact"]]
    mean = sum(row["standard_error"] for row in estimated) / len(estimated) if estimated else None
    error = sqrt(sum(row["standard_error"] ** 2 for row in rows))
    total = Figure(None, "nats", "measured", reason="no request was scored")
    if rows:
        value = sum(row["loglikelihood"] for row in rows)
        total = Figure(value, "nats", "measured", reason="every value is exact")
        if estimated:
            basis = f"Monte Carlo error of {len(estimated)} estimates"
            total = Figure(value, "nats", "estimated", value - 1.96 * error, value + 1.96 * error, basis)
    return Likelihoods(
        exact=len(rows) - len(estimated),
        estimated=len(estimated),
        samples=sum(row["samples"] for row in estimated),
        standard_error=Figure(mean, "nats", "measured", reason="" if estimated else "every value is exact"),
        total=total,
        undecided={name: _undecided(rows, per) for name, per in _PER.items() if name in metrics},
    )


def _undecided(rows: Sequence[Mapping[str, Any]], per: Callable[[str], int]) -> Figure:
    documents: dict[Any, list[tuple[float, float]]] = {}
    for row in rows:
        if row["choice"] is not None:
            size = max(1, per((row["continuation"] or "").strip()))
            values = row["loglikelihood"] / size, row["standard_error"] / size
            documents.setdefault(row["doc_id"], []).append(values)
    choices = [answers for answers in documents.values() if len(answers) > 1]
    if not choices:
        return Figure(None, "share", "measured", reason="no document has answers to choose from")
    found = wilson_interval(sum(map(_is_close, choices)), len(choices))
    return Figure(found.rate, "share", "measured", found.low, found.high, basis=f"{len(choices)} documents")


def _is_close(answers: Sequence[tuple[float, float]]) -> bool:
    """Whether another answer lies within the error of the difference to the likeliest. Exact values have none."""
    chosen = max(range(len(answers)), key=lambda n: answers[n][0])
    best, error = answers[chosen]
    return any(
        (noise := hypot(error, other_error)) > 0 and best - other <= UNDECIDED_WITHIN * noise
        for n, (other, other_error) in enumerate(answers)
        if n != chosen
    )


def likelihood_notes(run: Mapping[str, Any], found: Likelihoods) -> list[str]:
    """What a reader must know before using the scores of such a run."""
    notes = ["Given answers were scored and none was decoded: log-likelihoods depend on the model, not on the decoder."]
    if run["kind"] == "diffusion":
        notes.append(
            "Log-likelihoods of a diffusion model are lower bounds (expectations over masked copies of the answer), so "
            "perplexities made of them are upper bounds."
        )
    if found.estimated and found.standard_error.value is not None:
        of, rest = (f"All {found.estimated}", "")
        if found.exact:
            of, rest = (f"{found.estimated} of {found.estimated + found.exact}", "; the others are exact")
        notes.append(
            f"{of} log-likelihoods are estimated, from {found.samples / found.estimated:.0f} masked copies each on average, "
            f"with a standard error of {found.standard_error.value:.3g} nats on average{rest}."
        )
    for metric, figure in found.undecided.items():
        if figure.value:
            notes.append(
                f"{metric}: in {figure.value:.0%} of {figure.basis} another answer lies within two standard errors of the "
                "chosen one, so which was chosen there is Monte Carlo noise. More samples decide more: --samples N."
            )
    return notes
