"""Which way imports point: the few edges that would cost most to lose."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dllm_audit

PACKAGE = Path(dllm_audit.__file__).parent
PLUGINS = sorted((PACKAGE.parent / "plugins").glob("*.py"))


def imports(file: Path) -> set[str]:
    """Every module that a file names in an import, at the top or inside a function, for typing alone left out."""
    found = set()

    class Visitor(ast.NodeVisitor):
        def visit_If(self, node: ast.If) -> None:
            if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
                self.generic_visit(node)

        def visit_Import(self, node: ast.Import) -> None:
            found.update(alias.name for alias in node.names)

        def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
            found.add(node.module or "")

    Visitor().visit(ast.parse(file.read_text()))
    return found


def importers(module: str) -> set[str]:
    """Files of the package and of the plugins that import `module` or a part of it, relative to the checkout."""
    files = [*PACKAGE.rglob("*.py"), *PLUGINS]
    return {
        str(file.relative_to(PACKAGE.parent))
        for file in files
        if any(name == module or name.startswith(module + ".") for name in imports(file))
    }


@pytest.mark.parametrize("name", ["records", "errors"])
def test_records_and_errors_import_nothing_of_ours_and_only_the_standard_library(name):
    for module in imports(PACKAGE / f"{name}.py"):
        assert module.partition(".")[0] in sys.stdlib_module_names


def test_only_the_store_imports_duckdb():
    assert importers("duckdb") == {"dllm_audit/store/database.py"}


def test_only_evaluate_imports_lm_eval():
    found = importers("lm_eval")
    assert found
    assert {str(Path(file).parent) for file in found} == {"dllm_audit/evaluate"}


def test_plugins_import_only_public_names_of_the_package():
    assert len(PLUGINS) == 7
    for file in PLUGINS:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not [a.name for a in node.names if a.name.startswith("dllm_audit")], file
            if isinstance(node, ast.ImportFrom):
                assert node.module == "dllm_audit", file
                assert {alias.name for alias in node.names} <= set(dllm_audit.__all__), file


def test_every_public_name_is_there_and_listed_in_order():
    assert all(hasattr(dllm_audit, name) for name in dllm_audit.__all__)
    assert len(set(dllm_audit.__all__)) == len(dllm_audit.__all__)


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after running `code`."""
    script = f"import sys\n{code}\nprint(*sorted(n for n in sys.modules if '.' not in n))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split("\n")[-2].split())


HEAVY = {"torch", "transformers", "lm_eval", "duckdb", "numpy", "scipy", "pandas", "datasets", "pyarrow"}


def test_the_public_interface_loads_no_heavy_library():
    assert loaded_by("import dllm_audit") & HEAVY == set()


def test_loading_the_plugins_loads_no_heavy_library():
    assert loaded_by("from dllm_audit.plugins import load_plugins; assert load_plugins().backends") & HEAVY == set()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["run", "--help"], ["generate", "--help"], ["backends"]]
)
def test_help_and_lists_load_no_heavy_library(arguments):
    """So that they answer at once: torch and transformers alone take seconds."""
    code = f"from dllm_audit.cli.main import main\ntry:\n    main({arguments!r})\nexcept SystemExit as end:\n    assert not end.code, end.code"
    assert loaded_by(code) & HEAVY == set()
