"""What the README shows works as it is shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dllm_audit.cli.main import COMMANDS, cli
from dllm_audit.cli.opening import choose
from dllm_audit.models.loading import load_model
from dllm_audit.plugins import load_plugins
from dllm_audit.records import Generation, Request

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def shown_commands() -> list[str]:
    """Every `dllm-audit ...` line of an indented block."""
    return [line.strip() for line in README.splitlines() if re.match(r" {4}dllm-audit ", line)]


def test_the_readme_shows_commands():
    assert len(shown_commands()) >= 8


@pytest.mark.parametrize("line", shown_commands())
def test_every_command_in_the_readme_has_known_options(line):
    words = shlex.split(line)[1:]
    command = cli.get_command(None, words[0])
    assert command is not None
    if hasattr(command, "commands"):
        command, words = command.commands[words[1]], words[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    used = {word for word in words[1:] if word.startswith("--")}
    assert used <= known


def test_the_readme_names_every_command():
    table = README[README.index("| Command |") : README.index("## Your own model")]
    named = set(re.findall(r"`([\w-]+)`", table))
    assert set(COMMANDS) - named == set()


def test_the_backend_in_the_readme_decodes(tmp_path, monkeypatch):
    code = re.search(r"```python\n# my_decoder\.py\n(.*?)```", README, re.DOTALL)
    assert code is not None
    (tmp_path / "my_decoder.py").write_text(code[1], encoding="utf-8")
    info = tmp_path / "my_decoder-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-decoder\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[dllm_audit]\nmargin = my_decoder\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    plugins = load_plugins()
    choice = choose(plugins, "margin", None)
    results = []
    session = choice.backend.open(load_model(choice.source, "cpu"), {"gen_length": 16, "block_length": 16})
    session.generate([Request("a", prompt="Question: ")], results.append)
    assert plugins.problems == ()
    assert isinstance(results[0], Generation)
    assert results[0].committed_tokens == 16


def test_every_help_ends_with_an_example():
    runner = CliRunner()
    for name in COMMANDS:
        text = runner.invoke(cli, [name, "--help"]).output
        assert "Example: dllm-audit" in " ".join(text.split()), name
