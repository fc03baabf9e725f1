"""Launches on the CPU and builds for a GPU, each in one state of the file system. Prints a JSON object per state.

python -m tests.hardening.launches FOLDER NAME [NAME ...]
"""

import ctypes
import json
import logging
import os
import pwd
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import warp as wp

import warp_tiles
from warp_tiles._warp.modules import compile_module
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.store import documents
from warp_tiles.util.warn import WarnedTexts

SIZE = 16
_CAPABILITIES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_PR_CAPBSET_DROP = 24
_VERSION = 0x20080522  # https://man7.org/linux/man-pages/man2/capset.2.html


@wp.kernel(enable_backward=False)
def gemm(A: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    a = wp.tile_load(A, shape=(SIZE, SIZE))
    wp.tile_store(C, wp.tile_matmul(a, a))


def launched() -> bool:
    """Launch on the CPU. Returns True if the result is right."""
    wp.get_module(__name__).mark_modified()
    a = wp.array(np.full((SIZE, SIZE), 2.0), dtype=wp.float32, device="cpu")
    c = wp.zeros((SIZE, SIZE), dtype=wp.float32, device="cpu")
    wp.launch_tiled(gemm, dim=[1], inputs=[a], outputs=[c], block_dim=64, device="cpu")
    return bool((c.numpy() == 4.0 * SIZE).all())


def obey_permissions() -> None:
    """Drop the capabilities that ignore permissions from this process and its children. Nothing to do for others."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, for numbers below 32 and then above
    if libc.capget(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for capability in _CAPABILITIES:
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
        for place in (0, 1, 2):
            sets[place] &= ~(1 << capability)
    if libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


@contextmanager
def compiling_once() -> Iterator[None]:
    """Equal requests to compile or link are answered from memory, whatever the caches do."""
    run, known = CompilerPool._run, dict[Any, Any]()

    def run_once(pool: CompilerPool, request: Any, *how: Any) -> Any:
        if request not in known:
            known[request] = run(pool, request, *how)
        return known[request]

    with patch.object(CompilerPool, "_run", run_once):
        yield


# ---- states of the file system in which the cache cannot be used


def _with_mode(mode: int, inside: str = "") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        root = folder / "cache"
        (root / inside).mkdir(parents=True)
        root.chmod(mode)
        return root

    return make


def _layout_without_permission(folder: Path) -> Path:
    (folder / "cache" / "v2").mkdir(parents=True)
    (folder / "cache").chmod(0o700)
    (folder / "cache" / "v2").chmod(0)
    return folder / "cache"


def _of_another_user(folder: Path) -> Path:
    root = folder / "cache"
    root.mkdir(mode=0o700)
    os.chown(root, 65534, 65534)
    return root


def _file(folder: Path) -> Path:
    (folder / "cache").write_text("in the way")
    return folder / "cache"


def _loop(folder: Path) -> Path:
    (folder / "cache").symlink_to(folder / "cache")
    return folder / "cache"


def _linked_layout(folder: Path) -> Path:
    (folder / "elsewhere").mkdir(mode=0o700)
    (folder / "cache").mkdir(mode=0o700)
    (folder / "cache" / "v2").symlink_to(folder / "elsewhere")
    return folder / "cache"


def _no_working_folder(folder: Path) -> Path:
    (folder / "gone").mkdir()
    os.chdir(folder / "gone")
    (folder / "gone").rmdir()
    return folder / "cache"


def _no_home(folder: Path) -> str:
    """The default folder, for a user without an entry in the user database. The caller restores both."""

    def no_entry(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    pwd.getpwuid = no_entry
    return ""


STATES: dict[str, Callable[[Path], Path | str]] = {
    "no permission": _with_mode(0, "tuning/loop"),
    "a layout without permission": _layout_without_permission,
    "open to all": _with_mode(0o777),
    "of another user": _of_another_user,
    "a long name": lambda folder: folder / ("n" * 300),
    "a file in its place": _file,
    "a link to itself": _loop,
    "read-only": _with_mode(0o500),
    "a link in place of the layout": _linked_layout,
    "no working folder": _no_working_folder,
    "no home folder": _no_home,
}


def in_state(name: str, folder: Path) -> dict[str, Any]:
    """Launch and build in one state. The messages are those of the logger and the warnings."""
    folder.mkdir()
    root = STATES[name](folder)
    messages = BufferingHandler(10_000)
    messages.setLevel(logging.WARNING)
    logging.getLogger("warp_tiles").addHandler(messages)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            given = {"cache_dir": root, "progress": "off", "target_gpu": "NVIDIA H200"}  # whose records are read
            with warp_tiles.override(**given), warp_tiles.enabled():
                right = launched()
                cubin = compile_module(wp.get_module(__name__), 90, 64, folder / "cubins")
                again = launched()
                built = [row for row in warp_tiles.report()["modules"] if row.get("output") == cubin.name]
        finally:
            logging.getLogger("warp_tiles").removeHandler(messages)
    return {
        "launched": right and again,
        "cubin": cubin.stat().st_size,
        "linker": built[0]["linker"],
        "messages": [record.getMessage() for record in messages.buffer] + [str(item.message) for item in warned],
    }


def main() -> None:
    """Run every named state in its own folder."""
    obey_permissions()
    logging.getLogger("warp_tiles").propagate = False
    top = Path(sys.argv[1])
    here, environment, user_of = os.getcwd(), dict(os.environ), pwd.getpwuid
    for name in sys.argv[2:]:
        print(json.dumps({"state": name, **in_state(name, top / name.replace(" ", "_"))}), flush=True)
        os.chdir(here)
        os.environ.clear()
        os.environ.update(environment)
        pwd.getpwuid = user_of
        documents._logged = WarnedTexts()  # the states without a home folder have one root
        shutil.rmtree(wp.config.kernel_cache_dir, ignore_errors=True)
        os.makedirs(wp.config.kernel_cache_dir, exist_ok=True)


if __name__ == "__main__":
    with compiling_once():
        main()
