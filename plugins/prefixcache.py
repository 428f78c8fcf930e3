"""Masked diffusion with remembered prefix: Fast-dLLM's PrefixCache (arXiv 2505.22618, section 3.2)."""

from dllm_audit import (
    MASKED_DIFFUSION_FAMILIES,
    MASKED_DIFFUSION_SETTINGS,
    PrefixCache,
    RecipeBackend,
    build_recipe,
    hookimpl,
)

backend = RecipeBackend(
    name="prefixcache",
    summary="masked diffusion, keys of the prefix are kept within a block (Fast-dLLM)",
    attention="bidirectional",
    families=MASKED_DIFFUSION_FAMILIES,
    settings=MASKED_DIFFUSION_SETTINGS,
    make_recipe=lambda settings, traits: build_recipe(settings, traits, PrefixCache()),
    default_model="tiny-mdm",
)


@hookimpl
def dllm_audit_backends():
    return [backend]
