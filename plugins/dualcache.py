"""Masked diffusion with remembered prefix and suffix: Fast-dLLM's DualCache (arXiv 2505.22618, section 3.2)."""

from dllm_audit import (
    MASKED_DIFFUSION_FAMILIES,
    MASKED_DIFFUSION_SETTINGS,
    DualCache,
    RecipeBackend,
    build_recipe,
    hookimpl,
)

backend = RecipeBackend(
    name="dualcache",
    summary="masked diffusion, keys of prefix and suffix are kept within a block (Fast-dLLM)",
    attention="bidirectional",
    families=MASKED_DIFFUSION_FAMILIES,
    settings=MASKED_DIFFUSION_SETTINGS,
    make_recipe=lambda settings, traits: build_recipe(settings, traits, DualCache()),
    default_model="tiny-mdm",
)


@hookimpl
def dllm_audit_backends():
    return [backend]
