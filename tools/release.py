"""The release checklist: ``python -m tools.release``, or ``nox -s release``, which installs what it needs.

Every check is run, each prints one line, and problems follow it. The exit status is 1 if there is one. Nothing is
tagged or uploaded: the list ends with what a person still has to do.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from packaging.version import InvalidVersion, Version

from tools import conda_recipe, wheel
from tools.project import ROOT, VERSION_FILE, pyproject, version

DIST = ROOT / "dist"
STATUS = {True: "Development Status :: 4 - Beta", False: "Development Status :: 5 - Production/Stable"}

BY_HAND = """\
Still to be done by a person:
  1. Run the GPU tests of this commit, and commit their record and those of benchmarks/ that changed:
         python -m pytest -m gpu
  2. Run the tests on every Python and every Warp, and against the wheel:
         nox -s tests warp wheel
  3. Build the conda package where conda-forge can be reached: nox -s conda
  4. Tag the commit and push the tag. Links of the project's page lead to it:
         git tag -s v{version} -m "warp_tiles {version}" && git push origin v{version}
  5. Upload: twine upload dist/*
  6. Install the uploaded package in a new environment, and run: warp-tiles doctor
"""


def run(*command: str, folder: Path = ROOT) -> tuple[int, str]:
    """Run a command. Returns its exit status, and its output with its errors."""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout.strip()


def module(*command: str, folder: Path = ROOT) -> list[str]:
    """Run a Python module. Its output is the problem if it fails."""
    status, output = run(sys.executable, "-m", *command, folder=folder)
    return [output or f"{command[0]} ended with {status}"] if status else []


def clean_tree() -> list[str]:
    """Nothing is changed, and no file is unknown to git."""
    status, output = run("git", "status", "--porcelain")
    return output.splitlines() if output or not status else ["git status failed"]


def version_problems(text: str, classifiers: list[str], tags: list[str]) -> list[str]:
    """What is wrong with a version.

    Args:
        text: The version.
        classifiers: Those of pyproject.toml.
        tags: The names of all tags.
    """
    try:
        parsed = Version(text)
    except InvalidVersion:
        return [f"{VERSION_FILE} has {text!r}, which is no version"]
    faults = [] if str(parsed) == text else [f"{VERSION_FILE} has {text!r}; its normal form is {str(parsed)!r}"]
    if parsed.local or parsed.is_devrelease:
        faults.append(f"{text} is a version for development")
    wanted = STATUS[parsed.is_prerelease or parsed.major == 0]
    if wanted not in classifiers:
        faults.append(f"pyproject.toml lacks the classifier {wanted!r}")
    return faults + ([f"the tag v{text} exists already"] if f"v{text}" in tags else [])


def one_version() -> list[str]:
    """The version is valid and new, and the command prints it."""
    project = pyproject()["project"]
    _, tags = run("git", "tag", "--list")
    faults = version_problems(version(), project["classifiers"], tags.split())
    if "version" in project or "version" not in project["dynamic"]:
        faults.append("pyproject.toml states a version of its own")
    _, printed = run(sys.executable, "-m", "warp_tiles", "--version")
    return faults if printed.endswith(f" {version()}") else [*faults, f"warp-tiles --version prints {printed!r}"]


def changelog_problems(text: str, release: str) -> list[str]:
    """What is wrong with the changelog for a release: its section must be the first with entries, and dated."""
    sections = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    filled = [heading for heading, body in sections if re.search(r"^- ", body, re.MULTILINE)]
    if not filled or not filled[0].startswith(release):
        found = f"{filled[0]!r}" if filled else "none"
        return [f"the first section of CHANGELOG.md with entries is {found}, not '## {release} (YYYY-MM-DD)'"]
    if not re.fullmatch(re.escape(release) + r" \(\d{4}-\d\d-\d\d\)", filled[0]):
        return [f"the section {filled[0]!r} of CHANGELOG.md needs its date, as '## {release} (YYYY-MM-DD)'"]
    return []


def changelog() -> list[str]:
    """CHANGELOG.md has the section of this version."""
    return changelog_problems((ROOT / "CHANGELOG.md").read_text("utf-8"), version())


def build() -> list[str]:
    """The sdist is built, and the wheel from it, into dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    wheel.build(DIST)
    wanted = f"warp_tiles-{version()}"
    return [f"dist/ holds {path.name}" for path in DIST.iterdir() if not path.name.startswith(wanted)]


def metadata() -> list[str]:
    """Twine accepts both files, and the project's page can be rendered."""
    return module("twine", "check", "--strict", *map(str, sorted(DIST.iterdir())))


def contents() -> list[str]:
    """The wheel holds the package alone."""
    (built,) = DIST.glob("*.whl")
    return wheel.problems(wheel.names(built), wheel.sources())


def site() -> list[str]:
    """The site of the documentation is built without a warning."""
    with tempfile.TemporaryDirectory() as folder:
        return module("mkdocs", "build", "--strict", "--quiet", "--site-dir", folder)


def recipe() -> list[str]:
    """The conda recipe has the dependencies of pyproject.toml, and no version of its own."""
    return conda_recipe.problems(conda_recipe.read(), conda_recipe.from_pyproject())


CHECKS: dict[str, Callable[[], list[str]]] = {
    "the tree is clean": clean_tree,
    "the version is stated once, valid and new": one_version,
    "the changelog has its section": changelog,
    "sdist and wheel are built": build,
    "twine accepts them": metadata,
    "the wheel holds the package alone": contents,
    "the conda recipe agrees with pyproject.toml": recipe,
    "the site is built strictly": site,
}


def main(checks: dict[str, Callable[[], list[str]]] = CHECKS) -> int:
    """Run every check and print the list. Returns the exit status."""
    print(f"warp_tiles {version()}")
    failed = 0
    for name, check in checks.items():
        try:
            faults = check()
        except Exception as error:  # one check that breaks must not hide the others
            faults = [f"{type(error).__name__}: {error}"]
        failed += bool(faults)
        print(f"  {'FAILED' if faults else 'ok    '}  {name}", flush=True)
        for fault in faults:
            print("            " + fault.replace("\n", "\n            "), flush=True)
    print(f"{failed} of {len(checks)} checks failed." if failed else BY_HAND.format(version=version()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
