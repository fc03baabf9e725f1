"""An installation without compilers that every user can read: Python, and the packages of a deployed program."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import warp_tiles

# those of examples/deploy/Dockerfile, and what they need
PACKAGES = {
    "warp_tiles", "warp", "numpy", "click", "filelock", "platformdirs", "rich", "cryptography",
    "pygments", "markdown_it", "mdurl", "cffi", "_cffi_backend", "pycparser", "typing_extensions", "tomli",
    "numpy.libs",
}  # fmt: skip
_UNUSED = shutil.ignore_patterns("site-packages", "test", "tests", "examples", "idlelib", "ensurepip", "config-*")


def install_packages(target: Path) -> Path:
    """Install the packages of this process into a folder, with this checkout."""
    target.mkdir()
    package = Path(warp_tiles.__file__).resolve().parent
    _share(package, target / "warp_tiles")
    if not (package / "kernels").exists():  # a wheel has them in the package
        _share(package.parent / "kernels", target / "warp_tiles" / "kernels")
    for place in filter(os.path.isdir, sys.path):
        if not place.endswith(("site-packages", "dist-packages")):
            continue
        for item in Path(place).iterdir():
            wanted = item.name in PACKAGES or (item.is_file() and item.name.partition(".")[0] in PACKAGES)
            if wanted and not (target / item.name).exists():
                _share(item, target / item.name)
    _open_folders(target)
    return target


def install_python(folder: Path) -> tuple[list[str], dict[str, str]]:
    """A Python that imports nothing but its standard library and what is on PYTHONPATH, and that every user can run.

    Returns:
        Its command, and the environment that it needs.
    """
    # with -S, the interpreter below a virtual environment knows no site-packages
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    if everybody_reaches(executable):
        return [str(executable), "-S"], {}
    base = Path(sys.base_prefix)
    library_folder = Path(sysconfig.get_path("stdlib"))
    _share(library_folder, folder / library_folder.relative_to(base))
    for library in (base / "lib").glob("libpython*.so*"):
        _share(library, folder / "lib" / library.name)
    (folder / "bin").mkdir()
    _share(executable, folder / "bin" / "python3")
    _open_folders(folder)
    return [str(folder / "bin" / "python3"), "-S"], {"PYTHONHOME": str(folder), "LD_LIBRARY_PATH": str(folder / "lib")}


def everybody_reaches(path: Path) -> bool:
    """True if every user can enter a folder, or run a file."""
    return all(place.stat().st_mode & 0o001 for place in (path, *path.parents))


def _share(source: Path, target: Path) -> None:
    """Link the files of a folder, or a file, to another place. The folders above the source need not be readable."""
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_share_file, ignore=_UNUSED)
    else:
        _share_file(str(source), str(target))


def _open_folders(top: Path) -> None:
    """Let every user enter the folders, whatever the umask is."""
    for folder, _, _ in os.walk(top):
        os.chmod(folder, 0o755)


def _share_file(source: str, target: str) -> None:
    source = os.path.realpath(source)  # Linux would link to a link
    if os.stat(source).st_mode & 0o004:
        try:
            os.link(source, target)
            return
        except OSError:  # on another file system
            pass
    shutil.copy2(source, target)
    os.chmod(target, 0o755)
