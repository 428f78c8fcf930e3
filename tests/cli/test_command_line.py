"""The group of commands: help, unknown names, exit statuses, and how errors become sentences."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import click
import pytest

from dllm_audit import __version__
from dllm_audit.cli import main as main_module
from dllm_audit.cli.main import COMMANDS, cli, main
from dllm_audit.errors import Interrupted, RequestError, UsageError

FIRST_FIVE = {"ar", "block", "dualcache", "prefixcache", "uncached"}


@pytest.fixture
def call(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


def every_command() -> list[list[str]]:
    """Every command and subcommand, by what a person types."""
    found = []

    def walk(command: click.Command, words: list[str]) -> None:
        found.append(words)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                walk(command.get_command(context, name), [*words, name])

    walk(cli, [])
    return found


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_every_commands_help_says_what_it_does_and_ends_with_an_example(call, words):
    status, out, err = call(*words, "--help")
    assert (status, err) == (0, "")
    lines = [line.strip() for line in out.strip().splitlines()]
    epilog = " ".join(lines[max(i for i, line in enumerate(lines) if not line) + 1 :])
    assert epilog.startswith("Example: dllm-audit ")
    assert words == [] or f"dllm-audit {' '.join(words)}" in epilog
    assert len(lines[2]) > 20  # a sentence after the usage line


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_every_example_in_a_help_text_is_made_of_options_that_exist(words):
    command = cli
    for word in words:
        command = command.get_command(click.Context(command), word)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    example = command.epilog.removeprefix("Example: ").split(" && ")[0]
    if words:
        assert {word for word in example.split() if word.startswith("--")} <= known | {"--help"}


def test_the_documented_commands_are_there():
    documented = {
        "run",
        "report",
        "generate",
        "backends",
        "data",
        "runs",
        "show",
        "compare",
        "export",
        "claims",
        "doctor",
    }
    assert documented <= set(COMMANDS)


def test_an_unknown_command_gets_the_nearest(call):
    status, out, err = call("genrate")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == "Error: There is no command 'genrate'. Did you mean 'generate'?"


def test_no_command_shows_the_help_and_is_wrong_use(call):
    status, _, err = call()
    assert status == 2
    assert "Commands:" in err


def test_the_version_is_that_of_the_package(call):
    assert call("--version") == (0, f"dllm-audit, version {__version__}\n", "")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UsageError("No such thing."), 2, "Error: No such thing.\n"),
        (RequestError("Too long."), 3, "Error: Too long.\n"),
        (Interrupted("Interrupted. Kept."), 130, "Error: Interrupted. Kept.\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (click.UsageError("bad"), 2, "Error: bad\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_a_sentence_with_its_exit_status_and_no_traceback(call, monkeypatch, error, status, said):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(main_module.cli, "main", fail)
    assert call("run") == (status, "", said)


def test_a_reader_that_goes_away_is_no_error():
    """`dllm-audit backends | head -1` must not end in a traceback."""
    code = "from dllm_audit.cli.main import main; main(['backends', '--json'])"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_backends_lists_the_first_five_with_the_documented_facts(call):
    status, out, err = call("backends", "--json")
    assert (status, err) == (0, "")
    listed = [backend for backend in json.loads(out) if backend["name"] in FIRST_FIVE]
    assert [
        (b["name"], b["provenance"], b["kind"], b["default_model"]) for b in sorted(listed, key=lambda b: b["name"])
    ] == [
        ("ar", "reference", "autoregressive", "tiny-ar"),
        ("block", "reference", "diffusion", "tiny-block"),
        ("dualcache", "reference", "diffusion", "tiny-mdm"),
        ("prefixcache", "reference", "diffusion", "tiny-mdm"),
        ("uncached", "reference", "diffusion", "tiny-mdm"),
    ]
    for backend in listed:
        assert backend["families"]
        assert backend["settings"]["gen_length"] == 128
        assert backend["registered_by"] == f"plugin {backend['name']!r}"
        assert backend["waivers"] == []


def test_backends_for_a_person_names_settings_with_their_defaults(call):
    _, out, _ = call("backends")
    assert (
        "dualcache  [reference, diffusion]  masked diffusion, keys of prefix and suffix are kept within a block" in out
    )
    assert "block_length=32" in out
    assert "threshold=unset" in out
    assert "stop_at_eos=false" in out


@pytest.fixture
def machine(monkeypatch):
    """Give the doctor a machine with these facts and readings."""
    from dllm_audit.measure import environment

    def install(facts, readings):
        monkeypatch.setattr(environment, "describe", lambda device=None: facts)
        monkeypatch.setattr(environment, "readings", lambda device=None: readings)

    return install


def test_doctor_describes_the_machine_and_warns_of_what_spoils_timing(call, machine):
    facts = {"cores_usable": 2, "threads": 8, "cpu_governor": "powersave"}
    machine(facts, {"load_average_1min": 3.5})
    status, out, _ = call("doctor", "--device", "cpu", "--json")
    assert status == 0
    report = json.loads(out)
    assert report["environment"] == facts | {"load_average_1min": 3.5}
    assert set(report["backends"]) >= FIRST_FIVE
    assert [warning.split(":")[0] for warning in report["warnings"]] == [
        "torch uses 8 threads on 2 usable cores",
        "Other work is running",
        "The CPU frequency governor is 'powersave'",
    ]
    assert report["measured_by"]["peak_memory"].startswith("VmHWM of the process")
    assert report["measured_by"]["energy"]
    assert report["measured_by"]["weight_hashes"].endswith("sha256.json")


def test_doctor_says_when_nothing_spoils_timing(call, machine):
    machine({"cores_usable": 8, "threads": 8}, {})
    _, out, _ = call("doctor", "--device", "cpu")
    assert out.endswith("Nothing was found that spoils timing.\n")


def test_doctor_shows_sizes_as_people_read_them_and_json_keeps_the_bytes(call, machine):
    machine({"memory_bytes": 25_276_502_016, "last_level_cache": "32768K"}, {})
    _, out, _ = call("doctor", "--device", "cpu")
    assert re.search(r"^memory +25\.3 GB$", out, re.MULTILINE)
    assert re.search(r"^last_level_cache +32 MiB$", out, re.MULTILINE)
    _, out, _ = call("doctor", "--device", "cpu", "--json")
    assert json.loads(out)["environment"]["memory_bytes"] == 25_276_502_016


def test_doctor_says_why_something_cannot_be_read(call, machine, monkeypatch):
    from dllm_audit.measure import energy

    machine({"cpu_governor": "unknown: this system does not tell"}, {})
    monkeypatch.setattr(energy, "find_energy_source", lambda device: energy.EnergySource(None, "there is no counter"))
    _, out, _ = call("doctor", "--device", "cpu")
    assert "cpu_governor    unknown: this system does not tell" in out
    assert "energy          unknown: there is no counter" in out


# -- data --


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("DLLM_AUDIT_DATA", str(tmp_path / "data"))
    path = tmp_path / "test.jsonl"
    path.write_text('{"question": "1+1?", "answer": "#### 2"}\n{"question": "2+2?", "answer": "#### 4"}\n')
    return path


def test_data_is_imported_listed_and_used(call, data, tmp_path):
    assert call("data", "list") == (
        0,
        f"No data set was imported into {tmp_path / 'data'} yet. Embedded tasks need none.\n",
        "",
    )
    status, out, _ = call("data", "import", "gsm8k", str(data), "--fewshot", str(data))
    assert status == 0
    assert out == (
        f"Imported 2 documents for task gsm8k into {tmp_path / 'data' / 'gsm8k'}.\n"
        "With 2 documents for worked examples.\n"
        "Now: dllm-audit run --backend dualcache --task gsm8k --limit 8\n"
    )
    status, out, _ = call("data", "import", "gsm8k", str(data))
    assert out.splitlines()[-1] == "Now: dllm-audit run --backend dualcache --task gsm8k --num-fewshot 0 --limit 8"
    status, out, _ = call("data", "list", "--json")
    (listed,) = json.loads(out)
    assert (listed["task"], listed["test"]["rows"], listed["test"]["source"]) == ("gsm8k", 2, "test.jsonl")
    assert len(listed["test"]["sha256"]) == 64


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("gsm8", "There is no task 'gsm8' in lm-eval. Did you mean"),
        ("gsm_mini", "Task 'gsm_mini' is embedded and has its data already."),
        ("../evil", "There is no task '../evil' in lm-eval. "),
    ],
)
def test_data_for_no_task_is_refused(call, data, task, message):
    status, out, err = call("data", "import", task, str(data))
    assert (status, out) == (2, "")
    assert err.startswith(f"Error: {message}")


def test_a_missing_data_file_is_refused(call, data, tmp_path):
    path = tmp_path / "missing.jsonl"
    assert call("data", "import", "gsm8k", str(path)) == (
        2,
        "",
        f"Error: There is no file {path}. Give a JSONL or Parquet file.\n",
    )
