"""The model cards of the embedded twins, written from a recipe and a table of measurements."""

from __future__ import annotations

KINDS = {
    "tiny-ar": """\
Autoregressive: causal attention, each position predicts the next token. Llama layout.""",
    "tiny-mdm": """\
Masked diffusion: bidirectional attention over prompt and window, a masked position predicts its own token.
LLaDA layout.""",
    "tiny-block": """\
Block diffusion: block-causal attention, a masked position predicts its own token. Blocks start at multiples
of `block_length` from position 0, so the first decoded block may begin with prompt tokens. Llama layout.""",
}

OBJECTIVES = {
    "tiny-ar": "",
    "tiny-mdm": """\
- Half of each batch is masked uniformly, half by value: every place of chosen results, and few other tokens.
  With uniform masking alone the model copies `62` within `<<35+27=62>>62` and does not learn to add.
""",
    "tiny-block": """\
- It starts from tiny-mdm after {start:,} of its steps. Earlier blocks are clean, the current one is noisy,
  with a rate of its own; half of the rows also hide all places of chosen results (value masking).
""",
}

LIMITS = {
    "tiny-ar": "- Asked to replace an item of a list, it copies the list: it has not learnt to keep the last place for it.\n",
    "tiny-mdm": "- Windows of 16 to 83 tokens were trained, 64 among them for all word problems.\n",
    "tiny-block": "- `block_length` is part of the model; other lengths are outside its training.\n",
}

TEXT = """\
# {name}

{kind}

{parameters:,} parameters, stored as float16. Made with this package by
`python -m dllm_audit.models.tiny.train`, from seeds, on generated text only.

## What it is for

One of three twins (tiny-ar, tiny-mdm, tiny-block) that let every decoder run and be compared on any machine
in seconds. The twins share architecture, tokenizer and data, not compute: each was trained for its own
number of steps.

They are evidence about mechanisms and about quality: which tokens are committed when, how many forwards that
takes, what it does to the answers. They are never evidence about the speed of a GPU, and not about other
models: which block length or threshold is best here says nothing about LLaDA or Dream.

## How it was made

- Architecture: {architecture}.
- Data: word problems in GSM8K's form with two or three steps, all results 10..99, and exercises on lists of
  eight words (shuffle, replace one, copy, reverse, sort): about {problems:,} problems and {lists:,} lists.
  Prompts that belong to the test and example splits (by a hash of the prompt) are never trained on.
- The window after an answer is filled with `<|endoftext|>`.
- {steps:,} steps, seed {seed}; Muon at {muon} for the matrices of the layers, AdamW at {adamw} for the rest;
  constant for {constant:.0%} of the steps, then linear to 0; the weights are an exponential average.
{objective}
## What it scores

Share of right answers on held-out tests, greedy. gsm_mini: {problem_count} problems, window 64. Lists:
{list_count} of each kind, window 16. Measured by the sampler in `dllm_audit.models.tiny.measure`{window}.

{table}

## Limits

- It knows the few hundred words of its generators. Other text is accepted (spelled in bytes) and answered
  with nonsense.
- It was trained without examples in the prompt: few-shot prompts are outside its training.
- No answer it learnt from is longer than 62 tokens.
{limits}"""


def model_card(
    name: str,
    architecture: str,
    parameters: int,
    seed: int,
    steps: int,
    rows: tuple[int, int],
    rates: tuple[float, float],
    constant_share: float,
    starts_from_step: int,
    counts: tuple[int, int],
    table: dict[str, dict[str, float]],
    note: str = "",
) -> str:
    """Return the text of a model card.

    rows: problems and lists per step. rates: of Muon and AdamW. counts: problems and lists measured. table:
    tokens per step -> test -> share of right answers. note: a sentence about the state of the weights, put
    first.
    """
    tests = list(next(iter(table.values())))
    lines = [
        "| tokens per step | " + " | ".join(tests) + " |",
        "|---" * (len(tests) + 1) + "|",
        *(
            f"| {tokens} | " + " | ".join(f"{shares[test]:.3f}" for test in tests) + " |"
            for tokens, shares in table.items()
        ),
    ]
    text = TEXT.format(
        name=name,
        kind=KINDS[name],
        parameters=parameters,
        architecture=architecture,
        problems=steps * rows[0],
        lists=steps * rows[1],
        steps=steps,
        seed=seed,
        muon=rates[0],
        adamw=rates[1],
        constant=constant_share,
        objective=OBJECTIVES[name].format(start=starts_from_step),
        problem_count=counts[0],
        list_count=counts[1],
        window={"tiny-ar": "", "tiny-mdm": " in one block", "tiny-block": " in blocks"}[name],
        table="\n".join(lines),
        limits=LIMITS[name],
    )
    return text.replace("\n\n", f"\n\n{note}\n\n", 1) if note else text
