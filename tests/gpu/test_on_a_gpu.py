"""Every step of `make gpu` on the first CUDA device, as tests. Without one they are skipped."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.runner import STEPS, _one

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_step_succeeds_on_a_gpu(step, tmp_path):
    found = _one(step, "cuda:0", step.most_seconds, tmp_path)
    assert found["status"] in ("passed", "measured"), found["sentence"]
