"""Load, streaming and speed alone in the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from dllm_audit.analysis.pairing import compare
from dllm_audit.claims.registry import Registry
from dllm_audit.records import EngineLog
from dllm_audit.report.build import render
from dllm_audit.report.page import gather
from dllm_audit.store.database import Store


@pytest.fixture
def page(build, tmp_path: Path):
    """page(changes of both runs) -> (the report, its HTML, the comparison) of a dualcache and an ar run at concurrency 2."""

    def make(**changed):
        path = tmp_path / "results.duckdb"
        with Store.open(path, write=True) as store:
            for name, row, answer in (
                ("dual-1", "diffusion_row", "diffusion_generation"),
                ("ar-1", "run_row", "generation"),
            ):
                base = build(row, name)
                more = {
                    key: {**base[key], **value} if isinstance(value, dict) else value for key, value in changed.items()
                }
                run = {**base, "concurrency": 2, "planned_requests": 6, **more}
                extra = {"delivered_seconds": 0.2, "block_seconds": (0.2, 0.25)} if name == "dual-1" else {}
                results = [build(answer) for _ in range(6)]
                results = [type(r)(**{**vars(r), **extra, "queue_seconds": 0.125}) for r in results]
                build("add_run", store, run, results, makespan=3.0)
                shapes = (build("shape", "denoise", 8, 2, 15, 1.5), build("shape", "denoise", 8, 1, 5, 0.5))
                store.add_log(name, 1, EngineLog(shapes, 3.0, 0.01, {"idle": 0.6}, 2, 0.3, 0.9, 1))
        with Store.open(path) as store:
            report = gather(store, Registry((), ()))
            return report, render(report), compare(store, "dual-1", "ar-1")

    return make


def test_the_rows_that_forwards_had_ramp_drain_and_idle_time_are_shown(page):
    report, html, _ = page()
    section = html[html.index('<section id="load"') : html.index('<section id="forwards"')]
    assert "closed loop" in section
    assert "1: 25.0 %" in section
    assert "2: 75.0 %" in section
    for share in ("10 %", "30 %", "20 %"):  # ramp, drain and idle of three seconds
        assert share in section
    assert "Queue" not in section
    assert "torch compiled 1 graphs inside the timed region" in html
    assert report.tasks[0].queues is False


def test_queues_are_shown_where_requests_queue(page):
    _, html, _ = page(load="open", arrival_rate=2.0)
    section = html[html.index('<section id="load"') : html.index('<section id="forwards"')]
    assert "2 arrivals/s" in section
    assert "Queue, 95 %" in section
    assert "0.125 s" in section


def test_blocks_stream_from_a_block_decoder_and_from_no_other(page):
    report, html, _ = page()
    dual, ar = (row.summary.streaming for row in report.tasks[0].shown)
    # Twelve blocks in three seconds; each request took 0.25 - 0.125 s for its two.
    assert dual.blocks_per_second.value == 4.0
    assert dual.mean_block_latency.value == pytest.approx(0.0625)
    assert ar.blocks == 0
    assert "Blocks/s" in html


SPEED_ALONE = {"manifest": {"prompts": {"speed_alone": {"prompt_tokens": 10, "prompts": "text"}, "documents": 6}}}


def test_speed_alone_is_called_that_and_never_better(page):
    report, html, comparison = page(**SPEED_ALONE, task="bench-p10-g64")
    said = "Speed alone: no quality was measured, so nothing here can be called faster and not worse."
    assert report.verdict.headline == report.tasks[0].headline == said
    assert "speed alone</span>" in html
    assert report.tasks[0].speed_alone == (
        f"Fixed work: 10 prompt tokens of text, every output 64 positions long. {said}"
    )
    assert comparison.faster_and_not_worse is False
    assert "Speed alone: no quality was measured, so neither run can be called better." in comparison.caveats


def test_a_run_of_a_task_has_a_quality_and_no_such_mark(page):
    report, html, comparison = page()
    assert report.tasks[0].speed_alone == ""
    assert "speed alone</span>" not in html
    assert not [caveat for caveat in comparison.caveats if caveat.startswith("Speed alone")]
