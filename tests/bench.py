"""A test bench: an engine with a fake toolchain and compiler, and a real cache. Several test modules use it."""

import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from warp_tiles.build import context as module
from warp_tiles.build.engine import Engine
from warp_tiles.build.log import Artifact
from warp_tiles.codegen.trace import Session
from warp_tiles.compile.compiler import Compiled, CompileRequest
from warp_tiles.compile.find import Toolchain
from warp_tiles.compile.sources import DeviceSource
from warp_tiles.errors import BuildError, ToolchainError, WarpTilesError
from warp_tiles.gemm.problem import DType, GemmProblem, Role, Target, TileOperand, products
from warp_tiles.plan.planner import resolve
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.settings import current
from warp_tiles.solver.problem import Problem
from warp_tiles.store.cache import Cache

TOOLCHAIN = Toolchain(Path("/lib/libnvrtc.so"), (12, 9), None, None, (), "25.6.0")
REFUSED = 'header.hpp(7): error: static assertion failed with "unsupported alignment"'


def problem_of(size: int, dtype: str = "float32", threads: int = 32) -> GemmProblem:
    return deep_problem(size, size, dtype, threads, dtype)  # type: ignore[arg-type]


def deep_problem(size: int, k: int, dtype: DType, threads: int, result: DType = "float32") -> GemmProblem:
    a, b = (
        TileOperand(dtype, (size, k), (k, 1), "row_major", True),
        TileOperand(dtype, (k, size), (size, 1), "row_major", True),
    )
    c = TileOperand(result, (size, size), (size, 1), "row_major", True)
    product = products(a, b, c, precision="default", target=Target(90, threads))
    return product.problems[Role.FORWARD]


def plan_of(*problems: Problem) -> ModulePlan:
    """A module that needs some problems, under the settings of the process."""
    session = Session("module", 90, 32)
    for problem in problems:
        session.add("tile_matmul", "k", {Role.FORWARD: problem})
    return resolve(session, (), ["k"], [])


ALIGNED = problem_of(8)
UNALIGNED = ALIGNED.without_alignment()


def annotated(engine: Engine, plan: ModulePlan) -> ModulePlan:
    """A plan of problems alone, with the choice of each that is needed."""
    choose = engine.chooser(plan.settings, plan.linker_reason)
    return replace(plan, functions=tuple(choose(v) if v.needed and v.problem else v for v in plan.functions))


class FakeDigests:
    """Returns names in place of digests."""

    is_empty = False

    def digest_many(self, files: Mapping[str, object]) -> str:
        return " ".join(sorted(files))


class FakeFacts:
    """A toolchain with digests that a test can change."""

    def __init__(self) -> None:
        self.source, self.compiler = "source digest", "compiler digest"
        self.found = TOOLCHAIN
        self.digests = FakeDigests()
        self.error: ToolchainError | None = None

    def toolchain(self) -> Toolchain:
        if self.error is not None:
            raise self.error
        return self.found

    def try_toolchain(self) -> Toolchain | None:
        return self.found if self.error is None else None

    def source_digest(self, source: DeviceSource) -> str:
        return f"{self.source} of {source.path.name}"

    def compiler_digest(self) -> str:
        self.toolchain()
        return self.compiler

    def linker_digest(self) -> str:
        found = self.toolchain().nvjitlink
        return self.digests.digest(found) if found is not None else ""


class FakePool:
    """Compiles at once, except for the names in ``refuse``: ``<symbol>_<provider>``."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.refuse: dict[str, WarpTilesError] = {}
        self.gate: threading.Event | None = None
        self.started = 0  # processes before the first request
        self.lock = threading.Lock()

    def submit(self, request: CompileRequest, **_: object) -> Future[Compiled]:
        name = request.name.removesuffix(".cu")
        with self.lock:
            self.requests.append(name)
        if self.gate is not None:
            assert self.gate.wait(10)
        future: Future[Compiled] = Future()
        if name in self.refuse:
            future.set_exception(self.refuse[name])
        else:
            future.set_result(Compiled(f"LTO-IR of {name}".encode(), 0.5, "NVRTC 12.9"))
        return future

    def start_processes(self, count: int) -> None:
        self.started += count

    def close(self) -> None:
        pass


def own(problem: Problem) -> str:
    """Name of the compile request of the provider own."""
    return f"{problem.symbol}_own"


def cublasdx(problem: GemmProblem) -> str:
    """Name of the compile request of the provider cublasdx."""
    return f"{problem.symbol}_cublasdx"


class Bench:
    """An engine with a fake toolchain and compiler, and a real cache."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.facts, self.pool = engine, FakeFacts(), FakePool()
        monkeypatch.setattr(module, "ToolchainFacts", lambda root, **_: self.facts)
        monkeypatch.setattr(engine.resources, "pool", lambda *_: self.pool)

    @property
    def cache(self) -> Cache:
        """The cache under the settings of the process."""
        return self.engine.build_context(current()).cache

    def refuse(self, *names: str) -> None:
        """Make the compiler reject sources."""
        for name in names:
            self.pool.refuse[name] = BuildError(f"{name} could not be compiled", log=REFUSED)

    def build(self, problem: Problem) -> Artifact:
        """Build one problem."""
        return self.engine.start([problem])[problem].result(20)

    def build_with_warnings(self, problem: Problem) -> tuple[Artifact, list[str]]:
        """Build one problem. Returns the artifact and the warnings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            artifact = self.build(problem)
        assert all(issubclass(warning.category, RuntimeWarning) for warning in caught)
        return artifact, [str(warning.message) for warning in caught]


def libmathdx(problem: GemmProblem) -> tuple[str, bytes]:
    """A fake of Warp's libmathdx."""
    return f"dot_{problem.m}", b"libmathdx LTO-IR"


def failing_libmathdx(problem: GemmProblem) -> tuple[str, bytes]:
    """A fake libmathdx that fails."""
    raise BuildError(f"Warp's libmathdx could not build {problem.describe()}", log="libmathdx error: no")
