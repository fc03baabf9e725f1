"""The command line in its own processes, and scripts for it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.integration.helpers import REPOSITORY, gemm
from tests.processes.forks import forked

PLAN_FIELDS = {
    "role", "m", "n", "k", "a_dtype", "b_dtype", "c_dtype", "precision", "arrangement", "leading_dimensions",
    "threads", "arch", "needed", "reason", "provider", "key", "cached", "alignments", "symbol", "call", "function",
    "kernels", "tile_config", "tile", "size", "dtypes", "choice", "no_gradient",
    "in_source", "code", "no_gradient_code",
}  # fmt: skip
COMPILE_FIELDS = {"name", "cubin", "cubin_bytes", "lto_builds", "lto_hits", "lto_bytes", "seconds"}

MAIN = (
    "import sys\nfrom pathlib import Path\n\nimport numpy as np\nimport warp as wp\n\n"
    + gemm()
    + """


def main(folder):
    a = wp.array(np.full((16, 16), 2.0), dtype=wp.float32, device="cpu")
    c = wp.zeros((16, 16), dtype=wp.float32, device="cpu")
    wp.launch_tiled(gemm, dim=[1], inputs=[a, a], outputs=[c], block_dim=64, device="cpu")
    print("sum", c.numpy().sum())
    Path(folder, "sum").write_text(str(c.numpy().sum()))
    Path(folder, "arguments").write_text(" ".join(sys.argv[2:]))


if __name__ == "__main__":
    main(sys.argv[1])
"""
)
WITHOUT_GUARD = MAIN.partition('if __name__ == "__main__"')[0] + "main(sys.argv[1])\n"
# products of float16 and float32, each with a function as epilogue, too
MATMUL_SIZE = 2048
MATMULS = f"""
import warp as wp
import warp_tiles
@wp.func
def squared(x: float):
    return x * x
for dtype in (wp.float16, wp.float32):
    a = wp.zeros(({MATMUL_SIZE}, {MATMUL_SIZE}), dtype=dtype)
    for _ in range(2):
        warp_tiles.matmul(a, a)
    warp_tiles.matmul(a, a, epilogue=squared)
"""


def command(
    *arguments: object, cache: Path | None = None, as_json: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m warp_tiles`` with arguments, by default with ``--json`` after the command; see :func:`forked`."""
    words = [str(argument) for argument in arguments]
    if as_json:
        words.insert(2 if words[0] == "cache" else 1, "--json")
    if cache is not None:
        environment["WARP_TILES_CACHE_DIR"] = str(cache)
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return forked("warp_tiles", words, {**os.environ, "PYTHONPATH": path, **environment})


def json_of(done: subprocess.CompletedProcess[str], status: int = 0) -> Any:
    """The JSON of a command, which is its whole standard output."""
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def usage_error(done: subprocess.CompletedProcess[str]) -> str:
    """The message of a command that failed with a usage error, without a traceback."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr
