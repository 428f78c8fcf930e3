"""No text from outside acts on a terminal: names, prompts, answers, settings, what a plugin says."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dllm_audit.cli import main as main_module
from dllm_audit.cli import opening
from dllm_audit.cli.generate import _Printer
from dllm_audit.cli.main import main
from dllm_audit.cli.terminal import say_json
from dllm_audit.errors import UsageError, did_you_mean
from dllm_audit.evaluate import datasets
from dllm_audit.plugins import Plugins, load_plugins
from dllm_audit.records import Failure, Generation

#: Clears the screen, sets the title, goes back to the start of the line, turns the line round, and a C1 command.
EVIL = "a\x1b[2J\x1b]0;title\x07\rb\u202ec\u2066d\x9be\x7f"
SHOWN = r"a\x1b[2J\x1b]0;title\x07\x0db\u202ec\u2066d\x9be\x7f"


def acts(text: str) -> list[str]:
    """The characters of `text` that a terminal obeys instead of showing them."""
    return [c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Cs")]


@pytest.fixture
def call(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        captured = capsys.readouterr()
        assert acts(captured.out) == []
        assert acts(captured.err) == []
        return end.value.code, captured.out, captured.err

    return run


def generation(text: str) -> Generation:
    fields = dict.fromkeys(Generation.__dataclass_fields__, 0)
    fields |= {"text": text, "output_ids": (1,), "trace": None, "forwards": {}, "stop": "length"}
    return Generation(**(fields | {"seconds": {"total": 1.0}}))


def test_a_models_answer_and_a_requests_id_are_shown_with_their_codes(capsys, monkeypatch):
    monkeypatch.setattr("dllm_audit.cli.generate.TIME_ITEMS", ())
    asked = [(f"{EVIL}\n== b", None), ("c", Failure("c", "RequestError", EVIL + "\n== d"))]
    printer = _Printer(asked, SimpleNamespace(tokenizer=None), False, False)
    printer.take(replace(generation(f"one\n\ttwo{EVIL}"), id="0"))
    out = capsys.readouterr().out
    assert acts(out) == []
    assert out.startswith(f"== {SHOWN}⏎== b\none\n\ttwo{SHOWN}\n")
    assert out.endswith(f"c: {SHOWN}⏎== d\n")


def test_a_token_of_a_trace_stays_on_its_line(capsys, monkeypatch):
    monkeypatch.setattr("dllm_audit.cli.generate.TIME_ITEMS", ())
    commit = SimpleNamespace(token=1, step=0, position=0, confidence=1.0)
    forward = SimpleNamespace(kind="denoise", width=1, block=0)
    tokenizer = SimpleNamespace(decode=lambda ids: EVIL + "\n")
    printer = _Printer([("a", None)], SimpleNamespace(tokenizer=tokenizer), False, True)
    trace = SimpleNamespace(forwards=[forward], commits=[commit])
    printer.take(replace(generation(""), id="0", trace=trace))
    out = capsys.readouterr().out
    assert acts(out) == []
    assert r"\x1b[2J" in out.splitlines()[-1]


@pytest.mark.parametrize("option", ["--backend", "--model"])
def test_a_name_in_an_error_is_shown_with_its_codes(call, option):
    options = {"--backend": "ar", "--prompt": "x"} | {option: EVIL}
    status, _, err = call("generate", *(word for pair in options.items() for word in pair))
    assert status == 2
    assert r"\x1b[2J" in err


def test_a_file_name_in_an_error_is_shown_with_its_codes(call):
    status, _, err = call("generate", "--backend", "ar", "--requests", f"{EVIL}.jsonl")
    assert status == 2
    assert r"\x1b[2J" in err
    status, _, err = call("generate", "--backend", "ar", f"--{EVIL}")
    assert status == 2


def test_the_lines_after_an_errors_first_pass_for_no_message_of_their_own(call, monkeypatch):
    def fail(*args, **kwargs):
        raise UsageError("One.\nWarning: two.")

    monkeypatch.setattr(main_module.cli, "main", fail)
    assert call("run") == (2, "", "Error: One.\n  Warning: two.\n")


def test_what_a_plugin_says_of_itself_is_shown_with_its_codes(call, monkeypatch):
    found = load_plugins()
    evil = SimpleNamespace(
        name=EVIL, summary=EVIL, provenance=EVIL, kind="x", families=(EVIL,), default_model=EVIL,
        settings={EVIL: EVIL}, waivers=(EVIL,),
    )  # fmt: skip
    plugins = Plugins({EVIL: evil}, found.families, {EVIL: EVIL}, (f"Plugin {EVIL}\nError: forged",))
    monkeypatch.setattr(opening, "load_plugins", lambda: plugins)
    status, out, err = call("backends")
    assert status == 0
    assert out.startswith(f"{SHOWN}  [{SHOWN}, x]  {SHOWN}\n")
    assert err == f"Warning: Plugin {SHOWN}⏎Error: forged\n"
    assert call("doctor", "--device", "cpu")[0] == 0


def test_an_imported_file_is_listed_on_one_line(call, monkeypatch):
    file = datasets.ImportedFile(**dict.fromkeys(datasets.ImportedFile.__dataclass_fields__, 1))
    file = replace(file, source=f"{EVIL}\nother", sha256="0" * 64)
    data = SimpleNamespace(task="gsm8k", test=file, fewshot=None)
    monkeypatch.setattr(datasets, "list_data", lambda: [data])
    assert call("data", "list") == (0, f"gsm8k: 1 documents ({SHOWN}⏎other, sha256 000000000000)\n", "")


# -- JSON --


@pytest.mark.parametrize("id", ["NaN", "-Infinity", "1e999", '{"deep": [NaN]}'])
@pytest.mark.parametrize("command", [["generate", "--backend", "ar"], ["score"]], ids=lambda words: words[0])
def test_an_id_that_is_no_json_is_a_bad_request(call, tmp_path, command, id):
    path = tmp_path / "r.jsonl"
    path.write_text(f'{{"id": {id}, "prompt": "a", "answer": "b"}}\n{{"id": "x"}}\n')
    status, out, _ = call(*command, "--model", "tiny-ar", "--requests", str(path), "--json")
    assert status == 3

    def refuse(constant):
        raise AssertionError(constant)

    first, second = (json.loads(line, parse_constant=refuse) for line in out.splitlines())
    assert first == {
        "id": "line 1",
        "error": {
            "type": "RequestError",
            "message": "Line 1 of r.jsonl is no request: its id holds NaN or Infinity, which are no JSON.",
        },
    }
    assert second["id"] == "x"


def test_a_number_that_json_lacks_is_null(capsys):
    say_json({"a": [float("nan"), 1.5, (float("-inf"),)], "b": "NaN"})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5, [None]], "b": "NaN"}


# -- names --


def test_an_unknown_name_never_fills_the_screen():
    known = [f"name{n:05}" for n in range(14_000)]
    said = did_you_mean("../evil", known)
    assert said == "Known: " + ", ".join(known[:10]) + " and 13990 more."
    assert did_you_mean("../evil", known[:3]) == "Known: name00000, name00001, name00002."
    assert did_you_mean("x", []) == "None is known."


@pytest.mark.parametrize(("name", "known"), [("tresh", "eos"), ("run", "rnd_x"), ("ab", "a_and_b")])
def test_a_name_that_is_not_near_is_not_offered(name, known):
    assert did_you_mean(name, [known]) == f"Known: {known}."


@pytest.mark.parametrize(
    ("name", "known"), [("genrate", "generate"), ("treshold", "threshold"), ("dualcahe", "dualcache")]
)
def test_a_slip_of_the_keyboard_is_understood(name, known):
    assert did_you_mean(name, [known]) == f"Did you mean {known!r}?"
