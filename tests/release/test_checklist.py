"""The release checklist finds what would break a release."""

from __future__ import annotations

import re

import pytest

from tools import release
from tools.project import ROOT, version

BETA, STABLE = release.STATUS[True], release.STATUS[False]


@pytest.mark.parametrize(
    ("text", "classifier", "tags", "fault"),
    [
        ("1.0.0rc1", BETA, ["v0.1.0"], ""),
        ("1.0.0", STABLE, [], ""),
        ("0.1.0", BETA, [], ""),
        ("1.0.0", BETA, [], "lacks the classifier"),
        ("1.0.0rc1", STABLE, [], "lacks the classifier"),
        ("1.0.0-rc1", BETA, [], "its normal form is '1.0.0rc1'"),
        ("one", BETA, [], "is no version"),
        ("1.0.0.dev1", BETA, [], "for development"),
        ("1.0.0rc1+local", BETA, [], "for development"),
        ("1.0.0rc1", BETA, ["v1.0.0rc1"], "exists already"),
    ],
)
def test_versions(text: str, classifier: str, tags: list[str], fault: str) -> None:
    faults = release.version_problems(text, [classifier], tags)
    assert (len(faults), fault in "".join(faults)) == (bool(fault), True)


@pytest.mark.parametrize(
    ("sections", "fault"),
    [
        ("## Unreleased\n\n## 1.0.0rc1 (2026-12-01)\n\n- A line.\n\n## 0.1.0 (2026-01-01)\n\n- Old.\n", ""),
        ("## 1.0.0rc1 (2026-12-01)\n\n- A line.\n", ""),
        ("## Unreleased\n\n- A line.\n\n## 1.0.0rc1 (2026-12-01)\n\n- A line.\n", "is 'Unreleased', not"),
        ("## 1.0.0rc1 (2026-12-01)\n\n## 0.1.0 (2026-01-01)\n\n- Old.\n", "is '0.1.0 (2026-01-01)', not"),
        ("## 1.0.0rc1\n\n- A line.\n", "needs its date"),
        ("# Changelog\n", "is none, not"),
    ],
)
def test_changelogs(sections: str, fault: str) -> None:
    faults = release.changelog_problems(f"# Changelog\n\n{sections}", "1.0.0rc1")
    assert (len(faults), fault in "".join(faults)) == (bool(fault), True)


def test_the_present_version_is_ready_but_for_its_changelog() -> None:
    assert release.one_version() == []
    assert version() in (ROOT / release.VERSION_FILE).read_text()


def test_no_other_file_states_the_version() -> None:
    stated = re.compile(rf'(?:version|__version__)["\s:=]+"?{re.escape(version())}\b')
    places = [*ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("recipe/*")]
    places += [ROOT / "CMakeLists.txt", *ROOT.glob("warp_tiles/**/*.py")]
    assert [path.relative_to(ROOT) for path in places if stated.search(path.read_text("utf-8"))] == [
        release.VERSION_FILE
    ]


def test_every_check_runs_and_a_broken_one_counts(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> list[str]:
        raise RuntimeError("disk")

    assert release.main({"one": list, "two": broken, "three": lambda: ["first", "second"]}) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  ok      one",
        "  FAILED  two",
        "            RuntimeError: disk",
        "  FAILED  three",
        "            first",
        "            second",
        "2 of 3 checks failed.",
    ]


def test_a_complete_list_ends_with_what_a_person_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main({"one": list}) == 0
    printed = capsys.readouterr().out
    assert f"git tag -s v{version()}" in printed
    assert "twine upload" in printed
    assert "pytest -m gpu" in printed


def test_every_part_of_a_release_is_checked() -> None:
    functions = {check.__name__ for check in release.CHECKS.values()}
    assert functions >= {"clean_tree", "one_version", "changelog", "build", "metadata", "contents", "recipe", "site"}
