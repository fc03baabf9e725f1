"""Every check of this repository: ``nox`` runs them all, ``nox -s NAME`` one of them.

tests       the tests that need no GPU, on each Python that is installed
nightly     the tests of .ci/run and the long series: more drawn cases, processes and architectures
warp        planning, hashes, builds and the command line on each Warp that is supported
lint        ruff and mypy
clients     steps of two versions of MuJoCo Warp are compiled, and kernels of Newton and warp-nn run on the CPU
beside      the package is installed beside torch, JAX, CuPy and numba-cuda, and builds functions there
wheel       sdist and wheel are built, and the tests run against the wheel alone, in a fresh environment
conda       the conda package of recipe/ is built and tested; needs conda-forge and rattler-build
docs        the site of the documentation, built strictly into build/site
release     the release checklist (tools/release.py)
mutation    small faults in the device code, each of which its tests must find; ``-- --only TEXT`` selects some
"""

from __future__ import annotations

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
WARPS = ["1.17.0", "1.18.0", "1.19.0"]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """All tests that need no GPU; arguments go to pytest."""
    session.install("-e", ".[test,plot]")
    session.run("pytest", *session.posargs)


@nox.session
def nightly(session: nox.Session) -> None:
    """All tests that need no GPU, with the long series."""
    session.install("-e", ".[test,plot]")
    session.run("pytest", "-m", "not gpu", *session.posargs, env={"EMULATED_PRODUCTS": "2200"})


@nox.session
def beside(session: nox.Session) -> None:
    """Fresh environments with other packages and this one; arguments are requirements, e.g. torch==2.9.1."""
    session.run("python", "tools/beside.py", *session.posargs)


@nox.session
@nox.parametrize("version", WARPS)
def warp(session: nox.Session, version: str) -> None:
    """The integration tests on one version of Warp."""
    session.install("-e", ".[test,cu12]", f"warp-lang=={version}")
    session.run("pytest", "tests/integration", "-m", "not gpu", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Format, lint and types, without changing a file."""
    session.install("-e", ".[test]", "nox>=2025.2")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")


@nox.session
def clients(session: nox.Session) -> None:
    """MuJoCo Warp, Newton and warp-nn from the pinned packages, compiled."""
    folder = session.create_tmp()
    session.install("-e", ".[test]")
    names = ("mujoco_humanoid", "newton_kernels", "warp_nn_mlp")
    session.run("python", "benchmarks/clients.py", "--install", f"{folder}/env", "--only", *names)
    python = f"{folder}/env/bin/python"
    session.run(python, "-m", "pip", "install", "-q", "newton[sim]==1.8.0", external=True)  # an older MuJoCo Warp
    caches = {"WARP_CACHE_PATH": f"{folder}/warp", "WARP_TILES_CACHE_DIR": f"{folder}/tiles"}
    child = (python, "-m", "benchmarks.client_scripts.child")
    session.run(*child, "mujoco_humanoid", "tiles", f"{folder}/out", external=True, env=caches)


@nox.session
def docs(session: nox.Session) -> None:
    """The site of the documentation, strictly, in build/site."""
    session.install("-e", ".[docs]")
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session(reuse_venv=False)
def wheel(session: nox.Session) -> None:
    """The tests against the installed wheel, as .ci/wheel runs them; arguments go to pytest."""
    session.run(".ci/wheel", *session.posargs, external=True)


@nox.session
def conda(session: nox.Session) -> None:
    """Build and test the conda package."""
    session.run("rattler-build", "build", "--experimental", "--recipe", "recipe", "--channel", "conda-forge",
                "--output-dir", session.create_tmp(), external=True)  # fmt: skip


@nox.session
def release(session: nox.Session) -> None:
    """The release checklist. It prints what a person still has to do."""
    session.install("-e", ".[test,docs]", "twine>=6")
    session.run("python", "-m", "tools.release")


@nox.session
def mutation(session: nox.Session) -> None:
    """The named mutations of tests/mutation, and some made ones. Records the outcomes."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.mutation.run", "--record", *session.posargs)
