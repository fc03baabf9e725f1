"""Every command that a page, a help text or an example of a deployment prints runs, or a table here says why not.

The commands of a page run in order, in a folder with the files that pages name, and with a cache that holds a function.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import click
import pytest
import warp as wp
from packaging.requirements import Requirement

from tests.integration.commands import command
from tests.integration.test_cli_examples import COMMANDS
from tests.processes.forks import forked
from tests.tuning.tuning_records import key, timing
from tools.notebook import TUTORIAL, as_markdown
from tools.project import pyproject
from warp_tiles.build.start_list import StartList
from warp_tiles.cli import CONTEXT, EXAMPLES, commands
from warp_tiles.store.cache import Cache
from warp_tiles.tuning.store import RecordStore

ROOT = Path(__file__).resolve().parent.parent

# ---- what is not run

PARSED = {
    r"--scheduler tcp://host:8786": "it needs a Dask scheduler; tests/cluster/test_command.py has one",
    r"example_tile_mlp\.py": "it trains for minutes",
    r"bundle --wheel": "kernels of a script belong to no distribution; tests/integration/test_wheel.py makes wheels",
    r"run examples/gemm\.py": "tests/test_examples.py runs it",
    r"plan --arch 90 examples/gemm\.py": "tests/integration/test_cli_tables.py runs it",
}
"""Commands of warp-tiles that are only parsed, and why."""
NEEDS_GPU = r"warp-tiles tune (?!list|show|export|import|clear)"  # they run, and say so
OTHERS = {
    r"pip |python3? -m (pip|venv) ": "it downloads packages; .ci/run does what README says",
    r"pytest\b|python -m pytest ": "it is a test run",
    r"nox\b": "it makes environments",
    r"cmake ": "tests/integration/test_cmake_build.py builds so, for a minute",
    r"python (-m )?benchmarks\b": "it measures for minutes, most of them on a GPU",
    r"python examples/|python -m tests\.": "it takes minutes, or a GPU",
    r"python warp_compile_probe\.py ": "it is NVIDIA's, and needs a GPU",
    r"(dask|mpiexec|nsys) ": "the program is not installed with the tests",
    r"(ruff|mypy|pre-commit)\b": "it is a check of CI",
}
"""Commands of other programs, and why they are only parsed."""

# ---- what is printed

_PROGRAM = r"(?:\.venv/bin/)?(?:warp-tiles|python3?|pip|pytest|nox|cmake|dask|mpiexec|nsys|ruff|mypy|pre-commit)"
_LINE = re.compile(rf'\s*(?:\$ |RUN |CMD \["|ENV \w+=|- run: |(?:\w+=\S* )*{_PROGRAM}[ "])')
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FORM = re.compile(r"(?<!\S)\[|<|\\\||\.\.\.|COMMAND|^python -m( warp_tiles)?$")  # it has choices, so it is no command


@dataclass(frozen=True)
class Printed:
    """A command.

    Attributes:
        words: The program and its arguments.
        settings: Environment variables before it, or exported above it.
        in_block: True in a block of commands; False in a sentence, beside which other settings may be described.
        section: The text between two headings that holds it.
    """

    words: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict, compare=False)
    in_block: bool = field(default=True, compare=False)
    section: str = field(default="", compare=False)

    def __str__(self) -> str:
        return " ".join(self.words)


def split(line: str) -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    """The variables and words of each command in a line of a shell, a Dockerfile or a workflow; ``export`` has none."""
    line = re.sub(r"^(?:\$|RUN|- run:) ", "", line.strip())
    line = re.sub(r'^CMD \["(.*)"\]$', lambda found: found[1].replace('", "', " "), line)
    line = re.sub(r'^eval "\$\((.*?)\)"', r"\1", line)
    lexer = shlex.shlex(re.sub(r"^(?:ENV|export) ", "", line), posix=True, punctuation_chars="&;|")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set("&;|"):
            words.append(word.removeprefix(".venv/bin/"))
            continue
        given = [each.split("=", 1) for each in takewhile(re.compile(r"\w+=").match, words)]
        yield dict(given), tuple(words[len(given) :])
        words = []
        if word == "|":  # a program that reads its output is no matter of the page
            return


def printed_in(text: str) -> Iterator[Printed]:
    """The commands of a page in Markdown."""
    exported: dict[str, str] = {}
    protected = _BLOCK.sub(lambda block: block[0].replace("\n#", "\n #"), text)
    for section in re.split(r"^(?=#+ )", protected, flags=re.MULTILINE):
        for language, block in _BLOCK.findall(section):
            for line in re.sub(r"\\\n\s*", " ", block).splitlines():
                is_command = language == "sh" or (language in ("", "console", "dockerfile") and _LINE.match(line))
                for settings, words in split(line) if is_command else ():
                    if not words:
                        exported |= settings
                    elif language == "sh" or re.match(_PROGRAM, words[0]):
                        yield Printed(words, {**exported, **settings}, True, section)
        for sentence in re.findall(rf"`((?:\w+=\S+ )*{_PROGRAM}\s[^`]+)`", _BLOCK.sub("", section)):
            for settings, words in () if _FORM.search(sentence) else split(" ".join(sentence.split())):
                yield Printed(words, settings, False, section)


def pages() -> dict[str, list[Printed]]:
    """The commands of each page."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files}
    texts["docs/tutorial.ipynb"] = as_markdown(TUTORIAL)
    deployment = [(ROOT / "examples" / "deploy" / name).read_text("utf-8") for name in ("workflow.yml", "Dockerfile")]
    texts["examples/deploy"] = "".join(f"```dockerfile\n{text}```\n" for text in deployment)
    helps = sorted(EXAMPLES, key=lambda path: path.endswith("clear"))  # which leaves nothing for the others
    texts["help"] = "".join(f"# {path}\n{COMMANDS[path].help}\n\n`{EXAMPLES[path]}`\n" for path in helps)
    return {page: list(printed_in(text)) for page, text in texts.items()}


def once(found: Mapping[str, Sequence[Printed]]) -> dict[str, list[Printed]]:
    """The commands without those in sentences that stand elsewhere too."""
    seen = {one for page in found.values() for one in page if one.in_block}
    kept: dict[str, list[Printed]] = {}
    for page, printed in found.items():
        for one in printed:
            if one.in_block or one not in seen:
                kept.setdefault(page, []).append(one)
                seen.add(one)
    return kept


EVERY = pages()
PRINTED = once(EVERY)


def reason(printed: Printed, table: Mapping[str, str]) -> str:
    """The reason of a table for a command; empty if it has none."""
    return next((text for pattern, text in table.items() if re.match(f".*{pattern}", str(printed))), "")


# ---- commands of warp-tiles

SCRIPT = """
import warp as wp


@wp.kernel(enable_backward=False)
def gemm(a: wp.array2d(dtype=wp.float32), b: wp.array2d(dtype=wp.float32), c: wp.array2d(dtype=wp.float32)):
    wp.tile_store(c, wp.tile_matmul(wp.tile_load(a, (16, 16)), wp.tile_load(b, (16, 16))))


if __name__ == "__main__":
    arrays = [wp.zeros((16, 16), dtype=float) for _ in range(3)]
    wp.launch_tiled(gemm, dim=[1], inputs=arrays, block_dim=64)
"""
SCRIPTS = ("train.py", "app.py", "script.py", "simulate.py", "package/__main__.py")
CMAKE_BUNDLE = "build/warp_tiles.bundle"
KEY_FILE = "given.pem"
PUBLIC = "ed25519:X6H3ivFnx302kV4sKV+16rr6IKHGtyBOWykUUyLqdPg="  # in the place of the key that the command above prints
KEYS = ("KEY", "KEYS", "5d1c0a9f", "93b7e2d4")


def is_name(words: Sequence[str]) -> bool:
    """Parse a command as the program does. True for the mere name of one, with or without options.

    Raises:
        click.ClickException: It is no command.
    """
    command: click.Command = commands
    words = list(words)
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warp_tiles.cli.common.configure_by_option", lambda name, value: None)
            with command.make_context("warp-tiles", words, **CONTEXT):
                return False
    except click.exceptions.NoArgsIsHelpError:
        return True
    except click.MissingParameter:
        if re.search(r"\.py|SCRIPT", " ".join(words)):
            raise
        return True


class Machine:
    """A folder with what pages name, in which their commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.public = ""

    def fill(self) -> None:
        """Make the files, two functions in the cache, a tuning record and a store."""
        for name in SCRIPTS:
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(SCRIPT)
        for name in ("store", "build", "app"):
            (self.folder / name).mkdir()
        for line in (
            f"keys new -o {KEY_FILE}",
            "compile --arch 80,90 -o modules train.py",
            f"cache export {CMAKE_BUNDLE}",
        ):
            assert self.run(Printed(("warp-tiles", *line.split()))).returncode == 0
        (self.folder / "start.json").write_bytes(StartList(wp.__version__).to_bytes())
        RecordStore(self.folder / "cache", folder="tuning").merge(key(), [timing({"x": 1})])

    def copy(self, folder: Path) -> Machine:
        """An equal machine."""
        shutil.copytree(self.folder, folder, symlinks=True)
        other = Machine(folder)
        other.public = self.public
        return other

    def given(self, word: str, words: Sequence[str]) -> str:
        """A word of a command, or the value of a setting for it, on this machine."""
        if word in KEYS:
            return key().digest if "tune" in words else next(iter(Cache(self.folder / "cache").entries())).key
        word = {"SCRIPT": "train.py", "FILE": "file", "DIR": "out", "PUBLIC": PUBLIC, "LIST": "start.json"}.get(
            word, word
        )
        for text, value in {
            "s3://bucket/warp": (self.folder / "store").as_uri(), PUBLIC: self.public, "${PUBLIC_KEY}": self.public,
            "$PWD": str(self.folder), "$RUNNER_TEMP": str(self.folder),
        }.items():  # fmt: skip
            word = word.replace(text, value)
        if word.endswith(".pem") and "new" not in words and not (self.folder / word).exists():
            shutil.copy(self.folder / KEY_FILE, self.folder / word)
        is_elsewhere = word.startswith("/") and not word.startswith(str(self.folder))  # e.g. in a Dockerfile
        return str(self.folder / Path(word).name) if is_elsewhere else word

    def run(self, printed: Printed) -> subprocess.CompletedProcess[str]:
        """Run a command, and keep the public key that it prints."""
        program, *words = printed.words
        environment = {
            "WARP_TILES_CACHE_DIR": str(self.folder / "cache"),
            "WARP_TILES_MODULES": "tiles",  # a module is linked once
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }
        if not printed.in_block:
            environment |= {"WARP_TILES_REMOTE": "s3://bucket/warp", "WARP_TILES_SIGNING_KEY": f"$PWD/{KEY_FILE}"}
        environment |= printed.settings
        environment = {name: self.given(value, words) for name, value in environment.items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            if program == "python":  # and one of the scripts
                return forked(words[0].removesuffix(".py"), words[1:], {**os.environ, **environment})
            done = command(*(self.given(word, words) for word in words), as_json=False, **environment)
        self.public = next(iter(re.findall(r"^ed25519:\S+$", done.stdout, re.MULTILINE)), self.public)
        return done


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, toolchain: None) -> Machine:
    """The machine whose copies the pages use."""
    made = Machine(tmp_path_factory.mktemp("machine"))
    made.fill()
    return made


def is_run(printed: Printed) -> bool:
    """True if the command runs here. One of warp-tiles is parsed."""
    if printed.words[0] != "warp-tiles":
        return printed.words[0] == "python" and printed.words[1] in SCRIPTS
    is_whole = not is_name(printed.words[1:]) or bool(printed.settings)
    return is_whole and not reason(printed, PARSED)


@pytest.mark.parametrize("page", PRINTED)
def test_the_commands_of_a_page_are_parsed(page: str) -> None:
    for printed in PRINTED[page]:
        if printed.words[0] == "warp-tiles":
            is_name(printed.words[1:])


@pytest.mark.slow
@pytest.mark.parametrize("page", PRINTED)
def test_the_commands_of_a_page_run(page: str, machine: Machine, tmp_path: Path) -> None:
    machine = machine.copy(tmp_path / "machine")
    for printed in filter(is_run, PRINTED[page]):
        needs_gpu = re.match(NEEDS_GPU, str(printed)) is not None
        if needs_gpu and wp.is_cuda_available():  # it would search for minutes
            continue
        done = machine.run(printed)
        assert done.returncode == (2 if needs_gpu else 0), f"{printed}:\n{done.stdout}\n{done.stderr}"
        assert ("tuning needs an NVIDIA GPU" in done.stderr) == needs_gpu, f"{printed}: {done.stderr}"


def test_a_page_says_which_commands_need_a_gpu() -> None:
    needing = [(page, one) for page, found in EVERY.items() for one in found if re.match(NEEDS_GPU, str(one))]
    assert needing
    assert [(page, str(one)) for page, one in needing if "GPU" not in one.section] == []


# ---- commands of other programs


class _Parsed(Exception):  # noqa: N818  it is no error
    pass


def parse_script(words: Sequence[str]) -> None:
    """Run a Python file or module until it has parsed its arguments."""

    def parse(parser: argparse.ArgumentParser, *arguments: object) -> None:
        original(parser, *arguments)  # type: ignore[arg-type]
        raise _Parsed

    original = argparse.ArgumentParser.parse_args
    name, *arguments = words[1:] if words[0] == "-m" else words
    path = ROOT / (f"{name.replace('.', '/')}.py" if words[0] == "-m" else name)
    if path.with_suffix("").is_dir():
        path = path.with_suffix("") / "__main__.py"
    with pytest.MonkeyPatch.context() as patch, suppress(_Parsed):
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        patch.setattr(sys, "argv", [str(path), *arguments])
        patch.syspath_prepend(str(ROOT))
        runpy.run_path(str(path), run_name="__main__")
        pytest.fail(f"{path} parses no arguments")


def wrong_words(printed: Printed) -> list[str]:
    """Words that the program would refuse, as far as that can be seen without running it."""
    text, words = str(printed), list(printed.words)
    if re.match(r"python (-m )?(benchmarks|examples|tests)\b", text):
        parse_script(words[1:])
        return []
    if words[0] == "nox":
        return [name for name in words[2:3] if f"\ndef {name}(" not in (ROOT / "noxfile.py").read_text()]
    if words[0] == "cmake":
        known = (ROOT / "CMakeLists.txt").read_text()
        return [word for word in re.findall(r"-D(\w+)", text) if word not in known]
    if "install" in words and words[0] != "pre-commit":
        extras = pyproject()["project"]["optional-dependencies"]
        asked = [
            word.replace(".[", "warp-tiles[") for word in words[words.index("install") + 1 :] if word[:1] not in "-"
        ]
        required = [Requirement(word) for word in asked if word != "." and not word.endswith(".whl")]
        return [name for each in required if each.name == "warp-tiles" for name in each.extras if name not in extras]
    return []


OF_OTHERS = [one for found in PRINTED.values() for one in found if one.words[0] != "warp-tiles" and not is_run(one)]


@pytest.mark.parametrize("printed", dict.fromkeys(OF_OTHERS), ids=str)
def test_a_command_of_another_program_has_a_reason_not_to_run(printed: Printed) -> None:
    assert reason(printed, OTHERS), "run it, or say here why not"
    assert wrong_words(printed) == []


def test_no_reason_is_left_over() -> None:
    everything = [str(one) for found in PRINTED.values() for one in found]
    patterns = [*PARSED, *OTHERS, NEEDS_GPU]
    assert [pattern for pattern in patterns if not any(re.match(f".*{pattern}", line) for line in everything)] == []
