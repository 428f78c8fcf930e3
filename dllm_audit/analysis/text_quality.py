"""How answers read, beside how often they are right: a text can pass a benchmark and read badly.

Everything here is counted in answers that were stored, so it holds for old results files too. Words are what stands between
white space: unlike tokens they are the same for every model, and "100" in three tokens repeats nothing. Figures that add
up over answers are sums over sums, with intervals over the answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp
from typing import Any

from dllm_audit.analysis.code import programs_of, read_code
from dllm_audit.analysis.figures import Figure
from dllm_audit.analysis.pooled import pooled, rate

#: An answer of so many tokens or more that are all the same is no answer. Three may be "111" or "...".
_ALL_THE_SAME = 4

#: How the message of a request begins whose logits were NaN or infinite; see decode.session.
_NOT_FINITE = "The model's logits are not finite"


@dataclass(frozen=True)
class CodeQuality:
    """Of the programs that a task executed: how many do not parse, and how many use a name that nothing defines.

    undefined_names: over all programs; one that does not parse counts as none. names: the most frequent ones.
    """

    programs: int
    syntax_errors: Figure
    undefined_names: Figure
    names: tuple[str, ...]


@dataclass(frozen=True)
class Perplexity:
    """How likely another model finds the answers after their prompts: exp(-mean log-likelihood per token of `reference`).

    answers: those that were scored; left_out: those of the run that were not (empty, or too long for the reference).
    """

    reference: str
    figure: Figure
    answers: int
    left_out: int


@dataclass(frozen=True)
class TextQuality:
    """adjacent_repeats: of all pairs of neighbouring words, the share of the same word twice ("the the").

    unique_bigrams: different pairs of neighbouring words of an answer over all of them, summed over answers.
    degenerate: share of requests that ended with no usable text; degenerate_kinds says how, by number of requests.
    code: of a task that executes answers; None for others. perplexities: under each model that was asked.
    """

    adjacent_repeats: Figure
    unique_bigrams: Figure
    degenerate: Figure
    degenerate_kinds: Mapping[str, int]
    code: CodeQuality | None
    perplexities: tuple[Perplexity, ...]


def text_quality_of_rows(
    requests: Sequence[Mapping[str, Any]],
    answers: Sequence[Mapping[str, Any]],
    likelihoods: Sequence[Mapping[str, Any]] = (),
) -> TextQuality:
    """The figures of one run from its rows: stored requests, scored answers, and likelihoods under other models."""
    answered = [row for row in requests if row["error_type"] is None]
    words = [(row["text"] or "").split() for row in answered]
    nothing = "no answer has two words"
    kinds = Counter(kind for row in requests if (kind := _degenerate(row)) is not None)
    ended = len(answered) + kinds["not finite"]
    return TextQuality(
        adjacent_repeats=pooled([_repeats(of) for of in words], "share", "answers", nothing),
        unique_bigrams=pooled([_bigrams(of) for of in words], "share", "answers", nothing),
        degenerate=rate(sum(kinds.values()), ended, "requests"),
        degenerate_kinds=dict(kinds.most_common()),
        code=_code(answers, answered),
        perplexities=_perplexities(likelihoods, len(answered)),
    )


def _repeats(words: Sequence[str]) -> tuple[int, int]:
    """(neighbours that are the same word, pairs of neighbours)."""
    pairs = list(pairwise(words))
    return sum(a == b for a, b in pairs), len(pairs)


def _bigrams(words: Sequence[str]) -> tuple[int, int]:
    """(different pairs of neighbours, pairs of neighbours)."""
    pairs = list(pairwise(words))
    return len(set(pairs)), len(pairs)


def _degenerate(row: Mapping[str, Any]) -> str | None:
    """How an answer is no text at all; None for one that is."""
    if row["error_type"] is not None:
        return "not finite" if (row["error_message"] or "").startswith(_NOT_FINITE) else None
    if not row["answered_tokens"]:
        return "empty"
    if row["text"] is not None and not row["text"].strip():
        return "nothing but padding or white space"
    ids = answer_ids(row)
    if ids is not None and len(ids) >= _ALL_THE_SAME and len(set(ids)) == 1:
        return "one token over and over"
    return None


def answer_ids(row: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Token ids of a stored answer, cut where it ended; None where they are not known.

    A window that kept masks (a reproduced program leaves some) does not say which of its tokens were counted.
    """
    if row["output_ids"] is None or row["residual_masks"]:
        return None
    return tuple(row["output_ids"][: row["answered_tokens"]])


def _code(answers: Sequence[Mapping[str, Any]], answered: Sequence[Mapping[str, Any]]) -> CodeQuality | None:
    known = {row["doc_id"] for row in answered}
    programs = [source for doc, source in programs_of(answers).items() if doc in known]
    if not programs:
        return None
    readings = [read_code(source) for source in programs]
    names = Counter(name for reading in readings for name in reading.undefined)
    over = "programs"
    return CodeQuality(
        programs=len(programs),
        syntax_errors=rate(sum(reading.syntax_error is not None for reading in readings), len(programs), over),
        undefined_names=rate(sum(bool(reading.undefined) for reading in readings), len(programs), over),
        names=tuple(name for name, _ in names.most_common(5)),
    )


def _perplexities(likelihoods: Sequence[Mapping[str, Any]], answered: int) -> tuple[Perplexity, ...]:
    by_reference: dict[str, list[Mapping[str, Any]]] = {}
    for row in likelihoods:
        by_reference.setdefault(row["reference"], []).append(row)
    return tuple(_perplexity(reference, rows, answered) for reference, rows in sorted(by_reference.items()))


def _perplexity(reference: str, rows: Sequence[Mapping[str, Any]], answered: int) -> Perplexity:
    parts = [(-row["loglikelihood"], row["scored_tokens"]) for row in rows]
    each = pooled(parts, "nats/token", "answers", "no answer was scored")
    figure = replace(each, unit="perplexity", value=_exp(each.value), low=_exp(each.low), high=_exp(each.high))
    return Perplexity(reference, figure, len(rows), max(0, answered - len(rows)))


def _exp(nats: float | None) -> float | None:
    # Beyond 700 nats the exponential is no float any more, and nobody reads it.
    return None if nats is None else exp(min(nats, 700.0))
