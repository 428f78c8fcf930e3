"""Embedded models are decoded with one thread, whatever the machine has, unless a person says otherwise."""

from __future__ import annotations

import torch

from dllm_audit.cli.opening import spare_threads
from dllm_audit.models.loading import find_model


def threads_after(monkeypatch, refs, said: str | None = None) -> int:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        spare_threads(find_model(ref) for ref in refs)
        return torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def test_embedded_models_run_on_one_thread(monkeypatch, capsys):
    assert threads_after(monkeypatch, ["tiny-mdm", "tiny-ar"]) == 1
    assert capsys.readouterr().err == "Embedded models run on one thread; OMP_NUM_THREADS changes that.\n"


def test_a_person_or_a_larger_model_decides_otherwise(monkeypatch, tmp_path, capsys):
    assert threads_after(monkeypatch, ["tiny-mdm"], "2") == 2
    (tmp_path / "own").symlink_to(find_model("tiny-ar").folder)
    assert threads_after(monkeypatch, ["tiny-mdm", str(tmp_path / "own")]) == 2
    assert capsys.readouterr().err == ""
