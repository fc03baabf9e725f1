"""The memory of the machine, which decides how many compiler processes run."""

from __future__ import annotations

from pathlib import Path

import pytest

from warp_tiles.compile import pool
from warp_tiles.compile.pool import free_memory_bytes

MEMINFO = "MemTotal:       2000 kB\nMemAvailable:   1000 kB\n"


class Files:
    """Stands for Path, with the texts of some files."""

    texts: dict[str, str]

    def __init__(self, path: str) -> None:
        self._path = path

    def read_text(self) -> str:
        if self._path not in self.texts:
            raise FileNotFoundError(self._path)
        return self.texts[self._path]


@pytest.mark.parametrize(
    ("most", "used", "cached", "expected"),
    [
        (None, 0, 0, 1_024_000),
        ("max", 0, 0, 1_024_000),
        ("500000", 400_000, 300_000, 400_000),
        ("5000000", 1_000_000, 0, 1_024_000),
    ],
    ids=["no container", "no limit", "a limit, and files in memory", "a limit above the free memory"],
)
def test_free_memory_is_that_of_machine_and_container(
    most: str | None, used: int, cached: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"/proc/meminfo": MEMINFO}
    if most is not None:
        folder = "/sys/fs/cgroup/memory."
        texts |= {
            f"{folder}max": most,
            f"{folder}current": str(used),
            f"{folder}stat": f"anon 1\ninactive_file {cached}\n",
        }
    monkeypatch.setattr(Files, "texts", texts, raising=False)
    monkeypatch.setattr(pool, "Path", Files)
    assert free_memory_bytes() == expected


def test_free_memory_is_not_known_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "texts", {}, raising=False)
    monkeypatch.setattr(pool, "Path", Files)
    assert free_memory_bytes() is None


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux")
def test_this_machine_has_free_memory() -> None:
    assert (free_memory_bytes() or 0) > 1 << 20
