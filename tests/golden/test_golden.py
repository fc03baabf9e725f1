"""Decisions, sources and cubins of a corpus are those of ``golden.json``; see ``tests/golden/__main__.py``."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.golden.__main__ import GOLDEN, differences, written
from tests.golden.corpus import ARCHS, CUBINS, corpus
from tests.golden.observe import (
    compiled,
    compiler,
    decisions,
    header_digests,
    observe,
    packed,
    planned,
    planning,
    unpacked,
)
from tests.nightly import some
from warp_tiles.plan.planning import PlannedLoop

pytestmark = pytest.mark.usefixtures("clean_settings")
REWRITE = "rewrite them with python -m tests.golden --write, and say in the commit what changed"


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text("utf-8"))
    return found


@pytest.mark.parametrize("first", some(range(3), 1, "slow"))
def test_the_decisions_and_sources_of_the_corpus(golden: dict[str, Any], first: int) -> None:
    """A third of the cases, each for one architecture in turn, which takes 4 s. The command compares all."""
    cases = {
        case.name: (case, ARCHS[number % len(ARCHS)]) for number, case in enumerate(corpus()) if number % 3 == first
    }
    with planning():
        found = {name: {arch: observe(case, arch)} for name, (case, arch) in cases.items()}
    now = packed(found, {"compiler": "", "headers": header_digests(), "cubins": {}})
    known = unpacked(golden)
    kept = {name: {arch: known[name][arch]} for name, (_, arch) in cases.items() if arch in known.get(name, ())}
    before = packed(kept, {"compiler": "", "headers": golden["headers"], "cubins": {}})
    assert "\n".join(differences(before, now)) == "", REWRITE


def test_no_case_is_gone(golden: dict[str, Any]) -> None:
    assert set(unpacked(golden)) == {case.name for case in corpus()}, REWRITE


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CUBINS)[:2])
def test_registers_shared_memory_and_machine_code(golden: dict[str, Any], name: str) -> None:
    assert golden["compiler"] == compiler(), "the extra test of pyproject.toml has the compiler of the cubins"
    (case,) = (case for case in corpus() if case.name == name)
    arch = CUBINS[name][0]
    with planning():
        found = compiled(case, arch)
    assert found == golden["cubins"][f"{name}, sm_{arch}"], REWRITE


def test_a_difference_is_shown() -> None:
    entry = {"source": "1", "headers": [], "lines": ["loop 0: pipelined"]}
    other = {"source": "2", "headers": [], "lines": ["loop 0: as_warp"]}
    rest = {"compiler": "", "headers": {"A": "1"}, "cubins": {}}
    before, now = packed({"case": {90: entry}}, rest), packed({"case": {90: other}}, {**rest, "headers": {"A": "2"}})
    assert json.loads(written(before)) == before
    assert list(differences(before, before)) == []
    assert list(differences(before, now)) == [
        "device functions of A differ",
        "case, sm_90: another source",
        "case, sm_90:\n  - loop 0: pipelined",
        "case, sm_90:\n  + loop 0: as_warp",
    ]
    assert list(differences(before, packed({}, rest))) == ["case, sm_90: gone"]


def test_a_change_of_words_changes_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = (case for case in corpus() if case.name == "form bounds from a shape")
    with planning():
        plan, _ = planned(case.make(90)[0], 90, 64)
    lines = list(decisions(plan))
    for words in ("reason", "reverse", "store", "loads", "cost"):
        monkeypatch.setattr(PlannedLoop, words, "words")
    loops = tuple(replace(loop, gradients="words") for loop in plan.loops)
    functions = tuple(replace(planned, reason="words") for planned in plan.functions)
    other = replace(plan, loops=loops, functions=functions, register_limit_reason="words")
    assert list(decisions(other)) == lines
    assert list(decisions(replace(plan, loops=()))) != lines
    monkeypatch.setattr(PlannedLoop, "codes", ("beta",))
    assert list(decisions(plan)) != lines
