"""Shared-memory wavefronts of fixed variants: exactly those on record, and close to the least possible."""

from __future__ import annotations

import json

import pytest

from tests.emulator.emulator import ROLES, Answer, Emulator
from tests.emulator.gemm import Case
from tests.emulator.wavefronts import FILE, fixed_cases, run, to_json

LARGEST_RATIO = 1.25


@pytest.fixture(scope="module")
def counted(emulator: Emulator) -> list[tuple[Case, Answer]]:
    """Every fixed case with its answer."""
    cases = fixed_cases()
    return list(zip(cases, run(emulator, cases)))


def test_wavefronts_are_those_on_record(counted: list[tuple[Case, Answer]]) -> None:
    cases, answers = zip(*counted)
    found, recorded = to_json(list(cases), list(answers)), json.loads(FILE.read_text())
    changed = [
        f"{symbol}: {recorded.get(symbol)} became {found.get(symbol)}"
        for symbol in {**recorded, **found}
        if recorded.get(symbol) != found.get(symbol)
    ]
    assert not changed, (
        f"{len(changed)} of {len(found)} variants; if that is intended: python -m tests.emulator.wavefronts\n"
        + "\n".join(changed[:12])
    )


def test_tensor_core_products_take_few_more_wavefronts_than_the_least(counted: list[tuple[Case, Answer]]) -> None:
    above = []
    for case, answer in counted:
        counts = answer.counts.values()
        wavefronts, ideal = sum(count.wavefronts for count in counts), sum(count.ideal for count in counts)
        assert ideal > 0
        if case.config.instruction != "fma" and wavefronts > LARGEST_RATIO * ideal:
            parts = ", ".join(f"{role} {answer.counts[role].wavefronts}/{answer.counts[role].ideal}" for role in ROLES)
            above.append(f"{wavefronts / ideal:.2f} {case.describe()}: {parts}")
    assert not above, f"{len(above)} of {len(counted)} variants:\n" + "\n".join(sorted(above, reverse=True)[:20])
