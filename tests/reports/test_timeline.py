"""The timeline: what ran when, who waited for what, its drawing, and the same as a trace."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import defaultdict
from typing import Any

import pytest

from tests.reports.records import FORWARD, HOSTILE, backward_plan, hostile, looked_up, plan, planned, record, run
from warp_tiles.reports.page import chart, ticks
from warp_tiles.reports.timeline import ModuleRows, Row, Span, sessions, timeline, trace


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


def test_what_follows_the_compiler_is_shown_too() -> None:
    assert kinds(row_of_build(seconds=0.9)) == [("wait", 1.0, 1.1), ("compile", 1.1, 1.6), ("wait", 1.6, 1.9)]


def test_a_build_without_a_compiler_process_works_all_the_time() -> None:
    assert kinds(row_of_build(compiled=None)) == [("compile", 1.0, 1.6)]


def test_cache_hits_are_apart_from_builds() -> None:
    rows = rows_of("second")
    assert kinds(rows["1 function from the cache"]) == [("cache", 1.05, 1.052)]
    assert "forward 4x4x16" not in rows
    assert "forward 4x4x16" in rows["1 function from the cache"].spans[0].text


def test_a_shared_build_names_the_module_that_it_waits_for() -> None:
    row = rows_of("third")["forward 8x12x4"]
    assert kinds(row) == [("shared", 1.2, 1.6)], "it waits from its own start on"
    assert row.note == "built for module first, waited 0.40 s"


def test_a_build_that_ended_before_has_no_wait() -> None:
    modules = run()["modules"]
    for module in modules:
        if module["name"] == "third":
            module["started_at_s"] = 5.0
    (third,) = (item for item in timeline(modules) if item.name.startswith("third"))
    assert kinds(third.rows[0]) == [("shared", 5.0, 5.0)]
    assert third.rows[0].note == "built for module first, waited 0.00 s"


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


def test_a_drawing_of_lookups_begins_with_them() -> None:
    text = chart(timeline(looked_up()["modules"])).text
    assert text.count('class="lanes"') == 1
    bars = re.findall(r'<rect class="cache" x="([\d.]+)%" y="\d+" width="([\d.]+)%" height="12"><title>([^<]+)', text)
    assert len(bars) == 5
    assert bars[0] == ("0.00", "8.33", "looks the linked module up in the cache: 0.250 s")


def test_a_link_by_warp_has_another_name() -> None:
    assert rows_of("late")["link by Warp"].spans[-1].text == "Warp compiles and links"


def test_a_pause_divides_the_timeline() -> None:
    groups = sessions(timeline(run()["modules"]))
    assert [[item.name.partition(",")[0] for item in group] for group in groups] == [
        ["first", "second", "third"],
        ["late"],
    ]
    assert sessions([]) == []


def test_a_module_within_a_longer_one_does_not_end_its_group() -> None:
    long, short, next_ = (ModuleRows(n, s, e, ()) for n, s, e in (("a", 0, 100), ("b", 1, 2), ("c", 105, 106)))
    assert len(sessions([long, short, next_])) == 1


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (1.59, 26.4), (0, 0.0031), (99.97, 101), (3600.2, 3604.9), (0, 86_400)]
)
def test_ticks_are_round_and_few(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)
    steps = {round(b - a, 9) for a, b in itertools.pairwise(found)}
    assert len(steps) <= 1
    for step in steps:
        assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5)


def test_the_drawing_keeps_all_bars_inside_and_visible() -> None:
    text = chart(timeline(run()["modules"])).text
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)%" y="\d+" width="([\d.]+)%"', text)
    assert {kind for kind, _, _ in bars} == {"compile", "link", "cache", "shared", "wait"}
    for _, left, width in bars:
        assert 0 <= float(left) <= 100
        assert 0.1 <= float(width) <= 100.01 - float(left)
    assert text.count('class="lanes"') == 2, "a drawing for each group"


def test_every_bar_has_a_text_for_screen_readers() -> None:
    text = chart(timeline(run()["modules"])).text
    rows = sum(len(item.rows) for item in timeline(run()["modules"]))
    assert len(re.findall(r'role="img" aria-label="[^"]+"', text)) == rows
    assert "waits for adjoint_a 4x16x4: 1.510 s" in text


def test_a_module_of_no_length_can_be_drawn() -> None:
    rows = [ModuleRows("m", 1.0, 1.0, (Row("r", "n", (Span("cache", 1.0, 1.0, "t"),)),))]
    assert "NaN" not in chart(rows).text


def test_times_of_a_backward_module_are_those_of_the_record() -> None:
    made = record(backward_plan(), [FORWARD], 1.0, 2.0).to_json()
    assert [phase["name"] for phase in made["phases"]] == ["wait_for_functions", "compile", "link"]


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
