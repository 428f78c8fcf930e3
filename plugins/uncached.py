"""Masked diffusion without a cache: every step recomputes every position (LLaDA, arXiv 2502.09992)."""

from dllm_audit import (
    MASKED_DIFFUSION_FAMILIES,
    MASKED_DIFFUSION_SETTINGS,
    NoCache,
    RecipeBackend,
    build_recipe,
    hookimpl,
)

backend = RecipeBackend(
    name="uncached",
    summary="masked diffusion, every step recomputes the whole canvas",
    attention="bidirectional",
    families=MASKED_DIFFUSION_FAMILIES,
    settings=MASKED_DIFFUSION_SETTINGS | {"cfg_scale": 0.0},
    make_recipe=lambda settings, traits: build_recipe(settings, traits, NoCache()),
    default_model="tiny-mdm",
)


@hookimpl
def dllm_audit_backends():
    return [backend]
