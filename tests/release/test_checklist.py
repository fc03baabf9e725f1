"""The release checklist finds what would break a release."""

import re

import pytest

from tools import release, wheel_tests
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


def test_the_tests_that_need_the_sources_exist() -> None:
    assert [name for name in wheel_tests.NEEDS_SOURCES if not (ROOT / name).exists()] == []
