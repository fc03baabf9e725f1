"""Records of a run and of a plan for the tests of the page and of the trace, made by the classes that runs use."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.codegen.decisions import staged_loop
from tests.codegen.modules import BIG, SMALL, session
from warp_tiles.array_products.matmul_choice import choose_matmul
from warp_tiles.array_products.matmul_problem import DecidedBy, Gpu, MatmulConfig, MatmulProblem
from warp_tiles.array_products.solve_choice import SolveProblem, choose_solve
from warp_tiles.build.log import (
    COMPILE,
    FETCH,
    LINK,
    LOOK_UP,
    WAIT,
    WARP_LINK,
    WRITE,
    Artifact,
    BuildLog,
    ModuleLog,
    Phase,
)
from warp_tiles.codegen.trace import FunctionUse
from warp_tiles.gemm.problem import DType, GemmProblem, Role
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.plan.planner import resolve
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.solver.problem import Problem

HOSTILE = "<script>alert('x')</script>&\"\x1b[31m"
CONFIG = TileConfig("fma", 8, 4, lanes_m=8, lanes_n=4)
WARNING = "own failed; using cuBLASDx"
_DECIDED: tuple[tuple[DType, DecidedBy], ...] = (("float16", "record"), ("float32", "heuristic"))
PRODUCTS = tuple(
    replace(
        choose_matmul(
            MatmulProblem(64, 64, 64, a=dtype, b=dtype), Gpu(90, 132, "GPU"), forced=MatmulConfig(32, 64, 16, 128)
        ),
        decided_by=who,
    )
    for dtype, who in _DECIDED
)
SOLVE = choose_solve(SolveProblem("solve", "float32", 16, 3, 2), Gpu(90, 132, "GPU")).to_json()
LOOP = staged_loop("train.py", 12, instruction="wgmma")


def plan(name: str = "first", reason: str = "needed") -> ModulePlan:
    """A module of one needed product and two skipped adjoints, with its loop."""
    use = FunctionUse("k", "k", False, "kernel 'k' has enable_backward=False")
    made = resolve(session(("k", BIG)), (), ["k"], [use])
    functions = tuple(
        replace(v, provider="own", key="ab" * 32, tile_config=CONFIG, choice="tuned", reason=f"{v.reason}; {reason}")
        if v.needed
        else v
        for v in made.functions
    )
    return replace(made, name=name, functions=functions, loops=(LOOP,))


def backward_plan(name: str = "second") -> ModulePlan:
    """A module that needs a product and both adjoints."""
    use = FunctionUse("trained", "k", True, "kernel 'trained' has a backward pass")
    made = resolve(session(("k", SMALL)), (0,), ["trained"], [use])
    changes: dict[str, Any] = {"provider": "own", "key": "cd" * 32, "tile_config": CONFIG, "choice": "default"}
    functions = tuple(replace(v, **changes) for v in made.functions)
    return replace(made, name=name, functions=functions)


def built(problem: Problem, start: float, seconds: float, wait: float = 0.1, **changes: Any) -> Artifact:
    """A build of ``own`` that waited for a compiler process first."""
    assert isinstance(problem, GemmProblem)
    work = Phase(COMPILE, start + wait, seconds - wait)
    made = Artifact(problem, problem.symbol, b"x" * 30_000, "own", "ab" * 32, False, seconds, tile_config=CONFIG)
    return replace(made, started_at_s=start, compiled=work, **changes).without_payload()


def found(problem: Problem, start: float, seconds: float = 0.002) -> Artifact:
    """A cache hit."""
    return replace(built(problem, start, seconds, 0.0), hit=True, compiled=None)


def shared(artifact: Artifact) -> Artifact:
    """The same build, for another module."""
    return replace(artifact, hit=True, shared=True)


def record(
    module: ModulePlan,
    artifacts: Sequence[Artifact],
    start: float,
    seconds: float,
    *,
    compiled: float = 0.5,
    reason: str = "",
) -> ModuleLog:
    """The record of a module: its source compiles, then it is linked until the end."""
    ready = max([start + 0.2 + compiled, *(a.started_at_s + a.seconds for a in artifacts)])
    phases = (
        Phase(WAIT, start, max(a.started_at_s + a.seconds for a in artifacts) - start),
        Phase(COMPILE, start + 0.2, compiled),
        Phase(WARP_LINK if reason else LINK, ready, start + seconds - ready),
    )
    linker = "warp" if reason else "warp_tiles"
    output = f"wp_{module.name}.sm90.cubin"
    times = {"started_at_s": start, "phases": phases}
    return ModuleLog(module, artifacts, linker, reason, output, 130_000, seconds, **times)


FORWARD = built(BIG[Role.FORWARD], 1.0, 0.6)
SMALL_BUILDS = (
    found(SMALL[Role.FORWARD], 1.05),
    built(SMALL[Role.ADJOINT_A], 1.05, 1.5, 0.4),
    built(SMALL[Role.ADJOINT_B], 1.05, 0.7, 0.4, provider="cublasdx", tile_config=None, warnings=(WARNING,)),
)


def run() -> dict[str, Any]:
    """A run: two modules side by side, a third that shares a build, a fourth much later, and one that was planned."""
    log = BuildLog()
    records = (
        record(plan(), [FORWARD], 1.0, 2.0),
        record(backward_plan(), SMALL_BUILDS, 1.04, 3.0),
        record(plan("third"), [shared(FORWARD)], 1.2, 1.5),
        record(plan("late"), [found(BIG[Role.FORWARD], 100.0)], 100.0, 1.0, reason="a debug build"),
    )
    for item in records:
        log.add_plan(item.plan)
        log.add_module(item)
    log.add_plan(replace(plan("on the CPU"), arch=None))
    return log.to_json()


def looked_up() -> dict[str, Any]:
    """A run with kept modules: one from the cache, one from the remote store, and one that neither had."""
    log = BuildLog()
    look_up = Phase(LOOK_UP, 7.0, 0.25)
    fetch = Phase(FETCH, 7.25, 0.5)
    hit = replace(found(BIG[Role.FORWARD], 0.0, 0.0), started_at_s=0.0)  # as of a module whose functions are not needed
    missed = record(plan("missed"), [built(BIG[Role.FORWARD], 7.75, 0.5)], 7.0, 3.0)
    missed = replace(missed, phases=(look_up, fetch, *(replace(p, started_at_s=9.0) for p in missed.phases[1:2])))
    for name, phases in (("cached", (look_up, Phase(WRITE, 7.25, 0.1))), ("fetched", (look_up, fetch))):
        known = record(plan(name), [hit], 7.0, 1.0)
        log.add_module(replace(known, found=True, phases=phases))
    log.add_module(missed)
    return log.to_json()


def planned() -> dict[str, Any]:
    """A plan of two modules, as ``warp-tiles plan --json`` prints it."""
    modules = [plan().to_json(), backward_plan().to_json()]
    return {"modules": modules, "matmul": [product.to_json() for product in PRODUCTS], "solves": [SOLVE]}


def hostile() -> dict[str, Any]:
    """A run whose every text holds markup, quotes and an escape of a terminal, except words of this package."""

    def spoiled(value: Any) -> Any:
        if isinstance(value, dict):
            kept = ("linker", "choice", "state")
            return {key: item if key in kept else spoiled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [spoiled(item) for item in value]
        return value + HOSTILE if isinstance(value, str) else value

    document = run() | {name: planned()[name] for name in ("matmul", "solves")}
    spoiled_run: dict[str, Any] = spoiled(document)
    for module, clean in zip(spoiled_run["modules"], document["modules"]):
        for phase, known in zip(module.get("phases", ()), clean.get("phases", ())):
            phase["name"] = known["name"]  # chosen by this package
    return spoiled_run
