"""How likely a model finds an answer: log-likelihoods, exact or estimated, and whether greedy decoding gives it.

An autoregressive model states log p(answer | prompt) in one forward. A masked-diffusion model states a bound of it, the
expectation over masked copies of the answer (LLaDA, arXiv 2502.09992, section 2.4): mask l of its L tokens, l uniform in
1..L and the positions uniform among those of that number, add up the log-probabilities of the masked tokens, times L/l.
Block diffusion adds up such bounds, each block's given the blocks before it (BD3-LM, arXiv 2503.09573, section 3).

What one answer needs is a generator that asks for forwards and is told what came out of them, so that answers of several
requests share forwards (`ScoringEngine`) and no value depends on who they are shared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import torch

from dllm_audit.decode.cache import Window
from dllm_audit.decode.runner import ForwardRunner
from dllm_audit.decode.score import Score
from dllm_audit.decode.state import Canvas
from dllm_audit.errors import ModelError, RequestError, UsageError
from dllm_audit.settings import LikelihoodSettings

if TYPE_CHECKING:
    from torch import Tensor

    from dllm_audit.models.loading import LoadedModel
    from dllm_audit.models.traits import ModelTraits

#: The longest answer (of one block) whose masked copies are all tried: 65,535 of them.
LONGEST_EXACT = 16

#: Positions that the vocabulary head sees at once; 512 x 126,464 logits are a quarter of a gigabyte.
_HEAD_POSITIONS = 512


@dataclass(frozen=True)
class Likelihood:
    """loglikelihood: in nats, of all answer tokens together. standard_error: of the estimate; 0 when `exact`.

    samples: masked copies that it rests on. is_greedy: whether decoding one token at a time, the surest first, gives
    exactly this answer; None where that was not asked.
    """

    loglikelihood: float
    standard_error: float
    samples: int
    exact: bool
    is_greedy: bool | None


@dataclass(frozen=True)
class Fill:
    """Tokens in the order in which greedy decoding commits them, as (index in the answer, token, probability).

    It ends where a token differs from the wanted answer; `matches` says that none did.
    """

    order: tuple[tuple[int, int, float], ...]
    matches: bool


class Ask(NamedTuple):
    """Sequences of one length to be run, and what to read of them. All on the host.

    tokens: int64 [n, W]; given: leading columns that are prompt.
    row, column, target: int64 [M]: the logits of sequence `row` at `column` predict token `target`.
    proposes: ask what greedy decoding would commit there instead of how likely the targets are.
    """

    tokens: Tensor
    given: int
    row: Tensor
    column: Tensor
    target: Tensor
    proposes: bool = False


class Reply(NamedTuple):
    """What came out at each position that was read, on the host: [M] each.

    token: int64, the likeliest, or where proposals were asked for the likeliest that greedy decoding may commit.
    value: float64, the log-probability of the target, or the probability of that proposal.
    """

    token: Tensor
    value: Tensor


#: Asks for forwards and is told what came out, each time in the same order; ends with the likelihood.
Steps = Generator[list[Ask], list[Reply], Likelihood]


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
    check_answer(model.traits, prompt_ids, answer_ids, settings)
    engine = ScoringEngine(model, settings, rows_of(model.traits, settings), len(prompt_ids) + len(answer_ids) + 1)
    return drive(
        answer_steps(model.traits, prompt_ids, answer_ids, settings, seed),
        lambda asks: engine.run(engine.prepare(asks)),
    )


def suffix_greedy(model: LoadedModel, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Fill:
    """Decode as many tokens as `answer_ids` has after `prompt_ids`, one per forward, until one differs.

    Source: ML-GSAI/LLaDA b7e6c35, eval_llada.py, suffix_greedy_prediction.
    """
    settings = LikelihoodSettings()
    check_model(model.traits, settings)
    check_answer(model.traits, prompt_ids, answer_ids, settings)
    engine = ScoringEngine(model, settings, 1, len(prompt_ids) + len(answer_ids))
    filling = _Filling(_Part(model.traits, prompt_ids, answer_ids, settings))
    with torch.inference_mode():
        while filling.goes_on:
            filling.tell(*engine.run(engine.prepare([filling.ask()])))
    return filling.fill


def drive(steps: Steps, run: Callable[[list[Ask]], list[Reply]]) -> Likelihood:
    """Run what `steps` asks for, alone, to its end. run: makes the replies to what is asked for together."""
    with torch.inference_mode():
        try:
            asks = next(steps)
            while True:
                asks = steps.send(run(asks))
        except StopIteration as end:
            found: Likelihood = end.value
            return found


def rows_of(traits: ModelTraits, settings: LikelihoodSettings) -> int:
    """The most sequences that one answer brings into a forward."""
    return 1 if traits.attention == "causal" else settings.batch_size


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
    if not 0 <= mask < traits.vocab_size:
        raise ModelError(f"mask_token_id={mask} is outside this model's vocabulary of {traits.vocab_size} tokens.")


def check_answer(
    traits: ModelTraits, prompt_ids: Sequence[int], answer_ids: Sequence[int], settings: LikelihoodSettings
) -> None:
    """Raise RequestError where `answer_ids` after `prompt_ids` cannot be scored: empty, too long, an unknown id."""
    if not answer_ids:
        raise RequestError("The answer is empty, so there is nothing to score.")
    bad = next((i for i in (*prompt_ids, *answer_ids) if not 0 <= i < traits.vocab_size), None)
    if bad is not None:
        raise RequestError(f"Token id {bad} is outside this model's vocabulary of {traits.vocab_size}.")
    if traits.attention == "causal" and not prompt_ids and start_id(traits) is None:
        raise RequestError(
            "The prompt is empty, and this model predicts a token from the one before it. Give at least one."
        )
    length = width_of(traits, prompt_ids, answer_ids)
    if length > traits.max_positions:
        raise RequestError(
            f"The prompt of {len(prompt_ids)} tokens and the answer of {len(answer_ids)} are {length} positions, but the "
            f"model was made for {traits.max_positions}. Shorten the prompt."
        )
    longest = max(len(scored) for _, scored in _parts(traits, prompt_ids, answer_ids))
    if settings.exact and longest > LONGEST_EXACT and traits.attention != "causal":
        raise RequestError(
            f"An answer of {longest} tokens has {2**longest - 1:,} masked copies, and exact enumeration ends at "
            f"{LONGEST_EXACT} tokens. Leave --exact out to sample them."
        )


def start_id(traits: ModelTraits) -> int | None:
    """What stands before a text that has no prompt: begin-of-text, or for a model that needs something, end-of-text.

    So does lm-eval, whose values are to be compared with. An id that the model does not have is none.
    """
    ends = traits.end_token_ids if traits.attention == "causal" else ()
    return next((id for id in (traits.bos_token_id, *ends) if id is not None and 0 <= id < traits.vocab_size), None)


def width_of(traits: ModelTraits, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> int:
    """Positions that are fed to the model. The last token of an autoregressive answer is predicted and never fed."""
    if traits.attention == "causal":
        return max(len(prompt_ids), 1) + len(answer_ids) - 1
    return len(prompt_ids) + len(answer_ids)


def text_windows(traits: ModelTraits, ids: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(what is known, what is scored) for a text that may be longer than the context; every token is scored once.

    The first window begins with `start_id`, a later one with the token before it, and the last one with as much of the text
    as fits: lm-eval's get_rolling_token_windows with a context of one token. A diffusion model feeds what it scores
    too, so its windows are one token shorter.
    """
    first = start_id(traits)
    before = () if first is None else (first,)
    room = traits.max_positions + (traits.attention == "causal")
    end = min(len(ids), room - len(before))
    windows: list[tuple[tuple[int, ...], tuple[int, ...]]] = [(before, tuple(ids[:end]))]
    while end < len(ids):
        scored = min(len(ids) - end, room - 1)
        end += scored
        windows.append((tuple(ids[end - room : end - scored]), tuple(ids[end - scored : end])))
    return windows


def text_steps(
    traits: ModelTraits, windows: Sequence[tuple[Sequence[int], Sequence[int]]], settings: LikelihoodSettings, seed: int
) -> Steps:
    """What the log-likelihood of a text needs that lies in `windows`: their sum. Whether it is greedy is not asked."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for known, scored in windows:
        found.append((yield from _steps(traits, known, scored, settings, generator, asks_greedy=False)))
    return _sum(found, None)


def answer_steps(
    traits: ModelTraits,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    settings: LikelihoodSettings,
    seed: int,
) -> Steps:
    """What the log-likelihood of one answer needs. The draws depend on `seed` alone."""
    generator = torch.Generator().manual_seed(seed)
    return _steps(traits, prompt_ids, answer_ids, settings, generator, asks_greedy=True)


def _steps(
    traits: ModelTraits,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    settings: LikelihoodSettings,
    generator: torch.Generator,
    asks_greedy: bool,
) -> Steps:
    if traits.attention == "causal":
        return (yield from _autoregressive(traits, prompt_ids, answer_ids))
    greedy = True if asks_greedy else None
    found = []
    for known, scored in _parts(traits, prompt_ids, answer_ids):
        part = _Part(traits, known, scored, settings)
        likelihood = yield from part.steps(generator, _Filling(part) if greedy else None)
        greedy = likelihood.is_greedy if greedy else greedy
        found.append(likelihood)
    return _sum(found, greedy)


def _sum(parts: Sequence[Likelihood], greedy: bool | None) -> Likelihood:
    """The likelihood of all parts together, each estimated independently."""
    return Likelihood(
        sum(part.loglikelihood for part in parts),
        math.sqrt(sum(part.standard_error**2 for part in parts)),
        sum(part.samples for part in parts),
        all(part.exact for part in parts),
        greedy,
    )


def _autoregressive(traits: ModelTraits, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Steps:
    # check_answer has refused an empty prompt for a model that has no such id.
    before = list(prompt_ids) or [start_id(traits) or 0]
    fed = torch.tensor([[*before, *answer_ids[:-1]]])
    column = torch.arange(len(before) - 1, fed.shape[1])
    target = torch.tensor(list(answer_ids))
    (reply,) = yield [Ask(fed, len(before), torch.zeros_like(column), column, target)]
    return Likelihood(float(reply.value.sum()), 0.0, 1, True, bool((reply.token == target).all()))


def _parts(
    traits: ModelTraits, prompt_ids: Sequence[int], answer_ids: Sequence[int]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """(what is known, what is scored): the whole answer, or for block diffusion what lies in each block of the grid."""
    grid = traits.block_length
    if traits.attention != "block" or grid is None:
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
        traits: ModelTraits,
        prompt_ids: Sequence[int],
        answer_ids: Sequence[int],
        settings: LikelihoodSettings,
    ) -> None:
        mask = traits.mask_token_id if settings.mask_token_id is None else settings.mask_token_id
        assert mask is not None, "check_model refuses a model without"
        self.settings = settings
        self.mask = mask
        self.shift = traits.shift
        self.start, self.length = len(prompt_ids), len(answer_ids)
        self.prompt = torch.tensor(list(prompt_ids), dtype=torch.int64)
        self.answer = torch.tensor(list(answer_ids), dtype=torch.int64)

    def ask(self, masked: Tensor, proposes: bool = False) -> Ask:
        """The forwards of copies with `masked`, bool [n, L], which read every masked position."""
        tokens = torch.cat(
            [self.prompt.expand(len(masked), -1), torch.where(masked, self.mask, self.answer)],
            dim=1,
        )
        row, at = masked.nonzero(as_tuple=True)
        column = (at + self.start - self.shift).clamp_min_(0)
        return Ask(tokens, self.start, row, column, self.answer[at], proposes)

    def steps(self, generator: torch.Generator, filling: _Filling | None) -> Steps:
        """The likelihood of this part; the greedy check, where wanted, rides along with the masked copies."""
        copies, exact, estimate = self._plan(generator)
        # Equal draws are run once.
        distinct, place = copies.unique(dim=0, return_inverse=True)
        sums = torch.zeros(len(distinct), dtype=torch.float64)
        done = 0
        while done < len(distinct) or (filling and filling.goes_on):
            fills = filling is not None and filling.goes_on
            batch = distinct[done : done + self.settings.batch_size - fills]
            asks = [self.ask(batch)] if len(batch) else []
            if filling is not None and fills:
                asks.append(filling.ask())
            replies = yield asks
            if filling is not None and fills:
                filling.tell(replies[-1])
            if len(batch):
                sums[done : done + len(batch)].index_add_(0, asks[0].row, replies[0].value)
            done += len(batch)
        value, error = estimate(sums[place])
        return Likelihood(value, error, len(copies), exact, filling.fill.matches if filling else None)

    def _plan(self, generator: torch.Generator) -> tuple[Tensor, bool, Callable[[Tensor], tuple[float, float]]]:
        """(masked copies, bool [N, L]; whether they are all; what their sums, float64 [N], make: value and its error)."""
        number = 2**self.length - 1
        if self.settings.exact or (number <= self.settings.samples and self.settings.compat is None):
            return self._every_copy()
        return self._drawn_copies(generator)

    def _every_copy(self) -> tuple[Tensor, bool, Callable[[Tensor], tuple[float, float]]]:
        law = (
            reference_law(self.length, self.settings.batch_size)
            if self.settings.compat == "llada"
            else [1 / self.length] * self.length
        )
        copies, weights = [], []
        for count, weight in enumerate(law, 1):
            chosen = torch.tensor(list(combinations(range(self.length), count)))
            copies.append(torch.zeros((len(chosen), self.length), dtype=torch.bool).scatter_(1, chosen, True))
            weights += [weight * self.length / count / len(chosen)] * len(chosen)
        each = torch.tensor(weights, dtype=torch.float64)
        return torch.cat(copies), True, lambda sums: (float((sums * each).sum()), 0.0)

    def _drawn_copies(self, generator: torch.Generator) -> tuple[Tensor, bool, Callable[[Tensor], tuple[float, float]]]:
        program = self.settings.compat == "llada"
        counts = self._counts_of_the_program(generator) if program else self._uniform_counts(generator)
        noise = torch.rand((len(counts), self.length), generator=generator)
        masked = noise.argsort(dim=1).argsort(dim=1) < counts[:, None]

        def estimate(sums: Tensor) -> tuple[float, float]:
            values = sums * (self.length / counts)
            if program:
                # Mask counts of a batch follow from one draw, so the batch is what is independent.
                values = values.view(-1, self.settings.batch_size).mean(dim=1)
            return float(values.mean()), float(values.std()) / math.sqrt(len(values))

        return masked, False, estimate

    def _uniform_counts(self, generator: torch.Generator) -> Tensor:
        return torch.randint(1, self.length + 1, (self.settings.samples,), generator=generator)

    def _counts_of_the_program(self, generator: torch.Generator) -> Tensor:
        batches = self.settings.samples // self.settings.batch_size
        firsts = torch.randint(1, self.length + 1, (batches,), generator=generator).tolist()
        return torch.cat([counts_from(first, self.length, self.settings.batch_size) for first in firsts])


class _Filling:
    """Greedy decoding of a part, one forward at a time, the surest position first, until a token differs from the answer."""

    def __init__(self, part: _Part) -> None:
        self.part = part
        self.masked = torch.ones((1, part.length), dtype=torch.bool)
        self.order: list[tuple[int, int, float]] = []
        self.differs = False

    @property
    def goes_on(self) -> bool:
        """Whether another forward is needed."""
        return not self.differs and len(self.order) < self.part.length

    @property
    def fill(self) -> Fill:
        return Fill(tuple(self.order), not self.differs)

    def ask(self) -> Ask:
        return self.part.ask(self.masked, proposes=True)

    def tell(self, reply: Reply) -> None:
        surest = int(reply.value.argmax())
        where, token = int(self.masked[0].nonzero()[surest]), int(reply.token[surest])
        self.order.append((where, token, float(reply.value[surest])))
        self.differs = token != int(self.part.answer[where])
        self.masked[0, where] = False


class _Reading(NamedTuple):
    """What is read of a forward in one way. chosen: places of its asks; sizes: how many positions each reads.

    row, column, target: int64 [M] on the device, see `Ask`; rows are those of the forward.
    """

    chosen: tuple[int, ...]
    sizes: tuple[int, ...]
    proposes: bool
    row: Tensor
    column: Tensor
    target: Tensor


class Prepared(NamedTuple):
    """A forward that is ready to run."""

    windows: tuple[Window, ...]
    readings: tuple[_Reading, ...]


class ScoringEngine:
    """Runs what several answers ask for in one forward.

    rows: the most sequences of a forward. length: the longest of them. What is asked for in one call must fit a forward:
    under block-causal attention only sequences of one length do, see `one_width`.
    """

    def __init__(self, model: LoadedModel, settings: LikelihoodSettings, rows: int, length: int) -> None:
        traits = model.traits
        self.device = model.device
        self.canvas = Canvas.empty(rows, length, model.device)
        self.runner = ForwardRunner(model, self.canvas, cached=False)
        self.attention = {"causal": "causal", "block": "block"}.get(traits.attention, "full")
        self.cfg_scale = settings.cfg_scale
        mask = traits.mask_token_id if settings.mask_token_id is None else settings.mask_token_id
        self.guided = mask if settings.cfg_scale else None
        self.greedy = Score(mask_token_id=mask)

    @property
    def one_width(self) -> bool:
        """Whether the sequences of a forward must be equally long: what fills up a block is seen by the rest of it."""
        return self.attention == "block"

    def prepare(self, asks: Sequence[Ask]) -> Prepared:
        """Everything that a forward of `asks` needs, on the device."""
        widths = [ask.tokens.shape[1] for ask in asks for _ in range(len(ask.tokens))]
        tokens = torch.zeros((len(widths), max(widths)), dtype=torch.int64)
        given = torch.zeros(tokens.shape, dtype=torch.bool)
        starts = []
        first = 0
        for ask in asks:
            starts.append(first)
            last = first + len(ask.tokens)
            tokens[first:last, : ask.tokens.shape[1]] = ask.tokens
            given[first:last, : ask.given] = True
            first = last
        self.canvas.tokens[: len(widths), : tokens.shape[1]] = tokens.to(self.device)
        self.canvas.given[: len(widths), : tokens.shape[1]] = given.to(self.device)
        windows = tuple(Window("score", 0, w, w, attention=self.attention, cached=False) for w in widths)
        readings = []
        for proposes in (False, True):
            chosen = tuple(n for n, ask in enumerate(asks) if ask.proposes == proposes)
            if chosen:
                places = (
                    torch.cat([asks[n].row + starts[n] for n in chosen]),
                    torch.cat([asks[n].column for n in chosen]),
                    torch.cat([asks[n].target for n in chosen]),
                )
                sizes = tuple(len(asks[n].row) for n in chosen)
                readings.append(_Reading(chosen, sizes, proposes, *(part.to(self.device) for part in places)))
        return Prepared(windows, tuple(readings))

    def run(self, prepared: Prepared) -> list[Reply]:
        """One forward, and what came out for each of the asks that were prepared, in their order."""
        hidden = self.runner.run(range(len(prepared.windows)), prepared.windows, self.guided)
        replies: dict[int, Reply] = {}
        for reading in prepared.readings:
            read = self._proposed if reading.proposes else of_targets
            logits = partial(self.runner.logits, hidden, cfg_scale=self.cfg_scale)
            found = read_logits(logits, reading.row, reading.column, reading.target, read)
            parts = zip(*(part.split(list(reading.sizes)) for part in found), strict=True)
            replies |= dict(zip(reading.chosen, (Reply(*part) for part in parts), strict=True))
        return [replies[n] for n in range(len(replies))]

    def _proposed(self, logits: Tensor, target: Tensor) -> Reply:
        proposals = self.greedy(logits, [], [])
        return Reply(proposals.token.cpu(), proposals.confidence.cpu().double())


def read_logits(
    logits_at: Callable[[Tensor, Tensor], Tensor],
    row: Tensor,
    column: Tensor,
    target: Tensor,
    read: Callable[[Tensor, Tensor], Reply],
) -> Reply:
    """What `read` makes of the logits at (row, column), [M] each, some of the positions at a time: all may not fit."""
    parts = []
    for at in range(0, len(row), _HEAD_POSITIONS):
        some = slice(at, at + _HEAD_POSITIONS)
        parts.append(read(logits_at(row[some], column[some]), target[some]))
    return Reply(torch.cat([part.token for part in parts]), torch.cat([part.value for part in parts]))


def of_targets(logits: Tensor, target: Tensor) -> Reply:
    """The likeliest token and the log-probability of each target; the latter in float64 on the host, as it is summed."""
    logits = logits.float()
    picked = logits.gather(1, target[:, None]).squeeze(1)
    # Not every device has float64.
    return Reply(logits.argmax(dim=1).cpu(), (picked - logits.logsumexp(dim=1)).cpu().double())


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
