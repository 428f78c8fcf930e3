"""Masked diffusion without blocks: Dream's own schedule over the whole canvas (Dream 7B, arXiv 2508.15487).

In its program's words: alg=maskgit_plus is confidence=probability, topk_margin is margin, origin is random; max_new_tokens
is gen_length.
"""

import dataclasses

from dllm_audit import (
    BLOCK_DIFFUSION_SETTINGS,
    NoCache,
    RecipeBackend,
    Reveal,
    ThresholdWithinQuota,
    build_recipe,
    hookimpl,
)

SETTINGS = {n: v for n, v in BLOCK_DIFFUSION_SETTINGS.items() if n not in ("block_length", "steps_per_block")}


def make_recipe(settings, traits):
    """With `steps`, each step commits 1 - s/t of the masks that are left; without, one token per step.

    compat=fast-dllm: Fast-dLLM's program without a cache, whose threshold can only slow decoding down.
    """
    recipe = build_recipe(settings, traits, NoCache())
    schedule = recipe.schedule
    if settings.threshold is not None and settings.factor is None:
        if settings.compat != "fast-dllm":
            return recipe
        commit = ThresholdWithinQuota(settings.threshold)
        return dataclasses.replace(recipe, commit=commit, schedule=dataclasses.replace(schedule, carry=True))
    if settings.factor is not None or settings.entropy_bound is not None or settings.steps is None:
        return recipe
    if settings.confidence == "random":
        return dataclasses.replace(recipe, commit=Reveal(), schedule=dataclasses.replace(schedule, law="chance"))
    return dataclasses.replace(recipe, schedule=dataclasses.replace(schedule, law="time"))


backend = RecipeBackend(
    name="dream",
    summary="masked diffusion over the whole canvas with Dream's schedule, every step recomputes it",
    attention="bidirectional",
    families=("dream",),
    settings={**SETTINGS, "cfg_scale": 0.0, "compat": None},
    make_recipe=make_recipe,
)


@hookimpl
def dllm_audit_backends():
    return [backend]
