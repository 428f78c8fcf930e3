"""The report says how close every kind of forward came to what the device allows."""

import datetime as dt
import re

from dllm_audit.claims.registry import Registry
from dllm_audit.report.build import render
from dllm_audit.report.page import gather

#: 1,000 weights of two bytes take 2 s to read, and a position 1 s to multiply.
SLOW = {"name": "slow", "bandwidth": 1000.0, "peak": 2000.0, "status": "measured"}


def time_section(store) -> str:
    """Text of the section, white space collapsed."""
    html = render(gather(store, Registry([], []), made_at=dt.datetime(2026, 1, 2)))
    section = re.sub(r"<svg.*?</svg>", "", html[html.index('id="time"') :].partition("</section>")[0], flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", section).split())


def add(store, build, device):
    row = build("run_row", "r")
    roofline = {"dimensions": {"body": 1000}, "bytes_per_weight": 2, "device": device}
    row["manifest"] = {**row["manifest"], "roofline": roofline}
    shapes = (build("shape", "prefill", 5, 1, 1, 10.0), build("shape", "denoise", 1, 1, 4, 10.0))
    build("add_run", store, row, [build("generation")], [1], makespan=25.0, shapes=shapes)


def test_each_kind_of_forward_stands_beside_its_bound(empty_store, build):
    add(empty_store, build, SLOW)
    text = time_section(empty_store)
    assert "prefill 1 5.00 s 10.0 s 50 % multiplying denoise 4 2.00 s 2.50 s 80 % reading memory" in text
    assert "65 % mod." in text


def test_a_model_in_the_cache_has_no_share_and_the_page_says_why(empty_store, build):
    add(empty_store, build, {**SLOW, "cache_bytes": 4096})
    text = time_section(empty_store)
    assert "denoise 4 1.00 s 2.50 s n/a multiplying" in text
    assert "Share of the bound: not applicable: the weights (0.00191 MiB) fit into the last-level cache" in text


def test_runs_without_a_recorded_device_have_no_table_of_bounds(empty_store, build):
    build("add_run", empty_store, build("run_row", "r"), [build("generation")], [1], makespan=1.0)
    text = time_section(empty_store)
    assert "Share of the bound" in text
    assert "Forwards against the least time" not in text
