"""The trace: the schema of docs/report.md, which is that of Chrome's trace-event format."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

from tests.reports.records import HOSTILE, hostile, looked_up, planned, run
from warp_tiles.reports.timeline import timeline, trace

COMPLETE = {"ph", "name", "cat", "ts", "dur", "pid", "tid", "args"}
METADATA = {"ph", "name", "pid", "tid", "ts", "args"}
CATEGORIES = {"module", "compile", "link", "wait", "shared", "cache"}
NAMES = {"process_name", "process_sort_index", "thread_name"}


def events(document: Any, kind: str) -> list[dict[str, Any]]:
    return [event for event in trace(document, {})["traceEvents"] if event["ph"] == kind]


def test_the_schema() -> None:
    found = json.loads(json.dumps(trace(run(), {"script": "train.py"}), allow_nan=False))
    assert set(found) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert found["displayTimeUnit"] == "ms"
    assert found["otherData"] == {"schema": "1", "script": "train.py"}
    for event in found["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert set(event) == (COMPLETE if event["ph"] == "X" else METADATA)
        assert all(type(event[name]) is int for name in ("pid", "tid", "ts"))
        if event["ph"] == "X":
            assert event["cat"] in CATEGORIES
            assert type(event["dur"]) is int
            assert event["dur"] >= 0
            assert set(event["args"]) == {"what"}
        else:
            assert event["name"] in NAMES


def test_each_module_is_a_process_with_named_rows() -> None:
    names = {e["pid"]: e["args"]["name"] for e in events(run(), "M") if e["name"] == "process_name"}
    assert names == {
        1: "module first, sm_90a, 128 threads",
        2: "module second, sm_90, 128 threads",
        3: "module third, sm_90a, 128 threads",
        4: "module late, sm_90a, 128 threads",
    }
    named = {(e["pid"], e["tid"]) for e in events(run(), "M") if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events(run(), "X")} == named


def test_every_span_of_the_timeline_is_an_event_in_microseconds() -> None:
    modules = timeline(run()["modules"])
    expected = [
        (number, span.kind, round(span.start_s * 1e6))
        for number, module in enumerate(modules, 1)
        for row in module.rows
        for span in row.spans
    ]
    found = [(e["pid"], e["cat"], e["ts"]) for e in events(run(), "X") if e["cat"] != "module"]
    assert sorted(found) == sorted(expected)
    (first, *_) = [e for e in events(run(), "X") if e["cat"] == "module"]
    assert (first["ts"], first["dur"]) == (1_000_000, 2_000_000)


def test_events_of_one_row_do_not_overlap() -> None:
    rows: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events(run(), "X"):
        rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert max(len(spans) for spans in rows.values()) > 1
    for spans in rows.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(spans)):
            assert end <= start


def test_hits_at_the_same_time_get_rows_of_their_own() -> None:
    document = run()
    (late,) = (module for module in document["modules"] if module["name"] == "late")
    late["builds"] *= 3
    lookups = [e for e in events(document, "X") if e["cat"] == "cache" and e["pid"] == 4]
    assert len({e["tid"] for e in lookups}) == len(lookups) == 3


def test_lookups_of_linked_modules_are_events() -> None:
    found = [
        (e["pid"], e["ts"], e["dur"], e["name"], e["args"]["what"][:5])
        for e in events(looked_up(), "X")
        if "linked module" in e["name"]
    ]
    assert found == [
        (1, 7_000_000, 250_000, "linked module", "looks"),
        (1, 7_250_000, 100_000, "wait: linked module", "write"),
        (2, 7_000_000, 250_000, "linked module", "looks"),
        (2, 7_250_000, 500_000, "linked module", "asks "),
        (3, 7_000_000, 250_000, "linked module", "looks"),
        (3, 7_250_000, 500_000, "linked module", "asks "),
    ]
    assert {e["args"]["name"] for e in events(looked_up(), "M") if e["name"] == "thread_name" and e["pid"] == 1} == {
        "module", "linked module"
    }  # fmt: skip


def test_texts_stay_as_they_are() -> None:
    text = json.dumps(trace(hostile(), {}))
    assert json.dumps(f"module first{HOSTILE}")[1:-1] in text


def test_a_plan_has_no_events() -> None:
    assert trace(planned(), {})["traceEvents"] == []
    assert trace({}, {})["traceEvents"] == []
