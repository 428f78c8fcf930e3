"""Two decoders judged on the same documents several times: over repeats, prompt templates, or samples.

Ten answers to one document are not ten documents. They are counted as what they are worth: the number of pairs over the
design effect, which is how much more the difference varies from document to document than it would if all pairs were
independent. Tango's interval of so many documents is then as sound for few discordant pairs as it is
without clusters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from dllm_audit.statistics.paired import NonInferiority, score, score_bounds


@dataclass(frozen=True)
class ClusteredDifference:
    """Accuracy of the candidate minus that of the baseline over all pairs, in -1..1, with a two-sided interval.

    documents: the clusters. pairs: answers of both sides, all documents together. design_effect: how many pairs are
    worth one independent document, from 1 up.
    """

    difference: float
    low: float
    high: float
    documents: int
    pairs: int
    design_effect: float
    confidence: float


def clustered_difference(
    documents: Iterable[Sequence[tuple[bool, bool]]], confidence: float = 0.95
) -> ClusteredDifference:
    """The paired difference with an interval that holds for other documents.

    documents: for each document its pairs of (candidate correct, baseline correct), one for every repeat or template.
    Documents with more pairs count for more. The interval uses Student's t of documents - 1 degrees of freedom.
    Raises ValueError for fewer than two documents, one without pairs, or a confidence outside 0..1.
    Source: the design effect of clustered binary data, Rao and Scott 1992, Biometrics 48:577-585, in the score
    interval of Tango 1998; the variance is that of Obuchowski 1998, Statistics in Medicine 17:1495-1507.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"Confidence must lie between 0 and 1, not {confidence}.")
    found = _Clusters.of(documents)
    low, high = score_bounds(*found.worth, float(t.isf((1 - confidence) / 2, found.documents - 1)))
    return ClusteredDifference(
        found.difference, low, high, found.documents, found.pairs, found.design_effect, confidence
    )


def clustered_non_inferiority(
    documents: Iterable[Sequence[tuple[bool, bool]]], margin: float, alpha: float = 0.05
) -> NonInferiority:
    """Decide whether the candidate loses less than `margin` (a share: 0.02 for two points), one-sided.

    The test that belongs to `clustered_difference` at confidence 1 - 2 alpha; `documents` as there.
    Raises ValueError unless 0 < margin < 1 and 0 < alpha < 0.5, and as `clustered_difference` does.
    """
    if not 0 < margin < 1 or not 0 < alpha < 0.5:
        raise ValueError(f"Need 0 < margin < 1 and 0 < alpha < 0.5, not margin {margin} and alpha {alpha}.")
    found = _Clusters.of(documents)
    low, high = score_bounds(*found.worth, float(t.isf(alpha, found.documents - 1)))
    p_value = float(t.sf(score(*found.worth, -margin), found.documents - 1))
    return NonInferiority(
        difference=found.difference,
        low=low,
        high=high,
        margin=margin,
        p_value=p_value,
        alpha=alpha,
        non_inferior=p_value < alpha,
        inferior=high < -margin,
    )


@dataclass(frozen=True)
class _Clusters:
    documents: int
    pairs: int
    only_candidate: int
    only_baseline: int
    design_effect: float

    @classmethod
    def of(cls, documents: Iterable[Sequence[tuple[bool, bool]]]) -> _Clusters:
        listed = [[(bool(ours), bool(theirs)) for ours, theirs in document] for document in documents]
        if len(listed) < 2 or not all(listed):
            raise ValueError("Clustered pairs need at least two documents, and at least one pair in each.")
        better = np.array([sum(ours and not theirs for ours, theirs in document) for document in listed])
        worse = np.array([sum(theirs and not ours for ours, theirs in document) for document in listed])
        sizes = np.array([len(document) for document in listed])
        pairs, k = int(sizes.sum()), len(listed)
        difference = (better.sum() - worse.sum()) / pairs
        between = k / (k - 1) * float(((better - worse - sizes * difference) ** 2).sum())
        independent = float((better + worse).sum() - pairs * difference**2)
        # Without a discordant pair nothing shows how alike the pairs of a document are: take them for one.
        effect = between / independent if independent > 0 else float((sizes**2).sum() / pairs)
        # An effect below 1 (answers to one document that avoid each other) is an accident of few discordant pairs.
        return cls(k, pairs, int(better.sum()), int(worse.sum()), max(1.0, effect))

    @property
    def difference(self) -> float:
        return (self.only_candidate - self.only_baseline) / self.pairs

    @property
    def worth(self) -> tuple[float, float, float]:
        """(documents, only candidate right, only baseline right), as independent documents."""
        parts = (self.pairs, self.only_candidate, self.only_baseline)
        documents, better, worse = (number / self.design_effect for number in parts)
        return documents, better, worse
