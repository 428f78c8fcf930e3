"""What a measurement stands on is read, never changed, and a fact that cannot be read is left out or says why."""

from __future__ import annotations

import hashlib
import json
import subprocess

import pytest
import torch

from dllm_audit.measure import environment
from dllm_audit.measure.environment import at, code_commit, describe, file_sha256, readings


def test_a_description_is_flat_json_without_unknowns():
    facts = describe(torch.device("cpu"))
    assert json.loads(json.dumps(facts)) == facts
    assert None not in facts.values()
    assert facts["device"] == "cpu"
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    assert facts["cores_usable"] >= 1
    assert {"platform", "python", "cpu", "memory_bytes", "transformers", "lm_eval", "duckdb"} <= facts.keys()


def test_readings_of_the_moment_are_no_part_of_a_description_and_never_a_nuisance():
    from dllm_audit.analysis.manifests import is_reading

    now = readings(torch.device("cpu"))
    assert json.loads(json.dumps(now)) == now
    assert now["memory_available_bytes"] > 0
    assert not now.keys() & describe(torch.device("cpu")).keys()
    assert at("after", {"cpu_mhz": 5}) == {"cpu_mhz_after": 5}
    assert all(is_reading(name) for name in (*at("before", now), *at("after", now)))
    assert not [name for name in describe(torch.device("cpu")) if is_reading(name)]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 4.0),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_the_cores_that_a_container_grants_are_known(monkeypatch, files, cores):
    monkeypatch.setattr(environment, "_read", files.get)
    assert describe().get("cores_quota") == cores


def test_what_a_reader_would_miss_says_why_it_is_unknown(monkeypatch):
    monkeypatch.setattr(environment, "_read", lambda path: None)
    facts = describe(torch.device("cpu"))
    assert facts["cpu_governor"] == "unknown: this system does not tell"
    assert "last_level_cache" not in facts


def test_a_gpu_that_torch_cannot_use_is_a_fact(monkeypatch):
    monkeypatch.setattr(environment.shutil, "which", lambda name: "/usr/bin/nvidia-smi" if "nvidia" in name else None)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    facts = describe(torch.device("cpu"))
    assert facts["gpu_unused"].startswith("an NVIDIA driver is here, but torch")
    assert "a CPU build, sees no CUDA device" in facts["gpu_unused"]


def test_a_description_changes_no_setting():
    before = (torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_float32_matmul_precision())
    describe(torch.device("cpu"))
    readings(torch.device("cpu"))
    assert (torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_float32_matmul_precision()) == before


def test_variables_that_change_the_threads_are_facts(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    facts = describe()
    assert facts["env_OMP_NUM_THREADS"] == "3"
    assert "env_MKL_NUM_THREADS" not in facts


def test_the_hash_of_a_file_is_that_of_its_content(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    assert file_sha256(path) == hashlib.sha256(b"abc").hexdigest()
    path.write_bytes(b"abd")
    assert file_sha256(path) == hashlib.sha256(b"abd").hexdigest()


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A file large enough to be remembered, and a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(64 * 2**20)
    return path


def test_a_large_file_is_hashed_once_until_it_changes(large, monkeypatch, tmp_path):
    hashed = []
    inner = environment._sha256
    monkeypatch.setattr(environment, "_sha256", lambda path: hashed.append(path) or inner(path))
    first = file_sha256(large)
    assert (file_sha256(large), len(hashed)) == (first, 1)
    with large.open("r+b") as file:
        file.write(b"x")
        file.truncate(64 * 2**20 + 1)
    assert file_sha256(large) != first
    assert len(hashed) == 2
    memory = tmp_path / "cache" / "dllm-audit" / "sha256.json"
    for damaged in ("not json", "[]"):
        memory.write_text(damaged)
        assert file_sha256(large) == inner(large)


def test_a_home_that_cannot_be_written_costs_only_the_memory(large, monkeypatch, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert len(file_sha256(large)) == 64


def test_the_commit_of_the_code_is_known_in_a_checkout_and_says_when_files_differ(monkeypatch, tmp_path):
    package = tmp_path / "dllm_audit" / "measure"
    package.mkdir(parents=True)
    monkeypatch.setattr(environment, "__file__", str(package / "environment.py"))
    assert code_commit() is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    tracked = package / "environment.py"
    tracked.write_text("1")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    clean = code_commit()
    assert len(clean) == 12
    tracked.write_text("2")
    assert code_commit() == clean + "+changes"
