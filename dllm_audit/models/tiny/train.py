"""Train the embedded twins from seeds: python -m dllm_audit.models.tiny.train

On one quiet CPU core tiny-ar takes about ten minutes, tiny-block twenty, tiny-mdm forty. Schedules count steps, so the speed of
the machine does not change them; float arithmetic still differs between machines, so remade weights agree in
quality and not in every bit. Needs torch 2.9 or newer (torch.optim.Muon) and a C++ compiler (torch.compile).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from dllm_audit.models.tiny import EMBEDDED_MODELS, batches, card, measure, network, problems
from dllm_audit.models.tiny.tokenizer import EOS_ID, MASK_ID, MAX_POSITIONS, build_tokenizer, save_tokenizer


@dataclass(frozen=True)
class Recipe:
    """How a twin is trained.

    steps: optimiser steps. problem_rows, list_rows: rows a step sees of each. block_length: of block
    diffusion, 0 otherwise. starts_from: the twin whose weights after `starts_from_step` of its own steps
    (averaged) are the first weights.
    """

    steps: int
    problem_rows: int = 96
    list_rows: int = 96
    list_share: float = 0.6
    muon_rate: float = 0.02
    adamw_rate: float = 4e-3
    block_length: int = 0
    starts_from: str = ""
    starts_from_step: int = 0


RECIPES = {
    "tiny-ar": Recipe(steps=800),
    "tiny-mdm": Recipe(steps=2800),
    "tiny-block": Recipe(
        steps=1000, problem_rows=64, list_rows=64, block_length=8, starts_from="tiny-mdm", starts_from_step=1250
    ),
}
CONSTANT_SHARE = 0.4
WARMUP_STEPS = 20
AVERAGE_DECAY = 0.995
SAVE_EVERY = 250
PROBLEMS_MEASURED, LISTS_MEASURED, LIST_WINDOW = 500, 200, 16


def architecture() -> network.Architecture:
    """Return the sizes all three twins share."""
    return network.Architecture(
        vocab_size=build_tokenizer().get_vocab_size(),
        width=128,
        layers=5,
        heads=4,
        max_positions=MAX_POSITIONS,
    )


def rate_at(step: int, steps: int) -> float:
    """Return the factor of the learning rates: a short warm-up, constant for 40 %, then linear to 0."""
    constant = CONSTANT_SHARE * steps
    decay = 1.0 if step < constant else (steps - step) / (steps - constant)
    return min(1.0, (step + 1) / WARMUP_STEPS) * decay


def batch_streams(model: str, recipe: Recipe, seed: int) -> tuple[Iterator[batches.Batch], Iterator[batches.Batch]]:
    """Return endless batches of word problems and of list exercises for a twin."""
    encoder = batches.Encoder(build_tokenizer())
    rng = np.random.default_rng([seed, 2])

    def make(rows: list[batches.Row], length: int) -> batches.Batch:
        if model == "tiny-ar":
            return batches.causal_batch(rows, length, encoder)
        if model == "tiny-mdm":
            return batches.masked_batch(rows, length, encoder, rng)
        return batches.block_batch(rows, length, encoder, rng, recipe.block_length)

    tight = model != "tiny-mdm"
    problem_batches = (make(r, n) for n, r in batches.problem_rows(encoder, seed, tight, recipe.problem_rows))
    list_batches = (make(r, n) for n, r in batches.list_rows(encoder, seed + 100, recipe.list_rows))
    return problem_batches, list_batches


def loss_inputs(
    model: str, batch: batches.Batch, block_length: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Return what the network reads and should predict: tokens, positions, targets, weights, attention bias.

    Targets and weights are of the last positions read, those whose predictions may count.
    """
    tokens, noisy, weight = (torch.from_numpy(a) for a in (batch.tokens, batch.noisy, batch.weight))
    L, first = tokens.shape[1], batch.first
    positions = torch.arange(L)
    if model == "tiny-ar":
        targets = torch.roll(tokens, -1, 1)[:, first:]
        return tokens, positions, targets, weight[:, first:], network.causal_bias(L)
    if model == "tiny-mdm":
        return noisy, positions, tokens[:, first:], weight[:, first:], None
    bias = network.clean_and_noisy_bias(L, L - first, block_length)
    read = torch.cat([tokens, noisy[:, first:]], 1)
    return read, torch.cat([positions, positions[first:]]), tokens[:, first:], weight[:, first:], bias


def compiled_loss(twin: network.Twin) -> Callable[..., Tensor]:
    """Return the mean cross entropy of counted predictions, compiled; one compilation per length of rows."""

    def loss(tokens: Tensor, positions: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = twin(tokens, positions, bias, slice(-targets.shape[1], None))
        entropy = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
        return (entropy * weight.flatten()).sum() / weight.sum()

    return torch.compile(loss, dynamic=False)


def train(
    model: str, recipe: Recipe, seed: int, work: Path, resume: Path | None, log: Callable[[str], None]
) -> network.Twin:
    """Train a twin and return its averaged weights; states are saved in `work` every 250 steps."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    twin = network.Twin(architecture())
    first_step = 0
    if recipe.starts_from:
        start = work / f"{recipe.starts_from}-{recipe.starts_from_step}.pt"
        if not start.exists():
            raise click.UsageError(
                f"{model} starts from {start}, which does not exist. "
                f"Train {recipe.starts_from} first, with the same --work."
            )
        state = torch.load(start, weights_only=True)
        twin.load_state_dict(state["average"])
    average = {name: value.detach().clone() for name, value in twin.state_dict().items()}
    matrices = [p for layer in twin.layers for p in layer.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in twin.parameters() if id(p) not in inside]
    optimisers = [
        torch.optim.Muon(matrices, lr=recipe.muon_rate, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(others, lr=recipe.adamw_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    base_rates = [recipe.muon_rate, recipe.adamw_rate]
    if resume:
        state = torch.load(resume, weights_only=True)
        twin.load_state_dict(state["twin"])
        average, first_step = state["average"], state["step"]
        for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
    # A resumed run continues with other random problems; it does not repeat those already seen.
    problem_batches, list_batches = batch_streams(model, recipe, seed + 1000 * first_step)
    loss = compiled_loss(twin)
    began, recent = time.monotonic(), []
    for step in range(first_step, recipe.steps):
        for optimiser, base in zip(optimisers, base_rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = base * rate_at(step, recipe.steps)
        problem_loss = loss(*loss_inputs(model, next(problem_batches), recipe.block_length))
        problem_loss.backward()
        list_loss = loss(*loss_inputs(model, next(list_batches), recipe.block_length))
        (recipe.list_share * list_loss).backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        for name, value in twin.state_dict().items():
            average[name].lerp_(value, max(1 - AVERAGE_DECAY, 1 / (step - first_step + 2)))
        recent.append((problem_loss.item(), list_loss.item()))
        done = step + 1
        if done % 25 == 0:
            losses = np.mean(recent[-25:], axis=0)
            seconds = time.monotonic() - began
            log(
                f"{model} step {done}/{recipe.steps} problems {losses[0]:.4f} lists {losses[1]:.4f} "
                f"{seconds:.0f} s, {(recipe.steps - done) * seconds / (done - first_step) / 60:.0f} min left"
            )
        if done % SAVE_EVERY == 0 or done == recipe.steps:
            saved = {
                "twin": twin.state_dict(),
                "average": average,
                "step": done,
                "optimisers": [optimiser.state_dict() for optimiser in optimisers],
            }
            torch.save(saved, work / f"{model}-{done}.pt")
            shown = network.Twin(twin.sizes)
            shown.load_state_dict(average)
            accuracy = measure.problem_accuracy(shown, tokenizer, model, 1, 50, recipe.block_length)
            log(f"{model} step {done} exact match {accuracy:.3f} (50 problems, one token per step)")
    twin.load_state_dict(average)
    return twin


def save_model(model: str, twin: network.Twin, recipe: Recipe, folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer of a twin into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    if model == "tiny-mdm":
        config = network.llada_config(twin.sizes, EOS_ID, MASK_ID)
    else:
        config = network.llama_config(twin.sizes, EOS_ID)
    if model == "tiny-block":
        config |= {
            "architectures": ["LlamaForBlockDiffusion"],
            "block_length": recipe.block_length,
            "mask_token_id": MASK_ID,
        }
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    save_file(
        network.published_weights(twin, layout_of(model)),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(folder)


def load_model(model: str, folder: Path) -> network.Twin:
    """Return the twin saved in `folder`, in float32."""
    twin = network.Twin(architecture())
    network.load_published_weights(twin, load_file(folder / "model.safetensors"), layout_of(model))
    return twin


def layout_of(model: str) -> str:
    """Return the weight layout of a twin: "llada" or "llama"."""
    return "llada" if model == "tiny-mdm" else "llama"


def measure_model(model: str, folder: Path, block_length: int) -> dict[str, dict[str, float]]:
    """Return, for each number of tokens per step, the share of right answers on each held-out test."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    twin = load_model(model, folder)
    table = {}
    for tokens in (1,) if model == "tiny-ar" else (1, 4, 8):
        table[str(tokens)] = {
            "gsm_mini": measure.problem_accuracy(twin, tokenizer, model, tokens, PROBLEMS_MEASURED, block_length)
        } | {
            f"lists_{kind}": measure.list_validity(
                twin, tokenizer, model, kind, tokens, LISTS_MEASURED, LIST_WINDOW, block_length
            )
            for kind in problems.LIST_KINDS
        }
    return table


def write_card(
    model: str, recipe: Recipe, seed: int, table: dict[str, dict[str, float]], note: str, folder: Path
) -> None:
    """Write the model card, README.md, into `folder`."""
    sizes = architecture()
    text = card.model_card(
        name=model,
        architecture=network.sizes_as_text(sizes),
        parameters=sum(p.numel() for p in network.Twin(sizes).parameters()),
        seed=seed,
        steps=recipe.steps,
        rows=(recipe.problem_rows, recipe.list_rows),
        rates=(recipe.muon_rate, recipe.adamw_rate),
        constant_share=CONSTANT_SHARE,
        starts_from_step=recipe.starts_from_step,
        counts=(PROBLEMS_MEASURED, LISTS_MEASURED),
        table=table,
        note=note,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


@click.command(
    epilog="Example: python -m dllm_audit.models.tiny.train --model tiny-ar --steps 50 --out /tmp/tiny",
)
@click.option(
    "--model",
    "names",
    multiple=True,
    type=click.Choice(list(RECIPES)),
    help="Train this twin; may be given again. Default: all, in the order in which they need each other.",
)
@click.option("--steps", type=click.IntRange(1), help="Optimiser steps instead of the recipe's.")
@click.option(
    "--seed", default=0, show_default=True, help="Seed of the weights, of the problems and of what is hidden."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write the models into. Default: the package's own.",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/tiny-models"),
    show_default=True,
    help="Folder for states during training.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Continue training from a state in the work folder, with one --model.",
)
@click.option(
    "--export",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Do not train: measure and write the model of a state in the work folder, with one --model.",
)
@click.option("--note", default="", help="A sentence about the state of the weights for the model card.")
def main(
    names: tuple[str, ...],
    steps: int | None,
    seed: int,
    out: Path | None,
    work: Path,
    resume: Path | None,
    export: Path | None,
    note: str,
) -> None:
    """Train the embedded models from seeds, measure them on held-out tests and write them with their cards.

    tiny-block starts from a state of tiny-mdm in the work folder. Measurements go to stdout as JSON.
    """
    if (resume or export) and len(names) != 1:
        raise click.UsageError("--resume and --export concern one model: name it with --model.")
    torch.set_num_threads(1)
    work.mkdir(parents=True, exist_ok=True)
    for name in names or tuple(RECIPES):
        recipe = replace(RECIPES[name], steps=steps) if steps else RECIPES[name]
        folder = out / name if out else EMBEDDED_MODELS[name]
        if export:
            state = torch.load(export, weights_only=True)
            recipe = replace(recipe, steps=state["step"])
            twin = network.Twin(architecture())
            twin.load_state_dict(state["average"])
        else:
            twin = train(name, recipe, seed, work, resume, lambda line: click.echo(line, err=True))
        save_model(name, twin, recipe, folder)
        table = measure_model(name, folder, recipe.block_length)
        write_card(name, recipe, seed, table, note, folder)
        click.echo(json.dumps({name: table}))


if __name__ == "__main__":
    main()
