"""What is proposed for a position, and how sure the model is of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Generator, Tensor


class Proposals(NamedTuple):
    """token: int64 [N]; confidence: float [N]."""

    token: Tensor
    confidence: Tensor


@dataclass(frozen=True)
class Score:
    """Propose the most likely token of each position (or a Gumbel sample of it) and say how sure that is.

    confidence: "probability" of the proposed token; "margin" between the two likeliest; "entropy", negative, so that
    higher is surer; "random", uniform in 0..1.
    dtype: number format of the softmax: "float32", "float64" or "model" (as the logits come).
    temperature: 0 proposes the argmax; above 0, argmax(logits + temperature * Gumbel noise), which samples from
    softmax(logits / temperature). The confidence comes from the noise-free logits, as in LLaDA.
    mask_token_id: never proposed; it stays in the softmax's denominator.
    end_ids and eos: hold end-of-text back ("suppress_logits": never proposed; "suppress_confidence": proposed last).
    compat: reproduces ML-GSAI/LLaDA b7e6c35, generate.py:98, where holding back the confidence removes the mass of
    end-of-text from every softmax.
    """

    confidence: str = "probability"
    dtype: str = "float32"
    temperature: float = 0.0
    mask_token_id: int | None = None
    end_ids: tuple[int, ...] = ()
    eos: str = "keep"
    compat: bool = False

    @property
    def draws(self) -> bool:
        """Whether anything is drawn at random, from the generator of each row."""
        return self.temperature > 0 or self.confidence == "random"

    @property
    def is_greedy_probability(self) -> bool:
        """Whether confidences are the probabilities of argmax tokens, as Theorem 1 of Fast-dLLM supposes."""
        return self.confidence == "probability" and self.temperature == 0

    def __call__(self, logits: Tensor, generators: Sequence[Generator | None], counts: Sequence[int]) -> Proposals:
        """Score `logits`, float [N, V], which may be overwritten.

        generators: one per row, used only for random draws; counts: how many of the N positions belong to each row.
        """
        import torch

        if self.dtype != "model":
            logits = logits.to(torch.float64 if self.dtype == "float64" else torch.float32)
        if self.eos == "suppress_logits" and self.end_ids:
            logits[:, list(self.end_ids[:1] if self.compat else self.end_ids)] = float("-inf")
        program = self.eos == "suppress_confidence" and self.compat
        if self.confidence == "probability" and self.temperature == 0 and self.dtype != "model" and not program:
            # exp(max - logsumexp) reads the logits once; a softmax would write another N x V.
            log_total = logits.logsumexp(dim=-1)
            self._forbid(logits, float("-inf"))
            top, token = logits.max(dim=-1)
            confidence = (top - log_total).exp()
        else:
            probability_of = logits.clone()
            self._forbid(logits, float("-inf"))
            token = self._propose(logits, generators, counts)
            if program:
                probability_of[:, list(self.end_ids)] = float("-inf")
            confidence = self._confidence(probability_of, token, generators, counts)
        if self.eos == "suppress_confidence" and not self.compat:
            # Of entropies the lowest is that of the number format: float16 holds no -1e30.
            lowest = torch.finfo(confidence.dtype).min if self.confidence == "entropy" else 0.0
            for end in self.end_ids:
                confidence = confidence.masked_fill(token == end, lowest)
        return Proposals(token, confidence)

    def _forbid(self, values: Tensor, lowest: float) -> None:
        if self.mask_token_id is not None:
            values[:, self.mask_token_id] = lowest

    def _propose(self, logits: Tensor, generators: Sequence[Generator | None], counts: Sequence[int]) -> Tensor:
        import torch

        if self.temperature == 0:
            return logits.argmax(dim=-1)
        # float64 noise: low-precision Gumbel noise truncates the tail (arXiv 2409.02908, section 4).
        noise = torch.cat(
            [
                torch.rand((n, logits.shape[1]), generator=g, dtype=torch.float64, device=logits.device)
                for g, n in zip(generators, counts, strict=True)
            ]
        )
        gumbel = -(-noise.clamp_min(1e-300).log()).clamp_min(1e-300).log()
        return (logits.double() + self.temperature * gumbel).argmax(dim=-1)

    def _confidence(
        self, logits: Tensor, token: Tensor, generators: Sequence[Generator | None], counts: Sequence[int]
    ) -> Tensor:
        import torch

        if self.confidence == "random":
            draws = [
                torch.rand(n, generator=g, device=g.device if g else None)
                for g, n in zip(generators, counts, strict=True)
            ]
            drawn = torch.cat(draws).to(logits.device)
            # A draw knows nothing of the logits: without this, NaN would propose a token like any other.
            return torch.where(logits.amax(dim=-1).isfinite(), drawn, float("nan"))
        probabilities = logits.softmax(dim=-1)
        if self.confidence == "probability":
            return probabilities.gather(1, token[:, None]).squeeze(1)
        if self.confidence == "margin":
            # Of the tokens that can be proposed: a likely mask says nothing about how sure the choice is.
            self._forbid(probabilities, 0.0)
            top = probabilities.topk(2, dim=-1).values
            return top[:, 0] - top[:, 1]
        # As Dream's program adds it, or the least that the number format holds: float16 has no 1e-10, and 0 has no logarithm.
        format = torch.finfo(probabilities.dtype)
        return (probabilities * (probabilities + max(1e-10, format.tiny * format.eps)).log()).sum(dim=-1)
