"""The build of a module in which nothing is computed by warp_tiles: Warp's source, Warp's compiler, Warp's bytes.

Two keys lead to one entry, which holds the binary, its source and Warp's metadata. The *content key* covers what the
compiler reads. The *start key* (:mod:`warp_tiles._warp.lookups`) covers what the source is generated from, so a module
that is found by it is not generated. Only a process that has generated the source binds a start key to an entry.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warp_tiles.build.context import BuildContext
from warp_tiles.build.log import COMPILE, LOOK_UP, WARP_LINK, WRITE, ModuleLog, Phase, Phases, now_s
from warp_tiles.build.start_list import StartModule
from warp_tiles.compile.module import BuildCall, ModuleSource, WarpCompileRequest, names_in_code, reason_without_key
from warp_tiles.compile.pool import result_of
from warp_tiles.errors import LinkError, WorkerError
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.store import MODULE
from warp_tiles.store.key import CacheKey
from warp_tiles.store.packages import package_of
from warp_tiles.util.files import write_output
from warp_tiles.util.warn import log, warn_once

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine
    from warp_tiles.store.cache import BuildLease
    from warp_tiles.store.key import Entry

_LENGTH_BYTES = 8
_MOST_TEXT_BYTES = 1 << 28  # of a source that is unpacked


@dataclass(frozen=True)
class WarpOutput:
    """What Warp's folder holds of a module: the payload of an entry. The target ends its name, e.g. ``.sm_90a.cubin``.

    The binary of a module with products or solvers is the one that warp_tiles has linked. ``warnings`` says how many
    its plan has for a launch, in an entry that is found by its start key. ``linked`` has the fields of
    :class:`.Linked`, which a start list needs.
    """

    binary: bytes
    source: bytes
    target: str
    meta: Mapping[str, Any]
    warnings: int = 0
    linked: Mapping[str, Any] | None = None

    def pack(self) -> bytes:
        """The binary, which tools read as it is, then the source and the rest, compressed, and their size."""
        facts: dict[str, Any] = {"source": self.source.decode("utf-8"), "target": self.target, "meta": self.meta}
        facts |= {"warnings": self.warnings} if self.warnings else {}
        facts |= {"linked": self.linked} if self.linked is not None else {}
        rest = zlib.compress(json.dumps(facts, sort_keys=True).encode("utf-8"))
        return b"".join((self.binary, rest, len(rest).to_bytes(_LENGTH_BYTES, "big")))

    @classmethod
    def of(cls, entry: Entry | None) -> WarpOutput | None:
        """Rebuild what :meth:`pack` returned; None for no entry, and for one with another payload."""
        payload = b"" if entry is None else entry.payload
        end = len(payload) - _LENGTH_BYTES
        begin = end - int.from_bytes(payload[-_LENGTH_BYTES:], "big")
        if begin <= 0:
            return None
        try:
            facts = json.loads(_unpacked(payload[begin:end]))
            meta, warnings = facts["meta"], facts.get("warnings", 0)
            if not isinstance(meta, dict) or not all(type(size) is int for size in (*meta.values(), warnings)):
                return None
            source, target = str(facts["source"]).encode("utf-8"), str(facts["target"])
            return cls(payload[:begin], source, target, meta, warnings, facts.get("linked"))
        except (zlib.error, ValueError, LookupError, TypeError, RecursionError):
            return None

    def equal(self, other: WarpOutput | None) -> WarpOutput | None:
        """This output with the binary of another that has this source, target and metadata; otherwise None."""
        same = other is not None and replace(other, binary=self.binary, linked=self.linked) == self
        return replace(other, linked=self.linked) if other is not None and same else None


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(data, _MOST_TEXT_BYTES)
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("it does not end")
    return text


@dataclass(frozen=True)
class Start:
    """The lookup of a start key.

    Attributes:
        found: The output; None if the source has to be generated.
        keep: Binds the key to the payload of an entry.
        package: The kernel package that has it; empty for another place.
        content_key: The digest of the content key of what was found; empty if nothing was.
        warnings: See :class:`WarpOutput`; of a module that was generated.
        steps: The lookup.
    """

    key: CacheKey
    found: WarpOutput | None
    keep: Callable[[bytes, Mapping[str, object]], object]
    package: str = ""
    content_key: str = ""
    warnings: int = 0
    steps: tuple[Phase, ...] = ()

    def bind(self, output: WarpOutput, module: str, content_key: str) -> None:
        """Bind the key to what is stored under a content key."""
        self.keep(replace(output, warnings=self.warnings).pack(), {"module": module, "content_key": content_key})


def look_up(context: BuildContext, key: CacheKey, *, asks: bool = True) -> Start:
    """Look a start key up, here and, if ``asks``, in the remote store or the bundle."""
    phases, started = Phases(), now_s()
    with context.modules.lease(key, context.upstream(MODULE, key) if asks else None, builds=False) as lease:
        entry = lease.found
        phases.add(LOOK_UP, started)
        content_key = "" if entry is None else str(entry.manifest.info.get("content_key", ""))
        found = WarpOutput.of(entry)
        return Start(key, found, lease.keep, package_of(entry), content_key, steps=phases.found)


def content_key(context: BuildContext, request: WarpCompileRequest, target: str) -> CacheKey:
    """The key over all that Warp's compiler reads for a module. ``target`` is that of :class:`WarpOutput`."""
    digests = context.facts.digests
    return CacheKey.of({
        "headers": digests.digest_folder(Path(request.native_dir), "*.h"),
        "kind": "module of Warp",
        "links": [hashlib.sha256(data).hexdigest() for data in (*request.ltoirs, *request.fatbins)],
        "links_of_fatbins": str(len(request.fatbins)),
        "names": names_in_code(request.name, request.native_dir, verify_fp=request.switches[0]),
        "options": request.options,
        "source": request.source.decode("utf-8"),
        "target": target,
        "warp": digests.digest(Path(request.native_library)),
    })  # fmt: skip


class WarpModuleBuild:
    """The build of a module that Warp has generated, or that the lookup of its start key has found.

    The file of its source is called ``program`` in unmodified Warp, and something else here if the module's hash
    covers whom the user trusts.
    """

    def __init__(
        self, engine: Engine, plan: ModulePlan, program: str, meta: Mapping[str, Any], start: Start | Rejected | None
    ) -> None:
        self.plan = plan
        self._lookup = start
        self._program = program
        self._engine = engine
        self.meta = meta
        self.start = start = start if isinstance(start, Start) else None
        self.context = engine.build_context(plan.settings)
        self._phases = Phases(start.steps if start is not None and start.found is not None else ())

    def finish(self, call: BuildCall) -> None:
        """Write the binary, from an entry or from Warp's compiler."""
        started = self._phases.started_at_s()
        request, wanted, reason = self.request(call.source.read_bytes(), call.module, call.inputs)
        if reason:
            say_left_to_warp(reason)
            call.build(list(call.inputs))
            return
        key = content_key(self.context, request, wanted.target)
        plan, progress = self.plan, self._engine.progress
        keeps, package = plan.settings.all_modules, ""
        with progress.module(plan.name, call.module.arch, plan.block_dim, plan.settings.progress):
            asked_at, program_start = now_s(), self._engine.program_start
            cached = wanted.equal(self.start.found) if self.start is not None else None
            if cached is not None and self.start is not None:
                self._write(call.output, cached)
                package = self.start.package
            else:
                if program_start is not None:
                    program_start.generate_while(lambda: self.context.modules.is_locked(key))
                with self.context.leased_module(key, self._phases, asked_at, keeps=keeps) as lease:
                    cached, by_warp = wanted.equal(WarpOutput.of(lease.found)), False
                    if cached is not None:
                        self._write(call.output, cached)
                        package = package_of(lease.found)
                    elif not keeps:  # it was only looked up
                        self._engine.note_missed(plan)
                        call.build(list(call.inputs))
                        return
                    else:
                        by_warp = self._compile(request, call)
                    if keeps and (not by_warp or call.source.name == self._program):
                        if lease.found is not None and cached is not None:
                            payload = lease.found.payload
                        else:
                            payload = replace(wanted, binary=call.output.read_bytes()).pack()
                        # a module that is found without generation has no link inputs
                        self._keep(payload, key, lease, now_s() - started, binds=not call.inputs)
        if (program_start := self._engine.program_start) is not None and not (call.inputs or request.fatbins):
            start = StartModule.of(self.plan.name, self.plan.block_dim, request, self.meta, None)
            program_start.note(start, key.digest)
        self._engine.log.add_module(
            ModuleLog(
                self.plan, (), "warp", "it calls no function of warp_tiles", call.output.name,
                os.path.getsize(call.output), now_s() - started, module_key=key.digest, found=cached is not None,
                started_at_s=started, phases=self._phases.found, package=package,
                start_key=start_key_of(self._lookup),
            )
        )  # fmt: skip
        if cached is None:
            self._engine.note_missed(plan)

    @property
    def unbound(self) -> Start | None:
        """The lookup of a start key that found nothing."""
        return None if self.start is None or self.start.found is not None else self.start

    def ahead(self, source_path: Path, module: ModuleSource) -> StartModule | None:
        """What is compiled ahead; None if only the module's launch may."""
        may_build = self.plan.settings.rules.builds and self.context.bundle is None
        if not may_build or module.keywords.get("ltoirs") or module.keywords.get("fatbins"):
            return None
        request, _, reason = self.request(source_path.read_bytes(), module, ())
        return None if reason else StartModule.of(self.plan.name, self.plan.block_dim, request, self.meta, None)

    def request(
        self, source: bytes, module: ModuleSource, warp_inputs: Sequence[bytes]
    ) -> tuple[WarpCompileRequest, WarpOutput, str]:
        """The request of a worker, its output without the binary, and the reason why no key covers it."""
        module = replace(module, name=self._program)
        wanted = WarpOutput(b"", source, f".{module.target}.{module.output}", self.meta)
        request = WarpCompileRequest.of(module, source, warp_inputs)
        return request, wanted, reason_without_key(module, source.decode("utf-8"))

    def _write(self, output_path: Path, output: WarpOutput) -> None:
        with self._phases.measured(WRITE):
            write_output(output_path, output.binary)

    def _compile(self, request: WarpCompileRequest, call: BuildCall) -> bool:
        """Compile in a worker. If that fails, or if Warp's log shows what the compiler prints, Warp compiles here.

        Then True. Warp reports errors of the source.
        """
        import warp

        is_shown = warp.config.log_level <= warp.LOG_DEBUG or getattr(warp.config, "verbose", False)  # of older Warps
        try:
            if not is_shown:
                work = self.context.submit(request)
                if (program_start := self._engine.program_start) is not None:
                    program_start.generate_while(lambda: not work.done())
                write_output(call.output, self._phases.of_process(COMPILE, result_of(work)).payload)
                return False
        except LinkError as error:
            log.debug("module %s: %s", self.plan.name, error)
        except WorkerError as error:
            if not self._engine.resources.closed:
                log.warning("Warp compiles module %s in this process: %s", self.plan.name, error.message)
        with self._phases.measured(WARP_LINK):
            call.build(list(call.inputs))
        return True

    def _keep(self, payload: bytes, key: CacheKey, lease: BuildLease, seconds: float, *, binds: bool) -> None:
        """Store the entry under its content key and, if that may find it, its start key, unless they have it."""
        info = {"module": self.plan.name, "build_seconds": round(seconds, 3)}
        if lease.found is None or lease.found.payload != payload:
            lease.keep(payload, info)
        if binds and self.start is not None and self.start.found is None:  # this process has generated the source
            self.start.keep(payload, {**info, "content_key": key.digest})


def start_key_of(lookup: Start | Rejected | None) -> str | Rejected:
    """See :attr:`.ModuleLog.start_key`."""
    if isinstance(lookup, Rejected):
        return lookup
    return "missing" if lookup is None or lookup.found is None else "found"


def say_left_to_warp(reason: str) -> None:
    """Say once why modules are compiled by Warp in its own process, and not kept."""
    warn_once(f"modules are compiled by Warp itself and not kept: {reason}")
