"""Calls of ``configure()`` and ``override()`` for mypy, which :mod:`tests.test_checks` runs. Nothing here is executed.

In strict mode an ignored error that does not occur is an error, so each of these calls must be refused.
"""

from __future__ import annotations

from pathlib import Path

import warp_tiles


def accepted() -> int:
    warp_tiles.configure(provider="own", jobs=4, cache_max_bytes="4GiB", record_paths=[Path("records"), "more"])
    warp_tiles.configure(policy=None, cache_dir="/cache", build_wait_s=5, remote_push=True)
    with warp_tiles.override(policy="fast", tune_budget_s=1.5, main_loop="wgmma,stages=3") as now:
        return now.jobs


def refused() -> None:
    warp_tiles.configure(providr="own")  # type: ignore[call-arg]
    warp_tiles.configure(provider="cuda")  # type: ignore[arg-type]
    warp_tiles.configure(jobs="two")  # type: ignore[arg-type]
    warp_tiles.configure(record_paths=[1])  # type: ignore[list-item]
    warp_tiles.configure(remote_push="on")  # type: ignore[arg-type]
    with warp_tiles.override(jobs=None):  # type: ignore[arg-type]
        pass
    with warp_tiles.override(policy="quick"):  # type: ignore[arg-type]
        pass
