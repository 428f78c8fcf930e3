"""Many tests at once: which of them still count when some would come out by chance."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import false_discovery_control


def benjamini_hochberg(p_values: Sequence[float], rate: float = 0.05) -> tuple[bool, ...]:
    """Whether each test counts, so that of those that do, at most a share of `rate` is expected to be chance.

    In the order given; empty without p-values. Holds for tests that are independent or positively dependent,
    as comparisons with one common baseline are.
    Raises ValueError unless 0 < rate < 1 and every p-value lies in 0..1.
    Source: Benjamini and Hochberg 1995, JRSS B 57:289-300 (scipy `false_discovery_control`); the dependence is
    Benjamini and Yekutieli 2001, Annals of Statistics 29:1165-1188, theorem 1.2.
    """
    if not 0 < rate < 1:
        raise ValueError(f"A false discovery rate lies between 0 and 1, not {rate}.")
    wrong = [p for p in p_values if not 0 <= p <= 1]
    if wrong:
        raise ValueError(f"A p-value lies in 0..1, not {wrong[0]}.")
    if not len(p_values):
        return ()
    return tuple(bool(adjusted <= rate) for adjusted in false_discovery_control(p_values, method="bh"))
