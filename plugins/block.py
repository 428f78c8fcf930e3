"""Block diffusion with an exact cache of finished blocks (BD3-LM, arXiv 2503.09573), for block-causal models."""

from dllm_audit import BLOCK_DIFFUSION_SETTINGS, BlockExactCache, RecipeBackend, build_recipe, hookimpl

backend = RecipeBackend(
    name="block",
    summary="block diffusion, keys of finished blocks are exact and cost one commit forward per block",
    attention="block",
    families=("llama-block",),
    settings=BLOCK_DIFFUSION_SETTINGS,
    make_recipe=lambda settings, traits: build_recipe(settings, traits, BlockExactCache()),
    default_model="tiny-block",
)


@hookimpl
def dllm_audit_backends():
    return [backend]
