"""The plan of a module: which GEMM variants its generated code needs, for which kernels, and why.

Warp writes the name of a product's device function into the code it generates. While a module is
being generated every call site gets three placeholder names instead. The finished source then
shows which placeholders an adjoint call really uses, whatever decided that (module option, kernel
option, ``wp.grad()``, a helper shared between kernels, a custom gradient), and they are replaced
by the names of the variants that will be built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from warp_tiles.gemm.dispatch import BFLOAT16_ADJOINT_ERROR
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.gemm.variant import GemmVariant, Role
from warp_tiles.settings import Settings, current

if TYPE_CHECKING:
    from warp_tiles.codegen.loops import LoopSums

SCALAR_FUNCTION = "0"  # Warp's entry templates take the scalar path when given an int for a function
DECLARATIONS = "/* warp_tiles declarations */"
_CTYPES = {"float16": "wp::float16", "bfloat16": "wp::bfloat16", "float32": "wp::float32", "float64": "wp::float64"}
_PLACEHOLDER = re.compile(r"\bwt_site(\d+)_(forward|adjoint_a|adjoint_b)(?=\b|_)")  # a suffix may follow, and stays
_ADJOINT_CALL = re.compile(r"\badj_\w+\s*(?:<[^;{}]*?>)?\s*\(")


@dataclass(frozen=True)
class Site:
    """One place in the generated code that multiplies tiles.

    Attributes:
        index: Number of the site within its module.
        call: The Warp function, ``tile_matmul`` or ``tile_cholesky``.
        function: Key of the kernel or ``@wp.func`` that contains it.
        variants: By role; empty on the scalar path. A Cholesky site has ``adjoint_a`` alone.
        scalar_reason: Why the scalar path is taken; empty if it is not.
        bfloat16_operands: Whether A or B is bfloat16, of which the scalar path has no adjoints.
    """

    index: int
    call: str
    function: str
    variants: Mapping[Role, GemmVariant]
    scalar_reason: str = ""
    bfloat16_operands: bool = False

    def placeholder(self, role: Role) -> str:
        """The name that stands for one product of this site in the generated source."""
        return f"wt_site{self.index}_{role.value}"


@dataclass(frozen=True)
class FunctionUse:
    """How one kernel reaches one function that contains sites.

    Attributes:
        kernel: Key of the kernel.
        function: Key of the function (the kernel's own key for its own sites).
        backward: Whether an adjoint of the function can run on behalf of this kernel.
        reason: Why it can, or why it cannot.
    """

    kernel: str
    function: str
    backward: bool
    reason: str


@dataclass(frozen=True)
class PlannedVariant:
    """One product of one site with the decision about it.

    Attributes:
        variant: None on the scalar path.
        role: Forward or which adjoint.
        call, function: Where it comes from.
        kernels: Keys of the kernels that need it; if it is skipped, of those that contain it.
        needed: Whether it will be built.
        reason: Why it is needed or skipped, and why by this provider.
        provider: Who will build it: ``mma``, ``cublasdx``, ``libmathdx`` or ``scalar``; empty if skipped.
        symbol: The function that will be called; empty until a provider is found, and on the scalar path.
        tile_config: How the provider ``mma`` computes it; None with others.
        key: Digest of its cache key; empty where nothing is cached.
        cached: Whether the cache holds it now.
    """

    variant: GemmVariant | None
    role: Role
    call: str
    function: str
    kernels: tuple[str, ...]
    needed: bool
    reason: str
    provider: str = ""
    key: str = ""
    cached: bool = False
    symbol: str = ""
    tile_config: TileConfig | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that ``warp-tiles plan --json`` prints; sizes are null on the scalar path."""
        names = ["m", "n", "k", "a_dtype", "b_dtype", "c_dtype", "precision", "arrangement"]
        names += ["leading_dimensions", "alignments", "threads", "arch"]
        sizes = dict.fromkeys(names) if self.variant is None else self.variant.to_json()
        return {
            "role": self.role.value,
            **sizes,
            "symbol": self.symbol or (self.variant.symbol if self.variant else ""),
            "call": self.call,
            "function": self.function,
            "kernels": list(self.kernels),
            "needed": self.needed,
            "reason": self.reason,
            "provider": self.provider,
            "tile_config": self.tile_config.to_json() if self.tile_config else None,
            "key": self.key,
            "cached": self.cached,
        }


@dataclass(frozen=True)
class ModulePlan:
    """What one module needs for one target.

    Attributes:
        name: Warp's name of the module.
        arch: Compute capability, or None for the CPU.
        block_dim: Threads per block.
        kernels: Keys of all kernels of the module.
        variants: Every product of every site, needed or not; equal ones of one role appear once, and
            equal ones of several roles are built once.
        settings: The settings in force for the module.
    """

    name: str
    arch: int | None
    block_dim: int
    kernels: tuple[str, ...]
    variants: tuple[PlannedVariant, ...]
    settings: Settings = field(default_factory=Settings)

    @property
    def needed(self) -> tuple[PlannedVariant, ...]:
        """The variants to build."""
        return tuple(v for v in self.variants if v.needed and v.variant is not None)

    def to_json(self) -> dict[str, Any]:
        """The module as ``warp-tiles plan --json`` prints it."""
        return {
            "name": self.name,
            "arch": self.arch,
            "block_dim": self.block_dim,
            "kernels": list(self.kernels),
            "provider": self.settings.provider,
            "policy": self.settings.policy,
            "variants": [v.to_json() for v in self.variants],
        }


@dataclass
class Session:
    """The sites met while one module is being generated."""

    module: str
    arch: int | None
    block_dim: int
    sites: list[Site] = field(default_factory=list)
    settings: Settings = field(default_factory=current)

    def add(
        self,
        call: str,
        function: str,
        variants: Mapping[Role, GemmVariant],
        *,
        scalar_reason: str = "",
        bfloat16_operands: bool = False,
    ) -> Site:
        """Record a site and return it with its placeholders."""
        site = Site(len(self.sites), call, function, dict(variants), scalar_reason, bfloat16_operands)
        self.sites.append(site)
        return site


def adjoints_called(source: str) -> set[int]:
    """Indices of the sites whose adjoint some function of the generated source calls.

    Comments do not count: Warp leaves calls that are not replayed in the source as comments.
    """
    found: set[int] = set()
    for line in source.splitlines():
        for statement in line.split("//", 1)[0].split(";"):
            call = _ADJOINT_CALL.search(statement)
            if call:
                found.update(int(match.group(1)) for match in _PLACEHOLDER.finditer(statement, call.end()))
    return found


def _kernels_of(site: Site, uses: Sequence[FunctionUse], backward: bool | None = None) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(use.kernel for use in uses if use.function == site.function and backward in (None, use.backward))
    )


def _decide(site: Site, role: Role, called: set[int], uses: Sequence[FunctionUse]) -> PlannedVariant:
    adjoint = role is not Role.FORWARD
    needed = not adjoint or site.index in called
    kernels = _kernels_of(site, uses, backward=True if adjoint and needed else None) or _kernels_of(site, uses)
    reasons = dict.fromkeys(
        use.reason for use in uses if use.function == site.function and use.backward == needed and adjoint
    )
    if not adjoint:
        reason = "every launch runs the forward product"
    else:
        reason = "; ".join(reasons) or ("its adjoint is called" if needed else "no generated code calls its adjoint")
    if site.scalar_reason:
        reason = f"{site.scalar_reason}; {reason}" if needed else reason
    variant = site.variants.get(role)
    return PlannedVariant(variant, role, site.call, site.function, kernels, needed, reason)


def _merge(planned: Sequence[PlannedVariant]) -> tuple[PlannedVariant, ...]:
    """Equal variants become one; a needed one absorbs its skipped equals of the same role."""
    merged: dict[object, PlannedVariant] = {}
    for item in sorted(planned, key=lambda v: not v.needed):
        identity = (item.variant, item.role) if item.variant else (item.role, item.function, item.call, item.reason)
        known = merged.get(identity)
        if known is None:
            merged[identity] = item
        else:
            kernels = known.kernels if known.needed and not item.needed else (*known.kernels, *item.kernels)
            merged[identity] = replace(known, kernels=tuple(dict.fromkeys(kernels)))
    return tuple(merged.values())


def resolve(session: Session, source: str, kernels: Sequence[str], uses: Sequence[FunctionUse]) -> ModulePlan:
    """Decide about every product of a module from its finished source.

    Args:
        session: The sites.
        source: Generated source with placeholders.
        kernels: Keys of the module's kernels.
        uses: Which kernel reaches which function, and whether backward.

    Raises:
        TypeError: An adjoint of a product of bfloat16 operands is needed on the scalar path.
    """
    called = adjoints_called(source)
    planned: list[PlannedVariant] = []
    for site in session.sites:
        if site.bfloat16_operands and not site.variants and site.index in called:
            raise TypeError(f"In '{site.function}': {BFLOAT16_ADJOINT_ERROR} Here {site.scalar_reason}.")
        roles = (Role.ADJOINT_A,) if site.call == "tile_cholesky" else tuple(Role)
        planned.extend(_decide(site, role, called, uses) for role in roles)
    return ModulePlan(
        session.module, session.arch, session.block_dim, tuple(kernels), _merge(planned), session.settings
    )


def pointers(variant: GemmVariant) -> tuple[str, ...]:
    """Types that Warp passes to a variant's device function: pointers to alpha, A, B, beta and C."""
    a, b, c = (f"{_CTYPES[operand.dtype]}*" for operand in (variant.a, variant.b, variant.c))
    return c, a, b, c, c


def declaration(variant: GemmVariant, symbol: str) -> str:
    """C++ declaration of a variant's device function."""
    return f"void {symbol}({', '.join(pointers(variant))});"


def loop_declarations(variant: GemmVariant, sums: LoopSums) -> str:
    """C++ declarations of the two functions that keep a variant's sums over a loop."""
    a, b, c = (_CTYPES[operand.dtype] for operand in (variant.a, variant.b, variant.c))
    add = f"void {sums.symbol}_add({sums.ctype}*, {a}*, {b}*);"
    return f"{add}\nvoid {sums.symbol}_finish({sums.ctype}*, {c}*);"


def substitute(
    source: str,
    session: Session,
    symbols: Mapping[GemmVariant, str],
    sums: Mapping[GemmVariant, LoopSums] | None = None,
    wide_moves: bool = False,
) -> str:
    """Replace placeholders by function names.

    Args:
        source: Generated source with placeholders.
        session: Its sites.
        symbols: Function name of each variant that was built. A site one of whose needed products
            is missing here takes the scalar path as a whole, because Warp's templates decide by
            the forward function alone.
        sums: Of the variants that can keep their sums in registers over a loop; None leaves loops as they are.
        wide_moves: Whether tiles are loaded side by side, see :mod:`warp_tiles.codegen.tile_moves`.
    """
    called = adjoints_called(source)
    names: dict[str, str] = {}
    declarations: dict[str, str] = {}
    complete_sites: list[Site] = []
    for site in session.sites:
        needed = [role for role in site.variants if role is Role.FORWARD or site.index in called]
        built = {role: symbols[site.variants[role]] for role in needed if site.variants[role] in symbols}
        complete = bool(site.variants) and len(built) == len(needed)
        # an adjoint that nothing calls still is an argument; Warp passes the forward function there
        default = built.get(Role.FORWARD, SCALAR_FUNCTION) if complete else SCALAR_FUNCTION
        for role in Role:
            names[site.placeholder(role)] = built.get(role, default) if complete else SCALAR_FUNCTION
        if complete:
            complete_sites.append(site)
            declarations.update({built[role]: declaration(site.variants[role], built[role]) for role in needed})
    if sums is not None:
        found = {
            site.index: sums.get(site.variants[Role.FORWARD]) for site in complete_sites if site.call == "tile_matmul"
        }
        from warp_tiles.codegen.loops import keep_sums

        source = keep_sums(source, {index: kept for index, kept in found.items() if kept is not None}, found)
        for site in complete_sites:
            kept = found.get(site.index)
            if kept is not None and f"{kept.symbol}_add(" in source:
                declarations[f"{kept.symbol}_add"] = loop_declarations(site.variants[Role.FORWARD], kept)
    if wide_moves and complete_sites:
        from warp_tiles.codegen.pipeline import pipeline
        from warp_tiles.codegen.tile_moves import move_wide

        source = pipeline(move_wide(source))
    if called:
        from warp_tiles.codegen.shared_gradients import WAITING, wait_between, waiting_function

        source = wait_between(source, {site.index for site in complete_sites})
        for site in complete_sites:
            second = site.placeholder(Role.ADJOINT_B)
            if f"{second}{WAITING}" in source:
                types = pointers(site.variants[Role.ADJOINT_B])
                declarations[f"{names[second]}{WAITING}"] = waiting_function(names[second], types)
    text = _PLACEHOLDER.sub(lambda match: names[match.group(0)], source)
    return text.replace(DECLARATIONS, "\n".join(declarations[name] for name in sorted(declarations)))
