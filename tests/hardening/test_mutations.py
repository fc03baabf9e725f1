"""Mutations of every kind of file that is read back: none crashes the reader, none is served, each is said once."""

import logging
import os
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.hardening import launches
from tests.hardening.damage import MUTATIONS, REPLACEMENTS, damage
from tests.hardening.memory import less_than
from tests.hardening.subjects import ABSENT, SUBJECTS, Subject
from tests.nightly import some
from warp_tiles import cli
from warp_tiles._warp.modules import compile_module
from warp_tiles.errors import WarpTilesError
from warp_tiles.store import MEASUREMENTS, MISSED_KEYS, MODULES, TOOLCHAIN_FACTS, documents
from warp_tiles.store.cache import Cache
from warp_tiles.util import warn
from warp_tiles.util.threads import DaemonThreads
from warp_tiles.util.warn import WarnedTexts

SEEDS = 7  # for each kind, mutation, and treatment of the times; each run has the first two


def draw_of(kind: str, mutation: str, seed: int) -> random.Random:
    return random.Random(f"{kind} {mutation} {seed}")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """For each kind: a folder with a sound file, and the file."""
    found = {}
    for name, subject in SUBJECTS.items():
        folder = tmp_path_factory.mktemp("sound")
        found[name] = folder, subject.write(folder)
        assert subject.read(folder) is not ABSENT
    return found


@pytest.fixture
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process, every message is new. Files need not survive a crash of the system."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(documents, "_logged", WarnedTexts())
    monkeypatch.setattr(warn, "_once", WarnedTexts())


def test_two_thousand_mutations_change_a_file(written: dict[str, tuple[Path, Path]]) -> None:
    changed = 0
    for kind, (_, file) in written.items():
        data = file.read_bytes()
        for mutation, mutate in MUTATIONS.items():
            changed += 2 * sum(mutate(data, draw_of(kind, mutation, seed)) != data for seed in range(SEEDS))
    assert changed >= 2000


def read_twice(subject: Subject, folder: Path, caplog: pytest.LogCaptureFixture) -> tuple[list[Any], list[str]]:
    """What two processes read, and what they say."""
    found, said = [], []
    caplog.clear()
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        for _ in range(2):
            try:
                found.append(subject.read(folder))
            except WarpTilesError as error:
                found.append(ABSENT)
                said.append(str(error))
    return found, said + [record.getMessage() for record in caplog.records] + [str(item.message) for item in warned]


@pytest.mark.usefixtures("nothing_said")
@pytest.mark.parametrize("keep_times", [True, False], ids=["same time", "new time"])
@pytest.mark.parametrize("seeds", some([range(2), range(2, SEEDS)], 1), ids=["first", "others"])
@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_mutation_is_not_served(
    written: dict[str, tuple[Path, Path]],
    kind: str,
    seeds: range,
    keep_times: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    subject, (sound, file) = SUBJECTS[kind], written[kind]
    expected = subject.read(sound)
    for mutation in MUTATIONS:
        for seed in seeds:
            folder = tmp_path / f"{mutation} {seed}"  # another one each time, because messages name it
            shutil.copytree(sound, folder, copy_function=shutil.copy2)
            damaged = folder / file.relative_to(sound)
            changed = damage(damaged, mutation, draw_of(kind, mutation, seed), keep_times=keep_times)
            found, said = read_twice(subject, folder, caplog)
            case = f"{kind}, {mutation}, {seed}: {said}"
            assert all(item is ABSENT or item == expected for item in found), case
            if found[0] is ABSENT and changed:
                assert len(said) == (2 if subject.every_time else 1), case
            else:
                assert not said, case
            if found[0] is ABSENT and subject.repaired:
                assert not damaged.exists(), case
            shutil.rmtree(folder)


@pytest.mark.usefixtures("nothing_said")
@pytest.mark.parametrize(
    ("kind", "replacement"),
    [(kind, name) for kind in SUBJECTS for name in REPLACEMENTS if name != "a huge file" or not SUBJECTS[kind].large],
)
def test_what_stands_in_the_place_of_a_file_is_not_served_and_costs_little(
    kind: str, replacement: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    subject = SUBJECTS[kind]
    file = subject.write(tmp_path)
    expected, content = subject.read(tmp_path), file.read_bytes()
    assert expected is not ABSENT
    REPLACEMENTS[replacement](file)
    reading = DaemonThreads(1, "test").submit(read_twice, subject, tmp_path, caplog)
    with less_than(16 << 20):
        found, said = reading.result(20)
    if replacement == "a link to a sound file" and not subject.inside:
        assert (found, said) == ([expected] * 2, [])
        return
    assert found == [ABSENT] * 2
    assert len(said) == 2 if subject.every_time else len(said) <= 1, said
    if replacement == "a link to a sound file":
        assert file.with_name("elsewhere").read_bytes() == content


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the cache of a launch on the CPU and of a build for a GPU, and with other sound files in it."""
    folder = tmp_path_factory.mktemp("used")
    for kind in (MEASUREMENTS, MISSED_KEYS):
        SUBJECTS[kind.location].write(folder)
    with launches.compiling_once():
        assert launched(folder)
        yield folder


def launched(folder: Path) -> bool:
    """Launch on the CPU and build for a GPU with the cache of a folder, as a new process. True if both are right."""
    module = wp.get_module(launches.__name__)
    with warp_tiles.override(cache_dir=folder / "cache", modules="tiles", progress="off"), warp_tiles.enabled():
        right = launches.launched()
        cubin = compile_module(module, 90, 64, folder / "new")
        sound = folder / "sound.cubin"
        if not sound.exists():
            shutil.copyfile(cubin, sound)
        right = right and cubin.read_bytes() == sound.read_bytes()
    shutil.rmtree(folder / "new")
    return right


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_said")
@pytest.mark.filterwarnings("ignore:warp_tiles")
def test_a_launch_and_a_build_are_right_with_a_mutated_cache(used: Path, tmp_path: Path) -> None:
    """Each time, about half of the files in the cache are damaged."""
    for seed, mutation in enumerate(MUTATIONS):
        folder, draw = tmp_path / mutation, random.Random(seed)
        shutil.copytree(used, folder, copy_function=shutil.copy2)
        files = sorted(path for path in (folder / "cache").rglob("*") if path.is_file() and path.stat().st_size)
        for path in draw.sample(files, len(files) // 2):
            damage(path, mutation, draw, keep_times=bool(seed % 2))
        assert launched(folder), mutation


BESIDE = TOOLCHAIN_FACTS, MISSED_KEYS, MODULES


@pytest.fixture
def damaged(tmp_path: Path) -> list[Path]:
    """One damaged file of each kind below one root."""
    files = [SUBJECTS[kind.location].write(tmp_path) for kind in BESIDE]
    for file in files:
        assert damage(file, "a flipped bit", random.Random(3), keep_times=True)
    return files


def test_verify_and_the_doctor_name_damage_beside_the_store(damaged: list[Path], tmp_path: Path) -> None:
    with warp_tiles.override(cache_dir=tmp_path / "cache"):
        finding = cli._cache()
    assert (finding.state, finding.remedy) == ("problem", "run `warp-tiles cache verify`")
    cache = Cache(tmp_path / "cache")
    report = cache.verify()
    assert sorted(finding.path for finding in report.damaged) == sorted(damaged)
    assert all(file.exists() for file in damaged)
    cache.verify(remove=True)
    assert not any(file.exists() for file in damaged)
    assert cache.verify().ok
