"""The timeline: what ran when, who waited for what, and the same as a trace."""

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest

from tests.reports.logs import FORWARD, looked_up, plan, planned, record, run
from warp_tiles.reports.timeline import Row, sessions, timeline, trace


def kinds(row: Row) -> list[tuple[str, float, float]]:
    return [(span.kind, round(span.start_s, 3), round(span.end_s, 3)) for span in row.spans]


def test_modules_are_sorted_by_start_and_plans_left_out() -> None:
    found = timeline(run()["modules"])
    assert [item.name.partition(",")[0] for item in found] == ["first", "second", "third", "late"]
    assert (found[0].start_s, found[0].end_s) == (1.0, 3.0)
    assert timeline(planned()["modules"]) == []


MODULES = [*run()["modules"], *looked_up()["modules"]]
# the module, the row's label, its note, and its spans
ROWS = [
    ("first", "forward 8x12x4", "0.60 s, compiler 0.50 s", [("wait", 1.0, 1.1), ("compile", 1.1, 1.6)]),
    ("first", "link", "1.30 s, waited 0.70 s for its source", [("wait", 1.0, 1.7), ("link", 1.7, 3.0)]),
    ("second", "1 function from the cache", "at most 0.002 s each", [("cache", 1.05, 1.052)]),
    ("second", "link", "1.49 s, waited 1.51 s for adjoint_a 4x16x4", [("wait", 1.04, 2.55), ("link", 2.55, 4.04)]),
    ("third", "forward 8x12x4", "built for module first, waited 0.40 s", [("shared", 1.2, 1.6)]),
    ("cached", "linked module", "from the cache, 0.350 s", [("cache", 7.0, 7.25), ("wait", 7.25, 7.35)]),
    ("fetched", "linked module", "from the remote store or the bundle, 0.750 s",
     [("cache", 7.0, 7.25), ("cache", 7.25, 7.75)]),
    ("missed", "linked module", "not found, 0.750 s", [("cache", 7.0, 7.25), ("cache", 7.25, 7.75)]),
    ("missed", "its source", "compiler 0.50 s", [("wait", 7.75, 9.0), ("compile", 9.0, 9.5)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "label", "note", "spans"), ROWS)
def test_a_row_says_what_ran_and_what_it_waited_for(
    name: str, label: str, note: str, spans: list[tuple[str, float, float]]
) -> None:
    (module,) = (one for one in timeline(MODULES) if one.name.startswith(f"{name},"))
    (row,) = (row for row in module.rows if row.label == label)
    assert kinds(row) == spans
    assert row.note == note


def test_rows_of_builds_that_another_one_made() -> None:
    made = record(plan(), [FORWARD], 1.0, 2.0).to_json()
    made["builds"][0] |= {"shared": True, "hit": True}
    (module,) = timeline([made])
    assert module.rows[0].note.startswith("built for a build in the background")
    rows = {module.name.partition(",")[0]: {row.label: row for row in module.rows} for module in timeline(MODULES)}
    second, cached, fetched, missed = (rows[name] for name in ("second", "cached", "fetched", "missed"))
    assert "forward 4x4x16" not in second
    assert "forward 4x4x16" in second["1 function from the cache"].spans[0].text
    assert len(cached) == len(fetched) == 1, "its lookup alone"
    assert list(missed) == ["linked module", "forward 8x12x4", "its source"]
    assert [span.text for span in fetched["linked module"].spans] == [
        "looks the linked module up in the cache",
        "asks the remote store or the bundle for the linked module",
    ]


def test_a_pause_divides_the_timeline() -> None:
    groups = sessions(timeline(run()["modules"]))
    assert [[item.name.partition(",")[0] for item in group] for group in groups] == [
        ["first", "second", "third"],
        ["late"],
    ]
    assert sessions([]) == []


# ---- the trace


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


def test_a_plan_has_no_events() -> None:
    assert trace(planned(), {})["traceEvents"] == []
    assert trace({}, {})["traceEvents"] == []
