"""Anybody's plugin works as the built-in ones do; a broken one is reported and left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dllm_audit.analysis.summary import summarise
from dllm_audit.cli.main import main
from dllm_audit.plugins import load_plugins
from dllm_audit.store.database import Store

TINY_LLADA = Path(__file__).parents[1] / "golden" / "tiny-llada"
BUILT_IN = ["ar", "block", "dream", "dualcache", "prefixcache", "uncached"]

HASTY = """
from dllm_audit import MASKED_DIFFUSION_FAMILIES, MASKED_DIFFUSION_SETTINGS, DualCache, RecipeBackend, Setting, build_recipe, hookimpl
import dataclasses

def make_recipe(settings, traits):
    width = settings.own["stride"]
    return build_recipe(dataclasses.replace(settings, block_length=width), traits, DualCache())

@hookimpl
def dllm_audit_backends():
    return [RecipeBackend(
        name="hasty", summary="blocks of a stride", attention="bidirectional", families=MASKED_DIFFUSION_FAMILIES,
        settings={"gen_length": 12, "tokens_per_step": 2, "stride": 4}, make_recipe=make_recipe,
        own_settings=(Setting("stride", int, "Positions per block.", minimum=1),), waivers=("Nothing is promised.",),
    )]
"""

FAMILY = """
from dllm_audit import ModelFamily, hookimpl
from dllm_audit.models.families import FAMILIES

@hookimpl
def dllm_audit_model_families():
    llada = next(f for f in FAMILIES if f.name == "llada")
    return [ModelFamily("mine", "a family", ("MyModelLM",), "Llama", "LlamaConfig", llada.translate, "bidirectional", 0)]
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """install(name, source, value) makes an installed distribution of one module with one entry point."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def add(name: str, source: str, value: str | None = None) -> Path:
        (site / f"{name}.py").write_text(source)
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[dllm_audit]\n{name} = {value or name}\n")
        return site

    yield add
    for module in ("hasty_plugin", "broken_plugin", "thief_plugin", "family_plugin"):
        sys.modules.pop(module, None)


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", "from dllm_audit.cli.main import main; main()", *arguments],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(site)}, timeout=120,
    )  # fmt: skip


def test_the_built_in_backends_are_plugins_like_any_other():
    plugins = load_plugins()
    assert sorted(plugins.backends) == BUILT_IN
    assert plugins.origins == {name: f"plugin {name!r}" for name in BUILT_IN}
    assert plugins.problems == ()


def test_a_third_partys_backend_decodes(install, tmp_path):
    site = install("hasty_plugin", HASTY)
    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"id": 1, "prompt_ids": [5, 6, 7]}\n{"id": 2, "prompt_ids": [5], "settings": {"stride": 6}}\n')
    done = run(
        site,
        "generate",
        "--backend",
        "hasty",
        "--model",
        str(TINY_LLADA),
        "--requests",
        str(requests),
        "--json",
        "--trace",
    )
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert [forward["kind"] for forward in first["forwards"]] == ["refresh", "denoise"] * 3
    assert [forward["width"] for forward in second["forwards"]] == [13, 6, 6, 13, 6, 6]
    assert (first["committed_tokens"], second["committed_tokens"]) == (12, 12)


def test_a_third_partys_backend_is_listed_with_its_settings_its_plugin_and_its_waivers(install):
    site = install("hasty_plugin", HASTY)
    listed = {backend["name"]: backend for backend in json.loads(run(site, "backends", "--json").stdout)}
    assert sorted(listed) == sorted([*BUILT_IN, "hasty"])
    assert listed["hasty"]["settings"] == {"gen_length": 12, "tokens_per_step": 2, "stride": 4}
    assert listed["hasty"]["registered_by"] == "plugin 'hasty_plugin'"
    assert listed["hasty"]["waivers"] == ["Nothing is promised."]


def test_a_setting_of_a_third_party_is_checked_like_any_other(install):
    site = install("hasty_plugin", HASTY)
    arguments = ("generate", "--backend", "hasty", "--model", str(TINY_LLADA), "--prompt", "x", "--set")
    wrong = run(site, *arguments, "stride=0")
    assert (wrong.returncode, wrong.stderr) == (2, "Error: Setting stride=0 is too small: it must be at least 1.\n")
    wrong = run(site, *arguments, "strid=3")
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "Error: There is no setting 'strid' (backend 'hasty'). Did you mean 'stride'?\n",
    )


@pytest.mark.parametrize(
    ("source", "value", "problem"),
    [
        (
            "raise RuntimeError('no luck')",
            None,
            "Plugin 'broken_plugin' (broken_plugin) is left out: RuntimeError: no luck",
        ),
        (
            "import sys\nsys.exit(0)",
            None,
            "Plugin 'broken_plugin' (broken_plugin) is left out: SystemExit: 0",
        ),
        (
            "import nowhere_to_be_found",
            None,
            "Plugin 'broken_plugin' (broken_plugin) is left out: ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        ),
        (
            "",
            "broken_plugin:missing",
            "Plugin 'broken_plugin' (broken_plugin:missing) is left out: "
            "AttributeError: module 'broken_plugin' has no attribute 'missing'",
        ),
        (
            "from dllm_audit import hookimpl\n@hookimpl\ndef dllm_audit_backends():\n    return 1 / 0",
            None,
            "Plugin 'broken_plugin': dllm_audit_backends failed: ZeroDivisionError: division by zero",
        ),
        (
            "from dllm_audit import hookimpl\n@hookimpl\ndef dllm_audit_backends():\n    return None",
            None,
            "Plugin 'broken_plugin': dllm_audit_backends failed: TypeError: 'NoneType' object is not iterable",
        ),
        (
            "from dllm_audit import hookimpl\n@hookimpl\ndef dllm_audit_backends():\n    return ['a name']",
            None,
            "Plugin 'broken_plugin': dllm_audit_backends returned 'a name', which is no Backend: it has no name.",
        ),
    ],
    ids=[
        "raises",
        "ends the program",
        "lacks a package",
        "lacks its name",
        "hook raises",
        "hook returns none",
        "hook returns another thing",
    ],
)
def test_a_broken_plugin_is_reported_and_left_out_while_the_others_work(install, source, value, problem):
    install("broken_plugin", source, value)
    plugins = load_plugins()
    assert sorted(plugins.backends) == BUILT_IN
    assert plugins.problems == (problem,)


def test_a_plugin_that_misspells_a_hook_is_told_so(install):
    install("broken_plugin", "from dllm_audit import hookimpl\n@hookimpl\ndef dllm_audit_backend():\n    return []")
    plugins = load_plugins()
    assert sorted(plugins.backends) == BUILT_IN
    assert len(plugins.problems) == 1
    assert plugins.problems[0].startswith(
        "Plugin 'broken_plugin': there is no hook 'dllm_audit_backend'. Did you mean 'dllm_audit_backends'"
    )


def test_what_is_wrong_with_a_plugin_is_a_warning_on_stderr_and_nothing_on_stdout(install):
    site = install("broken_plugin", "raise RuntimeError('no luck')")
    done = run(site, "backends", "--json")
    assert done.returncode == 0
    assert done.stderr == "Warning: Plugin 'broken_plugin' (broken_plugin) is left out: RuntimeError: no luck\n"
    assert sorted(backend["name"] for backend in json.loads(done.stdout)) == BUILT_IN


def test_a_backend_cannot_take_the_name_of_another(install):
    install("thief_plugin", HASTY.replace('name="hasty"', 'name="dualcache"'))
    plugins = load_plugins()
    assert plugins.origins["dualcache"] == "plugin 'dualcache'"
    assert plugins.problems == (
        "Backend 'dualcache' of plugin 'thief_plugin' is left out: plugin 'dualcache' has that name.",
    )


def test_a_third_partys_model_family_is_known(install):
    install("family_plugin", FAMILY)
    assert "mine" in [family.name for family in load_plugins().families]


FAILING = HASTY.replace('    width = settings.own["stride"]', '    raise KeyError("no stride")')


def test_what_a_plugin_raises_at_work_names_the_plugin_and_not_this_program(install):
    site = install("hasty_plugin", FAILING)
    failed = run(site, "run", "--backend", "hasty", "--model", "tiny-mdm", "--task", "gsm_mini", "--dry-run")
    assert failed.returncode == 3
    assert "no stride" in failed.stderr
    assert failed.stderr.splitlines()[-1] == (
        "Error: Plugin 'hasty_plugin' failed. Report it, with the lines above, to whoever wrote it; what had finished is kept."
    )


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ('name="hasty"', "its name is 5 and no text"),
        (
            'settings={"gen_length": 12, "tokens_per_step": 2, "stride": 4}',
            "its settings are 5 and no mapping of names to defaults",
        ),
        ('waivers=("Nothing is promised.",)', "its waivers are 5 and no tuple"),
        ('attention="bidirectional"', "its provenance is 'blessed' and none of reference, library, upstream, served"),
    ],
    ids=["name", "settings", "waivers", "provenance"],
)
def test_a_backend_that_describes_itself_in_another_kind_is_left_out(install, change, wrong):
    name = change.partition("=")[0]
    other = change + ', provenance="blessed"' if name == "attention" else f"{name}=5"
    install("hasty_plugin", HASTY.replace(change, other))
    plugins = load_plugins()
    assert sorted(plugins.backends) == BUILT_IN
    (problem,) = plugins.problems
    assert problem.startswith("Plugin 'hasty_plugin': dllm_audit_backends returned RecipeBackend(")
    assert problem.endswith(f", which is no Backend: {wrong}.")


BRAGGING = """
import dataclasses
from dllm_audit import MASKED_DIFFUSION_FAMILIES, MASKED_DIFFUSION_SETTINGS, DualCache, RecipeBackend, build_recipe, hookimpl

class Session:
    def __init__(self, inner):
        self.inner, self.warm_up, self.forward_costs = inner, inner.warm_up, inner.forward_costs
    def generate(self, requests, on_result, concurrency=1, traced=False, on_shapes=None, arrivals=None):
        def take(result):
            short = {item: seconds / 1000 for item, seconds in result.seconds.items()}
            on_result(dataclasses.replace(result, CHANGE))
        return self.inner.generate(requests, take, concurrency, traced, on_shapes, arrivals)

class Bragging(RecipeBackend):
    def open(self, model, settings, seed=0):
        return Session(super().open(model, settings, seed))

@hookimpl
def dllm_audit_backends():
    return [Bragging(
        name="hasty", summary="quick", attention="bidirectional", families=MASKED_DIFFUSION_FAMILIES, default_model="tiny-mdm",
        settings=MASKED_DIFFUSION_SETTINGS, make_recipe=lambda settings, traits: build_recipe(settings, traits, DualCache()),
    )]
"""


@pytest.fixture
def summary_of(install, tmp_path):
    """summary_of(change) -> the summary of a run with a plugin that changes its results so."""

    def call(change: str):
        install("hasty_plugin", BRAGGING.replace("CHANGE", change))
        database = tmp_path / "results.duckdb"
        arguments = ["--backend", "hasty", "--task", "gsm_mini", "--limit", "3", "--trace", "0"]
        with pytest.raises(SystemExit) as end:
            main(["run", "--db", str(database), *arguments])
        assert end.value.code == 0
        with Store.open(database) as store:
            return summarise(store, store.runs()[0]["run_id"])

    return call


@pytest.mark.parametrize("change", ["elapsed_seconds=result.elapsed_seconds / 1000", "seconds=short"])
def test_a_plugin_that_shortens_its_times_leaves_no_speed_to_conclude(summary_of, change):
    summary = summary_of(change)
    assert summary.doubt == float("inf")
    assert any(
        note.startswith("By its own clock backend 'hasty' took ")
        and note.endswith("its times are not those of its work.")
        for note in summary.notes
    )


def test_a_plugin_with_a_session_of_its_own_that_keeps_its_times_is_believed(summary_of):
    assert not any("own clock" in note for note in summary_of("text=result.text").notes)
