"""How much memory this process may use: the machine's, or what the control group of a container grants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dllm_audit.measure import memory
from dllm_audit.measure.environment import describe, readings
from dllm_audit.measure.memory import available_memory, memory_quota

GB = 10**9


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """groups(lines of /proc/self/cgroup, files) on a machine of 64 GB of which 40 are free."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=64 * GB, available=40 * GB))
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "own")

    def make(own: str, files: dict[str, str]) -> None:
        (tmp_path / "own").write_text(own)
        for name, content in files.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content + "\n")

    return make


def test_a_container_of_the_second_version_may_use_what_it_grants_less_what_it_holds(groups):
    """Caches of files are given back when memory is wanted."""
    stat = "anon 2500000000\nfile 1000000000\ninactive_file 500000000"
    groups("0::/\n", {"memory.max": f"{8 * GB}", "memory.current": f"{3 * GB}", "memory.stat": stat})
    assert (available_memory(), memory_quota()) == (8 * GB - 3 * GB + GB // 2, 8 * GB)
    assert describe()["memory_quota_bytes"] == 8 * GB
    assert readings()["memory_available_bytes"] == 8 * GB - 3 * GB + GB // 2


def test_a_container_of_the_first_version_too_also_where_its_path_is_that_outside(groups):
    files = {"memory/memory.limit_in_bytes": f"{4 * GB}", "memory/memory.usage_in_bytes": f"{GB}"}
    groups("3:cpu:/\n2:memory,hugetlb:/docker/0123\n0::/\n", files)
    assert (available_memory(), memory_quota()) == (3 * GB, 4 * GB)


def test_the_tightest_of_the_groups_around_a_process_counts(groups):
    files = {
        "a/memory.max": f"{10 * GB}",
        "a/memory.current": f"{9 * GB}",
        "a/b/memory.max": f"{5 * GB}",
        "a/b/memory.current": f"{GB}",
    }
    groups("0::/a/b\n", files)
    assert (available_memory(), memory_quota()) == (GB, 5 * GB)


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {"memory.max": "max", "memory.current": f"{GB}"}),
        ("2:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "5"}),
        ("0::/\n", {}),
        ("nonsense\n", {}),
    ],
    ids=["v2", "v1", "no files", "no groups"],
)
def test_without_a_limit_the_machine_decides(groups, own, files):
    groups(own, files)
    assert (available_memory(), memory_quota()) == (40 * GB, None)
    assert "memory_quota_bytes" not in describe()


def test_a_group_that_holds_more_than_it_may_has_nothing_left(groups):
    groups("0::/\n", {"memory.max": f"{GB}", "memory.current": f"{2 * GB}"})
    assert available_memory() == 0
