"""An installed wheel works from any folder, with its plugins, tasks, models, claims and templates."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # From a copy: a build leaves files beside the sources.
    tree = shutil.copytree(
        ROOT, folder / "tree", ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "*.duckdb*")
    )
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(tree)],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def in_wheel(unpacked: Path, code: str, elsewhere: Path) -> str:
    """What `code` prints when the package comes from the wheel and the work folder is another one."""
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "OMP_NUM_THREADS": "1"}
    # An editable install beside the wheel would fill in whatever the wheel lacks.
    code = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]\n" + code
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=elsewhere, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.slow
def test_the_wheel_carries_everything_that_the_checkout_has(unpacked, tmp_path):
    code = """
import json, dllm_audit
from dllm_audit.plugins import load_plugins
from dllm_audit.models.loading import find_model, weight_files
from dllm_audit.models.tiny import EMBEDDED_MODELS
from dllm_audit.evaluate.loading import embedded_task_names
from dllm_audit.claims.registry import load_claims
from dllm_audit.resources import resource_folder
from dllm_audit.store.database import migrations
registry = load_claims()
print(json.dumps({
    "file": dllm_audit.__file__,
    "backends": sorted(load_plugins().backends),
    "weights": [len(weight_files(find_model(n).folder, n)) for n in EMBEDDED_MODELS],
    "tasks": embedded_task_names(),
    "claims": len(registry.claims),
    "problems": len(registry.problems),
    "templates": (resource_folder("reports") / "report.html.j2").exists(),
    "migrations": len(migrations()),
}))
"""
    facts = json.loads(in_wheel(unpacked, code, tmp_path))
    assert facts.pop("file").startswith(str(unpacked))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    claims = sum(1 for _ in (ROOT / "claims").rglob("*.yaml"))
    assert facts == {
        "backends": sorted(project["project"]["entry-points"]["dllm_audit"]),
        "weights": [1, 1, 1],
        "tasks": ["gsm_mini", "lists_copy", "lists_replace", "lists_reverse", "lists_shuffle", "lists_sort"],
        "claims": claims,
        "problems": 0,
        "templates": True,
        "migrations": len(list((ROOT / "dllm_audit/store/migrations").glob("*.sql"))),
    }


@pytest.mark.slow
def test_the_wheel_runs_a_task_and_reports_it_in_an_empty_folder(unpacked, tmp_path):
    code = """
from dllm_audit.cli.main import main
try:
    main(["run", "--backend", "dualcache", "--task", "gsm_mini", "--limit", "2", "--trace", "1"])
except SystemExit as leaving:
    assert leaving.code == 0, leaving.code
main(["report"])
"""
    printed = in_wheel(unpacked, code, tmp_path)
    assert "dualcache" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dllm-audit-report.html", "dllm-audit.duckdb"]
