"""The timeline: what ran when, who waited for what, and the same as a trace."""

import itertools
import json
from collections import defaultdict
from typing import Any

from tests.reports.logs import FORWARD, looked_up, plan, planned, record, run
from warp_tiles.reports.timeline import Row, sessions, timeline, trace


def rows_of(name: str) -> dict[str, Row]:
    (module,) = (item for item in timeline(run()["modules"]) if item.name.startswith(f"{name},"))
    return {row.label: row for row in module.rows}


def kinds(row: Row) -> list[tuple[str, float, float]]:
    return [(span.kind, round(span.start_s, 3), round(span.end_s, 3)) for span in row.spans]


def test_modules_are_sorted_by_start_and_plans_left_out() -> None:
    found = timeline(run()["modules"])
    assert [item.name.partition(",")[0] for item in found] == ["first", "second", "third", "late"]
    assert (found[0].start_s, found[0].end_s) == (1.0, 3.0)
    assert timeline(planned()["modules"]) == []


def test_a_build_waits_and_then_compiles() -> None:
    row = rows_of("first")["forward 8x12x4"]
    assert kinds(row) == [("wait", 1.0, 1.1), ("compile", 1.1, 1.6)]
    assert row.note == "0.60 s, compiler 0.50 s"


def row_of_build(**change: Any) -> Row:
    """The row of a changed build."""
    made = record(plan(), [FORWARD], 1.0, 2.0).to_json()
    made["builds"][0] |= change
    (module,) = timeline([made])
    return module.rows[0]


def test_cache_hits_are_apart_from_builds() -> None:
    rows = rows_of("second")
    assert kinds(rows["1 function from the cache"]) == [("cache", 1.05, 1.052)]
    assert "forward 4x4x16" not in rows
    assert "forward 4x4x16" in rows["1 function from the cache"].spans[0].text


def test_a_shared_build_names_the_module_that_it_waits_for() -> None:
    row = rows_of("third")["forward 8x12x4"]
    assert kinds(row) == [("shared", 1.2, 1.6)], "it waits from its own start on"
    assert row.note == "built for module first, waited 0.40 s"


def test_a_build_in_the_background_is_named() -> None:
    assert row_of_build(shared=True, hit=True).note.startswith("built for a build in the background")


def test_the_link_names_what_it_waited_for_last() -> None:
    assert rows_of("first")["link"].note == "1.30 s, waited 0.70 s for its source"
    row = rows_of("second")["link"]
    assert row.note == "1.49 s, waited 1.51 s for adjoint_a 4x16x4"
    assert kinds(row) == [("wait", 1.04, 2.55), ("link", 2.55, 4.04)]


def test_a_module_that_was_found_has_its_lookup_alone() -> None:
    cached, fetched, _ = timeline(looked_up()["modules"])
    (row,) = cached.rows
    assert kinds(row) == [("cache", 7.0, 7.25), ("wait", 7.25, 7.35)]
    assert (row.label, row.note) == ("linked module", "from the cache, 0.350 s")
    (row,) = fetched.rows
    assert kinds(row) == [("cache", 7.0, 7.25), ("cache", 7.25, 7.75)]
    assert row.note == "from the remote store or the bundle, 0.750 s"
    assert [span.text for span in row.spans] == [
        "looks the linked module up in the cache",
        "asks the remote store or the bundle for the linked module",
    ]


def test_a_module_that_was_not_found_is_built_after_the_lookup() -> None:
    missed = timeline(looked_up()["modules"])[-1]
    rows = {row.label: row for row in missed.rows}
    assert list(rows) == ["linked module", "forward 8x12x4", "its source"]
    assert rows["linked module"].note == "not found, 0.750 s"
    assert kinds(rows["its source"]) == [("wait", 7.75, 9.0), ("compile", 9.0, 9.5)]


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
