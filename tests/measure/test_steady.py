"""Warm-up ends by a rule that is stated, and a compilation since then is seen."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dllm_audit.measure.steady import MOST_PASSES, MOST_SECONDS, warm_up


def warmed(*passes: float):
    """Warm-up whose passes take these seconds, and how many of them were run."""
    second, left = 0.0, list(passes)

    def run():
        nonlocal second
        second += left.pop(0)

    found = warm_up(run, "first 2", host=lambda: second)
    return found, len(passes) - len(left)


def test_it_ends_when_two_passes_in_a_row_agree_within_a_tenth():
    found, run = warmed(18.0, 8.0, 9.0, 8.25, 8.25)
    # 18 to 8 and 8 to 9 differ by more than a tenth of the earlier one, 9 to 8.25 by less.
    assert (found.seconds, found.stationary, run) == ((18.0, 8.0, 9.0, 8.25), True, 4)
    assert found.as_dict()["criterion"] == (
        "first 2 run until the last two passes differ by at most 10%; at most 5 passes, none begun after 60 s"
    )


def test_one_pass_alone_is_never_stationary():
    assert warmed(1.0, 1.0)[1] == 2


def test_times_that_do_not_settle_end_it_after_so_many_passes_and_it_says_so():
    found, run = warmed(*(2.0 if n % 2 else 1.0 for n in range(99)))
    assert (run, found.stationary) == (MOST_PASSES, False)


@pytest.mark.parametrize(("passes", "run"), [((MOST_SECONDS, 1.0), 1), ((MOST_SECONDS - 1, 7.0, 7.0), 2)])
def test_no_pass_is_begun_once_it_has_taken_long_enough(passes, run):
    found, ran = warmed(*passes)
    assert (ran, found.stationary) == (run, False)


def test_graphs_that_torch_compiled_are_counted_and_its_compiler_is_not_imported_for_that():
    script = """
import sys
from dllm_audit.measure.steady import compiled_graphs
assert compiled_graphs() == 0 and "torch" not in sys.modules
import torch
torch._dynamo.utils.counters
double = torch.compile(lambda x: 2 * x, backend="eager", dynamic=False)
before = compiled_graphs()
double(torch.ones(3)); double(torch.ones(3))
assert compiled_graphs() - before == 1, compiled_graphs()
double(torch.ones(4))
assert compiled_graphs() - before == 2, compiled_graphs()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
