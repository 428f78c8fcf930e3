"""runs, show, compare, export and report: what they print, and what they say when something is wrong."""

import csv
import json
import os
import subprocess
import sys
import time
import zipfile

import pytest
from click.testing import CliRunner

from dllm_audit.cli.main import cli
from dllm_audit.errors import AuditError, UsageError


@pytest.fixture
def invoke(results, tmp_path, monkeypatch):
    """Run a command on the results of the fixture, in a folder of its own. Errors of ours come out as they are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLLM_AUDIT_DB", str(results))

    def run(*arguments):
        outcome = CliRunner().invoke(cli, list(arguments), catch_exceptions=True)
        if isinstance(outcome.exception, AuditError):
            raise outcome.exception
        return outcome

    return run


def facts(outcome):
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def test_runs_lists_every_run(invoke):
    assert [line.split()[0] for line in invoke("runs").stdout.splitlines()] == ["run", "ar-1", "dual-1", "one-1"]


def test_runs_as_json(invoke):
    run = facts(invoke("runs", "--json", "--backend", "ar"))["runs"]
    assert len(run) == 1
    assert run[0]["tokens_per_second"] == pytest.approx(8.0)
    assert run[0]["metrics"] == {"exact_match,strict-match": 5 / 6, "exact_match,flexible-extract": 5 / 6}
    assert (run[0]["requests"], run[0]["failed"], run[0]["status"]) == (6, 0, "complete")


def test_runs_that_do_not_exist_are_said(invoke):
    assert invoke("runs", "--task", "nothing").stdout.startswith("No run in ")


def test_show_says_what_a_run_did(invoke):
    text = invoke("show", "dual").stdout
    assert "24 tokens answered, 48 committed, 60 of prompts; 24 forwards (18 denoise, 6 refresh)" in text
    assert "tokens per second" in text
    assert "Where the time goes" in text
    assert "exact_match, strict-match" in text


def test_show_as_json_has_status_and_interval_of_every_figure(invoke):
    found = facts(invoke("show", "dual-1", "--json", "--requests", "--trace", "0"))
    assert found["figures"]["throughput"]["value"] == pytest.approx(16.0)
    assert found["figures"]["throughput"]["status"] == "measured"
    assert found["figures"]["batch_tax"]["value"] == 0.0
    assert len(found["request_rows"]) == 6
    assert found["trace"]["steps"][0]["commits"][0]["token"] == 300


def test_show_says_how_the_answers_read_and_what_committing_together_changed(invoke):
    text = invoke("show", "dual-1").stdout
    assert "How the answers read\n  same word twice in a row" in text
    assert "no usable text                                   0.0%" in text
    # All six windows are the same ids; five of six are right on both sides but for one document.
    assert "same tokens as one token per step, same model  100.0%" in text
    assert (
        "Against one token per step, same model (one-1): 100.0% of the answers are the same throughout; "
        "exact_match, strict-match -16.7 points" in text
    )
    found = facts(invoke("show", "dual-1", "--json"))
    assert found["text_quality"]["degenerate"]["value"] == 0
    assert found["text_quality"]["code"] is None
    (reference,) = found["references"]
    assert (reference["run_id"], reference["agreement"]["tokens"]["value"]) == ("one-1", 1.0)
    assert facts(invoke("show", "ar-1", "--json"))["references"] == []


def test_show_says_that_no_share_of_the_bound_was_recorded(invoke):
    text = invoke("show", "ar-1").stdout
    assert (
        "Share of what the device allows (modelled)\n"
        "  unknown: the model's sizes or the device's speed were not recorded with the run\n" in text
    )


def test_show_gives_the_share_of_the_bound_by_kind_of_forward(invoke, build, tmp_path):
    from dllm_audit.store.database import Store

    # 1,000 weights of two bytes take 2 s to read and a position 1 s to multiply.
    device = {"name": "slow", "bandwidth": 1000.0, "peak": 2000.0, "status": "measured"}
    row = build("run_row", "r")
    row["manifest"] = {
        **row["manifest"],
        "roofline": {"dimensions": {"body": 1000}, "bytes_per_weight": 2, "device": device},
    }
    shapes = (build("shape", "prefill", 5, 1, 1, 10.0), build("shape", "denoise", 1, 1, 4, 10.0))
    with Store.open(tmp_path / "own.duckdb", write=True) as store:
        build("add_run", store, row, [build("generation")], makespan=25.0, shapes=shapes)
    text = invoke("show", "r", "--db", str(tmp_path / "own.duckdb")).stdout
    assert text.partition("Share of what the device allows (modelled)\n")[2].partition("\n\n")[0].splitlines() == [
        "  forward       how many  at least      took  share  limited by",
        "  prefill              1   5.000 s  10.000 s  50.0%  compute",
        "  denoise              4   8.000 s  10.000 s  80.0%  memory",
        "  all forwards         5  13.000 s  20.000 s  65.0%",
        "  of 1e-06 GB/s and 2e-06 GFLOP/s, measured",
    ]
    found = facts(invoke("show", "r", "--json", "--db", str(tmp_path / "own.duckdb")))["share_of_bound"]
    assert (found["value"], found["status"]) == (0.65, "modelled")
    assert [kind["share"] for kind in found["kinds"]] == [0.5, 0.8]


def test_show_lets_no_answer_steer_the_terminal(invoke):
    text = invoke("show", "dual-1", "--requests", "--trace", "0").stdout
    assert "<script>alert(1)</script>" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_same_token_many_times_in_a_trace_is_shown_once():
    from dllm_audit.cli.show import _trace

    commits = [{"position": n, "token": 7, "text": "<end>", "confidence": 0.9 - n / 100} for n in range(27)]
    commits.append({"position": 27, "token": 8, "text": "x", "confidence": None})
    steps = {"request": 0, "steps": [{"step": 1, "kind": "denoise", "width": 32, "block": 0, "commits": commits}]}
    assert _trace(steps).splitlines()[-1].endswith("0-26:'<end>' ×27 (from 0.640)  27:'x' (?)")


def test_show_of_an_unknown_run_names_the_nearest(invoke):
    with pytest.raises(AuditError, match=r"There is no run 'dial-1' in .* Did you mean 'dual-1' or"):
        invoke("show", "dial-1")


def test_a_request_that_was_not_traced_is_said_with_those_that_were(invoke):
    with pytest.raises(AuditError, match=r"Request 4 of dual-1 was not traced. Traced are: 0, 1."):
        invoke("show", "dual-1", "--trace", "4")


def test_compare_ends_with_the_verdict(invoke):
    lines = invoke("compare", "one-1", "ar-1").stdout.splitlines()
    assert lines[-1] == (
        "Verdict: Neither faster nor slower as far as 6 documents tell (0.91x, 0.91 to 0.91), "
        "where a ratio within 1.10x of 1 is noise, and with identical answers."
    )
    assert any("cannot decide a margin of 2 points" in line for line in lines)
    assert any(line.split()[:3] == ["backend", "dualcache", "ar"] for line in lines)


def test_compare_as_json_separates_treatment_and_nuisance(invoke):
    found = facts(invoke("compare", "dual-1", "one-1", "--json", "--margin", "40"))
    assert found["speed"]["value"] == pytest.approx(2.2)
    assert [difference["name"] for difference in found["treatment"]] == ["settings.threshold"]
    assert found["nuisance"] == []
    assert found["qualities"][0]["margin"] == 0.4


def test_export_writes_one_csv_per_table_into_a_folder(invoke, tmp_path):
    outcome = invoke("export", "--format", "csv", "-o", "tables")
    assert outcome.exit_code == 0, outcome.output
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == [
        "answers.csv", "dllm-audit-export.json", "forward_shapes.csv", "metrics.csv", "requests.csv", "runs.csv",
        "sittings.csv", "text_likelihoods.csv", "trace_commits.csv", "trace_forwards.csv",
    ]  # fmt: skip
    with (tmp_path / "tables" / "runs.csv").open(newline="") as file:
        assert [row["run_id"] for row in csv.DictReader(file)] == ["ar-1", "dual-1", "one-1"]


def test_export_writes_a_zip_when_the_name_says_so(invoke, tmp_path):
    assert invoke("export", "--format", "json", "-o", "all.zip").exit_code == 0
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        assert len(json.loads(archive.read("requests.json"))) == 18


def test_export_to_parquet_is_read_back(invoke, tmp_path):
    import pyarrow.parquet

    assert invoke("export", "--format", "parquet").exit_code == 0
    table = pyarrow.parquet.read_table(tmp_path / "dllm-audit-export" / "requests.parquet")
    assert table.num_rows == 18


def test_export_as_latex_is_an_escaped_booktabs_table(invoke):
    text = invoke("export", "--format", "latex").stdout
    assert "\\toprule" in text
    assert "dualcache, threshold 0.9 & tiny-mdm & gsm\\_mini & 6 & 16.0 [16.0, 16.0]" in text


def test_export_refuses_a_folder_that_does_not_exist(invoke):
    with pytest.raises(AuditError, match=r"The folder nowhere does not exist."):
        invoke("export", "--format", "csv", "-o", "nowhere/tables")


def test_report_prints_its_path_and_two_lines(invoke, tmp_path):
    lines = invoke("report").stdout.splitlines()
    assert lines[0] == "dllm-audit-report.html"
    assert lines[1].startswith("Some diffusion runs were faster")
    assert lines[2].startswith("3 runs of 2 backends")
    assert len(lines) == 3
    assert (tmp_path / "dllm-audit-report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_report_as_json_says_what_may_be_concluded(invoke):
    found = facts(invoke("report", "--json"))
    assert found["path"] == "dllm-audit-report.html"
    assert found["headline"].startswith("Some diffusion runs were faster")
    assert len(found["tasks"][0]["comparisons"]) == 3
    assert found["may_not_be_concluded"][0].startswith("How fast a diffusion model of practical size is on a GPU")


def test_report_of_named_runs_holds_only_those(invoke, tmp_path):
    assert invoke("report", "-o", "one.html", "--run", "ar").exit_code == 0
    text = (tmp_path / "one.html").read_text(encoding="utf-8")
    assert "1 run of 1 backend (ar)" in text


def test_a_report_that_cannot_be_written_leaves_the_old_one(invoke, tmp_path, monkeypatch):
    assert invoke("report", "-o", "old.html").exit_code == 0
    old = (tmp_path / "old.html").read_text(encoding="utf-8")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(AuditError, match=r"old.html could not be written: No space left on device."):
        invoke("report", "-o", "old.html")
    assert [path.name for path in tmp_path.iterdir()] == ["old.html"]
    assert (tmp_path / "old.html").read_text(encoding="utf-8") == old


@pytest.mark.parametrize(
    "arguments", [["report"], ["export", "--format", "latex"], ["export", "--format", "csv"]], ids=" ".join
)
@pytest.mark.parametrize("name", ["r.duckdb", "r.duckdb.wal", "link", "hard", "../here/r.duckdb"])
def test_nothing_is_written_over_the_results(invoke, results, tmp_path, monkeypatch, arguments, name):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "r.duckdb").write_bytes(results.read_bytes())
    (here / "link").symlink_to("r.duckdb")
    os.link(here / "r.duckdb", here / "hard")
    with pytest.raises(UsageError, match=r"holds the results \(--db r.duckdb\)\."):
        invoke(*arguments, "--db", "r.duckdb", "-o", name)
    assert (here / "r.duckdb").read_bytes() == results.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["report"], "mine"), (["export", "--format", "latex"], "mine"), (["export", "--format", "csv"], "mine.zip")],
)
def test_a_file_of_something_else_is_not_replaced_and_an_earlier_one_is(invoke, tmp_path, arguments, name):
    (tmp_path / name).write_text("my thesis")
    with pytest.raises(UsageError, match="exists and is no earlier"):
        invoke(*arguments, "-o", name)
    assert (tmp_path / name).read_text() == "my thesis"
    (tmp_path / name).write_text("")
    assert [invoke(*arguments, "-o", name).exit_code for _ in range(2)] == [0, 0]


def test_export_replaces_only_files_that_it_wrote_itself(invoke, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "runs.csv").write_text("mine")
    with pytest.raises(UsageError, match=r"tables holds runs.csv, which no export of this tool"):
        invoke("export", "--format", "csv", "-o", "tables")
    assert (tmp_path / "tables" / "runs.csv").read_text() == "mine"
    assert invoke("export", "--format", "json", "-o", "tables").exit_code == 0
    assert invoke("export", "--format", "json", "-o", "tables").exit_code == 0


def test_a_link_stays_a_link_and_its_target_is_replaced(invoke, tmp_path):
    (tmp_path / "link.html").symlink_to("real.html")
    assert invoke("report", "-o", "link.html").exit_code == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").stat().st_size > 0


def test_a_device_or_a_pipe_is_written_through(invoke, tmp_path):
    import threading

    assert invoke("report", "-o", "/dev/null").exit_code == 0
    assert not os.path.isfile("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    assert invoke("report", "-o", "pipe").exit_code == 0
    reader.join(10)
    assert read[0].startswith(b"<!doctype html>")


def test_stdout_gets_the_report_alone(results):
    done = subprocess.run(
        [sys.executable, "-c", "from dllm_audit.cli.main import main; main()", "report", "--db", str(results), "-o", "/dev/stdout"],
        capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(b"<!doctype html>")
    assert done.stdout.rstrip().endswith(b"</html>")


def test_a_place_that_may_not_be_written_is_wrong_use_and_no_matter_of_room(invoke, tmp_path, monkeypatch):
    import tempfile

    def denied(**options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", denied)
    with pytest.raises(UsageError, match=r"x.html may not be written: Read-only file system. Give another place"):
        invoke("report", "-o", "x.html")


def test_an_export_that_found_no_room_is_a_failure_and_no_wrong_use(invoke, monkeypatch):
    from dllm_audit.errors import StoreWriteError
    from dllm_audit.store.database import Store

    def full(self, table, target, form):
        raise StoreWriteError(f"{target} could not be written: IO Error: Could not write file: No space left on device")

    monkeypatch.setattr(Store, "copy_table", full)
    with pytest.raises(AuditError, match=r"^tables could not be written: No space left on device. Make room") as caught:
        invoke("export", "--format", "csv", "-o", "tables")
    assert caught.value.exit_status == 3


def test_report_into_a_folder_is_refused(invoke, tmp_path):
    with pytest.raises(AuditError, match=r"is a folder. Give a file with -o"):
        invoke("report", "-o", str(tmp_path))


def test_a_missing_results_file_is_said(invoke):
    for command in (["runs"], ["report"], ["show", "x"], ["compare", "a", "b"], ["export", "--format", "csv"]):
        with pytest.raises(AuditError, match=r"There are no results in missing.duckdb."):
            invoke(*command, "--db", "missing.duckdb")


@pytest.mark.parametrize("name", ["report", "runs", "show", "compare", "export"])
def test_help_ends_in_an_example(invoke, name):
    assert "Example: dllm-audit " + name in " ".join(invoke(name, "--help").stdout.split())


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from dllm_audit.cli import compare, export, report, runs, show; "
        "print([m for m in ('duckdb', 'scipy', 'numpy', 'pydantic', 'vl_convert', 'jinja2', 'torch') if m in sys.modules])"
    )
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert time.perf_counter() - began < 5
