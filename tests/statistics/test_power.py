import numpy as np
import pytest

from dllm_audit.statistics.paired import PairedCounts, non_inferiority
from dllm_audit.statistics.power import decidable_margin, required_documents


def test_two_points_need_about_1550_documents_and_one_point_6200():
    # (1.64485 + 0.84162)^2 = 6.18256; times 0.1 / 0.02^2 = 1545.6, and times 0.1 / 0.01^2 = 6182.6.
    assert required_documents(0.02).documents == 1546
    assert required_documents(0.01).documents == 6183


def test_the_1319_documents_of_gsm8k_decide_about_two_point_two_points():
    # sqrt(6.18256 * 0.1 / 1319) = 0.02165
    assert decidable_margin(1319).margin == pytest.approx(0.02165, abs=1e-5)


def test_the_decidable_margin_is_the_inverse_of_the_required_documents():
    for margin in (0.005, 0.01, 0.03):
        needed = required_documents(margin, discordance=0.2, power=0.9)
        assert decidable_margin(needed.documents, 0.2, power=0.9).margin <= margin
        assert decidable_margin(needed.documents - 1, 0.2, power=0.9).margin > margin


def test_equal_decoders_pass_the_stated_margin_about_as_often_as_the_power_promises():
    generator = np.random.default_rng(20251129)
    documents = required_documents(0.04).documents
    tables = generator.multinomial(documents, [0.6, 0.05, 0.05, 0.3], size=1500)
    passed = np.mean([non_inferiority(PairedCounts(*map(int, t)), margin=0.04).non_inferior for t in tables])
    assert passed == pytest.approx(0.8, abs=0.05)


def test_a_margin_in_points_instead_of_a_share_is_refused():
    with pytest.raises(ValueError, match=r"^A margin is a share between 0 and 1 \(0\.02 for two points\), not 2\.$"):
        required_documents(2)
