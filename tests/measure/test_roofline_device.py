"""The device's own speed: what is timed, what counts, how large the caches are."""

from pathlib import Path

import pytest
import torch

from dllm_audit.errors import AuditError
from dllm_audit.measure import roofline_device
from dllm_audit.measure.roofline_device import last_level_cache_bytes, measure_device

CPU = torch.device("cpu")


@pytest.fixture
def quick(monkeypatch):
    """A measurement of milliseconds."""
    monkeypatch.setattr(roofline_device, "_LEAST_BYTES", 64 * 2**20)
    monkeypatch.setattr(roofline_device, "_CACHES", 1)
    monkeypatch.setattr(roofline_device, "_SECONDS", 0.01)
    monkeypatch.setattr(roofline_device, "_SIDES", (64, 128))


def test_this_machine_reads_and_multiplies_at_a_believable_speed(quick):
    speed = measure_device(CPU, torch.float32, "here")
    assert (speed.name, speed.status) == ("here", "measured")
    # Slower than any memory of a processor of this century, or faster than any, would be a wrong unit.
    assert 1e8 < speed.bandwidth_low <= speed.bandwidth < 5e12
    assert 1e7 < speed.peak_low <= speed.peak < 1e15
    assert "MiB" in speed.source
    assert "float32" in speed.source


def test_where_a_measured_speed_is_from_names_the_threads(quick, monkeypatch):
    for threads, words in ((1, " times, 1 thread"), (2, " times, 2 threads")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert measure_device(CPU, torch.float32, "here").source.endswith(words)


def test_measuring_draws_nothing_from_the_generator_that_tokens_may_come_from(quick):
    before = torch.get_rng_state()
    measure_device(CPU, torch.float32, "here")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_fastest_pass_counts(monkeypatch, quick):
    class Ticks:
        """Passes of 2 s and 1 s in turn, by a clock that moves when it is read."""

        def __init__(self):
            self.at, self.lengths = 0.0, [0.0, 2.0, 0.0, 1.0]

        def now(self):
            self.at += self.lengths[0]
            self.lengths.append(self.lengths.pop(0))
            return self.at

        def settle(self):
            return None

        def seconds(self, start, stop):
            return stop - start

    monkeypatch.setattr(roofline_device, "timer_for", lambda device: Ticks())
    speed = measure_device(CPU, torch.float32, "here")
    assert speed.bandwidth % 2**20 == 0  # all its bytes in one second
    assert speed.bandwidth_low == speed.bandwidth / 2
    assert speed.peak == 2 * 64**3  # a product of more than 20 ms ends the search for a better size


def test_too_little_memory_is_a_sentence(monkeypatch):
    import psutil

    class Memory:
        available = 2**20

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory())
    with pytest.raises(AuditError, match="There is not enough free memory on cpu to measure"):
        measure_device(CPU, torch.float32, "here")


def _cache(folder: Path, core: int, index: int, **facts: str) -> None:
    where = folder / f"cpu{core}" / "cache" / f"index{index}"
    where.mkdir(parents=True)
    for name, value in facts.items():
        (where / name).write_text(value + "\n")


def test_the_last_level_cache_is_that_of_all_usable_cores_each_counted_once(tmp_path):
    for core in (0, 1, 2, 3):
        _cache(tmp_path, core, 1, level="1", type="Instruction", size="32K", shared_cpu_list=str(core))
        _cache(tmp_path, core, 2, level="2", type="Unified", size="512K", shared_cpu_list=str(core))
        shared = "0-1" if core < 2 else "2-3"
        _cache(tmp_path, core, 3, level="3", type="Unified", size="16M", shared_cpu_list=shared)
    assert roofline_device._cpu_cache_bytes(tmp_path, [0, 1, 2, 3]) == 32 * 2**20
    assert roofline_device._cpu_cache_bytes(tmp_path, [0, 1]) == 16 * 2**20
    assert roofline_device._cpu_cache_bytes(tmp_path, [7]) is None


def test_a_device_without_a_known_cache_says_so():
    assert last_level_cache_bytes(torch.device("mps")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_reads_faster_than_any_processor_and_knows_its_cache():
    speed = measure_device(torch.device("cuda", 0), torch.bfloat16, "gpu")
    assert 5e10 < speed.bandwidth < 2e13
    assert 1e12 < speed.peak < 1e16
    assert speed.cache_bytes is None or speed.cache_bytes >= 2**20
