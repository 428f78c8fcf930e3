"""The autoregressive baseline: one token per forward with a key-value cache, on the same engine as the others."""

from dllm_audit import (
    AUTOREGRESSIVE_FAMILIES,
    AUTOREGRESSIVE_SETTINGS,
    Blocks,
    CausalCache,
    FixedK,
    Recipe,
    RecipeBackend,
    Schedule,
    Score,
    end_token_ids,
    hookimpl,
)


def make_recipe(settings, traits):
    """Autoregressive decoding is a window of one-token blocks under a causal cache."""
    end_ids = end_token_ids(settings, traits)
    return Recipe(
        order=Blocks(1),
        cache=CausalCache(),
        score=Score(temperature=settings.temperature, end_ids=end_ids),
        commit=FixedK(),
        schedule=Schedule(),
        stop_at_eos=settings.stop_at_eos,
        end_ids=end_ids,
    )


backend = RecipeBackend(
    name="ar",
    summary="autoregressive, one token per forward with a key-value cache",
    attention="causal",
    families=AUTOREGRESSIVE_FAMILIES,
    settings=AUTOREGRESSIVE_SETTINGS,
    make_recipe=make_recipe,
    default_model="tiny-ar",
)


@hookimpl
def dllm_audit_backends():
    return [backend]
