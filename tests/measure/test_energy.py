"""Joules by counters that are given here, over windows of a clock that is given here."""

import pytest
import torch

from dllm_audit.measure import energy
from dllm_audit.measure.energy import (
    EnergySource,
    EnergyWindow,
    NvmlCounter,
    RaplCounter,
    find_energy_source,
    rapl,
    with_idle_power,
)


class Counter:
    """Gives these joules one after the other; an exception is raised."""

    name = "a counter"

    def __init__(self, *values):
        self.values = list(values)

    def joules(self):
        value = self.values.pop(0)
        if isinstance(value, Exception):
            raise value
        return value


def ticking(*moments):
    left = list(moments)
    return lambda: left.pop(0)


def test_a_window_counts_what_was_used_between_its_edges():
    reading = EnergyWindow(Counter(1000.0, 1600.0), ticking(3.0, 9.0)).close()
    assert (reading.joules, reading.seconds, reading.reason) == (600.0, 6.0, "")


def test_a_window_of_less_than_five_seconds_is_refused():
    reading = EnergyWindow(Counter(1000.0, 1600.0), ticking(3.0, 7.9)).close()
    assert reading.joules is None
    assert reading.reason == "the window of 4.9 s is shorter than 5 s, which an energy counter needs"


@pytest.mark.parametrize(
    "values", [(OSError("gone"), 5.0, 9.0), (1.0, OSError("gone"), 9.0), (1.0, 5.0, OSError("gone"))]
)
def test_a_counter_that_fails_at_any_look_makes_the_energy_unknown(values):
    window = EnergyWindow(Counter(*values), ticking(0.0, 60.0))
    window.look()
    assert window.close() == energy.EnergyReading(None, 60.0, "the energy counter could not be read (gone)")


def test_idle_power_is_the_counter_over_seconds_of_doing_nothing():
    slept = []
    found = with_idle_power(EnergySource(Counter(10.0, 260.0)), slept.append, ticking(100.0, 105.0))
    assert found.idle_watts == 50.0
    assert slept == [5.0]


def test_without_a_counter_nobody_waits():
    source = EnergySource(None, "why")
    assert with_idle_power(source, sleep=None) is source


# -- RAPL --


def zone(folder, number, name, microjoules, span=1000):
    path = folder / f"intel-rapl:{number}"
    path.mkdir(parents=True)
    (path / "name").write_text(name + "\n")
    (path / "energy_uj").write_text(f"{microjoules}\n")
    (path / "max_energy_range_uj").write_text(f"{span}\n")
    return path


def test_all_packages_are_added_up_and_their_parts_are_not_counted_twice(tmp_path):
    packages = [zone(tmp_path, n, f"package-{n}", 10_000_000, 10**12) for n in (0, 1)]
    zone(tmp_path, "0:0", "core", 5, 10**12)
    zone(tmp_path, 2, "psys", 5, 10**12)
    counter = rapl(tmp_path).counter
    assert counter.name.startswith("RAPL (package-0, package-1): the processor alone")
    for package, joules in zip(packages, (13, 14), strict=True):
        (package / "energy_uj").write_text(f"{joules}000000")
    assert counter.joules() == 7.0


def test_a_counter_that_began_again_from_zero_goes_on(tmp_path):
    path = zone(tmp_path, 0, "package-0", 900, 1000)
    counter = RaplCounter([path], clock=lambda: 0.0)
    (path / "energy_uj").write_text("100")
    assert counter.joules() == pytest.approx(200e-6)
    (path / "energy_uj").write_text("150")
    assert counter.joules() == pytest.approx(250e-6)


def test_a_counter_that_may_have_begun_again_unseen_says_so(tmp_path):
    # 65 kJ are used up in a minute by what draws 1,000 W.
    path = zone(tmp_path, 0, "package-0", 0, 65_000_000_000)
    counter = RaplCounter([path], clock=ticking(0.0, 66.0, 120.0))
    with pytest.raises(OSError, match="it was not looked at for 66 s and may have started again from 0 unseen"):
        counter.joules()
    (path / "energy_uj").write_text("2000000")
    assert counter.joules() == 2.0


def test_a_system_without_counters_says_so(tmp_path):
    found = rapl(tmp_path / "nothing")
    assert found.counter is None
    assert found.reason.startswith("this system shows no energy counter of its processor (RAPL) in ")


def test_counters_that_only_root_may_read_say_how_to_allow_it(tmp_path, monkeypatch):
    zone(tmp_path, 0, "package-0", 0)

    def refused(zones):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(energy, "RaplCounter", refused)
    assert rapl(tmp_path).reason == (
        "the processor's energy counter may not be read by this user: allow it with "
        f"sudo chmod a+r {tmp_path}/*-rapl:*/energy_uj"
    )


def test_a_counter_that_holds_no_number_is_no_counter(tmp_path):
    (zone(tmp_path, 0, "package-0", 0) / "energy_uj").write_text("?")
    assert "could not be read" in rapl(tmp_path).reason


# -- GPU --


class Nvml:
    """What pynvml looks like from here."""

    class NVMLError(Exception):
        pass

    def __init__(self, millijoules):
        self.millijoules = millijoules

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if self.millijoules is None:
            raise self.NVMLError("Not Supported")
        return self.millijoules


@pytest.fixture
def cuda(monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12"))
    return torch.device("cuda", 0)


def test_a_gpu_is_counted_by_nvml(cuda, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pynvml", Nvml(5500))
    counter = find_energy_source(cuda).counter
    assert isinstance(counter, NvmlCounter)
    assert counter.joules() == 5.5
    assert counter.name == "NVML total energy of GPU-12: the whole GPU, whatever runs on it"


def test_a_gpu_without_a_counter_says_so(cuda, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pynvml", Nvml(None))
    assert find_energy_source(cuda).reason == (
        "the GPU's energy counter could not be read (Not Supported); GPUs before Volta have none"
    )


def test_without_nvidia_ml_py_the_way_to_it_is_said(cuda, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_energy_source(cuda).reason == "nvidia-ml-py is not installed: pip install 'dllm-audit[gpu]'"


def test_other_devices_have_no_counter():
    assert find_energy_source(torch.device("mps")).reason == "nothing is known here that counts the energy of mps"
