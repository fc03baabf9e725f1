"""Deployment bundles: modules, tuning records and facts of one machine, for others that build nothing."""

import atexit
import os
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.hardening.launches import obey_permissions
from tests.hardening.test_installations import INTERPRETER, SEARCHED, link_packages
from tests.integration.commands import MAIN, MATMULS, command, json_of, usage_error
from tests.store.subjects import entry
from tests.tuning.tuning_records import key as record_key
from tests.tuning.tuning_records import timing
from warp_tiles.array_products.lane_kernel import LaneKernel
from warp_tiles.array_products.matmul_choice import choose_matmul
from warp_tiles.array_products.matmul_problem import MatmulProblem
from warp_tiles.array_products.prepared import PLANNED_GPU, records_for
from warp_tiles.array_products.tensor_kernel import TensorKernel
from warp_tiles.array_products.tensor_matmul import built_kernel, planned_kernels
from warp_tiles.build.engine import Engine
from warp_tiles.compile.toolchain import _FACTS_KEY as FACTS_KEY
from warp_tiles.compile.toolchain import open_bundle
from warp_tiles.errors import BundleError, LockedError, RecordError, SettingError
from warp_tiles.settings import current, override
from warp_tiles.store import MODULES, TOOLCHAIN
from warp_tiles.store.bundle import write_bundle
from warp_tiles.store.cache import Cache
from warp_tiles.store.envelope import pack
from warp_tiles.store.keys import PublicKey, SigningKey
from warp_tiles.store.transfer import import_bundle
from warp_tiles.tuning.store import RecordStore, _bundled_records, open_store

# those of examples/deploy/Dockerfile, and what they need
PACKAGES = {
    "warp_tiles", "warp", "numpy", "click", "filelock", "platformdirs", "rich", "cryptography",
    "pygments", "markdown_it", "mdurl", "cffi", "_cffi_backend", "pycparser", "typing_extensions", "tomli",
    "numpy.libs",
}  # fmt: skip
MODULE = MAIN.partition("    main(sys.argv[1])")[0]
SCRIPT = (
    MODULE.replace("(16, 16)", "(8, 8)").replace("@wp.kernel\n", "@wp.kernel(enable_backward=False)\n")
    + """\
    if sys.argv[2:] == ["build"]:
        wp.set_module_options({"block_dim": 64})
        wp.compile_aot_module(sys.modules[__name__], arch=90, module_dir="built")
    else:
        main(sys.argv[1])
"""
)


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


@pytest.mark.slow
def test_the_bundle_names_its_modules_and_its_signer(made: Made, tmp_path: Path) -> None:
    assert [(row["arch"], row["bundled"], row["reason"]) for row in made.record["modules"]] == [
        (80, True, ""),
        (90, True, ""),
    ]
    assert made.record["signer"] == made.public
    assert made.record["bytes"] == made.file.stat().st_size
    kinds = [name.split("/")[1] for name in names(made)]
    assert sorted(kinds) == ["module", "module", "records", "toolchain"]
    first, second = ([name for name in names(one) if "module" in name] for one in (made, Made(tmp_path)))
    assert first == second, "digests depend on nothing of the machine, such as its folders"


def test_a_module_comes_from_the_bundle(made: Made, tmp_path: Path) -> None:
    for arch in (80, 90):
        (row,) = deployed(made, tmp_path, "--arch", arch)["modules"]
        assert (row["lto_builds"], row["lto_hits"], row["lto_bytes"]) == (0, 1, 0)
        size = next(m["cubin_bytes"] for m in made.record["modules"] if m["arch"] == arch)
        assert row["cubin_bytes"] == size


def test_kernels_of_matmul_come_from_the_bundle(tmp_path: Path) -> None:
    script, file, signer = tmp_path / "script.py", tmp_path / "app.bundle", SigningKey.generate()
    script.write_text(MATMULS)
    signer.write(tmp_path / "key.pem")
    done = command(
        "bundle", "--arch", "90", "--json", "-o", file, script, cache=tmp_path,
        WARP_TILES_SIGNING_KEY=str(tmp_path / "key.pem"),
    )  # fmt: skip
    assert "_function for sm_90 left out: Warp generates the code of its epilogue at the call" in done.stderr
    size = 2048
    problems = [
        MatmulProblem(size, size, size),
        replace(MatmulProblem(size, size, size), a="float16", b="float16", out="float16"),
    ]
    kernels = planned_kernels(choose_matmul(problem, PLANNED_GPU, records_for(PLANNED_GPU)) for problem in problems)
    assert [type(kernel) for kernel in kernels] == [LaneKernel, TensorKernel]
    trusted = (str(signer.public),)
    with override(bundle=file, policy="locked", trusted_keys=trusted, cache_dir=tmp_path / "empty"):
        engine = Engine()
        try:
            entries, are_new = zip(*(built_kernel(engine, kernel, current()) for kernel in kernels))
            assert are_new == (False, False)
            sizes = {entry.key: len(entry.payload) for entry in entries}
            rows = json_of(done)["matmul"]
            assert {row["key"]: row["cubin_bytes"] for row in rows} == sizes
            assert all(row.keys() == {"module", "arch", "block_dim", "key", "cubin_bytes"} for row in rows)
            with pytest.raises(LockedError, match="is not in the cache"):
                built_kernel(engine, replace(kernels[0], tile_m=64, tile_n=64), current())
        finally:
            engine.close()


@pytest.mark.parametrize(
    ("words", "environment", "texts"),
    [
        (("--arch", 86), {}, ("for sm_86 with 64 threads per block is not in the bundle", "--arch 86")),
        (
            ("--policy", "auto"),
            {},
            ("policy (command line) is 'auto', and with a bundle nothing is built", "Remedy: give the option --policy"),
        ),
        (
            (),
            {"WARP_TILES_MAIN_LOOP": "mma"},
            ("Remedy: set WARP_TILES_MAIN_LOOP=auto", "was made with main_loop=auto", "MAIN_LOOP) is mma"),
        ),
        (
            (),
            {"WARP_TILES_TRUSTED_KEYS": str(SigningKey.generate().public)},
            ("no trusted key signed it", "Remedy: trust its signer", "`warp-tiles keys trust PUBLIC`"),
        ),
    ],
    ids=["another architecture", "a policy that builds", "another setting", "a stranger"],
)
def test_what_does_not_fit_is_an_error(
    made: Made, tmp_path: Path, words: tuple[object, ...], environment: dict[str, str], texts: tuple[str, ...]
) -> None:
    text = deployed(made, tmp_path, *words, status=2, **environment)
    for part in texts:
        assert part in text
    assert not list((tmp_path / "out").rglob("*.cubin"))


def test_an_export_is_no_deployment(made: Made, tmp_path: Path) -> None:
    """Neither unsigned nor signed: it has no facts, and what nobody signed does not count."""
    path = tmp_path / "b"

    def refusal() -> str:
        with override(bundle=path, policy="locked", trusted_keys=(made.public,)), pytest.raises(BundleError) as caught:
            open_bundle(current())
        return caught.value.message

    for key in (None, SigningKey.read(made.key)):
        write_bundle(path, [("ltoir", entry().key, pack("ltoir", entry(), "any", key))])
        assert "cannot be used: toolchain" in refusal()
    write_bundle(path, [(TOOLCHAIN, FACTS_KEY.digest, pack(TOOLCHAIN, entry("facts"), "any", None))])
    assert "nobody signed it" in refusal()
    with override(bundle=path, policy="fast"), pytest.raises(SettingError) as other:
        open_bundle(current())
    assert other.value.remedy == 'call override(policy="locked")'


def test_a_deployment_can_be_imported(made: Made, tmp_path: Path) -> None:
    """One format: its modules into a cache, and its records into a folder."""
    key = PublicKey.parse(made.public)
    assert import_bundle([Cache(tmp_path, MODULES)], made.file, {key.key_id: key}).added == 2
    store = RecordStore(tmp_path / "records")
    assert store.import_(made.file, {key.key_id: key}) == 1
    with pytest.raises(RecordError, match="no trusted key signed it"):
        store.import_(made.file)


def test_its_records_alone_count_in_a_folder_that_ends_with_the_process(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_end: list[tuple[object, ...]] = []
    monkeypatch.setattr(atexit, "register", lambda *call, **_: at_end.append(call))
    with override(bundle=made.file, policy="locked", trusted_keys=(made.public,)):
        store = open_store()
        assert open_store() is store
    assert [stored.record.key for stored in store.records()] == [record_key("gemm")]
    assert at_end == [(shutil.rmtree, str(store.root))]
    shutil.rmtree(store.root)
    _bundled_records.cache_clear()


def test_a_bundle_needs_a_signing_key(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SCRIPT)
    done = command("bundle", "-o", tmp_path / "b", tmp_path / "main.py", cache=tmp_path, WARP_TILES_SIGNING_KEY="")
    assert "without a signing key" in usage_error(done)


# ---- a machine without compilers

OWNER = 65533  # whose file the bundle is


class Machine:
    """A machine with few packages, where the home cannot be written, and the bundle is another user's if root tests.

    Args:
        top: An empty folder.
        made: The bundle, which is copied.
    """

    def __init__(self, top: Path, made: Made) -> None:
        packages = link_packages(top / "packages", lambda name: bool({name, name.partition(".")[0]} & PACKAGES))
        self.script = Path(shutil.copy(made.script, top))
        self.bundle = Path(shutil.copy(made.file, top))
        self.output, home = top / "out", top / "home"
        self.output.mkdir()
        home.mkdir()
        for path, mode in ((self.script, 0o444), (self.bundle, 0o444), (home, 0o555)):
            path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(self.bundle, OWNER, OWNER)
        self._environment = {
            **made.trust,
            "PYTHONPATH": str(packages),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(home),
            "WARP_TILES_CACHE_DIR": str(home / "cache"),
            "WARP_CACHE_PATH": str(self.output / "kernels"),
        }

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command of warp-tiles, which obeys permissions also as root."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in SEARCHED and not name.startswith(("XDG_", "WARP_TILES_"))
        }
        return subprocess.run(
            [*INTERPRETER, "-m", "warp_tiles", *map(str, words)],
            env={**inherited, **self._environment},
            cwd=self.output,
            capture_output=True,
            text=True,
            timeout=120,
            preexec_fn=obey_permissions,
        )


@pytest.fixture(scope="module")
def machine(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"), made)


@pytest.mark.slow
def test_a_machine_without_compilers_and_without_a_cache(made: Made, machine: Machine) -> None:
    """Only a few packages are installed, and the cache's folder cannot be written."""
    done = machine.run("compile", "--json", "--bundle", machine.bundle, "-o", "compiled", machine.script, ".")
    (row,) = json_of(done)["modules"]
    assert (row["lto_builds"], row["lto_hits"]) == (0, 1)
    assert row["cubin_bytes"] == next(m["cubin_bytes"] for m in made.record["modules"] if m["arch"] == 90)
    assert "Traceback" not in done.stderr
    done = machine.run("doctor", "--json", "--bundle", machine.bundle)
    states = {item["subject"]: item["state"] for item in json_of(done)["findings"]}
    assert (states["toolchain"], states["bundle"]) == ("note", "ok")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_signature_decides_and_not_the_owner_of_the_file(made: Made, machine: Machine) -> None:
    done = machine.run("run", "--json", "--bundle", machine.bundle, "--policy", "locked", machine.script, ".", "build")
    (record,) = json_of(done)["modules"]
    assert (record["lto_builds"], record["lto_hits"]) == (0, 1)
    (cubin,) = machine.output.glob("built/*.cubin")
    assert cubin.stat().st_size == next(m["cubin_bytes"] for m in made.record["modules"] if m["arch"] == 90)
    assert machine.bundle.stat().st_uid == OWNER
