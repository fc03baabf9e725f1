"""Measured answers for builds: a snapshot of records, so that choices are stable within a process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from warp_tiles.errors import ToolchainError
from warp_tiles.gemm.main_loop import LoopQuestion, MeasuredPipeline
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.tile_config import fits
from warp_tiles.providers.base import TunedChoice
from warp_tiles.providers.cublasdx import CublasdxProvider
from warp_tiles.providers.mma import MmaProvider
from warp_tiles.tuning.folder import warn_once
from warp_tiles.tuning.key import Environment, Scalar, environment_of
from warp_tiles.tuning.places import (
    FUNCTION,
    LOOP,
    MEASURED,
    digest_of,
    pipeline_of,
    tile_config_of,
    values_of,
)
from warp_tiles.tuning.record import Config, Record, Timing
from warp_tiles.util.version import __version__

if TYPE_CHECKING:
    from warp_tiles.compile.toolchain import ToolchainStore
    from warp_tiles.settings import Settings
    from warp_tiles.tuning.store import RecordStore


@dataclass(frozen=True)
class Answers:
    """Measured answers to the questions of a module. See :class:`warp_tiles.providers.base.Tuned`.

    Attributes:
        records: Records by the digests of their questions.
        soft: Soft fields of the present environment; None if they are unknown.
        reuse_stale: True if timings of another driver or Warp patch release count.
        forced: Answers that count before the records, by the digests of the questions, as a search forces them.
        asked: Receives the questions about loops, by their digests.
    """

    records: Mapping[str, Record]
    soft: Mapping[str, Scalar] | None = None
    reuse_stale: bool = True
    forced: Mapping[str, Config] = field(default_factory=dict)
    asked: dict[str, LoopQuestion] = field(default_factory=dict, compare=False)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the answers, for Warp's module hash; empty without any."""
        digest = hashlib.sha256()
        for name, record in sorted(self.records.items()):
            for providers in (MEASURED, ("mma",)):
                chosen = self._chosen(record, providers)
                digest.update(f"{name} {chosen.identity if chosen else ''}\n".encode())
        digest.update(json.dumps(self.forced, sort_keys=True).encode())
        return digest.hexdigest() if self.records or self.forced else ""

    def pipeline(self, question: LoopQuestion) -> MeasuredPipeline | None:
        """The fastest measured pipeline of a loop; None without a usable measurement, or if the default won.

        A record that is not valid causes one warning and is ignored.
        """
        digest = digest_of(LOOP, values_of(question))
        self.asked[digest] = question
        if (found := self._choice(digest, MEASURED)) is None:
            return None
        try:
            return MeasuredPipeline(pipeline_of(found[0]), found[1])
        except ValueError as error:
            self._ignore(digest, question, error)
            return None

    def best(self, variant: GemmProblem, providers: Sequence[str]) -> TunedChoice | None:
        """The fastest measured function of these providers; None without a usable measurement, or if the default won.

        A record that does not fit the variant causes one warning and is ignored.
        """
        digest = digest_of(FUNCTION, values_of(variant))
        if (found := self._choice(digest, providers)) is None:
            return None
        try:
            tile_config = tile_config_of(found[0])
            if tile_config is not None and not fits(variant, tile_config):
                raise ValueError(f"its tile configuration does not fit: {tile_config}")
            return TunedChoice(str(found[0]["provider"]), tile_config, found[1])
        except ValueError as error:
            self._ignore(digest, variant, error)
            return None

    def _ignore(self, digest: str, question: LoopQuestion | GemmProblem, error: ValueError) -> None:
        """Warn that a record is ignored. If a search forces the answer, its candidate fails in place of that."""
        if digest in self.forced:
            raise error
        name = self.records[digest].key.digest[:12]
        warn_once(
            f"the tuning record {name} of {question.describe()} is ignored: {error}. "
            f"Remedy: warp-tiles tune clear {name}, then tune again"
        )

    def _choice(self, digest: str, providers: Sequence[str]) -> tuple[Config, str] | None:
        """The configuration that counts in place of the default, and the reason; None if the default counts."""
        if (forced := self.forced.get(digest)) is not None:
            return (forced, "a search forces it") if forced.get("provider") in (None, *providers) else None
        if (record := self.records.get(digest)) is None or (chosen := self._chosen(record, providers)) is None:
            return None
        return chosen.config, self._reason(record, chosen)

    def _chosen(self, record: Record, providers: Sequence[str]) -> Timing | None:
        """The configuration that a record puts in place of the default; None if the default is faster.

        A provider that no search measures must not choose its slow build.
        """
        allowed = {"auto", *MEASURED} & {"auto", *providers}
        usable = tuple(
            timing
            for timing in record.timings
            if timing.config.get("provider", "auto") in allowed
            and (self.reuse_stale or self.soft is None or dict(timing.soft or {}) == dict(self.soft))
        )
        record = replace(record, timings=usable)
        winner = record.winner()
        return None if winner is record.default else winner

    def _reason(self, record: Record, chosen: Timing) -> str:
        default = record.default
        text = f"tuned: {chosen.median_us:.1f} us"
        if default is not None and default.status != "failed":
            text += f" against {default.median_us:.1f} us of the default"
        elif default is not None:
            text += ", and the default failed"
        known = self.soft or {}
        other = {name: value for name, value in (chosen.soft or {}).items() if value != known.get(name, value)}
        if other:
            text += f", measured with {', '.join(f'{name} {value}' for name, value in other.items())}"
        return text


def source_of(store: ToolchainStore) -> str:
    """SHA-256 of the inputs of answers: device sources with their headers, and the compiler, but not the choosers.

    Raises:
        ToolchainError: There is no compiler.
    """
    parts = [f"{name}={value}" for name, value in MmaProvider(store).fingerprint().items()]
    try:
        parts += [f"{name}={value}" for name, value in CublasdxProvider(store).fingerprint().items()]
    except ToolchainError:
        parts.append("no cublasdx")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def present_environments() -> tuple[Environment, ...]:
    """The environments of this machine's GPUs, each once."""
    import warp as wp

    wp.init()
    return tuple(dict.fromkeys(environment_of(device) for device in wp.get_cuda_devices()))


def snapshot(records: RecordStore, toolchain: ToolchainStore, now: Settings) -> Answers | None:
    """Returns the records that apply to this machine and these settings, and the answers that a search forces.

    Args:
        toolchain: Digests the inputs of answers.

    Returns:
        None if nothing applies, or if nothing can be built here.
    """
    present = present_environments()
    forced = json.loads(now.answers) if now.answers else {}
    found = _applicable(records, toolchain, now, present)
    if not found and not now.answers:
        return None
    soft = present[0].soft() if present else None
    return Answers(found, soft, now.record_driver_mismatch == "reuse", forced)


def _applicable(
    records: RecordStore, toolchain: ToolchainStore, now: Settings, present: Sequence[Environment]
) -> dict[str, Record]:
    """The records that apply, by the digests of their questions."""
    import warp as wp

    # of a GPU that is only named, architecture and size are open
    named = (Environment(now.target_gpu, None, 0, wp.__version__, "", __version__),) if now.target_gpu else ()
    unknown = () if present else ("arch", "multiprocessors")

    def hard(environment: Environment) -> dict[str, Scalar]:
        return {name: value for name, value in environment.hard().items() if name not in unknown}

    wanted = [hard(environment) for environment in present or named]
    stored = [record for subject in (LOOP, FUNCTION) for record in records.united(subject)] if wanted else []
    if not stored:
        return {}
    try:
        source = source_of(toolchain)
    except ToolchainError:
        return {}
    ranked: list[tuple[int, int, str, Record]] = []
    for record in stored:
        key, fields = record.key, hard(record.key.environment)
        if key.subject in (LOOP, FUNCTION) and key.source == source and fields in wanted:
            # if a GPU is only named, the record with the most multiprocessors counts
            ranked.append((wanted.index(fields), -key.environment.multiprocessors, key.digest, record))
    found: dict[str, Record] = {}
    for *_, record in sorted(ranked, key=lambda item: item[:3]):
        found.setdefault(digest_of(record.key.subject, record.key.values), record)
    return found
