"""Deployment bundles: modules, tuning records and facts of one machine, for others that build nothing."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.hardening.test_installations import INTERPRETER, SEARCHED, link_packages
from tests.integration.commands import MAIN, command, json_of, usage_error
from tests.remote.subjects import entry, signed
from tests.tuning.tuning_records import key as record_key
from tests.tuning.tuning_records import timing
from warp_tiles.errors import BundleError
from warp_tiles.remote.bundle import Bundle, toolchain_object, write_bundle
from warp_tiles.remote.keys import PublicKey, SigningKey
from warp_tiles.tuning.store import RecordStore

SCRIPT = MAIN.replace("(16, 16)", "(8, 8)").replace("@wp.kernel\n", "@wp.kernel(enable_backward=False)\n")
REPOSITORY = Path(__file__).resolve().parents[2]


class Made:
    """A bundle, and the machine that made it."""

    def __init__(self, top: Path) -> None:
        self.script, self.file, self.key = top / "main.py", top / "app.bundle", top / "key.pem"
        self.script.write_text(SCRIPT)
        signer = SigningKey.generate()
        signer.write(self.key)
        self.public = str(signer.public)
        self.trust = {"WARP_TILES_TRUSTED_KEYS": self.public}
        RecordStore(top / "lto", folder="tuning").merge(record_key("gemm"), [timing({"x": 1})])
        done = command(
            "bundle", "--arch", "80,90", "-o", self.file, self.script, top,
            cache=top / "lto", WARP_TILES_SIGNING_KEY=str(self.key),
        )  # fmt: skip
        self.record = json_of(done)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("build"))


def deployed(made: Made, folder: Path, *arguments: object, status: int = 0, **environment: str) -> Any:
    """Compile from the bundle with an empty cache."""
    done = command(
        "compile", "--bundle", made.file, "-o", folder / "out", *arguments, made.script, folder,
        cache=folder / "cache", **{**made.trust, **environment},
    )  # fmt: skip
    return json_of(done) if not status else usage_error(done)


def names(made: Made) -> list[str]:
    with zipfile.ZipFile(made.file) as archive:
        return archive.namelist()


def test_the_bundle_names_its_modules_and_its_signer(made: Made) -> None:
    assert [(row["arch"], row["bundled"], row["reason"]) for row in made.record["modules"]] == [
        (80, True, ""),
        (90, True, ""),
    ]
    assert made.record["signer"] == made.public
    assert made.record["bytes"] == made.file.stat().st_size
    kinds = [name.split("/")[1] for name in names(made)]
    assert sorted(kinds) == ["module", "module", "records", "toolchain"]


def test_equal_inputs_give_equal_names(made: Made, tmp_path: Path) -> None:
    """The digests of a bundle depend on nothing of the machine, such as its folders."""
    again = Made(tmp_path)
    first, second = ([name for name in names(one) if "module" in name] for one in (made, again))
    assert first == second


def test_a_module_comes_from_the_bundle(made: Made, tmp_path: Path) -> None:
    for arch in (80, 90):
        (row,) = deployed(made, tmp_path, "--arch", arch)["modules"]
        assert (row["lto_builds"], row["lto_hits"], row["lto_bytes"]) == (0, 1, 0)
        size = next(m["cubin_bytes"] for m in made.record["modules"] if m["arch"] == arch)
        assert row["cubin_bytes"] == size


def test_what_the_bundle_lacks_is_an_error(made: Made, tmp_path: Path) -> None:
    text = deployed(made, tmp_path, "--arch", 86, status=2)
    assert "for sm_86 with 64 threads per block is not in the bundle" in text
    assert "--arch 86" in text
    assert not list((tmp_path / "out").glob("*.cubin"))


def test_nothing_is_built_with_a_bundle(made: Made, tmp_path: Path) -> None:
    text = deployed(made, tmp_path, "--policy", "auto", status=2)
    assert "with a bundle nothing is built" in text


def test_other_settings_are_named(made: Made, tmp_path: Path) -> None:
    text = deployed(made, tmp_path, status=2, WARP_TILES_MAIN_LOOP="mma")
    assert (
        "was made with main_loop=auto, and the setting main_loop (environment variable WARP_TILES_MAIN_LOOP) is mma"
        in text
    )


def test_a_stranger_is_refused(made: Made, tmp_path: Path) -> None:
    text = deployed(made, tmp_path, status=2, WARP_TILES_TRUSTED_KEYS=str(SigningKey.generate().public))
    assert "no trusted key signed it" in text


@pytest.mark.parametrize("content", [None, b"", b"PK", b"x" * 100])
def test_another_file_is_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "bundle").write_bytes(content)
    with pytest.raises(BundleError, match="cannot be used"):
        Bundle(tmp_path / "bundle", {})


def test_a_damaged_module_is_not_loaded(made: Made, tmp_path: Path) -> None:
    data = bytearray(made.file.read_bytes())
    data[data.index(b"\x7fELF") + 1000] ^= 1
    copy = tmp_path / "copy.bundle"
    copy.write_bytes(data)
    key = PublicKey.parse(made.public)
    bundle, sound = (Bundle(path, {key.key_id: key}) for path in (copy, made.file))
    toolchain = text_of(made)
    assert all(sound.fetch("module", name, toolchain) is not None for name in sound.names("module"))
    assert sum(bundle.fetch("module", name, toolchain) is None for name in bundle.names("module")) == 1
    for opened in (bundle, sound):
        opened.close()


def text_of(made: Made) -> str:
    """The toolchain that the statements of a bundle name."""
    import base64

    data = made.file.read_bytes()
    start = data.index(b"v1/module")
    payload = data[data.index(b'"payload":"', start) + 11 :].partition(b'"')[0]
    return str(json.loads(base64.b64decode(payload))["toolchain"])


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    signer = SigningKey.generate()
    with pytest.raises(BundleError, match="cannot be written"):
        write_bundle(
            tmp_path / "missing" / "b", toolchain_object({}, signer), {("ltoir", entry().key): signed(entry())}
        )


def test_a_bundle_needs_a_signing_key(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SCRIPT)
    done = command("bundle", "-o", tmp_path / "b", tmp_path / "main.py", cache=tmp_path, WARP_TILES_SIGNING_KEY="")
    assert "without a signing key" in usage_error(done)


# those of examples/deploy/Dockerfile, and what they need
PACKAGES = {
    "warp_tiles", "warp", "numpy", "click", "filelock", "platformdirs", "rich", "cryptography",
    "pygments", "markdown_it", "mdurl", "cffi", "_cffi_backend", "pycparser", "typing_extensions", "tomli",
}  # fmt: skip
DEPLOYED = """
import sys
from tests.hardening.privileges import obey_permissions
obey_permissions()
from warp_tiles.cli import main
sys.argv = ["warp-tiles", *sys.argv[1:]]
main()
"""


def test_a_machine_without_compilers_and_without_a_cache(made: Made, tmp_path: Path) -> None:
    """Only a few packages are installed, and the cache's folder cannot be written."""
    target = link_packages(tmp_path / "target", nvidia=False)
    for path in target.iterdir():
        if path.name.partition(".")[0] not in PACKAGES:
            path.unlink()
    (target / "tests").symlink_to(REPOSITORY / "tests")
    (tmp_path / "home").mkdir(mode=0o500)
    (tmp_path / "out").mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in SEARCHED}
    environment |= {
        **made.trust,
        "PYTHONPATH": str(target),
        "HOME": str(tmp_path / "home"),
        "WARP_TILES_CACHE_DIR": str(tmp_path / "home" / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [
        "compile",
        "--json",
        "--bundle",
        made.file,
        "--arch",
        "90",
        "-o",
        tmp_path / "out",
        made.script,
        tmp_path / "out",
    ]
    done = subprocess.run(
        [*INTERPRETER, "-c", DEPLOYED, *map(str, words)], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = json.loads(done.stdout)["modules"]
    assert (row["lto_builds"], row["lto_hits"]) == (0, 1)
    assert row["cubin_bytes"] == next(m["cubin_bytes"] for m in made.record["modules"] if m["arch"] == 90)
    assert "Traceback" not in done.stderr
