"""`dllm-audit run`: what it prints and stores, how it is interrupted and resumed, what it refuses."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dllm_audit.analysis.summary import summarise
from dllm_audit.cli.main import main
from dllm_audit.decode.session import RecipeSession
from dllm_audit.models.tiny import EMBEDDED_MODELS
from dllm_audit.records import FORWARD_KINDS, TIME_ITEMS
from dllm_audit.store.database import Store

TINY_LLADA = str(Path(__file__).parents[1] / "golden" / "tiny-llada")
SMALL = ("--task", "gsm_mini", "--limit", "6", "--gen-length", "16", "--trace", "2")


@pytest.fixture
def database(tmp_path) -> Path:
    return tmp_path / "results.duckdb"


@pytest.fixture
def call(capsys, database):
    """call(arguments) -> (exit status, stdout, stderr) of `dllm-audit run` with a results file of its own."""

    def run(*arguments: str, db: Path = database) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["run", "--db", str(db), *arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """Ids of the requests that were decoded in the timed region, in order."""
    ids: list[str] = []
    inner = RecipeSession.generate

    def generate(self, requests, on_result, concurrency=1, traced=False, on_shapes=None, arrivals=None):
        requests = list(requests)
        if not traced:
            ids.extend(request.id for request in requests if not request.id.startswith("warm-up"))
        return inner(self, requests, on_result, concurrency, traced, on_shapes, arrivals)

    monkeypatch.setattr(RecipeSession, "generate", generate)
    return ids


def stored(database: Path) -> list[dict]:
    with Store.open(database) as store:
        return [{**run, "requests": store.requests(run["run_id"])} for run in store.runs()]


# -- what it prints and stores --


def test_json_has_the_documented_facts_and_they_are_those_of_the_results_file(call, database):
    status, out, err = call("--backend", "dualcache,ar", *SMALL, "--concurrency", "2", "--json")
    assert status == 0, err
    runs = json.loads(out)["runs"]
    assert [run["backend"] for run in runs] == ["dualcache", "ar"]
    with Store.open(database) as store:
        for run in runs:
            assert set(run) >= {
                "run_id", "backend", "provenance", "model", "task", "concurrency", "requests", "failed", "metrics",
                "answered_tokens", "committed_tokens", "tokens_per_second", "tokens_per_forward", "forwards", "seconds",
                "settings",
            }  # fmt: skip
            assert set(run["seconds"]) == {*TIME_ITEMS, "total"}
            assert set(run["forwards"]) >= {"prefill", "denoise", "refresh", "commit"}
            assert (run["provenance"], run["task"], run["concurrency"]) == ("reference", "gsm_mini", 2)
            assert (run["requests"], run["failed"]) == (6, 0)
            rows = store.requests(run["run_id"])
            assert run["answered_tokens"] == sum(row["answered_tokens"] for row in rows)
            assert run["forwards"]["denoise"] == sum(row["denoise_forwards"] for row in rows)
            assert run["tokens_per_second"] == pytest.approx(run["answered_tokens"] / run["makespan_seconds"])
            assert run["tokens_per_forward"] == pytest.approx(run["answered_tokens"] / sum(run["forwards"].values()))
            assert run["seconds"]["total"] == pytest.approx(sum(run["seconds"][item] for item in TIME_ITEMS))
            assert run["metrics"] == {f"{m['metric']},{m['filter']}": m["value"] for m in store.metrics(run["run_id"])}
            assert len(run["metrics"]) >= 2
            assert run["settings"]["gen_length"] == 16
            assert run["settings"]["stop_at_eos"] is True
            forwards, commits = store.trace(run["run_id"], 1)
            assert forwards
            assert commits
            assert store.trace(run["run_id"], 2) == ([], [])
            assert store.run(run["run_id"])["status"] == "complete"


def test_for_a_person_it_prints_a_table_and_what_to_do_next(call, database):
    status, out, err = call("--backend", "ar", *SMALL)
    assert status == 0
    header, line = out.splitlines()
    assert header.split()[:3] == ["decoder", "model", "task"]
    assert line.split()[:3] == ["ar", "tiny-ar", "gsm_mini"]
    assert "6/6" in line
    assert err.startswith("ar: no --model given, so the embedded model tiny-ar is used.\nLoading tasks ...\n")
    assert "[1/1] ar on gsm_mini: 6/6 requests, " in err
    assert err.endswith(f"Stored in {database}. Next: dllm-audit report --db {database}\n")


def test_several_thresholds_make_several_runs_but_only_where_there_is_one(call):
    status, out, err = call("--backend", "dualcache,ar", *SMALL, "--threshold", "0.5,0.9", "--json")
    assert status == 0
    for line in ("[1/3] dualcache, threshold 0.5 on gsm_mini: ", "[2/3] dualcache, threshold 0.9 on ", "[3/3] ar on "):
        assert line in err
    assert [(run["backend"], run["settings"].get("threshold")) for run in json.loads(out)["runs"]] == [
        ("dualcache", 0.5),
        ("dualcache", 0.9),
        ("ar", None),
    ]


def test_a_baseline_is_run_first_and_last_and_repeats_in_balanced_order(call, database):
    status, _, _ = call(
        "--backend", "dualcache", *SMALL, "--limit", "1", "--baseline", "ar", "--repeats", "2", "--json"
    )
    assert status == 0
    order = [(run["role"], run["repeat"]) for run in stored(database)]
    # first and last, so that a machine that drifts meanwhile shows in the two
    forth = [("baseline", 0), ("candidate", 0), ("control", 0)]
    assert order == [*forth, *[(role, 1) for role, _ in reversed(forth)]]
    assert len({run["invocation"] for run in stored(database)}) == 1


def test_a_dry_run_decodes_and_stores_nothing(call, database, decoded):
    status, out, _ = call("--backend", "dualcache", *SMALL, "--dry-run")
    assert status == 0
    assert out
    assert decoded == []
    assert not database.exists()


def test_a_dry_run_estimates_the_time_from_earlier_runs(call, database):
    call("--backend", "ar", *SMALL)
    status, out, _ = call("--backend", "ar", *SMALL, "--dry-run")
    assert status == 0
    assert ": 6 requests, 1 in flight, repeat 1, gen_length=16" in out.splitlines()[0]
    assert re.search(
        rf"^About \d+ seconds? of decoding, estimated from earlier runs in {re.escape(str(database))}\.$", out, re.M
    )


def test_a_stored_command_names_no_folder_of_this_machine(call, database, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/dllm-audit", "run", "--model", TINY_LLADA, "--backend", "dualcache"])
    call("--backend", "ar", *SMALL, "--limit", "1")
    (run,) = stored(database)
    assert run["manifest"]["command"] == "dllm-audit run --model tiny-llada --backend dualcache"


def test_the_manifest_says_what_the_measurement_stands_on(call, database):
    call("--backend", "ar", *SMALL, "--limit", "1")
    (run,) = stored(database)
    manifest = run["manifest"]
    assert set(manifest["model"]["weights_sha256"]) == {"model.safetensors"}
    assert manifest["engine"] == {"mode": "eager", "attention_kernel": "sdpa", "device": "cpu"}
    assert manifest["prompts"]["limit"] == 1
    assert manifest["prompts"]["chat_template"] is False
    assert {"torch", "transformers", "python", "cpu", "threads"} <= manifest["environment"].keys()
    assert len(manifest["warm_up"]["seconds"]) >= 2


# -- interrupted and resumed --


def comparable(run: dict) -> dict:
    """What must not depend on an interruption: answers and counts, but no times."""
    timeless = [
        {k: v for k, v in row.items() if not k.endswith("_seconds") and k not in ("run_id", "sitting", "finished_at")}
        for row in run["requests"]
    ]
    return {
        "requests": timeless,
        "settings": run["settings"],
        "planned": run["planned_requests"],
        "status": run["status"],
    }


def metrics(database: Path) -> list[dict]:
    with Store.open(database) as store:
        (run,) = store.runs()
        return [{**row, "run_id": ""} for row in [*store.metrics(run["run_id"]), *store.answers(run["run_id"])]]


KILLED = """
import os, signal, sys
from dllm_audit.store.database import Store
inner, kept = Store.add_result, []
def add_result(self, *arguments):
    inner(self, *arguments)
    kept.append(1)
    if len(kept) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
Store.add_result = add_result
from dllm_audit.analysis.summary import summarise
from dllm_audit.cli.main import main
main(sys.argv[1:])
"""


def row_forwards(database: Path, run_id: str, sitting: int) -> int:
    with Store.open(database) as store:
        rows = store.query("SELECT * FROM forward_shapes WHERE run_id = ? AND sitting = ?", [run_id, sitting])
    return sum(row["count"] * row["rows"] for row in rows)


def total_forwards(requests) -> int:
    return sum(r[f"{kind}_forwards"] or 0 for r in requests for kind in FORWARD_KINDS)


@pytest.mark.slow
def test_a_killed_run_is_resumed_with_the_same_answers_metrics_and_counts_and_decodes_nothing_twice(
    call, database, tmp_path, decoded
):
    arguments = ("--backend", "dualcache", *SMALL, "--concurrency", "2", "--json")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, "run", "--db", str(database), *arguments], capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL
    (before,) = stored(database)
    assert before["status"] == "interrupted"
    assert len(before["requests"]) == 3
    assert row_forwards(database, before["run_id"], 1) >= total_forwards(before["requests"])

    status, out, err = call(*arguments, "--resume")
    assert status == 0, err
    (after,) = stored(database)
    kept = {row["ordinal"] for row in before["requests"]}
    assert [row for row in after["requests"] if row["ordinal"] in kept] == before["requests"]
    assert sorted(decoded) == sorted(str(n) for n in range(6) if n not in kept)
    assert (after["run_id"], after["sittings"]) == (before["run_id"], 2)
    assert json.loads(out)["runs"][0]["resumed"] is True
    # The forwards of the killed sitting are known up to its last stored answer, so what rows waited is too.
    assert row_forwards(database, after["run_id"], 2) == total_forwards(
        r for r in after["requests"] if r["sitting"] == 2
    )
    with Store.open(database) as store:
        assert summarise(store, after["run_id"]).batch_tax.value is not None

    whole = tmp_path / "whole.duckdb"
    assert call(*arguments, db=whole)[0] == 0
    assert comparable(after) == comparable(stored(whole)[0])
    assert metrics(database) == metrics(whole)

    decoded.clear()
    assert call(*arguments, "--resume")[0] == 0
    assert decoded == []  # a complete run is not made again
    assert len(stored(database)) == 1


def test_resuming_does_not_take_up_a_run_of_other_settings(call, database, decoded):
    call("--backend", "ar", *SMALL, "--limit", "2")
    for other in (("--gen-length", "17"), ("--seed", "1"), ("--concurrency", "2"), ("--limit", "3")):
        decoded.clear()
        assert call("--backend", "ar", *SMALL, "--limit", "2", *other, "--resume")[0] == 0
        assert len(decoded) in (2, 3)
    assert len(stored(database)) == 5


def press(monkeypatch, method: str, after: int) -> None:
    """Ctrl-C while the results file is being written: during call number `after` of a method of the store."""
    inner, calls = getattr(Store, method), []

    def pressed(self, *arguments):
        calls.append(1)
        if len(calls) == after:
            os.kill(os.getpid(), signal.SIGINT)
        return inner(self, *arguments)

    monkeypatch.setattr(Store, method, pressed)


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_ctrl_c_keeps_what_had_finished_and_says_how_to_go_on(call, database, monkeypatch, decoded, again):
    press(monkeypatch, "add_result", 2)
    if again:
        press(monkeypatch, "end_run", 1)
    status, out, err = call("--backend", "ar", *SMALL)
    assert (status, out) == (130, "")
    assert err.endswith(
        f"Error: Interrupted. What had finished is kept in {database}; the same command with --resume goes on from there.\n"
    )
    (run,) = stored(database)
    assert (run["status"], [row["ordinal"] for row in run["requests"]]) == ("interrupted", [0, 1])
    decoded.clear()
    assert call("--backend", "ar", *SMALL, "--resume")[0] == 0
    assert decoded == ["2", "3", "4", "5"]
    (run,) = stored(database)
    assert (run["status"], len(run["requests"])) == ("complete", 6)


def test_ctrl_c_between_two_forwards_keeps_what_had_finished(call, database, monkeypatch):
    from dllm_audit.decode.loop import DecodeLoop

    advance, keep, kept = DecodeLoop._advance, Store.add_result, []

    def add_result(self, *values):
        keep(self, *values)
        kept.append(1)

    def pressed(self):
        if kept:
            signal.raise_signal(signal.SIGINT)
        advance(self)

    monkeypatch.setattr(Store, "add_result", add_result)
    monkeypatch.setattr(DecodeLoop, "_advance", pressed)
    status, out, _ = call("--backend", "ar", *SMALL)
    assert (status, out) == (130, "")
    (run,) = stored(database)
    assert (run["status"], [row["ordinal"] for row in run["requests"]]) == ("interrupted", [0])


# -- failures --


def test_requests_that_fail_are_counted_as_failures_and_left_out_of_the_scores(call, database, tmp_path):
    task = tmp_path / "long.yaml"
    (tmp_path / "docs.jsonl").write_text(
        "".join(json.dumps({"q": q, "a": "x"}) + "\n" for q in ["short", "pens " * 5000, "brief"])
    )
    task.write_text(
        "task: long\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: docs.jsonl\ntest_split: test\n"
        "output_type: generate_until\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\n"
        "generation_kwargs:\n  until: ['\\n']\n  max_gen_toks: 8\n"
        "metric_list:\n  - metric: exact_match\n    aggregation: mean\n    higher_is_better: true\n"
    )
    status, out, err = call("--backend", "ar", "--task", str(task), "--json")
    assert status == 3
    (run,) = json.loads(out)["runs"]
    assert (run["requests"], run["failed"]) == (3, 1)
    assert "1 requests failed; they count as failures, not as wrong answers. See: dllm-audit show RUN" in err
    with Store.open(database) as store:
        assert [m["documents"] for m in store.metrics(run["run_id"])] == [2]
        assert sorted(a["doc_id"] for a in store.answers(run["run_id"])) == [0, 2]
        assert store.run(run["run_id"])["status"] == "failed"
        failed = next(row for row in store.requests(run["run_id"]) if row["error_type"])
    assert "positions, but the model was made for 4096. Shorten the prompt" in failed["error_message"]


def test_a_full_disk_ends_the_run_with_status_3_and_keeps_what_was_stored(call, database, decoded, monkeypatch):
    """From the third answer on no file of this process may grow, which is how a full disk looks to the library."""
    arguments = ("--backend", "ar", *SMALL)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    inner, kept = Store.add_result, []

    def add_result(self, *values):
        kept.append(1)
        if len(kept) == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
        inner(self, *values)

    monkeypatch.setattr(Store, "add_result", add_result)
    try:
        status, out, err = call(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (status, out) == (3, "")
    error = err.splitlines()[-1]
    assert error.startswith(f"Error: {database} could not be written: ")
    assert error.endswith("What was stored before is kept; make room or give another --db, then go on with --resume.")
    (run,) = stored(database)
    assert [row["ordinal"] for row in run["requests"]] == [0, 1]
    decoded.clear()
    assert call(*arguments, "--resume")[0] == 0
    assert decoded == ["2", "3", "4", "5"]


# -- wrong use --


def wrong(call, *arguments: str) -> str:
    status, out, err = call(*arguments)
    assert (status, out) == (2, "")
    assert "Traceback" not in err
    return next(line for line in err.splitlines() if line.startswith("Error: ")).removeprefix("Error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "dualcahe"], "There is no backend 'dualcahe'. Did you mean 'dualcache' or 'uncached'? See: dllm-audit backends"),
        (["--backend", ","], "--backend names nothing."),
        (["--backend", "ar,ar"], "--backend ar,ar names one thing twice. Use --repeats to run it several times."),
        (["--backend", "ar", "--task", "gsm_mini,gsm_mini"], "--task gsm_mini,gsm_mini names one thing twice. Use --repeats to run it several times."),
        (["--backend", "ar", "--task", " "], "--task names nothing."),
        (["--backend", "ar", "--concurrency", "two"], "--concurrency 'two' is no list of whole numbers, such as 1,4,8."),
        (["--backend", "ar", "--concurrency", "1,0"], "--concurrency 1,0: at least one request must be in flight."),
        (["--backend", "ar", "--concurrency", "100000000000"], "--concurrency 100000000000: at most 65536 requests can be in flight."),
        (["--backend", "ar", "--model", ""], "There is no model '': it is no folder and no embedded model."),
        (["--backend", "ar", "--concurrency", ""], "--concurrency '' is no list of whole numbers, such as 1,4,8."),
        (["--backend", "ar", "--baseline-model", "x"], "--baseline-model says which model --baseline decodes. Give --baseline NAME too."),
        (["--backend", "ar", "--threshold", "0.9"], "Backend 'ar' has no setting 'threshold'. Known: eos_token_id, eot_token_id, gen_length, stop_at_eos, temperature."),
        (["--backend", "dualcache", "--threshold", "0.9,x"], "Setting threshold='x' is not a number. Commit every token whose confidence reaches this; outranks the steps."),
        (["--backend", "dualcache", "--threshold", ""], "Setting threshold='' is not a number. Commit every token whose confidence reaches this; outranks the steps."),
        (["--backend", "dualcache", "--set", "tresh=1"], "There is no setting 'tresh' (backend 'dualcache'). Did you mean"),
        (["--backend", "dualcache", "--model", "tiny-ar"], "Backend 'dualcache' cannot decode tiny-ar: it needs a masked-diffusion model with bidirectional attention, and this is an autoregressive model. Use the backend 'ar'."),
        (["--backend", "ar", "--model", "nowhere"], "There is no model 'nowhere': it is no folder and no embedded model."),
        (["--backend", "ar", "--engine", "cudagraph"], "--engine cudagraph needs a CUDA device, and this is cpu. Use eager or compile."),
        (["--backend", "ar", "--task", "gsm_min"], "There is no task 'gsm_min'. Did you mean 'gsm_mini'"),
        (["--backend", "ar", "--task", "nowhere.yaml"], "There is no task file nowhere.yaml."),
        (["--backend", "ar", "--task", "hellaswag_missing_thing"], "There is no task 'hellaswag_missing_thing'. Did you mean"),
        (["--backend", "ar", "--task", "gsm_mini", "--chat-template", "on"], "tiny-ar has no chat template. Use --chat-template off."),
        (["--backend", "ar", "--task", "humaneval"], "Task 'humaneval' scores answers by executing the code that the model wrote: in subprocesses with limits on time, memory and files, "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_wrong_use_is_a_sentence_with_status_2_before_anything_is_decoded(call, decoded, arguments, message):
    given = arguments if "--task" in arguments else [*arguments, "--task", "gsm_mini"]
    assert wrong(call, *given).startswith(message)
    assert decoded == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dualcache", "--entropy-bound", "0.1", "--confidence", "margin"], "entropy_bound adds up entropies, and confidence=margin gives none. Use confidence=entropy, or leave it out."),
        (["dualcache", "--threshold", "0.9", "--confidence", "entropy"], "A threshold or factor needs a confidence between 0 and 1, and confidence=entropy is not. Use confidence=probability or margin, or drop the threshold."),
        (["dualcache", "--mask-token-id", "99999"], "mask_token_id=99999 is outside this model's vocabulary of 438 tokens."),
        (["ar", "--eos-token-id", "99999"], "End-of-text id 99999 is outside this model's vocabulary of 438 tokens."),
        (["uncached", "--compat", "llada", "--steps", "1000000000"], "Setting steps=1000000000 is too large: it must be at most 1,000,000."),
        (["dualcache", "--steps", "7"], "steps=7 does not divide by the 2 blocks of this window. Use a multiple of 2, or say steps_per_block or tokens_per_step."),
        (["dualcache", "--gen-length", "5000"], "gen_length=5000 is more than the 4096 positions that the model was made for, and the prompt comes on top. Lower it."),
        (["block", "--block-length", "3"], "block_length=3 does not divide the blocks of 8 that this model was trained with, so a block would reach across two of them. Use 8 or a divisor of it."),
        (["uncached,dualcache", "--compat", "llada"], "dualcache: compat=llada is the original LLaDA program, which has no cache: use the backend 'uncached'."),
        (["dualcache,prefixcache", "--cfg-scale", "1"], "'dualcache' and 'prefixcache' cannot decode text with cfg_scale, which is there for log-likelihoods alone, and gsm_mini asks for text. Use 'uncached', or leave it out."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_settings_that_fail_every_request_are_refused_before_a_model_is_loaded(
    call, database, monkeypatch, arguments, message
):
    """They once made runs in which nothing was answered."""
    monkeypatch.setattr("dllm_audit.models.loading.load_model", None)
    assert wrong(call, "--task", "gsm_mini", "--backend", *arguments) == message
    assert not database.exists()


@pytest.mark.parametrize(
    "option", [["--limit", "0"], ["--limit", "-3"], ["--limit", "x"], ["--repeats", "0"], ["--num-fewshot", "-1"]]
)
def test_a_number_out_of_range_is_refused_by_its_option(call, option, database):
    message = wrong(call, "--backend", "ar", "--task", "gsm_mini", *option)
    assert message.startswith(f"Invalid value for '{option[0]}': ")
    assert not database.exists()


def test_a_model_without_tokenizer_cannot_run_a_task_of_text(call, database):
    """Every request would fail alike: said once, before anything runs."""
    message = wrong(call, "--backend", "dualcache", "--model", TINY_LLADA, "--task", "gsm_mini", "--limit", "2")
    assert message == (
        f"{TINY_LLADA} has no tokenizer, and prompts are text. Put its tokenizer.json into the folder, "
        "or give token ids to: dllm-audit generate --requests FILE.jsonl"
    )


def test_a_task_that_needs_the_hub_says_how_to_import_a_local_copy(call, monkeypatch, tmp_path):
    import datasets

    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub (OfflineModeIsEnabled)")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.setenv("DLLM_AUDIT_DATA", str(tmp_path / "data"))
    assert wrong(call, "--backend", "ar", "--task", "gsm8k", "--limit", "1") == (
        "Task 'gsm8k' needs data from the hub, which cannot be reached (Couldn't reach 'openai/gsm8k' on the Hub "
        "(OfflineModeIsEnabled)). Import a local copy: dllm-audit data import gsm8k TEST.jsonl --fewshot TRAIN.jsonl "
        f"(it goes to {tmp_path / 'data' / 'gsm8k'})."
    )


def test_a_results_file_that_cannot_be_used_is_said_before_anything_is_decoded(call, tmp_path, decoded):
    arguments = ("--backend", "ar", *SMALL)
    for db, message in (
        (tmp_path / "nowhere" / "x.duckdb", "The folder "),
        (
            shutil.copy(Path(TINY_LLADA) / "config.json", tmp_path),
            f"{tmp_path / 'config.json'} is no readable DuckDB file: ",
        ),
    ):
        status, out, err = call(*arguments, db=Path(db))
        assert (status, out) == (2, "")
        assert f"Error: {message}" in err
    assert decoded == []


def test_a_results_file_that_another_process_writes_names_it(call, database):
    code = "import sys; from dllm_audit.store.database import Store\ns = Store.open(sys.argv[1], write=True); print('open', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "open\n"
        message = wrong(call, "--backend", "ar", *SMALL)
    finally:
        holder.communicate("\n")
    assert message.startswith(f"{database} is being written by the process {holder.pid} (")


# -- what --resume may not take for the same run, and what it does again --


@pytest.fixture
def own_model(tmp_path):
    """A copy of tiny-ar in a folder of its own."""
    return shutil.copytree(EMBEDDED_MODELS["tiny-ar"], tmp_path / "own-model")


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", lambda text: text.replace('"rms_norm_eps": 1e-05', '"rms_norm_eps": 0.1')),
        ("tokenizer_config.json", lambda text: text.replace("{", '{"extra_words": 1, ', 1)),
    ],
)
def test_resuming_with_another_config_or_tokenizer_makes_a_run_of_its_own(call, database, own_model, file, change):
    arguments = ["--backend", "ar", "--model", str(own_model), *SMALL]
    assert call(*arguments)[0] == 0
    before = (own_model / file).read_text(encoding="utf-8")
    assert change(before) != before
    (own_model / file).write_text(change(before), encoding="utf-8")
    assert call(*arguments, "--resume")[0] == 0
    assert len(stored(database)) == 2


def test_resuming_a_complete_run_scores_by_the_corrected_answer_key_and_makes_missing_traces(
    call, database, tmp_path, decoded
):
    data, task = tmp_path / "key.jsonl", tmp_path / "own_task.yaml"
    data.write_text('{"question": "Is it?", "answer": "wrong"}\n', encoding="utf-8")
    task.write_text(
        "task: own_task\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: key.jsonl\n"
        "output_type: generate_until\ntest_split: test\ndoc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\n"
        "generation_kwargs:\n  until: []\n  max_gen_toks: 4\nmetric_list:\n  - metric: exact_match\n",
        encoding="utf-8",
    )
    arguments = ["--backend", "ar", "--task", str(task)]
    assert call(*arguments, "--trace", "0")[0] == 0
    (run,) = stored(database)
    with Store.open(database) as store:
        assert [m["value"] for m in store.metrics(run["run_id"])] == [0.0]
    answer = run["requests"][0]["text"]
    data.write_text(json.dumps({"question": "Is it?", "answer": answer}) + "\n", encoding="utf-8")
    decoded.clear()
    assert call(*arguments, "--trace", "1", "--resume")[0] == 0
    assert decoded == []
    (run,) = stored(database)
    with Store.open(database) as store:
        assert [m["value"] for m in store.metrics(run["run_id"])] == [1.0]
        assert store.traced(run["run_id"]) == {0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "2,2"], "--concurrency 2,2 names one number twice."),
        (["--threshold", "0.9,0.9"], "--threshold 0.9,0.9 names one value twice."),
    ],
)
def test_a_list_that_names_a_value_twice_is_refused(call, database, arguments, message):
    status, _, err = call("--backend", "dualcache", *SMALL, *arguments)
    assert (status, message in err) == (2, True)


def test_a_baseline_runs_at_every_threshold_that_it_has(call, database):
    assert call("--backend", "dualcache", "--baseline", "uncached", "--threshold", "0.9,0.3", *SMALL)[0] == 0
    runs = sorted((r["backend"], r["role"], r["settings"]["threshold"]) for r in stored(database))
    assert runs == [
        ("dualcache", "candidate", 0.3),
        ("dualcache", "candidate", 0.9),
        ("uncached", "baseline", 0.3),
        ("uncached", "baseline", 0.9),
        ("uncached", "control", 0.3),
        ("uncached", "control", 0.9),
    ]


def test_a_chat_template_that_fails_is_a_sentence(call, database, own_model):
    path = own_model / "tokenizer_config.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps({**fields, "chat_template": "{{ raise_exception('no system role') }}"}), encoding="utf-8"
    )
    status, _, err = call("--backend", "ar", "--model", str(own_model), *SMALL)
    assert status == 2
    assert err.rstrip().endswith(
        "The model's chat template cannot render a prompt (TemplateError: no system role). Use --chat-template off."
    )
