"""The results of benchmarks/client_speed.py: a file of runs, which is written after each measurement, and ratios."""

from __future__ import annotations

import json
import os
import statistics
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Run = dict[str, Any]
PEER = "warp"


def medians(runs: Iterable[Run], value: str) -> dict[str, float]:
    """The median of a value for each side that has it."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if value in run and "error" not in run:
            found.setdefault(run["side"], []).append(run[value])
    return {side: statistics.median(values) for side, values in found.items()}


def ratios(values: Mapping[str, float], digits: int) -> dict[str, float]:
    """Each side's value divided by that of unmodified Warp; empty if the latter is missing or zero."""
    if not values.get(PEER):
        return {}
    return {side: round(value / values[PEER], digits) for side, value in values.items()}


def differences(runs: Iterable[Run], digest: str) -> dict[str, dict[str, float]]:
    """How far each number of a side's latest digest is from that of unmodified Warp."""
    latest = {run["side"]: run[digest] for run in runs if digest in run}
    peer = latest.pop(PEER, {})
    found = {side: {name: abs(value[name] - peer[name]) for name in peer} for side, value in latest.items()}
    return {side: values for side, values in found.items() if values}


def compared(runs: Sequence[Run]) -> dict[str, Any]:
    """Compare the sides of a client.

    Args:
        runs: All runs of the client. First runs and failed ones do not count.

    Returns:
        Ratios to unmodified Warp: of cold runs that ran alone, of cold runs that ran beside others, whose times are
        rough, and of warm runs. Differences between the results after the first step and after the last one.
    """
    warm = [run for run in runs if run["phase"] == "warm"]
    cold = [run for run in runs if run["phase"] == "cold"]
    alone = medians((run for run in cold if run["together"] == 1), "jit_s")
    beside = medians((run for run in cold if run["together"] > 1), "jit_s")
    found = {
        "jit_to_warp": ratios(alone, 3),
        "rough_jit_to_warp": ratios(beside, 3),
        "cubins_to_warp": ratios(medians(cold, "cubin_bytes"), 3),
        "steps_to_warp": ratios(medians(warm, "steps_per_second"), 4),
        "tile_kernel_to_warp": ratios(medians(warm, "tile_kernel_us"), 3),
        "first_differs_by": differences(runs, "first"),
        "last_differs_by": differences(warm, "last"),
    }
    return {name: value for name, value in found.items() if value}


def _undated(conditions: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in conditions.items() if name != "date"}


class Record:
    """The file of results. Threads may add runs at the same time.

    All that an existing file has is kept. New runs of a client are added to those under the same conditions. Its runs
    under other conditions are moved to the list `earlier`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self.data.setdefault("clients", {})

    def begin(self, client: str, conditions: Mapping[str, Any]) -> None:
        """Prepare a client's entry for runs under these conditions. The date is no condition."""
        old = self.data["clients"].get(client)
        if old is not None and _undated(old["conditions"]) == _undated(conditions):
            return
        if old is not None and old["runs"]:
            self.data.setdefault("earlier", []).append({"client": client, **old})
        self.data["clients"][client] = {"conditions": dict(conditions), "compared": {}, "runs": []}

    def put(self, client: str, run: Run) -> None:
        """Store a run, or what has become known of it since, and write the file."""
        with self._lock:
            entry = self.data["clients"][client]
            if not any(run is other for other in entry["runs"]):
                entry["runs"].append(run)
            entry["compared"] = compared(entry["runs"])
            fresh = self._path.with_name(self._path.name + ".tmp")
            fresh.write_text(json.dumps(self.data, indent=1) + "\n")
            os.replace(fresh, self._path)

    def compared(self, client: str) -> dict[str, Any]:
        """The ratios of a client's runs."""
        found: dict[str, Any] = self.data["clients"][client]["compared"]
        return found
