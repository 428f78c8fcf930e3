"""`dllm-audit generate` as a person and a script meet it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from dllm_audit.cli.main import main
from dllm_audit.records import TIME_ITEMS

TINY_LLADA = str(Path(__file__).parents[1] / "golden" / "tiny-llada")
NO_TOKENIZER = f"The model folder {TINY_LLADA} has no tokenizer, so it takes token ids only"


@pytest.fixture
def call(capsys):
    """call(arguments) -> (exit status, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["generate", *arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


@pytest.fixture
def requests(tmp_path, call):
    """requests(lines, arguments) -> (exit status, JSON lines, stderr), decoded by the recorded LLaDA."""

    def run(text: str | bytes, *arguments: str, backend: str = "uncached", length: str = "8"):
        path = tmp_path / "requests.jsonl"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        status, out, err = call(
            "--backend",
            backend,
            "--model",
            TINY_LLADA,
            "--requests",
            str(path),
            "--gen-length",
            length,
            "--json",
            *arguments,
        )
        return status, [json.loads(line) for line in out.splitlines()], err

    return run


# -- output --


def test_a_request_gives_the_documented_keys(requests):
    status, (line,), _ = requests('{"id": "a", "prompt_ids": [1, 2, 3]}')
    assert status == 0
    assert set(line) >= {
        "id", "output_ids", "text", "answered_tokens", "committed_tokens", "residual_masks", "nfe", "seconds"
    }  # fmt: skip
    assert "commits" not in line
    assert "forwards" not in line
    assert (line["id"], len(line["output_ids"]), line["text"], line["nfe"], line["residual_masks"]) == (
        "a",
        8,
        None,
        8,
        0,
    )
    assert set(line["seconds"]) == {*TIME_ITEMS, "total"}
    assert sum(line["seconds"][item] for item in TIME_ITEMS) == pytest.approx(line["seconds"]["total"])


def test_a_trace_gives_forwards_and_commits_with_the_documented_keys(requests):
    _, (line,), _ = requests(
        '{"id": "a", "prompt_ids": [1, 2, 3]}',
        "--trace",
        "--block-length",
        "4",
        "--tokens-per-step",
        "2",
        backend="dualcache",
    )
    assert line["forwards"] == [
        {"kind": "refresh", "width": 11, "block": 0},
        {"kind": "denoise", "width": 4, "block": 0},
        {"kind": "refresh", "width": 11, "block": 1},
        {"kind": "denoise", "width": 4, "block": 1},
    ]
    assert [commit["step"] for commit in line["commits"]] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(commit["position"] for commit in line["commits"]) == list(range(3, 11))
    for commit in line["commits"]:
        assert set(commit) == {"step", "position", "token", "confidence"}
        assert line["output_ids"][commit["position"] - 3] == commit["token"]


@pytest.mark.parametrize("id", ['"a"', "7", "null", '{"deep": [1]}', '"\\ud83d\\ude00"'])
def test_an_id_comes_back_as_it_was_given_whatever_it_is(requests, id):
    _, (line,), _ = requests(f'{{"id": {id}, "prompt_ids": [1]}}')
    assert line["id"] == json.loads(id)


def test_ids_may_repeat_and_may_be_left_out_and_the_order_is_that_of_the_lines(requests):
    text = '{"id": "x", "prompt_ids": [1]}\n{"id": "x", "prompt_ids": [2, 3]}\n{"prompt_ids": [4]}\n'
    status, lines, _ = requests(text, "--concurrency", "5")
    assert status == 0
    assert [line["id"] for line in lines] == ["x", "x", "line 3"]


def test_more_requests_in_flight_than_there_are_change_nothing(requests):
    text = "".join(f'{{"id": {n}, "prompt_ids": {list(range(1, n + 2))}}}\n' for n in range(5))
    alone = [line["output_ids"] for line in requests(text)[1]]
    assert [line["output_ids"] for line in requests(text, "--concurrency", "99")[1]] == alone


def test_words_for_a_person_say_what_it_cost(call, tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"id": 1, "prompt_ids": [5, 6]}\n')
    status, out, err = call(
        "--backend", "dualcache", "--model", TINY_LLADA, "--requests", str(path), "--gen-length", "4", "--trace"
    )
    assert status == 0
    assert "4 committed in 4 forwards (1 refresh, 3 denoise), 18 query positions; " in out
    assert "step  kind     width  block  committed (position:token (confidence))" in out
    assert err.startswith(f"Loaded {TINY_LLADA} (0.2 M parameters, float32, cpu) in ")


# -- a bad line --


BAD_LINES = {
    "not json": "no JSON",
    '{"prompt_ids": [1]': "is no request: ",
    "[1, 2]": "it is no JSON object",
    "3": "it is no JSON object",
    '{"id": "x"}': "it needs exactly one of prompt and prompt_ids",
    '{"prompt": "a", "prompt_ids": [1]}': "it needs exactly one of prompt and prompt_ids",
    '{"prompt_ids": [1], "sufix_ids": [2]}': "unknown field 'sufix_ids' (known: ",
    '{"prompt_ids": "1 2 3"}': "prompt_ids is no list of whole numbers",
    '{"prompt_ids": [1, 2.5]}': "prompt_ids is no list of whole numbers",
    '{"prompt_ids": [true]}': "prompt_ids is no list of whole numbers",
    '{"prompt_ids": null}': "it needs exactly one of prompt and prompt_ids",
    '{"prompt": 5}': "prompt is no text",
    '{"prompt": null}': "it needs exactly one of prompt and prompt_ids",
    '{"prompt_ids": [1], "suffix": "a", "suffix_ids": [1]}': "it has both suffix and suffix_ids",
    '{"prompt_ids": [1], "settings": [1]}': "settings is no JSON object",
    '{"prompt_ids": [1], "until": 5}': "until is no text and no list of texts",
    '{"prompt_ids": [1], "until": [5]}': "until is no text and no list of texts",
    '{"prompt_ids": [1], "until": {"a": 1}}': "until is no text and no list of texts",
    '{"prompt_ids": [1], "settings": {"gen_length": %s}}' % ("9" * 400): "is not a whole number",
    '{"prompt_ids": [1], "settings": {"threshold": NaN}}': "is not a number",
    '{"prompt_ids": [1], "settings": {"gen_length": 100000000000}}': "but the model was made for 4096",
    '{{"prompt_ids": [{}]}}'.format(",".join(["5"] * 5000)): "The prompt of 5000 tokens plus gen_length=8 is 5008 positions",
    '{"prompt_ids": [128]}': "Token id 128 is outside this model's vocabulary of 128.",
    '{"prompt": "hello"}': NO_TOKENIZER,
    '{{"prompt_ids": {}1{}}}'.format("[" * 100_000, "]" * 100_000): "is no request: it is nested too deeply",
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD_LINES, ids=lambda line: line[:48])
def test_a_bad_line_gives_an_error_in_its_place_and_does_not_stop_the_others(requests, bad):
    status, lines, err = requests(f'{{"id": "first", "prompt_ids": [1]}}\n{bad}\n{{"id": "last", "prompt_ids": [1]}}\n')
    assert status == 3, err
    assert [len(line.get("output_ids", [])) for line in lines] == [8, 0, 8]
    assert (lines[0]["id"], lines[2]["id"]) == ("first", "last")
    assert set(lines[1]) == {"id", "error"}
    assert set(lines[1]["error"]) == {"type", "message"}
    assert BAD_LINES[bad] in lines[1]["error"]["message"] or BAD_LINES[bad] == "no JSON"
    assert "Traceback" not in err


def test_for_a_person_a_bad_line_is_a_sentence_and_a_count(call, tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"id": 1, "prompt_ids": [500]}\n{"id": 2, "prompt_ids": [5]}\n')
    status, out, err = call(
        "--backend", "uncached", "--model", TINY_LLADA, "--requests", str(path), "--gen-length", "4"
    )
    assert status == 3
    assert out.startswith("1: Token id 500 is outside this model's vocabulary of 128.\n== 2\n")
    assert err.endswith("1 of 2 requests could not be decoded.\n")


# -- odd files --


@pytest.mark.parametrize(
    "text",
    [
        b'\xef\xbb\xbf{"id": 1, "prompt_ids": [1]}\n',
        b'{"id": 1, "prompt_ids": [1]}\r\n\r\n',
        b'\n\n  {"id": 1, "prompt_ids": [1]}',
        '{"id": "a\u2028b\x85c", "id": 1, "prompt_ids": [1]}\n'.encode(),
    ],
    ids=["byte-order mark", "CRLF", "empty lines", "line separators inside a text"],
)
def test_a_file_of_any_editor_is_read(requests, text):
    status, lines, _ = requests(text)
    assert (status, [line["id"] for line in lines]) == (0, [1])


def test_requests_come_from_stdin_too(call, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 1, "prompt_ids": [1]}\n')))
    status, out, _ = call(
        "--backend", "uncached", "--model", TINY_LLADA, "--requests", "-", "--gen-length", "4", "--json"
    )
    assert (status, json.loads(out)["committed_tokens"]) == (0, 4)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_refused(requests, content, tmp_path):
    assert requests(content) == (
        2,
        [],
        f"Error: {tmp_path / 'requests.jsonl'} holds no request. "
        'Each line is a JSON object such as {"id": "1", "prompt_ids": [1, 2]}.\n',
    )


def test_a_file_that_cannot_be_read_is_refused(call, tmp_path, requests):
    missing = tmp_path / "missing.jsonl"
    for path in (missing, tmp_path):
        status, _, err = call("--backend", "uncached", "--model", TINY_LLADA, "--requests", str(path))
        assert status == 2
        assert err.startswith(f"Error: {path} cannot be read: ")
        assert err.endswith("Give a UTF-8 file with one JSON object per line.\n")
    status, _, err = requests(b"\xff\xfe{}")
    assert status == 2
    assert "cannot be read: 'utf-8' codec can't decode byte 0xff" in err


# -- wrong use --


def test_an_unknown_backend_gets_the_nearest(call):
    assert call("--backend", "dualcahe", "--prompt", "x") == (
        2,
        "",
        "Error: There is no backend 'dualcahe'. Did you mean 'dualcache' or 'uncached'? See: dllm-audit backends\n",
    )


def test_a_folder_without_tokenizer_says_that_it_takes_ids(call):
    status, out, err = call("--backend", "dualcache", "--model", TINY_LLADA, "--prompt", "hello")
    assert (status, out) == (2, "")
    assert err.endswith(
        f'Error: {NO_TOKENIZER}. Put {{"id": "1", "prompt_ids": [1, 2, 3]}} into a file and give it with --requests.\n'
    )


def test_a_model_of_the_wrong_kind_is_refused_before_it_is_loaded(call):
    assert call("--backend", "ar", "--model", TINY_LLADA, "--prompt", "x") == (
        2,
        "",
        f"Error: Backend 'ar' cannot decode {TINY_LLADA}: it needs an autoregressive model, and this is a masked-diffusion "
        "model with bidirectional attention. Use uncached, prefixcache or dualcache.\n",
    )
    assert call("--backend", "dualcache", "--model", "tiny-ar", "--prompt", "x") == (
        2,
        "",
        "Error: Backend 'dualcache' cannot decode tiny-ar: it needs a masked-diffusion model with bidirectional attention, "
        "and this is an autoregressive model. Use the backend 'ar'.\n",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gen-length", "0"], "Setting gen_length=0 is too small: it must be at least 1."),
        (["--gen-length", "many"], "Setting gen_length='many' is not a whole number. Positions to generate."),
        (["--threshold", "1.5"], "Setting threshold=1.5 is too large: it must be at most 1."),
        (["--set", "treshold=0.9"], "There is no setting 'treshold' (backend 'dualcache'). Did you mean 'threshold'?"),
        (["--set", "threshold"], "--set 'threshold' is not KEY=VALUE, for example --set threshold=0.9."),
        (["--set", "=1"], "--set '=1' is not KEY=VALUE, for example --set threshold=0.9."),
        (["--threshold", "0.9", "--set", "threshold=0.8"], "Setting threshold is given twice. Keep one of them."),
        (["--set", "steps=4", "--set", "steps=4"], "Setting steps is given twice. Keep one of them."),
        (
            ["--steps", "4", "--tokens-per-step", "2"],
            "Settings steps and tokens_per_step say the same thing in two ways: give only one of them.",
        ),
        (
            ["--cfg-scale", "1"],
            "Backend 'dualcache' has no setting 'cfg_scale'. Known: block_length, compat,",
        ),
        (["--engine", "cudagraph"], "--engine cudagraph needs a CUDA device, and this is cpu. Use eager or compile."),
        (["--confidence", "probabilty"], "Setting confidence='probabilty' is not one of probability, margin, entropy, random. Did you mean 'probability'?"),
        (["--model", "tiny-mmd"], "There is no model 'tiny-mmd': it is no folder and no embedded model."),
        (["--device", "cuda:99"], "Device 'cuda:99' is not here: "),
        (["--device", "gpu"], "There is no device 'gpu'. Use auto, cpu, cuda, cuda:N or mps."),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_with_a_sentence_and_status_2(call, options, message):
    status, out, err = call("--backend", "dualcache", "--prompt", "x", *options)
    assert (status, out) == (2, "")
    error = next(line for line in err.splitlines() if line.startswith("Error: "))
    assert error.removeprefix("Error: ").startswith(message)


@pytest.mark.parametrize("options", [[], ["--prompt", "x", "--requests", "y"]])
def test_prompt_and_requests_exclude_each_other_and_one_is_needed(call, options):
    assert call("--backend", "ar", *options) == (2, "", "Error: Give either --prompt TEXT or --requests FILE.jsonl.\n")


@pytest.mark.parametrize(
    "options", [["--concurrency", "0"], ["--dtype", "int8"], ["--treshold", "0.9"], ["--seed", "x"]]
)
def test_a_wrong_use_that_click_finds_has_status_2_too(call, options):
    status, out, err = call("--backend", "ar", "--prompt", "x", *options)
    assert (status, out) == (2, "")
    assert "Error: " in err


# -- text, on an embedded model --


@pytest.mark.parametrize(
    "prompt",
    ["Hello 😀 Ünïcödé", "<|mask|> and <|endoftext|>", "a\\nb", " ", "\u0000\u2028", "x" * 500],
    ids=["emoji", "special words", "new line", "space", "control characters", "long"],
)
@pytest.mark.parametrize("backend", ["dualcache", "block", "ar"])
def test_any_text_can_be_given(call, backend, prompt):
    status, out, err = call("--backend", backend, "--prompt", prompt, "--gen-length", "4", "--json")
    assert status == 0, err
    line = json.loads(out)
    assert (line["id"], line["committed_tokens"]) == ("prompt", 4)
    assert isinstance(line["text"], str)


def test_an_empty_prompt_is_decoded_by_a_diffusion_model_and_refused_by_an_autoregressive_one(call):
    assert call("--backend", "dualcache", "--prompt", "", "--gen-length", "4", "--json")[0] == 0
    status, out, _ = call("--backend", "ar", "--prompt", "", "--gen-length", "4", "--json")
    assert status == 3
    assert json.loads(out)["error"] == {
        "type": "RequestError",
        "message": "The prompt is empty, and this model predicts a token from the one before it. Give at least one.",
    }


def test_a_prompt_of_5000_tokens_is_refused_with_a_sentence(call):
    status, out, _ = call("--backend", "dualcache", "--prompt", "pens " * 5000, "--json")
    assert status == 3
    assert "positions, but the model was made for 4096. Shorten the prompt" in json.loads(out)["error"]["message"]


def test_the_default_model_is_named(call):
    _, _, err = call("--backend", "dualcache", "--prompt", "x", "--gen-length", "2")
    assert err.startswith("dualcache: no --model given, so the embedded model tiny-mdm is used.\nLoaded tiny-mdm (")


def test_sampling_repeats_with_the_same_seed_and_differs_with_another(call):
    def text(seed):
        options = (
            "--backend",
            "ar",
            "--prompt",
            "Question:",
            "--gen-length",
            "30",
            "--temperature",
            "2",
            "--seed",
            seed,
            "--json",
        )
        return json.loads(call(*options)[1])["output_ids"]

    assert text("1") == text("1")
    assert text("1") != text("2")


def test_infilling_uses_the_suffix(call):
    def ids(*suffix):
        return json.loads(
            call("--backend", "uncached", "--prompt", "Sam has", "--gen-length", "8", "--json", *suffix)[1]
        )["output_ids"]

    assert len(ids("--suffix", " pens.")) == 8
    status, out, _ = call("--backend", "ar", "--prompt", "Sam has", "--suffix", " pens.", "--json")
    assert status == 3
    assert "cannot infill. Use uncached, prefixcache or dualcache." in json.loads(out)["error"]["message"]
