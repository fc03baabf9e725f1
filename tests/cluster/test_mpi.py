"""Builds by the ranks of an MPI job, through ``mpi4py.futures``."""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench import problem_of
from tests.integration.helpers import REPOSITORY
from warp_tiles import settings
from warp_tiles.build.engine import Engine

SIZES = (16, 24, 32)
RANKS = 3  # one runs the script, two compile
SCRIPT = """
import json, sys
from mpi4py.futures import MPIPoolExecutor
from tests.cluster.test_mpi import Counted, digests

if __name__ == "__main__":
    with MPIPoolExecutor() as executor:
        counted = Counted(executor)
        there, here = digests(sys.argv[1], counted), digests(sys.argv[2])
        print(json.dumps({"there": there, "here": here, "sent": counted.sent, "workers": executor.num_workers}))
"""
# for Open MPI, which refuses root, and more ranks than cores
ALLOWED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class Counted:
    """An executor that counts what it sends."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.sent = 0

    def submit(self, function: Any, value: Any) -> Any:
        self.sent += 1
        return self._executor.submit(function, value)


def digests(folder: str, executor: Any = None) -> dict[str, str]:
    """The SHA-256 of some functions, which an engine with an empty cache builds."""
    engine = Engine(warp_toolkit=(13, 4), executor=executor)
    try:
        with settings.override(cache_dir=Path(folder)):
            built = engine.start([problem_of(size, "float16", threads=64) for size in SIZES])
            found = [future.result(120) for future in built.values()]
    finally:
        engine.close()
    assert not any(artifact.hit for artifact in found)
    return {artifact.symbol: hashlib.sha256(artifact.payload).hexdigest() for artifact in found}


def launcher() -> str:
    """The path of mpiexec, also of one from a wheel beside this interpreter."""
    found = shutil.which("mpiexec") or shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    if found is None:
        pytest.skip("mpiexec is not installed")
    return found


def test_the_ranks_of_a_job_build_the_same_functions(tmp_path: Path) -> None:
    command = [launcher(), "-n", str(RANKS), sys.executable, "-m", "mpi4py.futures"]
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [*command, str(tmp_path / "script.py"), str(tmp_path / "there"), str(tmp_path / "here")],
        env={**os.environ, **ALLOWED, "PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    reply = json.loads(done.stdout.splitlines()[-1])
    assert reply["workers"] == RANKS - 1
    assert reply["there"] == reply["here"]
    assert len(reply["here"]) == len(SIZES) <= reply["sent"]
