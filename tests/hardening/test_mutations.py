"""Mutations of every kind of file that is read back: none crashes the reader, none is served, each is said once."""

from __future__ import annotations

import logging
import random
import shutil
import warnings
from pathlib import Path

import pytest

from tests.hardening.damage import MUTATIONS, damage
from tests.hardening.subjects import ABSENT, SILENT, SUBJECTS
from warp_tiles.cache import _report
from warp_tiles.tuning import folder as record_folder
from warp_tiles.util.warn import WarnedTexts

SEEDS = 7  # for each kind, mutation, and treatment of the times: 2,240 in all


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """For each kind: a folder with a sound file, and the file."""
    found = {}
    for name, subject in SUBJECTS.items():
        folder = tmp_path_factory.mktemp("sound")
        found[name] = folder, subject.write(folder)
        if name != "holder of a lock":
            assert subject.read(folder) is not ABSENT
    return found


def test_there_are_two_thousand_mutations() -> None:
    assert len(SUBJECTS) * len(MUTATIONS) * 2 * SEEDS >= 2000


@pytest.mark.parametrize("keep_times", [True, False], ids=["same time", "new time"])
@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_mutation_is_not_served(
    written: dict[str, tuple[Path, Path]],
    kind: str,
    keep_times: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    subject, (sound, file) = SUBJECTS[kind], written[kind]
    expected = subject.read(sound)
    for mutation in MUTATIONS:
        for seed in range(SEEDS):
            folder = tmp_path / f"{mutation} {seed}"
            shutil.copytree(sound, folder, copy_function=shutil.copy2)
            changed = damage(
                folder / file.relative_to(sound), mutation, random.Random(f"{kind} {mutation} {seed}"),
                keep_times=keep_times,
            )  # fmt: skip
            monkeypatch.setattr(_report, "_logged", set())
            monkeypatch.setattr(record_folder, "_warned", WarnedTexts())
            caplog.clear()
            with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.WARNING):
                warnings.simplefilter("always")
                found = [subject.read(folder) for _ in range(2)]
            said = [record.getMessage() for record in caplog.records] + [str(item.message) for item in warned]
            case = f"{kind}, {mutation}, {seed}: {said}"
            assert all(item is ABSENT or item == expected for item in found), case
            if found[0] is ABSENT and changed:
                assert len(said) == (kind not in SILENT), case
            else:
                assert not said, case
            if found[0] is ABSENT and subject.repaired:
                assert not (folder / file.relative_to(sound)).exists(), case
            shutil.rmtree(folder)
