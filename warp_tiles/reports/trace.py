"""The builds of a run in Chrome's trace-event format, which chrome://tracing and Perfetto load.

Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Each
module is a process of the trace. Its rows are threads: functions that overlap in time get different ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from warp_tiles.reports.functions import Json
from warp_tiles.reports.timeline import ModuleRows, Row, timeline

SCHEMA = 1
_US = 1e6


def trace(document: Json, facts: Mapping[str, str]) -> dict[str, Any]:
    """The trace of a record, as JSON values.

    Args:
        document: The result of :func:`warp_tiles.report`.
        facts: Facts about the run, by name.

    Returns:
        ``traceEvents``: complete events (``ph`` is ``X``) with ``ts`` and ``dur`` in microseconds, ``cat`` (``module``,
        ``compile``, ``link``, ``wait``, ``shared``, or ``cache`` for a lookup) and ``args``, and names of processes and
        threads (``ph`` is ``M``). ``ts`` 0 is the moment when warp_tiles was enabled. ``displayTimeUnit`` is ``ms``.
        ``otherData`` has the schema's version and the facts.
    """
    events: list[dict[str, Any]] = []
    for number, module in enumerate(timeline(document.get("modules") or ()), 1):
        events += _module_events(number, module)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"schema": str(SCHEMA), **facts},
    }


def _module_events(process: int, module: ModuleRows) -> list[dict[str, Any]]:
    def named(kind: str, thread: int, **values: object) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": values}

    def event(name: str, category: str, thread: int, start_s: float, seconds: float, text: str) -> dict[str, Any]:
        start, end = round(start_s * _US), round((start_s + seconds) * _US)
        times = {"ts": start, "dur": end - start}
        place = {"pid": process, "tid": thread}
        return {"ph": "X", "name": name, "cat": category, **times, **place, "args": {"what": text}}

    events = [
        named("process_name", 0, name=f"module {module.name}"),
        named("process_sort_index", 0, sort_index=process),
        named("thread_name", 0, name="module"),
        event(
            module.name, "module", 0, module.start_s, module.end_s - module.start_s, "from code generation to the file"
        ),
    ]
    lanes = _lanes(module.rows)
    for thread, rows in enumerate(lanes, 1):
        label, *others = dict.fromkeys(row.label for row in rows)
        events.append(named("thread_name", thread, name=f"functions {thread}" if others else label))
        for row in rows:
            for span in row.spans:
                name = row.label if span.kind != "wait" else f"wait: {row.label}"
                events.append(event(name, span.kind, thread, span.start_s, span.seconds, span.text))
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
