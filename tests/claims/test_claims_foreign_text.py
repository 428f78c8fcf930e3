"""A claim file may come from anybody: nothing in it acts on a terminal or passes for a line of a table."""

from __future__ import annotations

import unicodedata

import pytest
from click.testing import CliRunner
from honest_claims import SWEEP

from dllm_audit.cli.claims import command

EVIL = [
    "\x1b",
    "\x07",
    "\x7f",
    "\x85",
    "\x9b",
    "\x9d",
    "\u2028",
    "\u200e",
    "\u202a",
    "\u202e",
    "\u2066",
    "\u2069",
]


def call(*arguments, status=0):
    result = CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    acting = [c for c in result.output if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs")]
    assert acting == []
    return result


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "claims"
    folder.mkdir()
    (folder / "honest-sweep.yaml").write_text(SWEEP)
    return folder


def spelled(character: str) -> str:
    """The character as an escape of YAML."""
    return f"\\u{ord(character):04x}"


@pytest.mark.parametrize("character", [*EVIL, "\r", "\x00"], ids=lambda c: f"U+{ord(c):04X}")
@pytest.mark.parametrize("field", ["system", "statement", "id", "engine", "kind"])
def test_an_acting_character_in_any_field_is_refused_with_file_and_line(folder, field, character):
    lines = SWEEP.splitlines()
    (number, old) = next((n, line) for n, line in enumerate(lines) if line.strip().startswith(f"{field}:"))
    lines[number] = f'{old.partition(":")[0]}: "a{spelled(character)}b"'
    path = folder / "evil.yaml"
    path.write_text("\n".join(lines))
    assert call("validate", path, "--claims", folder, status=1).stdout == (
        f"{path}:{number + 1}: The character U+{ord(character):04X} acts on a terminal or turns a line round; "
        "a claim is plain text.\n"
    )


def test_half_a_character_is_refused_with_file_and_line(folder):
    path = folder / "evil.yaml"
    path.write_text(SWEEP.replace("system: Example", 'system: "a\\ud800b"'))
    assert call("validate", path, "--claims", folder, status=1).stdout.startswith(f"{path}:4: ")


@pytest.mark.parametrize("character", ["\x1b", "\u202e", "\x9b"], ids=lambda c: f"U+{ord(c):04X}")
def test_the_character_itself_and_one_in_a_field_name_are_refused_too(folder, character):
    for text in (SWEEP.replace("Example", f"Exa{character}mple"), SWEEP + f'"a{spelled(character)}b": 1\n'):
        path = folder / "evil.yaml"
        path.write_text(text, encoding="utf-8")
        assert (
            f"The character U+{ord(character):04X} acts" in call("validate", path, "--claims", folder, status=1).stdout
        )


@pytest.mark.parametrize("escape", [r"\n", r"\t"])
def test_a_line_end_has_no_place_in_a_name_but_in_notes(folder, escape):
    path = folder / "evil.yaml"
    path.write_text(SWEEP.replace("honest-sweep", "evil").replace("system: Example", f'system: "a{escape}b"'))
    said = call("validate", path, "--claims", folder, status=1).stdout
    assert said.endswith(": system: has a line end or a tab in it; write it as one line.\n")
    path.write_text(SWEEP.replace("honest-sweep", "evil") + f'notes: "a{escape}b"\n')
    assert call("validate", path).stderr == "1 valid.\n"


@pytest.mark.parametrize("arguments", [["list"], ["show", "honest-sweep"], ["check"], ["validate"]], ids=" ".join)
def test_a_files_name_acts_and_forges_nothing(folder, arguments):
    (folder / "a\x1b[2J\r\nWarning: forged\u202e.yaml").write_text("id: 1\n")
    result = call(*arguments, "--claims", folder, status=int(arguments == ["validate"]))
    assert r"a\x1b[2J" in result.output
    assert not any(line.startswith("Warning: forged") for line in result.output.splitlines())


def test_the_lines_of_a_table_are_one_claim_each(folder, tmp_path):
    (folder / "other.yaml").write_text(
        SWEEP.replace("honest-sweep", "other").replace("system: Example", "system: Exam\u200bple")
    )
    assert len(call("list", "--claims", folder).stdout.splitlines()) == 3
    assert r"Exam\u200bple" in call("diff", "honest-sweep", "other", "--claims", folder).stdout
    assert r"Exam\u200bple" in call("show", "other", "--claims", folder).stdout
