"""The plugin manual. A plugin is a module, registered under the entry-point group `dllm_audit`, with any of these hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from dllm_audit.backend import Backend
    from dllm_audit.claims.traps import Trap
    from dllm_audit.models.families import ModelFamily

hookspec = pluggy.HookspecMarker("dllm_audit")
hookimpl = pluggy.HookimplMarker("dllm_audit")


@hookspec
def dllm_audit_backends() -> list[Backend]:
    """Return the decoder backends that this plugin adds."""
    raise AssertionError("a specification is never called")


@hookspec
def dllm_audit_model_families() -> list[ModelFamily]:
    """Return the model families that this plugin adds."""
    raise AssertionError("a specification is never called")


@hookspec
def dllm_audit_claim_traps() -> list[Trap]:
    """Return the rules by which this plugin finds figures that say more than was measured."""
    raise AssertionError("a specification is never called")
