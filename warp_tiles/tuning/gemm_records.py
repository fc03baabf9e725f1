"""Measurements of GEMM variants for builds: a snapshot, so that choices are stable within a process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from warp_tiles.errors import ToolchainError, UnsupportedVariant
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.heuristics.choose import choose
from warp_tiles.heuristics.limits import problem_of
from warp_tiles.providers.base import TunedChoice
from warp_tiles.tuning.folder import warn_once
from warp_tiles.tuning.gemm_key import SUBJECT, named_environment, present_environments, source_of, values_of
from warp_tiles.tuning.gemm_space import MEASURED, config_of, tile_config_of
from warp_tiles.tuning.key import Environment, Scalar
from warp_tiles.tuning.record import Record, Timing

if TYPE_CHECKING:
    from warp_tiles.settings import Settings
    from warp_tiles.toolchain.store import ToolchainStore
    from warp_tiles.tuning.store import RecordStore

_Values = tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True)
class TunedGemms:
    """A snapshot of records.

    Attributes:
        records: Records by the values of their keys, see :func:`warp_tiles.tuning.gemm_key.values_of`.
        soft: Soft fields of the present environment; None if they are unknown.
        reuse_stale: True if timings of another driver or Warp patch release count.
    """

    records: Mapping[_Values, Record]
    soft: Mapping[str, Scalar] | None = None
    reuse_stale: bool = True

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the winners, for Warp's module hash; empty without records."""
        digest = hashlib.sha256()
        for values, record in sorted(self.records.items(), key=lambda item: repr(item[0])):
            for providers in (MEASURED, ("mma",)):
                winner = self._winner(record, providers)
                digest.update(f"{values!r} {winner.identity if winner else ''}\n".encode())
        return digest.hexdigest() if self.records else ""

    def best(self, variant: GemmProblem, providers: Sequence[str]) -> TunedChoice | None:
        """The fastest measured configuration of these providers; None if nothing usable was measured.

        A record that does not fit the variant causes one warning and is ignored.
        """
        record = self.records.get(tuple(sorted(values_of(variant).items())))
        winner = self._winner(record, providers) if record is not None else None
        if record is None or winner is None:
            return None
        try:
            config = tile_config_of(winner.config)
            problem = problem_of(variant, config) if config else ""
        except ValueError as error:
            config, problem = None, str(error)
        if problem:
            warn_once(
                f"the tuning record {record.key.digest[:12]} of {variant.describe()} is ignored: {problem}. "
                f"Remedy: warp-tiles tune clear {record.key.digest[:12]}, then tune again"
            )
            return None
        return TunedChoice(str(winner.config["provider"]), config, self._reason(variant, record, winner))

    def _counts(self, timing: Timing) -> bool:
        return self.reuse_stale or self.soft is None or dict(timing.soft or {}) == dict(self.soft)

    def _winner(self, record: Record, providers: Sequence[str]) -> Timing | None:
        measured = [
            timing
            for timing in record.timings
            if timing.status == "ok" and _is_measured(timing, providers) and self._counts(timing)
        ]
        if not measured:
            return None
        fastest_us = min(timing.median_us for timing in measured)
        most_us = max(timing.high_us for timing in measured if timing.median_us == fastest_us)
        # the rest cannot win, and comparing configurations costs more than comparing times
        return replace(record, timings=tuple(t for t in measured if t.median_us <= most_us)).winner()

    def _reason(self, variant: GemmProblem, record: Record, winner: Timing) -> str:
        try:
            usual = record.timing(config_of("mma", choose(variant)))
        except UnsupportedVariant:
            usual = None
        text = f"tuned: {winner.median_us:.1f} us"
        if usual is winner:
            text += ", also the chooser's pick"
        elif usual is not None and usual.status != "failed":
            text += f" against {usual.median_us:.1f} us of the chooser's pick"
        elif usual is not None:
            text += ", and the chooser's pick failed"
        other = {
            name: value for name, value in (winner.soft or {}).items() if value != (self.soft or {}).get(name, value)
        }
        if other:
            text += f", measured with {', '.join(f'{name} {value}' for name, value in other.items())}"
        return text


def snapshot(
    records: RecordStore,
    toolchain: ToolchainStore,
    now: Settings,
    environments: Sequence[Environment] | None = None,
) -> TunedGemms | None:
    """Returns the records that apply to this machine and these settings.

    Args:
        records: The store of records.
        toolchain: Digests the inputs of candidates.
        now: The settings.
        environments: The GPUs of this machine; None takes those that Warp finds.

    Returns:
        None if no record applies, or if nothing can be built here.
    """
    present = present_environments() if environments is None else tuple(environments)
    ranks = {_hard(environment, named=not present): rank for rank, environment in enumerate(_wanted(present, now))}
    if not ranks:
        return None
    stored: dict[str, list[Record]] = {}
    for item in records.records(SUBJECT):
        stored.setdefault(item.record.key.digest, []).append(item.record)
    if not stored:
        return None
    try:
        source = source_of(toolchain)
    except ToolchainError:
        return None
    found: dict[_Values, tuple[int, int, str, Record]] = {}
    for digest, (first, *others) in sorted(stored.items()):
        key = first.key
        rank = ranks.get(_hard(key.environment, named=not present))
        if key.subject != SUBJECT or key.source != source or rank is None:
            continue
        record = records.load(key) if others else first
        if record is not None:  # if a GPU is only named, the record with the most multiprocessors counts
            candidate = (rank, -key.environment.multiprocessors, digest, record)
            found[key.values] = min(candidate, found.get(key.values, candidate), key=lambda item: item[:3])
    if not found:
        return None
    soft = present[0].soft() if present else None
    return TunedGemms({values: item[-1] for values, item in found.items()}, soft, now.record_driver_mismatch == "reuse")


def _is_measured(timing: Timing, providers: Sequence[str]) -> bool:
    """True for a provider that a search measures. A record of another one must not choose its slow build."""
    provider = timing.config.get("provider")
    return provider in MEASURED and provider in providers


def _wanted(present: Sequence[Environment], now: Settings) -> tuple[Environment, ...]:
    if present:
        return tuple(present)
    return (named_environment(now.target_gpu),) if now.target_gpu else ()


def _hard(environment: Environment, named: bool) -> tuple[tuple[str, Scalar], ...]:
    """Returns the fields that must be equal. A GPU that is only named has no known architecture and size."""
    fields = environment.hard()
    return tuple((name, value) for name, value in fields.items() if not (named and name in ("arch", "multiprocessors")))
