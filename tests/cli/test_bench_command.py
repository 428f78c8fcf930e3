"""`dllm-audit bench`: a grid of cells, prompts of exactly the length, speed alone and called that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dllm_audit.cli.main import main
from dllm_audit.decode.session import encode_text
from dllm_audit.evaluate.bench import IdsPrompt, SpeedWork
from dllm_audit.models.loading import find_model, load_model
from dllm_audit.store.database import Store

TINY_LLADA = str(Path(__file__).parents[1] / "golden" / "tiny-llada")
SMALL = ("--prompt-length", "12", "--gen-length", "8", "--requests", "2", "--repeats", "1")


@pytest.fixture
def call(capsys, tmp_path):
    """call(arguments) -> (exit status, stdout, stderr) of `dllm-audit bench` with a results file of its own."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["bench", "--db", str(tmp_path / "results.duckdb"), *arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def model():
    return load_model(find_model("tiny-mdm"), "cpu", "float32")


# -- the prompts --


@pytest.mark.parametrize("length", [1, 7, 64, 301])
def test_a_prompt_of_real_words_has_exactly_the_length_and_is_another_one_each_time(model, length):
    prompts = SpeedWork(length, 3).prompts(model, seed=0)
    assert [len(encode_text(model, prompt.prompt)) for prompt in prompts] == [length] * 3
    assert len({prompt.key for prompt in prompts}) == 3
    if length > 60:
        assert len({prompt.prompt for prompt in prompts}) == 3
        assert all(prompt.prompt.startswith("Question: ") for prompt in prompts)


def test_prompts_hang_on_the_seed_alone(model):
    work = SpeedWork(50, 2)
    assert work.prompts(model, 3) == work.prompts(model, 3) != work.prompts(model, 4)


def test_random_ids_are_drawn_without_masks_and_ends_of_text(model):
    prompts = SpeedWork(400, 2, random_ids=True).prompts(model, seed=0)
    traits = model.traits
    for prompt in prompts:
        assert isinstance(prompt, IdsPrompt)
        assert len(prompt.prompt_ids) == 400
        assert not {traits.mask_token_id, *traits.end_token_ids} & set(prompt.prompt_ids)
        assert all(0 <= id < traits.vocab_size for id in prompt.prompt_ids)
        assert prompt.request({}).prompt is None
    assert prompts[0].prompt_ids != prompts[1].prompt_ids


# -- the grid --


def test_every_combination_is_a_cell_and_repeats_are_interleaved_in_balanced_order(call, tmp_path):
    status, out, err = call(
        "--backend", "dualcache,ar", "--prompt-length", "8", "--gen-length", "8", "--requests", "2", "--repeats", "2",
        "--tokens-per-step", "2,4", "--concurrency", "2", "--json",
    )  # fmt: skip
    assert status == 0, err
    cells = json.loads(out)["cells"]
    # Of dualcache two settings, of ar, which has no such setting, one.
    assert [(c["backend"], c["prompt_tokens"], c["settings"].get("tokens_per_step")) for c in cells] == [
        ("dualcache", 8, 2), ("dualcache", 8, 4), ("ar", 8, None),
    ]  # fmt: skip
    assert all(len(cell["runs"]) == 2 for cell in cells)
    with Store.open(tmp_path / "results.duckdb") as store:
        order = [run["run_id"] for run in store.runs()]
        rows = store.requests(cells[0]["runs"][0])
    firsts, seconds = ([cell["runs"][repeat] for cell in cells] for repeat in (0, 1))
    assert order == [*firsts, *reversed(seconds)]
    assert [(row["prompt_tokens"], row["committed_tokens"], row["denoise_forwards"]) for row in rows] == [(8, 8, 3)] * 2


def test_a_cell_has_its_speed_its_latencies_and_no_quality(call):
    status, out, err = call("--backend", "dualcache", *SMALL, "--json")
    assert status == 0, err
    (cell,) = json.loads(out)["cells"]
    assert cell["work"] == "fixed work: 12 prompt tokens of text, every output 8 positions long"
    assert (cell["output_tokens"], cell["requests"], cell["failed"]) == (8, 2, 0)
    speed = cell["committed_per_second"]
    assert speed["value"] == pytest.approx(cell["committed_per_second_of_runs"][0])
    assert speed["reason"] == "interval unknown: 1 of at least 5 repeats"
    assert cell["streaming"]["blocks"] == 2
    assert cell["latency"]["p50"]["value"] >= cell["streaming"]["block_latency"]["p50"]["value"] > 0
    assert cell["load"]["batches"][0]["rows"] == 1
    assert "metrics" not in cell


def test_for_a_person_it_says_that_speed_alone_says_nothing_of_being_better(call):
    status, out, _ = call("--backend", "ar", *SMALL)
    assert status == 0
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["decoder", "model", "prompt", "output"]
    assert lines[1].split()[:4] == ["ar", "tiny-ar", "12", "8"]
    assert "Speed alone: no quality was measured, so none of this says that anything is better." in lines
    assert "  Fixed work: 12 prompt tokens of text, every output 8 positions long." in lines


def test_random_ids_are_called_fixed_work_and_need_no_tokenizer(call):
    status, out, err = call("--backend", "uncached", "--model", TINY_LLADA, *SMALL, "--random-ids", "--json")
    assert status == 0, err
    (cell,) = json.loads(out)["cells"]
    assert cell["work"] == "fixed work: 12 prompt tokens of random ids, every output 8 positions long"
    status, _, err = call("--backend", "uncached", "--model", TINY_LLADA, *SMALL)
    assert status == 2
    assert "has no tokenizer, and prompts are text" in err


def test_outputs_are_equally_long_unless_an_end_of_text_is_asked_to_end_them(call):
    fixed = json.loads(call("--backend", "ar", *SMALL, "--json")[1])["cells"][0]
    ended = json.loads(call("--backend", "ar", *SMALL, "--stop-at-eos", "--json")[1])["cells"][0]
    assert (fixed["settings"]["stop_at_eos"], ended["settings"]["stop_at_eos"]) == (False, True)
    assert ended["work"] == "12 prompt tokens of text"


def test_a_baseline_of_another_model_is_a_cell_of_its_own_with_its_control(call):
    status, out, err = call("--backend", "dualcache", "--baseline", "ar", *SMALL, "--json")
    assert status == 0, err
    assert [(c["backend"], c["role"]) for c in json.loads(out)["cells"]] == [
        ("dualcache", "candidate"), ("ar", "baseline"), ("ar", "control"),
    ]  # fmt: skip


def test_all_at_once_and_by_arrival_rate(call):
    status, out, err = call("--backend", "ar", *SMALL, "--requests", "4", "--load", "offline", "--json")
    assert status == 0, err
    (cell,) = json.loads(out)["cells"]
    assert (cell["concurrency"], cell["load"]["kind"], cell["load"]["rows"]) == (4, "offline", 4)
    _, out, _ = call("--backend", "ar", *SMALL, "--arrival-rate", "50,100", "--concurrency", "2", "--json")
    assert [cell["load"]["arrival_rate"] for cell in json.loads(out)["cells"]] == [50.0, 100.0]


def test_the_same_command_with_resume_makes_nothing_again(call, tmp_path):
    call("--backend", "ar", *SMALL)
    status, _, err = call("--backend", "ar", *SMALL, "--resume")
    assert status == 0, err
    with Store.open(tmp_path / "results.duckdb") as store:
        assert len(store.runs()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--backend", "ar", "--prompt-length", "4000", "--gen-length", "200"),
            "--prompt-length 4000 and --gen-length 200 are 4200 positions, but tiny-ar was made for {}. Lower one of them.",
        ),
        (("--backend", "ar", "--prompt-length", "0"), "--prompt-length 0: a prompt has at least one token."),
        (
            ("--backend", "ar", "--prompt-length", "x"),
            "--prompt-length 'x' is no list of whole numbers, such as 1,4,8.",
        ),
        (("--backend", "ar", "--threshold", "0.9"), "Backend 'ar' has no setting 'threshold'."),
        (
            ("--backend", "dualcache", "--tokens-per-step", "2,2"),
            "--tokens-per-step 2,2 names one value twice. Use --repeats to run it several times.",
        ),
        (
            ("--backend", "ar", "--baseline-model", "tiny-ar"),
            "--baseline-model says which model --baseline decodes. Give --baseline NAME too.",
        ),
    ],
)
def test_what_makes_no_sense_is_wrong_use(call, arguments, said, tmp_path):
    status, out, err = call(*arguments)
    most = find_model("tiny-ar").traits.max_positions
    assert (status, out) == (2, "")
    assert said.format(most) in err
    assert not (tmp_path / "results.duckdb").exists()


@pytest.mark.parametrize("option", ["--requests", "--repeats"])
def test_a_slip_of_the_keyboard_does_not_fill_the_memory_with_a_plan(call, option):
    status, _, err = call("--backend", "ar", *SMALL, option, "99999999999999")
    assert status == 2
    assert f"Invalid value for '{option}'" in err
