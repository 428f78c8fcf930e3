"""`run` under a load: what is stored of it, what is refused, and what becomes of a run that the machine cannot hold."""

from __future__ import annotations

import json

import pytest
import torch

from dllm_audit.analysis.summary import summarise
from dllm_audit.cli.main import main
from dllm_audit.decode.runner import ForwardRunner
from dllm_audit.store.database import Store

SMALL = ("--backend", "ar", "--task", "gsm_mini", "--limit", "4", "--gen-length", "8", "--trace", "0")


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """call(arguments) -> (exit status, stdout, stderr) of `dllm-audit run` with a results file of its own."""
    monkeypatch.setenv("DLLM_AUDIT_BESIDE_GENERATE", "0")

    def run(*arguments: str, command: str = "run") -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([command, "--db", str(tmp_path / "results.duckdb"), *arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


@pytest.fixture
def stored(tmp_path):
    """stored() -> [(summary, requests)] of every run."""

    def read():
        with Store.open(tmp_path / "results.duckdb") as store:
            return [(summarise(store, run["run_id"]), store.requests(run["run_id"])) for run in store.runs()]

    return read


def test_all_at_once_is_as_many_in_flight_as_there_are_requests(call, stored):
    status, out, err = call(*SMALL, "--load", "offline", "--json")
    assert status == 0, err
    (run,) = json.loads(out)["runs"]
    assert (run["concurrency"], run["load"]["kind"], run["load"]["rows"]) == (4, "offline", 4)
    assert run["load"]["batches"][-1]["rows"] == 4
    assert "[1/1] ar on gsm_mini, offline, 4 in flight: 4/4 requests" in err
    ((summary, rows),) = stored()
    assert (summary.run["load"], summary.run["arrival_rate"]) == ("offline", None)
    assert [row["queue_seconds"] < row["total_seconds"] for row in rows] == [True] * 4
    assert rows[3]["queue_seconds"] > 0
    assert summary.throughput.reason.startswith("interval unknown: 4 requests share forwards")


def test_with_fewer_rows_than_requests_those_that_are_there_queue(call, stored):
    status, _, err = call(*SMALL, "--load", "offline", "--concurrency", "1")
    assert status == 0, err
    ((summary, rows),) = stored()
    queues = [row["queue_seconds"] for row in rows]
    assert queues == sorted(queues)
    assert queues[3] >= rows[2]["total_seconds"] - rows[2]["queue_seconds"]
    assert all(row["waiting_seconds"] >= row["queue_seconds"] for row in rows)
    assert summary.throughput.reason.startswith("interval unknown: requests queue")


def test_arrival_rates_make_a_run_each_and_the_same_moments_for_every_decoder(call, stored):
    status, out, err = call(
        *SMALL[:1], "dualcache,ar", *SMALL[2:], "--arrival-rate", "20,40", "--concurrency", "2", "--json"
    )
    assert status == 0, err
    runs = json.loads(out)["runs"]
    assert [(run["backend"], run["load"]["arrival_rate"]) for run in runs] == [
        ("dualcache", 20.0), ("ar", 20.0), ("dualcache", 40.0), ("ar", 40.0),
    ]  # fmt: skip
    assert "ar on gsm_mini, 20 arrivals/s, 2 in flight" in err
    for summary, rows in stored():
        assert len(rows) == 4
        assert summary.load.notes[0].startswith("Requests arrived by chance, ")


def test_a_resumed_open_loop_goes_on_with_what_is_left(call, stored):
    call(*SMALL, "--arrival-rate", "50")
    status, _, err = call(*SMALL, "--arrival-rate", "50", "--resume")
    assert status == 0, err
    assert len(stored()) == 1
    call(*SMALL, "--arrival-rate", "51", "--resume")
    assert len(stored()) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--load", "open"), "An open loop needs the requests that arrive per second: say --arrival-rate R."),
        (("--arrival-rate", "0"), "arrival_rate=0: requests must arrive at a rate above 0 per second."),
        (("--arrival-rate", "fast"), "--arrival-rate 'fast' is no list of numbers, such as 0.5,2."),
        (("--arrival-rate", "2,2"), "--arrival-rate 2,2 names one rate twice. Use --repeats to run it several times."),
        (("--load", "offline", "--arrival-rate", "2"), "Leave one of them out."),
        (("--load", "offline", "--concurrency", "0"), "--concurrency 0: at least one request must be in flight."),
    ],
)
def test_a_load_that_makes_no_sense_is_wrong_use(call, arguments, said, tmp_path):
    status, out, err = call(*SMALL, *arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert not (tmp_path / "results.duckdb").exists()


def test_log_likelihoods_are_scored_in_a_closed_loop_only(call, tmp_path):
    (tmp_path / "docs.jsonl").write_text('{"q": "One and one is", "a": "two"}\n')
    task = tmp_path / "likely.yaml"
    task.write_text(
        "task: likely\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: docs.jsonl\ntest_split: test\n"
        "output_type: loglikelihood\ndoc_to_text: '{{q}}'\ndoc_to_target: ' {{a}}'\nmetric_list:\n  - metric: perplexity\n"
    )
    status, _, err = call("--backend", "ar", "--task", str(task), "--load", "offline")
    assert status == 2
    assert "asks for log-likelihoods, which are computed in a closed loop, where nobody queues." in err


def test_a_dry_run_says_how_requests_would_come(call):
    status, out, _ = call(*SMALL, "--load", "offline", "--dry-run")
    assert status == 0
    assert "4 requests, 4 in flight, offline, repeat 1" in out


def test_documents_that_are_all_too_long_are_a_failed_run_with_the_reason_said_once(call, stored):
    status, out, err = call("--backend", "ar", "--task", "gsm_mini", "--limit", "3", "--gen-length", "4090")
    assert status == 3
    assert "0/3" in out
    ((summary, _),) = stored()
    assert (
        f"No request of {summary.run_id} could be decoded: The prompt of 35 tokens plus gen_length=4090 is 4125 positions, but "
        "the model was made for 4096. Shorten the prompt (fewer few-shot examples) or lower gen_length.\n"
        "3 requests failed; they count as failures, not as wrong answers. See: dllm-audit show RUN\n"
    ) in err
    assert summary.run["status"] == "failed"


def test_memory_that_runs_out_is_noted_in_the_run_and_every_answer_is_there(call, stored, monkeypatch):
    inner = ForwardRunner.run

    def run(self, slots, windows, mask_given=None):
        if len(slots) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return inner(self, slots, windows, mask_given)

    monkeypatch.setattr(ForwardRunner, "run", run)
    status, out, err = call(*SMALL, "--concurrency", "4")
    assert status == 0, err
    assert "4/4" in out
    ((summary, _),) = stored()
    assert summary.load.rows == 1
    assert any(note.startswith("Memory did not hold 4 rows of ") for note in summary.notes)
    assert call(summary.run_id, command="show")[1].count("so at most 1 was in flight.") == 1


def test_a_device_that_vanishes_ends_the_run_with_a_sentence_and_resume_goes_on(call, stored, monkeypatch):
    inner, left = ForwardRunner.run, []
    kept = []
    add = Store.add_result

    def add_result(self, *arguments, **named):
        add(self, *arguments, **named)
        kept.append(1)

    def gone(self, slots, windows, mask_given=None):
        if len(kept) >= 2 and not left:
            raise torch.AcceleratorError("CUDA error: the launch timed out and was terminated")
        return inner(self, slots, windows, mask_given)

    monkeypatch.setattr(Store, "add_result", add_result)
    monkeypatch.setattr(ForwardRunner, "run", gone)
    status, out, err = call(*SMALL)
    assert (status, out) == (3, "")
    assert (
        "Error: The device cpu failed: CUDA error: the launch timed out and was terminated. What had finished is kept"
        in err
    )
    ((summary, rows),) = stored()
    assert [row["error_type"] for row in rows] == [None, None, "DeviceError"]
    assert summary.run["status"] == "failed"
    left.append("the device is back")
    status, _, err = call(*SMALL, "--resume")
    assert status == 0, err
    ((summary, rows),) = stored()
    assert [row["error_type"] for row in rows] == [None] * 4
    assert summary.run["status"] == "complete"
