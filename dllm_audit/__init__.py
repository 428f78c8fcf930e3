"""dllm-audit: is a diffusion language model really faster, at this quality, on this machine?

What stands here is the public interface for plugins; everything else may change between versions.
"""

from dllm_audit.backend import (
    AUTOREGRESSIVE_FAMILIES,
    AUTOREGRESSIVE_SETTINGS,
    BLOCK_DIFFUSION_SETTINGS,
    MASKED_DIFFUSION_FAMILIES,
    MASKED_DIFFUSION_SETTINGS,
    Backend,
    LikelihoodBackend,
    LikelihoodSession,
    RecipeBackend,
    Session,
)
from dllm_audit.decode.cache import BlockExactCache, CausalCache, DualCache, NoCache, PrefixCache
from dllm_audit.decode.commit import EntropyBound, Factor, FixedK, Reveal, Threshold, ThresholdWithinQuota
from dllm_audit.decode.order import Blocks
from dllm_audit.decode.recipe import Recipe, Schedule, build_recipe, end_token_ids
from dllm_audit.decode.score import Score
from dllm_audit.hookspecs import hookimpl
from dllm_audit.models.families import ModelFamily
from dllm_audit.records import EngineLog, Failure, Forward, Generation, Question, Request, ScoredAnswer
from dllm_audit.settings import DecodeSettings, Setting

__version__ = "0.1.0"

__all__ = [
    "AUTOREGRESSIVE_FAMILIES",
    "AUTOREGRESSIVE_SETTINGS",
    "BLOCK_DIFFUSION_SETTINGS",
    "MASKED_DIFFUSION_FAMILIES",
    "MASKED_DIFFUSION_SETTINGS",
    "Backend",
    "BlockExactCache",
    "Blocks",
    "CausalCache",
    "DecodeSettings",
    "DualCache",
    "EngineLog",
    "EntropyBound",
    "Factor",
    "Failure",
    "FixedK",
    "Forward",
    "Generation",
    "LikelihoodBackend",
    "LikelihoodSession",
    "ModelFamily",
    "NoCache",
    "PrefixCache",
    "Question",
    "Recipe",
    "RecipeBackend",
    "Request",
    "Reveal",
    "Schedule",
    "Score",
    "ScoredAnswer",
    "Session",
    "Setting",
    "Threshold",
    "ThresholdWithinQuota",
    "build_recipe",
    "end_token_ids",
    "hookimpl",
]
