"""The device functions and loops of a module in words, for the page and for the tables of ``warp-tiles plan``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warp_tiles.plan.planning import STAGES

Json = Mapping[str, Any]

SKIPPED, STAGED, SCALAR = "skipped", "in stages", "scalar path"
#: The states of functions: the colour of each on the page, and its text among the totals.
STATES = {
    "built": ("compile", "functions built"),
    "to build": ("compile", "functions to build"),
    "built by Warp": ("bad", "built by Warp"),
    "from cache": ("cache", "from the cache"),
    "in the cache": ("cache", "in the cache"),
    "shared": ("shared", "shared by modules"),
    STAGED: ("wait", "computed by loops from stages"),
    SCALAR: ("bad", "on the scalar path"),
    "not built": ("wait", "not built in this run"),
    SKIPPED: ("wait", "adjoints skipped"),
}
_LONG_PATH = 40  # characters
_CHOICES = {"": "", "tuned": "chosen from a tuning record", "default": "chosen by default"}
PRODUCT_HEADINGS = ("product", "tile", "threads", "slices of K", "instruction", "stages", "blocks", "reason")
SOLVES = "calls of warp_tiles.cholesky and warp_tiles.solve"
SOLVE_HEADINGS = ("call", "form", "tile", "columns", "threads", "reason")
LOOP_HEADINGS = ("kernel", "line", "products", "what is done", "reason", "gradients")


@dataclass(frozen=True)
class Function:
    """One planned function and its build.

    Attributes:
        planned: An entry of a module's ``functions``.
        build: The entry of its ``builds`` for the same function; None if nothing was built or looked up.
        is_plan: True if the module is part of a plan, False if it is part of the report of a run.
    """

    planned: Json
    build: Json | None
    is_plan: bool

    @property
    def title(self) -> str:
        """Its role and sizes, e.g. ``forward 64x64x32``."""
        return f"{self.planned['role']} {self.planned['size']}"

    @property
    def provider(self) -> str:
        """The provider that built it, or that will, and its tile configuration."""
        of = self.build or self.planned
        return ", ".join(filter(None, (of["provider"], of["tile"])))

    @property
    def state(self) -> str:
        """What was done, or what will be done, in one or two words: one of :data:`STATES`."""
        planned, build = self.planned, self.build
        if not planned["needed"]:
            return SKIPPED
        if (build or planned)["provider"] in ("", "scalar"):
            return SCALAR
        if (build or planned)["provider"] == STAGES:
            return STAGED
        if build is not None:
            return "built" if not build["hit"] else "shared" if build["shared"] else "from cache"
        if not self.is_plan:
            return "not built"
        return "built by Warp" if not planned["key"] else "in the cache" if planned["cached"] else "to build"

    @property
    def choice(self) -> str:
        """What decided about provider and tile configuration, in words; empty if there was no choice."""
        return _CHOICES[self.planned["choice"]]

    @property
    def fallback(self) -> str:
        """How the build differs from the plan; empty if it is as planned."""
        build, planned = self.build, self.planned
        if build is None:
            return ""
        if build["provider"] != planned["provider"]:
            return f"planned with {planned['provider'] or 'no provider'}, built with {build['provider']}"
        return "" if build["tile"] == planned["tile"] else f"planned with the tile {planned['tile']}"

    @property
    def reason(self) -> str:
        return "; ".join(filter(None, (self.planned["reason"], self.fallback)))


def module_title(module: Json) -> str:
    """Name, target and block size of a module, e.g. ``gemm, sm_90, 128 threads``."""
    target = module.get("target") or ("the CPU" if module["arch"] is None else f"sm_{module['arch']}")
    threads = module.get("block_dim")
    return f"{module.get('name')}, {target}" + (f", {threads} threads" if threads not in (None, 1) else "")


def with_tiles(modules: Iterable[Json]) -> tuple[list[Json], str]:
    """The modules that a plan or report shows, and a text about those without tile functions, or an empty one.

    A module that the policy leaves to Warp, and one whose file is up to date, are shown: their calls are not known.
    """
    shown: list[Json] = []
    names: dict[str, None] = {}
    for module in modules:
        known = module.get("functions") or module.get("uninstantiated")
        if known or module.get("policy") == "off" or module.get("up_to_date"):
            shown.append(module)
        else:
            names[module["name"]] = None
    others = [name for name in names if name not in {module["name"] for module in shown}]
    text = f"{len(others)} module{'s' * (len(others) != 1)} without tile functions, which Warp builds as always"
    return shown, text if others else ""


def compiled_again(modules: Iterable[Json]) -> list[str]:
    """Block sizes for which a module with tile functions is compiled, although no kernel launched with them has any.

    Modules of a planned script have ``launched``, the names of the kernels of their block size.
    """
    compiled: dict[tuple[str, str, int, int], list[int]] = {}  # the functions for each architecture
    planned = [module for module in modules if "launched" in module]
    for module in planned:
        kernels = (kernel for function in module.get("functions", ()) for kernel in function["kernels"])
        tiled = {kernel.partition("[")[0] for kernel in kernels}  # a launch does not name the instance
        others = [m for m in planned if (m["name"], m["arch"]) == (module["name"], module["arch"]) and m is not module]
        useful = next((m["block_dim"] for m in others if tiled & set(m["launched"])), None)
        if useful is None or not module["launched"] or tiled & set(module["launched"]):
            continue
        count = sum(function.state not in (SKIPPED, SCALAR, STAGED) for function in functions(module))
        again = module["name"], ", ".join(module["launched"]), module["block_dim"], useful
        compiled.setdefault(again, []).append(count)
    return [
        f"module {name} is compiled once more{f' for each of {len(counts)} architectures' * (len(counts) > 1)}, with "
        f"{sum(counts)} function{'s' * (sum(counts) != 1)}, only because {kernels} without tile functions is launched "
        f"with {threads} threads: launch it with block_dim={useful}, or give it a module of its own with "
        '@wp.kernel(module="unique")'
        for (name, kernels, threads, useful), counts in compiled.items()
    ]


def shortened(path: str) -> str:
    """A path with an ellipsis in place of its middle, if it is long. The name of the file is kept."""
    parts = Path(path).parts
    ends = [str(Path(*parts[:2], "...", *parts[-count:])) for count in range(1, len(parts) - 2)]
    fitting = [end for end in ends if len(end) <= _LONG_PATH] or ends[:1]
    return path if len(path) <= _LONG_PATH or not fitting else fitting[-1]


def filled(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[list[str], list[list[Any]]]:
    """A table without the columns whose cells are all empty."""
    columns = zip(headings, *rows, strict=True)
    kept = [column for column in columns if not rows or any(cell != "" for cell in column[1:])]
    return [column[0] for column in kept], [[column[number] for column in kept] for number in range(1, len(rows) + 1)]


def functions(module: Json) -> list[Function]:
    """Every planned function of a module, needed or not, in the order of the plan."""
    builds = module.get("builds", ())

    def build_of(planned: Json) -> Json | None:
        equal = (b for b in builds if all(planned.get(name) == value for name, value in b["problem"].items()))
        return next(equal, None) if planned["needed"] else None

    return [Function(function, build_of(function), "builds" not in module) for function in module.get("functions", ())]


def loop_rows(module: Json) -> list[tuple[str, ...]]:
    """The cells below :data:`LOOP_HEADINGS` of a module's loops."""
    return [
        (
            loop["kernel"],
            f"{shortened(loop['file'])}:{loop['line']}",
            str(loop["products"]),
            loop["treatment"],
            "; ".join(filter(None, (loop["reason"], loop["store"], loop["cost"], loop["loads"]))),
            "; ".join(filter(None, (loop["gradients"], loop["reverse"]))),
        )
        for loop in module.get("loops", ())
    ]


def product_rows(products: Iterable[Json]) -> list[tuple[str, ...]]:
    """The cells below :data:`PRODUCT_HEADINGS` of the plans of ``warp_tiles.matmul``."""
    rows = []
    for product in products:
        config = product["config"]
        tile = "x".join(str(config[name]) for name in ("tile_m", "tile_n", "tile_k"))
        cluster = "x".join(str(config[name]) for name in ("cluster_m", "cluster_n"))
        tile += f" in clusters of {cluster}" if cluster != "1x1" else ""
        numbers = config["threads"], config["split_k"]
        others = (product[name] for name in ("instruction", "stages", "resident_blocks", "reason"))
        rows.append(tuple(map(str, (product["product"], tile, *numbers, *others))))
    return rows


def solve_rows(solves: Iterable[Json]) -> list[tuple[str, ...]]:
    """The cells below :data:`SOLVE_HEADINGS`."""
    rows = []
    for solve in solves:
        config = solve["config"]
        numbers = (f"{config['rows']}x{config['rows']}", *(str(config[name]) for name in ("columns", "threads")))
        rows.append((solve["problem"], config["form"], *numbers, solve["reason"]))
    return rows


def module_notes(module: Json) -> list[str]:
    """What a plan says about a module as a whole."""
    texts = []
    if module["policy"] != "auto" or module["provider"] != "auto":
        texts.append(f"policy {module['policy']}, provider {module['provider']}")
    texts += [module["kernel_package"]] if module.get("kernel_package") and "output" not in module else []
    texts += module["stuck"]
    texts += [memory["failure"] for memory in module["memory"] if memory["failure"]]
    texts += filter(None, [module["uninstantiated_reason"], loops_note(module)])
    if module["register_limit"]:
        limit = f"at most {module['register_limit']} registers per thread if warp_tiles links"
        texts.append(f"{limit}: {module['register_limit_reason']}")
    return texts


def loops_note(module: Json) -> str:
    reason = module.get("loops_reason")
    return f"loops stay as Warp generates them: {reason}" if reason else ""
