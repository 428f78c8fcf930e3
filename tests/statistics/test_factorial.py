import numpy as np
import pytest

from dllm_audit.statistics.factorial import factorial_effects
from dllm_audit.statistics.throughput import Batch


def cell(speed, noise=(1.0,) * 6):
    return [[Batch(speed * factor, 1.0)] for factor in noise]


def effects(neither, first, second, both, **options):
    return factorial_effects(neither, first, second, both, generator=np.random.default_rng(20251129), **options)


def test_effects_of_2x_and_3x_that_give_6x_together_multiply():
    found = effects(cell(10), cell(20), cell(30), cell(60))
    assert found.first.ratio == pytest.approx(2)
    assert found.second.ratio == pytest.approx(3)
    assert found.interaction.ratio == pytest.approx(1)
    assert found.together == "multiply"


def test_effects_of_2x_and_3x_that_give_3x_together_multiply_to_half_and_average_geometrically():
    # The first change gives 2x alone and 1x on top of the second: sqrt(2). The second: 3x and 1.5x: sqrt(4.5).
    found = effects(cell(10), cell(20), cell(30), cell(30))
    assert found.first.ratio == pytest.approx(2**0.5)
    assert found.second.ratio == pytest.approx(4.5**0.5)
    assert found.interaction.ratio == pytest.approx(0.5)
    assert found.together == "less than multiply"


def test_more_than_multiplying_is_said_too():
    assert effects(cell(10), cell(20), cell(30), cell(90)).together == "more than multiply"


def test_an_interaction_that_noise_hides_is_open():
    noisy = (0.5, 2.0, 0.7, 1.5, 1.0, 0.8)
    assert effects(cell(10), cell(20, noisy), cell(30), cell(60, noisy[::-1])).together == "open"


def test_a_slow_minute_that_meets_all_four_cells_leaves_the_effects_exact():
    drift = (0.5, 1.0, 2.0, 1.0, 0.8, 1.3)
    found = effects(cell(10, drift), cell(20, drift), cell(30, drift), cell(60, drift))
    assert (found.interaction.low, found.interaction.high) == pytest.approx((1.0, 1.0))


def test_fewer_than_five_repeats_leave_all_three_unknown():
    found = effects(*(cell(speed, (1.0,) * 4) for speed in (10, 20, 30, 60)))
    assert found.together == "unknown"
    assert {e.reason for e in (found.first, found.second, found.interaction)} == {"unknown: 4 of at least 5 repeats"}


def test_a_tolerance_in_percent_is_refused():
    with pytest.raises(ValueError, match=r"^A tolerance is a factor above 1, such as 1\.1, not 0\.1\.$"):
        effects(cell(1), cell(1), cell(1), cell(1), tolerance=0.1)
