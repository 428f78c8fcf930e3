"""How many paired documents a quality margin needs, and which margin so many documents can decide.

Both are for non-inferiority of two decoders that are truly equal, from the normal approximation of the paired
difference: its standard error is sqrt(discordance / documents). `discordance` is the share of the documents
that exactly one of the two answers correctly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from statistics import NormalDist


@dataclass(frozen=True)
class MarginPower:
    """So many paired documents decide a margin of `margin` (a share: 0.02 is two points) with this power."""

    margin: float
    documents: int
    discordance: float
    alpha: float
    power: float


def required_documents(margin: float, discordance: float = 0.1, alpha: float = 0.05, power: float = 0.8) -> MarginPower:
    """The paired documents that a non-inferiority margin needs: 1,546 for 0.02 and 6,183 for 0.01 by default.

    Raises ValueError when an argument is outside its range.
    Source: sample size of a paired non-inferiority test at zero difference, for example Liu et al. 2002,
    Statistics in Medicine 21:231-245.
    """
    _check(discordance, alpha, power)
    if not 0 < margin < 1:
        raise ValueError(f"A margin is a share between 0 and 1 (0.02 for two points), not {margin}.")
    documents = ceil(_quantiles(alpha, power) ** 2 * discordance / margin**2)
    return MarginPower(margin, documents, discordance, alpha, power)


def decidable_margin(documents: int, discordance: float = 0.1, alpha: float = 0.05, power: float = 0.8) -> MarginPower:
    """The smallest margin that so many paired documents decide: 0.0217 for the 1,319 of GSM8K by default.

    Raises ValueError when an argument is outside its range. The inverse of `required_documents`.
    """
    _check(discordance, alpha, power)
    if documents < 1:
        raise ValueError(f"Need at least one document, not {documents}.")
    margin = _quantiles(alpha, power) * sqrt(discordance / documents)
    return MarginPower(margin, documents, discordance, alpha, power)


def _quantiles(alpha: float, power: float) -> float:
    # Not scipy.stats: importing it takes longer than reading the whole registry of claims, which needs this.
    return NormalDist().inv_cdf(1 - alpha) + NormalDist().inv_cdf(power)


def _check(discordance: float, alpha: float, power: float) -> None:
    if not 0 < discordance <= 1 or not 0 < alpha < 0.5 or not 0.5 <= power < 1:
        raise ValueError(
            f"Need 0 < discordance <= 1, 0 < alpha < 0.5 and 0.5 <= power < 1, not {discordance}, {alpha} and {power}."
        )
