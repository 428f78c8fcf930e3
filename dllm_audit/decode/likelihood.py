"""How likely a model finds an answer: log-likelihoods, exact or estimated, and whether greedy decoding gives it.

An autoregressive model states log p(answer | prompt) in one forward. A masked-diffusion model states a bound of it, the
expectation over masked copies of the answer (LLaDA, arXiv 2502.09992, section 2.4): mask l of its L tokens, l uniform in
1..L and the positions uniform among those of that number, add up the log-probabilities of the masked tokens, times L/l.
Block diffusion adds up such bounds, each block's given the blocks before it (BD3-LM, arXiv 2503.09573, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import torch

from dllm_audit.decode.cache import Window
from dllm_audit.decode.runner import ForwardRunner
from dllm_audit.decode.score import Score
from dllm_audit.decode.state import Canvas
from dllm_audit.errors import ModelError, RequestError, UsageError

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from dllm_audit.models.loading import LoadedModel
    from dllm_audit.models.traits import ModelTraits

#: The longest answer (of one block) whose masked copies are all tried: 65,535 of them.
LONGEST_EXACT = 16

#: Positions that the vocabulary head sees at once; 512 x 126,464 logits are a quarter of a gigabyte.
_HEAD_POSITIONS = 512


@dataclass(frozen=True)
class LikelihoodSettings:
    """How a log-likelihood is estimated.

    samples: masked copies per answer (and block). exact: try every masked copy instead of sampling; without it that is
    done wherever it costs no more than the samples.
    compat "llada": the mask counts of ML-GSAI/LLaDA b7e6c35, get_log_likelihood.py, which are not uniform for most
    lengths: its expectation is another one, so its estimate is biased. Its samples are not independent within a batch.
    cfg_scale: classifier-free guidance with the prompt hidden. batch_size: masked copies per forward.
    mask_token_id: default the model's.
    """

    samples: int = 128
    exact: bool = False
    compat: str | None = None
    cfg_scale: float = 0.0
    batch_size: int = 16
    mask_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise UsageError(f"samples={self.samples}: a standard error needs two or more.")
        if self.batch_size < 1:
            raise UsageError(f"batch_size={self.batch_size}: at least one sequence must be in a forward.")
        if self.exact:
            return
        if self.compat == "llada" and self.samples % self.batch_size:
            raise UsageError(
                f"compat=llada draws whole batches, and {self.samples} samples are no multiple of batch_size="
                f"{self.batch_size}. Change one of them."
            )
        if self.compat == "llada" and self.samples < 2 * self.batch_size:
            raise UsageError(
                f"compat=llada needs two batches or more for a standard error: say samples={2 * self.batch_size} or more."
            )


@dataclass(frozen=True)
class Likelihood:
    """loglikelihood: in nats, of all answer tokens together. standard_error: of the estimate; 0 when `exact`.

    samples: sequences that were run for it. is_greedy: whether decoding one token at a time, the surest first, gives
    exactly this answer.
    """

    loglikelihood: float
    standard_error: float
    samples: int
    exact: bool
    is_greedy: bool


@dataclass(frozen=True)
class Fill:
    """Tokens in the order in which greedy decoding commits them, as (index in the answer, token, probability).

    It ends where a token differs from the wanted answer; `matches` says that none did.
    """

    order: tuple[tuple[int, int, float], ...]
    matches: bool


def score_answer(
    model: LoadedModel,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    settings: LikelihoodSettings,
    seed: int = 0,
) -> Likelihood:
    """The log-likelihood of `answer_ids` after `prompt_ids`.

    seed: of the masked copies; they are drawn on the host, so that every device scores the same ones.
    Raises RequestError for an answer that cannot be scored, ModelError for a model that cannot score.
    """
    check_model(model.traits, settings)
    _check(model, prompt_ids, answer_ids)
    with torch.inference_mode():
        if model.traits.attention == "causal":
            return _autoregressive(model, prompt_ids, answer_ids)
        generator = torch.Generator().manual_seed(seed)
        parts = [
            _Part(model, prompt, part, settings, generator) for prompt, part in _parts(model, prompt_ids, answer_ids)
        ]
        estimates = [part.estimate() for part in parts]
        greedy = all(part.fill().matches for part in parts)
    return Likelihood(
        sum(e.loglikelihood for e in estimates),
        math.sqrt(sum(e.standard_error**2 for e in estimates)),
        sum(e.samples for e in estimates),
        all(e.exact for e in estimates),
        greedy,
    )


def suffix_greedy(model: LoadedModel, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Fill:
    """Decode as many tokens as `answer_ids` has after `prompt_ids`, one per forward, until one differs.

    Source: ML-GSAI/LLaDA b7e6c35, eval_llada.py, suffix_greedy_prediction.
    """
    settings = LikelihoodSettings()
    check_model(model.traits, settings)
    _check(model, prompt_ids, answer_ids)
    with torch.inference_mode():
        return _Part(model, prompt_ids, answer_ids, settings, torch.Generator()).fill()


def check_model(traits: ModelTraits, settings: LikelihoodSettings) -> None:
    """Raise UsageError or ModelError where a model with these traits cannot be scored as `settings` say."""
    if traits.attention == "causal":
        if settings.compat or settings.cfg_scale or settings.mask_token_id is not None:
            raise UsageError(
                "compat, cfg_scale and mask_token_id are for diffusion models: this one is autoregressive, "
                "and its log-likelihood is exact."
            )
        return
    if traits.attention == "block" and (settings.compat or settings.cfg_scale):
        raise UsageError("compat and cfg_scale are for models with bidirectional attention: this one works in blocks.")
    mask = settings.mask_token_id if settings.mask_token_id is not None else traits.mask_token_id
    if mask is None:
        raise ModelError("This model states no mask token: say --mask-token-id N.")
    if mask >= traits.vocab_size:
        raise ModelError(f"mask_token_id={mask} is outside this model's vocabulary of {traits.vocab_size} tokens.")


def _check(model: LoadedModel, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> None:
    traits = model.traits
    if not answer_ids:
        raise RequestError("The answer is empty, so there is nothing to score.")
    bad = next((i for i in (*prompt_ids, *answer_ids) if not 0 <= i < traits.vocab_size), None)
    if bad is not None:
        raise RequestError(f"Token id {bad} is outside this model's vocabulary of {traits.vocab_size}.")
    length = len(prompt_ids) + len(answer_ids)
    if length > traits.max_positions:
        raise RequestError(
            f"The prompt of {len(prompt_ids)} tokens and the answer of {len(answer_ids)} are {length} positions, but the "
            f"model was made for {traits.max_positions}. Shorten the prompt."
        )
    if traits.attention == "causal" and not prompt_ids and traits.bos_token_id is None:
        raise RequestError(
            "The prompt is empty, and this model predicts a token from the one before it. Give at least one."
        )


def _autoregressive(model: LoadedModel, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Likelihood:
    # _check has refused an empty prompt for a model that has no such id.
    before = list(prompt_ids) or [model.traits.bos_token_id or 0]
    fed = [*before, *answer_ids[:-1]]
    canvas = Canvas.empty(1, len(fed), model.device)
    canvas.tokens[0, : len(fed)] = torch.tensor(fed, device=model.device)
    runner = ForwardRunner(model, canvas, cached=False)
    window = Window("denoise", 0, len(fed), len(fed), attention="causal", cached=False)
    hidden = runner.run([0], [window])
    index = torch.arange(len(before) - 1, len(fed), device=model.device)
    target = torch.tensor(list(answer_ids), device=model.device)

    def logits(chosen: slice) -> Tensor:
        return runner.logits(hidden, torch.zeros_like(index[chosen]), index[chosen], 0.0)

    logp, likeliest = _of_targets(logits, target)
    return Likelihood(float(logp.sum()), 0.0, 1, True, bool((likeliest == target).all()))


def _of_targets(logits_at: Callable[[slice], Tensor], target: Tensor) -> tuple[Tensor, Tensor]:
    """(log-probability of each target, float64 on the host; likeliest token), both [N], a part of the positions at a time."""
    logp, likeliest = [], []
    for start in range(0, len(target), _HEAD_POSITIONS):
        chosen = slice(start, start + _HEAD_POSITIONS)
        logits = logits_at(chosen).float()
        picked = logits.gather(1, target[chosen][:, None]).squeeze(1)
        # Summed on the host: not every device has float64.
        logp.append((picked - logits.logsumexp(dim=1)).cpu().double())
        likeliest.append(logits.argmax(dim=1))
    return torch.cat(logp), torch.cat(likeliest)


def _parts(
    model: LoadedModel, prompt_ids: Sequence[int], answer_ids: Sequence[int]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """(what is known, what is scored): the whole answer, or for block diffusion what lies in each block of the grid."""
    grid = model.traits.block_length
    if model.traits.attention != "block" or grid is None:
        yield prompt_ids, answer_ids
        return
    ids = [*prompt_ids, *answer_ids]
    start = len(prompt_ids)
    while start < len(ids):
        end = min((start // grid + 1) * grid, len(ids))
        yield ids[:start], ids[start:end]
        start = end


class _Part:
    """Answer tokens that are masked together, after tokens that are known."""

    def __init__(
        self,
        model: LoadedModel,
        prompt_ids: Sequence[int],
        answer_ids: Sequence[int],
        settings: LikelihoodSettings,
        generator: Generator,
    ) -> None:
        self.settings = settings
        self.generator = generator
        mask = model.traits.mask_token_id if settings.mask_token_id is None else settings.mask_token_id
        assert mask is not None, "check_model refuses a model without"
        self.mask = mask
        self.shift = model.traits.shift
        self.start, self.length = len(prompt_ids), len(answer_ids)
        end = self.start + self.length
        rows = settings.batch_size
        self.canvas = Canvas.empty(rows, end, model.device)
        self.answer = torch.tensor(list(answer_ids), device=model.device)
        self.canvas.tokens[:, : self.start] = torch.tensor(list(prompt_ids), dtype=torch.int64, device=model.device)
        self.canvas.given[:, : self.start] = True
        self.runner = ForwardRunner(model, self.canvas, cached=False)
        attention = "block" if model.traits.attention == "block" else "full"
        self.window = Window("denoise", 0, end, end, attention=attention, cached=False)

    def _logits(self, masked: Tensor) -> tuple[Callable[[slice], Tensor], Tensor, Tensor]:
        """One forward of copies with `masked`, bool [B, L], on the device.

        Returns logits(slice of the masked positions), and row and index in the answer of every masked position.
        """
        rows = masked.shape[0]
        self.canvas.tokens[:rows, self.start : self.start + self.length] = torch.where(masked, self.mask, self.answer)
        guided = self.mask if self.settings.cfg_scale else None
        hidden = self.runner.run(list(range(rows)), [self.window] * rows, guided)
        row, at = masked.nonzero(as_tuple=True)
        index = (at + self.start - self.shift).clamp_min_(0)
        return (
            lambda chosen: self.runner.logits(hidden, row[chosen], index[chosen], self.settings.cfg_scale),
            row,
            at,
        )

    def _sums(self, copies: Tensor) -> Tensor:
        """Sum of the log-probabilities of the masked tokens of each copy, float64 [N]; copies: bool [N, L] on the host."""
        sums = []
        for batch in copies.split(self.settings.batch_size):
            masked = batch.to(self.canvas.tokens.device)
            logits, row, at = self._logits(masked)
            logp, _ = _of_targets(logits, self.answer[at])
            sums.append(torch.zeros(len(batch), dtype=torch.float64).index_add_(0, row.cpu(), logp))
        return torch.cat(sums)

    def estimate(self) -> Likelihood:
        """The log-likelihood without the greedy check (`is_greedy` is False)."""
        copies = 2**self.length - 1
        if self.settings.exact and self.length > LONGEST_EXACT:
            raise RequestError(
                f"An answer of {self.length} tokens has {copies:,} masked copies, and exact enumeration ends at "
                f"{LONGEST_EXACT} tokens. Leave --exact out to sample them."
            )
        if self.settings.exact or (copies <= self.settings.samples and self.settings.compat is None):
            return Likelihood(self._enumerated(), 0.0, copies, True, False)
        program = self.settings.compat == "llada"
        counts = self._counts_of_the_program() if program else self._uniform_counts()
        noise = torch.rand((len(counts), self.length), generator=self.generator)
        masked = noise.argsort(dim=1).argsort(dim=1) < counts[:, None]
        values = self._sums(masked) * (self.length / counts)
        if program:
            # Mask counts of a batch follow from one draw, so the batch is what is independent.
            values = values.view(-1, self.settings.batch_size).mean(dim=1)
        error = float(values.std()) / math.sqrt(len(values))
        return Likelihood(float(values.mean()), error, len(counts), False, False)

    def _enumerated(self) -> float:
        weights = (
            reference_law(self.length, self.settings.batch_size)
            if self.settings.compat == "llada"
            else [1 / self.length] * self.length
        )
        total = 0.0
        for count, weight in enumerate(weights, 1):
            chosen = torch.tensor(list(combinations(range(self.length), count)))
            masked = torch.zeros((len(chosen), self.length), dtype=torch.bool).scatter_(1, chosen, True)
            total += weight * self.length / count * float(self._sums(masked).mean())
        return total

    def _uniform_counts(self) -> Tensor:
        return torch.randint(1, self.length + 1, (self.settings.samples,), generator=self.generator)

    def _counts_of_the_program(self) -> Tensor:
        batches = self.settings.samples // self.settings.batch_size
        firsts = torch.randint(1, self.length + 1, (batches,), generator=self.generator).tolist()
        return torch.cat([counts_from(first, self.length, self.settings.batch_size) for first in firsts])

    def fill(self) -> Fill:
        """Greedy decoding of this part, the surest position first, until a token differs from the answer."""
        masked = torch.ones((1, self.length), dtype=torch.bool, device=self.answer.device)
        score = Score(mask_token_id=self.mask)
        order = []
        for _ in range(self.length):
            logits, _, at = self._logits(masked)
            proposals = score(logits(slice(None)), [], [])
            surest = int(proposals.confidence.argmax())
            where, token = int(at[surest]), int(proposals.token[surest])
            order.append((where, token, float(proposals.confidence[surest])))
            if token != int(self.answer[where]):
                return Fill(tuple(order), False)
            masked[0, where] = False
        return Fill(tuple(order), True)


def counts_from(first: int, length: int, batch_size: int) -> Tensor:
    """Mask counts, int64 [batch_size], of a batch of the original program whose random start was `first`.

    They go on from `first` in equal steps around 1..length, rounded half to even, which favours some of them.
    Source: ML-GSAI/LLaDA b7e6c35, get_log_likelihood.py:13.
    """
    last = first + (batch_size - 1) * (length / batch_size)
    return (torch.linspace(float(first), last, batch_size).round().long() - 1) % length + 1


def reference_law(length: int, batch_size: int) -> list[float]:
    """Probability of each mask count 1..length in the original program."""
    counts = torch.cat([counts_from(first, length, batch_size) for first in range(1, length + 1)])
    return (counts.bincount(minlength=length + 1)[1:].double() / len(counts)).tolist()
