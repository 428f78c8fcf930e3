"""Four runs in which two changes are switched on and off, on speeds that a person can follow."""

import pytest

from dllm_audit.analysis.factorials import factorials_of, levels_of
from dllm_audit.analysis.pairing import Comparisons


@pytest.fixture
def design(empty_store, build):
    """design((neither, first, second, both) in seconds for 24 tokens) -> the factorials of the stored runs."""

    def call(seconds, repeats=1, concurrency=1, factors=("cache", "threshold"), left_out=(), text="#### 5"):
        levels = [(False, False), (True, False), (False, True), (True, True)]
        for repeat in range(repeats):
            for number, (on, makespan) in enumerate(zip(levels, seconds, strict=True)):
                if number in left_out:
                    continue
                row = build("diffusion_row", f"cell-{number}-{repeat}", repeat=repeat, concurrency=concurrency)
                row["settings"] = {**row["settings"], "threshold": 0.9 if on[1] else None}
                row["backend"] = "dualcache" if on[0] else "uncached"
                row["manifest"] = {**row["manifest"], "factorial": dict(zip(factors, on, strict=True))}
                answers = [build("diffusion_generation")] * 6
                build("add_run", empty_store, row, answers, [1, 1, 1, 1, 1, 0], makespan=makespan)
        return factorials_of(empty_store, Comparisons(empty_store), empty_store.runs())

    return call


def test_effects_that_multiply_over_five_repeats(design):
    # Caching halves the seconds, a threshold takes a third of them, both a sixth.
    (found,) = design((12.0, 6.0, 4.0, 2.0), repeats=5)
    assert [figure.value for figure in (found.first, found.second, found.interaction)] == pytest.approx([2, 3, 1])
    assert found.together == "multiply"
    assert found.interaction.basis == "5 repeats of 6 documents"
    assert found.sentence == (
        "On speed: cache 2.00x (2.00 to 2.00); threshold 3.00x (3.00 to 3.00). Cache and threshold multiply: "
        "together 1.00x (1.00 to 1.00) of what multiplying would give."
    )


def test_every_cell_has_its_speed_and_quality(design):
    (found,) = design((12.0, 6.0, 4.0, 2.0), repeats=5)
    assert [(cell.on, cell.name, cell.speed.value) for cell in found.cells] == [
        ((False, False), "uncached, 1 token/step", pytest.approx(2)),
        ((True, False), "dualcache, 1 token/step", pytest.approx(4)),
        ((False, True), "uncached, threshold 0.9", pytest.approx(6)),
        ((True, True), "dualcache, threshold 0.9", pytest.approx(12)),
    ]
    facts = found.as_dict()
    assert [cell["quality"]["value"] for cell in facts["cells"]] == [pytest.approx(5 / 6)] * 4
    assert (facts["cells"][1]["cache"], facts["cells"][1]["threshold"]) == (True, False)
    assert len(facts["cells"][0]["runs"]) == 5


def test_effects_that_overlap_less_than_multiply(design):
    (found,) = design((12.0, 6.0, 4.0, 4.0), repeats=5)
    # Geometric means: cache sqrt(2 x 1), threshold sqrt(3 x 1.5).
    assert (found.first.value, found.second.value) == pytest.approx((2**0.5, 4.5**0.5))
    assert (found.together, found.interaction.value) == ("less than multiply", pytest.approx(0.5))


def test_one_run_each_has_intervals_over_documents_widened_by_what_runs_differ_by(design):
    (found,) = design((12.0, 6.0, 4.0, 2.0))
    wide = 1.10 ** (4 / 2) ** 0.5
    assert (found.interaction.low, found.interaction.high) == pytest.approx((1 / wide, wide))
    assert found.interaction.basis == (
        "6 documents, one run each, widened by 1.14x for what runs of one configuration differ by"
    )
    assert found.together == "open"
    assert "Whether cache and threshold multiply is undecided" in found.sentence


def test_requests_that_share_forwards_need_repeats(design):
    (found,) = design((12.0, 6.0, 4.0, 2.0), repeats=3, concurrency=4)
    assert (found.together, found.interaction.reason) == ("unknown", "interval unknown: 3 of at least 5 repeats")
    assert found.interaction.value == pytest.approx(1)


def test_a_design_that_lacks_a_cell_is_none(design):
    assert design((12.0, 6.0, 4.0, 2.0), left_out=(3,)) == ()


@pytest.mark.parametrize("facts", [None, {}, {"cache": True}, {"cache": 1, "threshold": 0}, "cache"])
def test_a_run_of_no_factorial_has_no_levels(build, facts):
    row = build("run_row", "r")
    assert levels_of({**row, "manifest": {**row["manifest"], "factorial": facts}}) is None
