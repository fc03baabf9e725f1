"""What ran when in the builds of modules, and what waited for what, from their logs; and the same as a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warp_tiles.reports.descriptions import Json, functions, module_title

COMPILE, LINK, WAIT, SHARED, CACHED = "compile", "link", "wait", "shared", "cache"
_LOOKUPS = {  # steps of a build that fetch the linked module
    "look_up_module": (CACHED, "looks the linked module up in the cache"),
    "fetch_module": (CACHED, "asks the remote store or the bundle for the linked module"),
    "write_module": (WAIT, "writes its file"),
}
IDLE_S = 10.0  # builds with a longer pause between them are drawn apart


@dataclass(frozen=True)
class Span:
    """Something that took time. It starts and ends in seconds of the process's clock.

    Attributes:
        kind: ``compile``, ``link``, ``wait``, ``shared`` (built for another module) or ``cache`` (a lookup, also in
            the remote store).
    """

    kind: str
    start_s: float
    end_s: float
    text: str

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Row:
    """The spans of one function, of a module's source or of its link. They do not overlap, except lookups.

    ``note`` has its times in words. The spans are sorted by start.
    """

    label: str
    note: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class ModuleRows:
    """The rows of one module.

    Its rows are the lookup of the linked module; if it was not found, functions, the module's source, its link. It
    begins at the end of its code generation and ends when its file was finished, in seconds of the process's clock.
    """

    name: str
    start_s: float
    end_s: float
    rows: tuple[Row, ...]


def timeline(modules: Sequence[Json]) -> list[ModuleRows]:
    """The rows of each module that was built, sorted by start. Modules without times are left out."""
    built = [module for module in modules if "phases" in module and "started_at_s" in module]
    return sorted((_module_rows(module, _builders(built)) for module in built), key=lambda rows: rows.start_s)


def sessions(rows: Sequence[ModuleRows]) -> list[list[ModuleRows]]:
    """The modules in groups, divided where nothing was built for more than ``IDLE_S``."""
    groups: list[list[ModuleRows]] = []
    end = 0.0
    for item in sorted(rows, key=lambda module: module.start_s):
        if not groups or item.start_s > end + IDLE_S:
            groups.append([])
            end = item.end_s
        groups[-1].append(item)
        end = max(end, item.end_s)
    return groups


def _builders(modules: Sequence[Json]) -> dict[tuple[Any, Any], str]:
    return {
        (build["symbol"], build["started_at_s"]): module["name"]
        for module in modules
        for build in module["builds"]
        if not build["shared"]
    }


def _module_rows(module: Json, builders: dict[tuple[Any, Any], str]) -> ModuleRows:
    start, end = _times(module)
    # the functions of a linked module that was found were neither built nor looked up
    builds = [build for build in module["builds"] if build["symbol"] and not module["found"]]
    labels = {id(build): _label(module, build) for build in builds}
    cached = [build for build in builds if build["hit"] and not build["shared"]]
    rows = _lookup_rows(module)
    rows += [
        _shared_row(build, labels[id(build)], start, builders) if build["shared"] else _row(build, labels[id(build)])
        for build in builds
        if build not in cached
    ]
    if cached:
        rows.append(_cached_row(cached, labels))
    rows += _own_rows(module, builds, labels, start)
    return ModuleRows(module_title(module), start, end, tuple(row for row in rows if row.spans))


def _lookup_rows(module: Json) -> list[Row]:
    times = {str(phase["name"]): _times(phase) for phase in module["phases"] if phase["name"] in _LOOKUPS}
    spans = tuple(Span(kind, *times[name], text) for name, (kind, text) in _LOOKUPS.items() if name in times)
    if not spans:
        return []
    origin = "from the remote store or the bundle" if "fetch_module" in times else "from the cache"
    origin = f"from {package}" if (package := module.get("kernel_package")) else origin
    result = origin if module["found"] else "not found"
    return [Row("linked module", f"{result}, {spans[-1].end_s - spans[0].start_s:.3f} s", spans)]


def _label(module: Json, build: Json) -> str:
    planned = [function.planned for function in functions(module) if function.build is build]
    roles = ", ".join(dict.fromkeys(function["role"] for function in planned))
    return f"{roles} {planned[0]['size'] if planned else build['symbol']}"


def _span(kind: str, start: float, end: float, text: str) -> list[Span]:
    return [Span(kind, start, end, text)] if end > start else []


def _times(build: Json) -> tuple[float, float]:
    """Start and end of a build, a module or a step."""
    return build["started_at_s"], build["started_at_s"] + build["seconds"]


def _row(build: Json, label: str) -> Row:
    start, end = _times(build)
    compiled = build["compiled"]
    if not compiled:  # libmathdx builds in this process
        return Row(label, f"built in {end - start:.2f} s", tuple(_span(COMPILE, start, end, f"builds {label}")))
    begin = max(start, compiled["started_at_s"])
    done = min(end, begin + compiled["seconds"])
    spans = _span(WAIT, start, begin, "waits for a compiler process, or for another process that builds it")
    spans += _span(COMPILE, begin, done, f"compiles {label}")
    spans += _span(WAIT, done, end, "stores it in the cache")
    return Row(label, f"{end - start:.2f} s, compiler {done - begin:.2f} s", tuple(spans))


def _shared_row(build: Json, label: str, module_start: float, builders: dict[tuple[Any, Any], str]) -> Row:
    start, end = _times(build)
    owner = builders.get((build["symbol"], build["started_at_s"]))
    source = f"module {owner}" if owner else "a build in the background"
    begin = max(start, module_start)
    waited = max(0.0, end - begin)
    spans = tuple(_span(SHARED, begin, end, f"waits for {source}, which builds {label}"))
    spans = spans or (Span(SHARED, module_start, module_start, f"{label} was already built for {source}"),)
    return Row(label, f"built for {source}, waited {waited:.2f} s", spans)


def _cached_row(cached: Sequence[Json], labels: dict[int, str]) -> Row:
    spans = [Span(CACHED, *_times(build), f"found {labels[id(build)]} in the cache") for build in cached]
    spans.sort(key=lambda span: span.start_s)
    slowest = max(span.seconds for span in spans)
    count = f"{len(spans)} function{'s' * (len(spans) != 1)}"
    return Row(f"{count} from the cache", f"at most {slowest:.3f} s each", tuple(spans))


def _own_rows(module: Json, builds: Sequence[Json], labels: dict[int, str], start: float) -> list[Row]:
    """The rows of the module's own source and of its link, each with the wait before it."""
    phases = {str(phase["name"]): phase for phase in module["phases"]}  # the last one of each name counts
    ends = {labels[id(build)]: _times(build)[1] for build in builds}
    rows = []
    start = max([start, *(_times(phases[name])[1] for name in _LOOKUPS if name in phases)])
    if (compiled := phases.get("compile")) is not None:
        begin, done = _times(compiled)
        ends["its source"] = done
        spans = [*_span(WAIT, start, begin, "waits for a compiler process"), *_span(COMPILE, begin, done, "compiles")]
        rows.append(Row("its source", f"compiler {done - begin:.2f} s", tuple(spans)))
    by_warp = phases.get("link_by_warp")
    link = by_warp or phases.get("link")
    if link is not None:
        begin, done = _times(link)
        ready, last = max(((at, what) for what, at in ends.items()), default=(start, ""))
        ready = min(max(ready, start), begin)
        spans = _span(WAIT, start, ready, f"waits for {last}")
        spans += _span(WAIT, ready, begin, "waits for a compiler process")
        spans += _span(LINK, begin, done, "Warp compiles and links" if by_warp else "links")
        waits = ((ready - start, last), (begin - ready, "a process"))
        waited = ", ".join(f"{seconds:.2f} s for {what}" for seconds, what in waits if seconds >= 0.01)
        note = f"{done - begin:.2f} s" + (f", waited {waited}" if waited else "")
        rows.append(Row("link by Warp" if by_warp else "link", note, tuple(spans)))
    return rows


# ---- Chrome's trace-event format, which chrome://tracing and Perfetto load
#
# Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Each
# module is a process of the trace. Its rows are threads: functions that overlap in time get different ones.

TRACE_SCHEMA = 1
_US = 1e6


def trace(document: Json, facts: Mapping[str, str]) -> dict[str, Any]:
    """The trace of a report, as JSON values.

    Args:
        document: The result of :func:`warp_tiles.report`.
        facts: Facts about the run, by name.

    Returns:
        ``traceEvents``: complete events (``ph`` is ``X``) with ``ts`` and ``dur`` in microseconds, ``cat`` (``module``,
        ``compile``, ``link``, ``wait``, ``shared``, or ``cache`` for a lookup) and ``args``, and names of processes and
        threads (``ph`` is ``M``). ``ts`` 0 is the moment when warp_tiles was enabled. ``displayTimeUnit`` is ``ms``.
        ``otherData`` has the schema's version and the facts.
    """
    modules = enumerate(timeline(document.get("modules") or ()), 1)
    return {
        "traceEvents": [event for number, module in modules for event in _module_events(number, module)],
        "displayTimeUnit": "ms",
        "otherData": {"schema": str(TRACE_SCHEMA), **facts},
    }


def _module_events(process: int, module: ModuleRows) -> list[dict[str, Any]]:
    def named(kind: str, thread: int, **values: object) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": values}

    def event(name: str, category: str, thread: int, start_s: float, end_s: float, text: str) -> dict[str, Any]:
        start, end = round(start_s * _US), round(end_s * _US)
        times = {"ts": start, "dur": end - start}
        identity = {"pid": process, "tid": thread}
        return {"ph": "X", "name": name, "cat": category, **times, **identity, "args": {"what": text}}

    events = [
        named("process_name", 0, name=f"module {module.name}"),
        named("process_sort_index", 0, sort_index=process),
        named("thread_name", 0, name="module"),
        event(module.name, "module", 0, module.start_s, module.end_s, "from code generation to the file"),
    ]
    lanes = _lanes(module.rows)
    for thread, rows in enumerate(lanes, 1):
        label, *others = dict.fromkeys(row.label for row in rows)
        events.append(named("thread_name", thread, name=f"functions {thread}" if others else label))
        for row in rows:
            for span in row.spans:
                name = row.label if span.kind != "wait" else f"wait: {row.label}"
                events.append(event(name, span.kind, thread, span.start_s, span.end_s, span.text))
    return events


def _lanes(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows in as few lanes as hold them without an overlap. Lookups of one row are divided among lanes."""
    single: list[Row] = []
    for row in rows:
        is_divided = any(span.kind == "cache" for span in row.spans)
        single += [Row(row.label, row.note, (span,)) for span in row.spans] if is_divided else [row]
    lanes: list[list[Row]] = []
    for row in sorted(single, key=lambda item: item.spans[0].start_s):
        free = next((lane for lane in lanes if lane[-1].spans[-1].end_s <= row.spans[0].start_s), None)
        if free is None:
            lanes.append([row])
        else:
            free.append(row)
    return lanes
