"""Measurements of the list of :mod:`warp_tiles.tuning.corpus` on one GPU, in a file that maintainers can ship.

The file is an export of tuning records (:meth:`warp_tiles.tuning.store.RecordStore.export`), with facts about the
machine. It comes from elsewhere, so :func:`read_contribution` checks each field before anything uses it.
"""

from __future__ import annotations

import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warp_tiles._warp import require_hooks
from warp_tiles._warp.intercept import NotedLaunch
from warp_tiles.compile.find import dotted
from warp_tiles.errors import RecordError, TuningError
from warp_tiles.gemm.hardware import MIN_ARCH
from warp_tiles.settings import SETTINGS, Settings, override
from warp_tiles.tuning.corpus import PRODUCTS, Product
from warp_tiles.tuning.in_place import Progress, TunedPlace, Tuner, places_of
from warp_tiles.tuning.questions import FUNCTION, LOOP, Place
from warp_tiles.tuning.record import Record, decode_records
from warp_tiles.tuning.store import RecordStore, read_export
from warp_tiles.tuning.tuning_key import Environment
from warp_tiles.util.threads import unless_signalled
from warp_tiles.util.warn import shown

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine

MINUTES = 15.0
Fact = str | int | float | None
# fields of nvidia-smi, by the names of the facts; clocks are in MHz, and the limit is in watts
_FIELDS = {
    "driver_version": "driver_version",
    "largest_clock_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.max.memory",
    "power_limit_w": "power.limit",
    "clock_mhz": "clocks.sm",
}
_NVIDIA_SMI_S = 10.0
_MOST_TEXT = 200  # characters of a text of a file
_MOST_REASON = 600
_MOST_ITEMS = 100  # facts, values of a question, timings of a record
_MOST_MULTIPROCESSORS, _MOST_ARCH = 4096, 999
_MOST = 1e9  # of other numbers
_REMEDY = "give a file that `warp-tiles tune contribute` of this release wrote, and copy it unchanged"


@dataclass(frozen=True)
class Contribution:
    """What a file holds.

    Attributes:
        facts: Versions, driver, clocks and the number of products, by name.
        records: One for each question that was reached, all of one machine and one compiler.
    """

    facts: Mapping[str, Fact]
    records: tuple[Record, ...]

    @property
    def environment(self) -> Environment:
        return self.records[0].key.environment

    @property
    def source(self) -> str:
        """See :func:`warp_tiles.tuning.questions.source_of`."""
        return self.records[0].key.source


def contributed_places(engine: Engine, launch: NotedLaunch, gpu: Any) -> list[Place]:
    """The questions of a product's launch on a GPU, with the answers that are measured."""
    # a function of cuBLASDx takes seconds to build, which a contribution has no time for
    places = places_of(engine, [launch], gpu)
    return [
        replace(one, configs=tuple(config for config in one.configs if config.get("provider") != "cublasdx"))
        for one in places
    ]


def contribute(
    path: Path,
    gpus: Sequence[Any],
    minutes: float = MINUTES,
    started: Callable[[int, int, Product], object] = lambda number, total, product: None,
    progress: Progress = lambda place, record: None,
) -> tuple[list[TunedPlace], int]:
    """Measure the list on GPUs that are alike, and write the file after each product. An existing file is continued.

    Stored and shipped records do not count, and settings that affect code have their defaults.

    Args:
        gpus: Warp's devices; the first one decides.
        minutes: Time limit. Each product has an equal share of the remaining time.
        started: Called before each product with its number from 1, the number of products, and the product.
        progress: Called with the record of a question after each batch.

    Returns:
        The questions that were reached, each once, and the number of products that were not.

    Raises:
        RecordError: The file exists and is no contribution of this machine and its versions, or cannot be written.
        ToolchainError: Nothing can be built or measured here.
        TuningError: Nothing could be measured in time.
    """
    end, gpu = time.monotonic() + 60.0 * minutes, gpus[0]
    engine = require_hooks("contribute()").engine
    defaults: Any = {name: getattr(Settings(), name) for name, item in SETTINGS.items() if item.affects == "code"}
    found: dict[str, TunedPlace] = {}
    with tempfile.TemporaryDirectory(prefix="warp_tiles_") as folder, override(policy="auto", **defaults) as now:
        tuner = replace(Tuner.of(engine, now, gpus), store=RecordStore(Path(folder)), changed=lambda: None)
        products = [product for product in PRODUCTS if product.is_possible(gpu.arch)]
        toolchain = engine.build_context(now).store.toolchain()
        versions = {"nvrtc": dotted(toolchain.nvrtc_version), "nvjitlink": dotted(toolchain.nvjitlink_version)}
        facts: dict[str, Fact] = _continued(path, tuner) if path.exists() else {}
        facts |= {**versions, "python": platform.python_version(), "products": len(products)}
        left = len(products)
        for number, product in enumerate(products, 1):
            if (left_s := end - time.monotonic()) <= 0:
                break
            started(number, len(products), product)
            places = contributed_places(engine, product.launch(gpu, gpu.sm_count), gpu)
            tuned = tuner.tune_all(places, left_s / left, progress)
            found |= {item.place.digest: item for item in tuned}
            left -= 1
            facts |= _gpu_facts(gpu.uuid, facts)
            if records := tuner.store.united():
                tuner.store.export(path, records, facts=facts)
        if not tuner.store.records():
            raise TuningError(
                f"no kernel could be built and measured on {gpu.name} in its share of {minutes:g} minutes",
                remedy="give more --minutes; what was built is kept, so the same command may suffice too",
            )
    return list(found.values()), left


def _continued(path: Path, tuner: Tuner) -> dict[str, Fact]:
    """Take the records of a file that an earlier call wrote. Returns its facts."""
    known = read_contribution(path)
    if (known.environment, known.source) != (tuner.environment, tuner.source):
        raise RecordError(
            f"{path} has measurements of {known.environment.device} with warp_tiles {known.environment.warp_tiles}, "
            "and the GPU, the driver, the compiler or a version is different here",
            remedy="name a new file",
        )
    for record in known.records:
        tuner.store.merge(record.key, record.timings)
    return dict(known.facts)


def _gpu_facts(uuid: str, before: Mapping[str, Fact]) -> dict[str, Fact]:
    """What nvidia-smi says right after a measurement, with the least and the greatest clock so far."""
    fields = ",".join(_FIELDS.values())
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_NVIDIA_SMI_S)
    except unless_signalled(OSError, subprocess.SubprocessError):  # some containers lack it
        return {}
    found: dict[str, Fact] = {}
    for name, text in zip(_FIELDS, done.stdout.strip().split(", ")):
        try:
            found[name] = text if name == "driver_version" else float(text)
        except ValueError:  # of a GPU that does not say it
            found[name] = None
    clock = found.pop("clock_mhz", None)
    for name, chosen in (("least_clock_mhz", min), ("greatest_clock_mhz", max)):
        clocks = [one for one in (before.get(name), clock) if isinstance(one, float)]
        found[name] = chosen(clocks, default=None)
    return found


# ---- files from elsewhere


def read_contribution(path: Path) -> Contribution:
    """Read a file. Raises RecordError if that fails, or a field has a value that no measurement gives."""
    entries = read_export(path)
    try:
        if len(entries) != 1:
            raise ValueError(f"it has {len(entries)} sets of records, and a contribution has one")
        records = decode_records(entries[0].payload)
        if not records:
            raise ValueError("it has no records")
        facts: Any = {name: value for name, value in entries[0].manifest.info.items() if name != "records"}
        found = Contribution(facts, tuple(records))
        for record in records:
            if (record.key.environment, record.key.source) != (found.environment, found.source):
                digest = record.key.digest[:12]
                raise ValueError(f"the record {digest} is of another machine or compiler than the first one")
            _require(_record_rules(record))
        if len({record.key.digest for record in records}) < len(records):
            raise ValueError("it has two records of one question")
        _require([(len(facts) < _MOST_ITEMS, "the number of facts", len(facts)), *_fact_rules(facts.items())])
    except ValueError as error:
        raise RecordError(f"{path} is no contribution: {error}", _REMEDY) from error
    return found


_Rule = tuple[bool, str, object]  # what must hold of a value, and the value with its name


def _require(rules: Iterable[_Rule]) -> None:
    for holds, what, value in rules:
        if not holds:
            raise ValueError(f"{what} is {shown(value)}")


def _text_rules(texts: Iterable[tuple[str, object]]) -> Iterator[_Rule]:
    for name, value in texts:
        holds = isinstance(value, str) and len(value) <= _MOST_TEXT and value.isprintable()
        yield holds, f"{name}, a printable text of at most {_MOST_TEXT} characters,", value


def _fact_rules(facts: Iterable[tuple[str, object]]) -> Iterator[_Rule]:
    """Each is a short text, a finite number or None, and has a short name."""
    for name, value in facts:
        yield from _text_rules([("a name", name), *([(name, value)] if isinstance(value, str) else [])])
        is_number = isinstance(value, (int, float)) and -_MOST < value < _MOST  # False with NaN
        yield value is None or isinstance(value, str) or is_number, name, value


def _record_rules(record: Record) -> Iterator[_Rule]:
    key, where = record.key, record.key.environment
    yield from _text_rules((name, getattr(where, name)) for name in ("device", "warp", "driver", "warp_tiles"))
    yield bool(where.device), "the name of the GPU", where.device
    supported = f"the architecture of {where.device}, at least {MIN_ARCH} for a GPU that warp_tiles supports,"
    yield where.arch is not None and MIN_ARCH <= where.arch <= _MOST_ARCH, supported, where.arch
    yield 1 <= where.multiprocessors <= _MOST_MULTIPROCESSORS, "multiprocessors", where.multiprocessors
    yield key.subject in (LOOP, FUNCTION), "the subject, loop or function,", key.subject
    yield from _text_rules([("the digest of the sources", key.source)])
    yield 0 < len(key.values) <= _MOST_ITEMS, "the number of values of a question", len(key.values)
    yield from _fact_rules(key.values)
    yield 0 < len(record.timings) <= _MOST_ITEMS, "the number of timings", len(record.timings)
    identities = {timing.identity for timing in record.timings}
    yield len(identities) == len(record.timings), "the number of different configurations", len(identities)
    for timing in record.timings:
        yield len(timing.identity) <= _MOST_REASON, "the length of a configuration", len(timing.identity)
        yield len(timing.reason) <= _MOST_REASON, "the length of a reason", len(timing.reason)
        yield dict(timing.soft) == where.soft(), "the driver and Warp of a timing", dict(timing.soft)
        if timing.status != "failed":
            times = (timing.low_us, timing.median_us, timing.high_us)
            in_order = 0.0 < timing.low_us <= timing.median_us <= timing.high_us < _MOST  # False with NaN
            yield in_order, f"low, median and high, increasing times below {_MOST:g} us,", times
            yield 0 < timing.samples < _MOST, "the number of samples", timing.samples
            yield from _fact_rules([("shared_bytes", timing.shared_bytes)])
