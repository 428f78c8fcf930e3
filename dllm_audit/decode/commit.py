"""Which proposals become tokens in this step.

Every policy is a small value with one method:

    select(confidence, quota) -> bool [B, W]

confidence: float [B, W], -inf where a position is no candidate. quota: int [B], tokens that the schedule asks of this step.
A row without candidates commits nothing; every other row commits at least one token (Reveal alone leaves that to chance).
Ties: the lowest index first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


#: Confidences that lie between 0 and 1.
_IN_0_TO_1 = ("probability", "margin")


class CommitPolicy(Protocol):
    """`confidences`: the confidences whose scale its bar is on; empty where only their order matters."""

    @property
    def confidences(self) -> tuple[str, ...]: ...

    def select(self, confidence: Tensor, quota: Tensor) -> Tensor: ...


def _most_confident(confidence: Tensor) -> Tensor:
    """Bool [B, W]: each row's most confident candidate (lowest index among equals), nothing in a row without any."""
    import torch

    top = torch.zeros_like(confidence, dtype=torch.bool)
    top.scatter_(1, confidence.argmax(dim=1, keepdim=True), True)
    return top & (confidence > float("-inf"))


@dataclass(frozen=True)
class FixedK:
    """Commit the `quota` most confident candidates: the schedule of LLaDA (arXiv 2502.09992, algorithm 5)."""

    confidences: tuple[str, ...] = ()

    def select(self, confidence: Tensor, quota: Tensor) -> Tensor:
        candidate = confidence > float("-inf")
        if confidence.shape[1] == 1:
            return candidate & (quota[:, None] > 0)
        order = confidence.argsort(dim=1, descending=True, stable=True)
        rank = order.argsort(dim=1)
        return (rank < quota[:, None]) & candidate


@dataclass(frozen=True)
class Threshold:
    """Commit every candidate whose confidence reaches `threshold`, and always the most confident one.

    Source: Fast-dLLM, arXiv 2505.22618, section 3.3 (`>=`).
    """

    threshold: float
    confidences: tuple[str, ...] = _IN_0_TO_1

    def select(self, confidence: Tensor, quota: Tensor) -> Tensor:
        return (confidence >= self.threshold) | _most_confident(confidence)


@dataclass(frozen=True)
class Factor:
    """Commit the n most confident candidates, n being the largest with (n+1)(1-c_n) < factor, and at least one.

    compat: reproduces NVlabs/Fast-dLLM a9b81e4, v1/llada/generate.py:414, which commits the last candidate too when it
    is the only one that failed. Source of the rule: Fast-dLLM, arXiv 2505.22618, section 3.3.
    """

    factor: float
    compat: bool = False
    confidences: tuple[str, ...] = _IN_0_TO_1

    def select(self, confidence: Tensor, quota: Tensor) -> Tensor:
        import torch

        candidate = confidence > float("-inf")
        ordered, order = confidence.sort(dim=1, descending=True, stable=True)
        rank = torch.arange(1, ordered.shape[1] + 1, device=ordered.device, dtype=ordered.dtype)
        if self.compat:
            passes = ordered >= 1 - self.factor / (rank + 1)
        else:
            passes = (rank + 1) * (1 - ordered) < self.factor
        passes[:, 0] = True
        count = passes.to(torch.int64).cumprod(dim=1).sum(dim=1)
        total = candidate.sum(dim=1)
        if self.compat:
            count = torch.where(count == total - 1, total, count)
        return (order.argsort(dim=1) < count[:, None]) & candidate


@dataclass(frozen=True)
class EntropyBound:
    """Commit the n surest candidates, n being the largest whose entropies, all but the highest added up, stay within `bound`.

    The sum (in nats) bounds what the tokens committed together can depend on each other; 0 still commits the surest, and
    whatever is certain. Source: EB-Sampler, arXiv 2505.24857, section 4, with the entropy itself as the order.
    """

    bound: float
    confidences: tuple[str, ...] = ("entropy",)

    def select(self, confidence: Tensor, quota: Tensor) -> Tensor:
        import torch

        ordered, order = confidence.sort(dim=1, descending=True, stable=True)
        # What stands before each candidate in the order.
        before = torch.zeros_like(ordered)
        before[:, 1:] = -ordered.cumsum(dim=1)[:, :-1]
        count = (before <= self.bound).long().cumprod(dim=1).sum(dim=1)
        return (order.argsort(dim=1) < count[:, None]) & (confidence > float("-inf"))


@dataclass(frozen=True)
class ThresholdWithinQuota:
    """Of the `quota` most confident candidates, commit the first and those that reach `threshold`.

    The threshold can only slow decoding down. Source: NVlabs/Fast-dLLM a9b81e4, v1/dream/model/generation_utils.py:448-462.
    """

    threshold: float
    confidences: tuple[str, ...] = _IN_0_TO_1

    def select(self, confidence: Tensor, quota: Tensor) -> Tensor:
        return FixedK().select(confidence, quota) & Threshold(self.threshold).select(confidence, quota)


@dataclass(frozen=True)
class Reveal:
    """Commit each candidate with the step's chance: its random number (confidence "random") lies below the quota.

    A step may commit nothing; the last step's chance is 1. Source: Dream (DreamModel, generation_utils.py, alg "origin"),
    the sampler of masked diffusion (MDLM, arXiv 2406.07524).
    """

    confidences: tuple[str, ...] = ()

    def select(self, confidence: Tensor, quota: Tensor) -> Tensor:
        return (confidence > float("-inf")) & (confidence < quota[:, None])
