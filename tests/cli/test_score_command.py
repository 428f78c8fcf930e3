"""`dllm-audit score` as a person and a script meet it."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from dllm_audit.cli.main import main

TINY_LLADA = str(Path(__file__).parents[1] / "golden" / "tiny-llada")
KEYS = ["id", "loglikelihood", "standard_error", "samples", "exact", "is_greedy"]
LINE = {"id": "a", "prompt_ids": [12, 3, 40, 77], "answer_ids": [9, 55, 31, 60, 2, 81, 90, 13]}


@pytest.fixture
def score(tmp_path, capsys):
    """score(lines, arguments) -> (exit status, stdout, stderr)."""

    def run(lines, *arguments: str, model: str = TINY_LLADA) -> tuple[int, str, str]:
        path = tmp_path / "answers.jsonl"
        path.write_text(lines if isinstance(lines, str) else "\n".join(map(json.dumps, lines)), encoding="utf-8")
        with pytest.raises(SystemExit) as end:
            main(["score", "--model", model, "--requests", str(path), *arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


def as_json(result) -> tuple[int, list[dict]]:
    return result[0], [json.loads(line) for line in result[1].splitlines()]


def test_a_line_gives_the_documented_keys(score):
    status, (line,) = as_json(score([LINE], "--json"))
    assert status == 0
    assert list(line) == KEYS
    assert (line["id"], line["samples"], line["exact"], line["is_greedy"]) == ("a", 128, False, False)
    assert line["standard_error"] > 0


def test_the_same_facts_in_words(score):
    status, out, err = score([LINE, {**LINE, "id": 7, "answer_ids": [9]}])
    assert status == 0
    first, second = out.splitlines()
    assert re.fullmatch(
        r"a: -\d+\.\d+ nats, ± \d+\.\d+ \(standard error\) from 128 samples; is not the greedy answer", first
    )
    assert second.startswith("7: -")
    assert " nats, exact; " in second
    assert err.startswith("Loaded ")


def test_more_samples_a_smaller_error_and_all_of_them_the_exact_value(score):
    few, many, exact = (
        as_json(score([LINE], "--json", *more))[1][0]
        for more in (["--samples", "32"], ["--samples", "250"], ["--exact"])
    )
    assert few["standard_error"] > many["standard_error"] > exact["standard_error"] == 0
    assert (many["samples"], exact["samples"], exact["exact"]) == (250, 255, True)
    assert abs(many["loglikelihood"] - exact["loglikelihood"]) < 4 * many["standard_error"]


def test_a_value_comes_again_with_its_seed_and_not_with_another_whatever_lines_stand_around_it(score):
    alone = as_json(score([LINE], "--json"))[1][0]
    others = [{**LINE, "id": "b", "prompt_ids": [5]}, LINE]
    assert as_json(score(others, "--json"))[1][1] == alone
    assert as_json(score([LINE], "--json", "--seed", "1"))[1][0]["loglikelihood"] != alone["loglikelihood"]


def test_compat_and_guidance_change_what_is_estimated(score):
    plain, program, guided = (
        as_json(score([LINE], "--json", "--exact", *more))[1][0]["loglikelihood"]
        for more in ([], ["--compat", "llada"], ["--cfg-scale", "1"])
    )
    # In batches of 16 an answer of eight tokens has an even number of masks three times as often as an odd one.
    assert min(abs(plain - program), abs(plain - guided), abs(program - guided)) > 0.1


def test_lines_that_cannot_be_scored_stand_in_their_place_and_the_others_go_on(score):
    lines = [
        {"id": 1, "prompt_ids": [3], "answer_ids": []},
        {"id": 2, "prompt_ids": [3], "answer": "x"},
        {"id": 3, "prompt_ids": [3]},
        {"id": 4, "prompt_ids": [3], "answer_ids": [500]},
        {"id": 5, "prompt": "x", "answer": "y"},
        {"id": 6, "prompt_ids": [3], "answer_ids": [4], "suffix": "z"},
        {"id": 7, "prompt_ids": [3], "answer_ids": [4]},
    ]
    status, out = as_json(score(lines, "--json"))
    assert status == 3
    name = "answers.jsonl is no request: "
    assert [line["error"]["message"] for line in out[:-1]] == [
        "The answer is empty, so there is nothing to score.",
        f"Line 2 of {name}prompt and answer are not both text or both ids.",
        f"Line 3 of {name}it needs exactly one of answer and answer_ids.",
        "Token id 500 is outside this model's vocabulary of 128.",
        f"The model folder {TINY_LLADA} has no tokenizer, so it takes token ids only: "
        'give {"prompt_ids": [...]} with --requests instead of text.',
        f"Line 6 of {name}unknown field 'suffix' (known: id, prompt, prompt_ids, answer, answer_ids).",
    ]
    assert {line["error"]["type"] for line in out[:-1]} == {"RequestError"}
    assert list(out[-1]) == KEYS
    status, out, err = score(lines)
    assert status == 3
    assert len(out.splitlines()) == 7
    assert err.endswith("6 of 7 answers could not be scored.\n")


def test_a_text_is_tokenised_with_its_prompt_and_the_spaces_between_belong_to_the_answer(score):
    split = [
        {"id": n, "prompt": "Mia has 3 pens." + a, "answer": b} for n, (a, b) in enumerate([("", " Sam"), (" ", "Sam")])
    ]
    _, (first, second) = as_json(score(split, "--json", model="tiny-ar"))
    assert first["loglikelihood"] == second["loglikelihood"] < 0
    assert (first["exact"], first["standard_error"], first["samples"]) == (True, 0, 1)


def test_every_embedded_model_scores(score):
    line = {"prompt": "Question: Sam has 3 red", "answer": " pens"}
    for model in ("tiny-mdm", "tiny-block", "tiny-ar"):
        status, (out,) = as_json(score([line], "--json", model=model))
        assert status == 0
        assert out["loglikelihood"] < 0
        assert out["id"] == "line 1"


def test_a_person_can_pipe_answers_in(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(LINE).encode())))
    with pytest.raises(SystemExit) as end:
        main(["score", "--model", TINY_LLADA, "--requests", "-", "--json", "--exact"])
    assert end.value.code == 0
    assert json.loads(capsys.readouterr().out)["exact"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--compat", "llada"], "are for diffusion models: this one is autoregressive"),
        (["--cfg-scale", "0.5"], "are for diffusion models: this one is autoregressive"),
        (["--compat", "llada", "--samples", "40"], "40 samples are no multiple of batch_size=16"),
        (["--samples", "1"], "--samples"),
        (["--engine", "compile"], "score runs eager, and --engine compile would change nothing. Leave it out."),
    ],
)
def test_wrong_use_ends_with_status_2_before_anything_is_loaded(score, arguments, said):
    status, out, err = score([LINE], *arguments, model="tiny-ar")
    assert (status, out) == (2, "")
    assert said in err
    assert "Loaded" not in err


def test_an_empty_file_is_wrong_use(score):
    status, _, err = score("")
    assert status == 2
    assert "holds no request" in err
