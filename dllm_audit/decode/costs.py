"""What one forward of a given shape costs, measured apart from any request."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from dllm_audit.decode.cache import Window
from dllm_audit.decode.likelihood import of_targets, read_logits
from dllm_audit.decode.runner import ForwardRunner
from dllm_audit.decode.state import Canvas
from dllm_audit.measure.clock import timer_for

if TYPE_CHECKING:
    from dllm_audit.models.loading import LoadedModel
    from dllm_audit.records import ForwardShape


#: The shapes take turns until each was measured this often and for this long together, whichever comes last.
_TURNS = 5
_SECONDS = 0.1
_MOST_TURNS = 30


def measure_costs(model: LoadedModel, shapes: Sequence[ForwardShape], seconds: float) -> list[float]:
    """Mean seconds of a forward of each shape, with the vocabulary head on as many positions as it decided on average.

    seconds: how long this may take, as soon as each shape was measured once.
    The shapes take turns on a canvas of arbitrary tokens and as many masks as were decided on, after one unmeasured turn, so
    that a drift of the machine meets all of them. The mean, not the median: it is to predict a sum, which holds the slow
    forwards too.
    """
    timer = timer_for(model.device)
    began = time.perf_counter()
    with torch.inference_mode():
        trials = [_Trial(model, shape) for shape in shapes]
        measured: list[list[float]] = [[] for _ in trials]
        for turn in range(_MOST_TURNS + 1):
            for trial, times in zip(trials, measured, strict=True):
                timer.settle()
                start = timer.now()
                trial.run()
                stop = timer.now()
                timer.settle()
                if turn:
                    times.append(timer.seconds(start, stop))
            enough = turn >= _TURNS and all(sum(times) >= _SECONDS for times in measured)
            if enough or (turn and time.perf_counter() - began > seconds):
                break
    return [statistics.fmean(times) for times in measured]


class _Trial:
    """One shape, ready to be run again and again."""

    def __init__(self, model: LoadedModel, shape: ForwardShape) -> None:
        self.shape = shape
        visible = max(shape.width, round(shape.keys / shape.count))
        generator = torch.Generator().manual_seed(0)
        canvas = Canvas.empty(shape.rows, visible, model.device)
        tokens = torch.randint(0, model.traits.vocab_size, canvas.tokens.shape, generator=generator)
        canvas.tokens.copy_(tokens)
        decided = round(shape.decided / shape.count)
        if model.traits.mask_token_id is not None and decided:
            # What is undecided is a mask: masks go to fewer experts of a mixture than other tokens do.
            canvas.tokens[:, visible - min(shape.width, -(-decided // shape.rows)) : visible] = (
                model.traits.mask_token_id
            )
        attention = "full"
        if shape.kind in ("prefill", "score"):
            attention = {"causal": "causal", "block": "block"}.get(model.traits.attention, "full")
        window = Window(shape.kind, visible - shape.width, visible, visible, attention=attention)
        self.windows = [window] * shape.rows
        self.slots = list(range(shape.rows))
        # Keys and values are written by every window but one that holds all it sees of a decoder without a cache.
        cached = not (shape.kind in ("denoise", "score") and shape.width == visible)
        self.windows = [replace(window, cached=cached) for window in self.windows]
        self.runner = ForwardRunner(model, canvas, cached)
        self.rows = torch.arange(decided, device=model.device) % shape.rows
        self.index = torch.arange(decided, device=model.device) // shape.rows % shape.width

    def run(self) -> None:
        hidden = self.runner.run(self.slots, self.windows)
        if self.shape.kind == "score":
            # Reading how likely tokens are belongs to such a forward.
            logits = partial(self.runner.logits, hidden, cfg_scale=0.0)
            read_logits(logits, self.rows, self.index, torch.zeros_like(self.index), of_targets)
        elif len(self.rows):
            self.runner.logits(hidden, self.rows, self.index, 0.0)
