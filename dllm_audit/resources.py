"""Where the data that ships with the package lies: claims and report templates."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from dllm_audit.errors import AuditError, UsageError, did_you_mean

RESOURCES = ("claims", "reports")


def resource_folder(name: str) -> Path:
    """The folder "claims" or "reports": beside the package in a checkout, a package of its own in a wheel.

    Raises UsageError for another name, AuditError when the installation lacks the folder.
    """
    if name not in RESOURCES:
        raise UsageError(f"There is no resource folder {name!r}. {did_you_mean(name, RESOURCES)}")
    root = Path(__file__).resolve().parent.parent
    # site-packages may hold somebody else's "claims": only a folder with a pyproject.toml is a checkout.
    if (root / "pyproject.toml").is_file() and (root / name).is_dir():
        return root / name
    spec = find_spec(f"dllm_audit_{name}")
    if spec is None or not spec.submodule_search_locations:
        raise AuditError(
            f"This installation has no {name}: the package dllm_audit_{name} is missing. "
            "Install it again with: pip install --force-reinstall dllm-audit"
        )
    return Path(next(iter(spec.submodule_search_locations)))
