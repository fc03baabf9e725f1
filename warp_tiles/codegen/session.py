"""The places of a generated module that call device functions, and the kernels that use them.

Warp writes the names of device functions into the code it generates. While a module is being generated, every call site
gets placeholder names instead, which the source's prelude defines: three for a product, one or two for a solver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from warp_tiles.gemm.problem import PRODUCT_ROLES, GemmProblem, Role
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.settings import Settings, current
from warp_tiles.solver.problem import Problem


@dataclass(frozen=True)
class Site:
    """One place in the generated code that calls device functions: a product or a solver.

    Attributes:
        index: Number of the site within its module.
        function: Key of the kernel or ``@wp.func`` that contains it.
        problems: The problems by role; empty if no function of this project serves the site.
        scalar_reason: The reason for the scalar path, or for another provider; None if there is none.
        bfloat16_operands: True if A or B is bfloat16. The scalar path has no adjoints for it.
        roles: The functions that the call can name.
        provider: Name of the provider of a site without problems; empty stands for ``scalar``.
        no_gradient: The reason why a solver has no gradient; None if it has one.
    """

    index: int
    call: str
    function: str
    problems: Mapping[Role, Problem]
    scalar_reason: Rejected | None = None
    bfloat16_operands: bool = False
    roles: tuple[Role, ...] = PRODUCT_ROLES
    provider: str = ""
    no_gradient: Rejected | None = None
    own_adjoint: bool = False

    @property
    def is_solver(self) -> bool:
        return Role.ADJOINT_A not in self.roles

    @property
    def is_tf32(self) -> bool:
        """True for a product that rounds float32 to tf32."""
        forward = self.problems.get(Role.FORWARD)
        return isinstance(forward, GemmProblem) and forward.precision == "tf32"

    def placeholder(self, role: Role) -> str:
        """The name of one function of this site in the generated source."""
        return f"wt_site{self.index}_{role.value}"


@dataclass(frozen=True)
class FunctionUse:
    """The use of a function with sites by one kernel.

    Attributes:
        function: Key of the function (the kernel's own key for its own sites).
        backward: True if the adjoint of this kernel can run the adjoint of the function.
        reason: The reason why it can or cannot.
    """

    kernel: str
    function: str
    backward: bool
    reason: str


@dataclass
class Session:
    """The sites found so far in a module that is being generated."""

    module: str
    arch: int | None
    block_dim: int
    sites: list[Site] = field(default_factory=list)
    settings: Settings = field(default_factory=current)

    def add(self, call: str, function: str, problems: Mapping[Role, Problem], **facts: Any) -> Site:
        """Add a site with the fields of :class:`Site`, and return it with its placeholders."""
        self.sites.append(Site(len(self.sites), call, function, dict(problems), **facts))
        return self.sites[-1]

    def on_scalar_path(self, reasons: Mapping[int, Rejected]) -> Session:
        """The same with some sites on the scalar path, for the reasons by their numbers."""
        taken = {index: replace(self.sites[index], problems={}, scalar_reason=why) for index, why in reasons.items()}
        return replace(self, sites=[taken.get(site.index, site) for site in self.sites])

    def without_async_copies(self) -> Session:
        """The same under the setting that leaves loads, and so the memory of loops, to Warp."""
        return replace(self, settings=replace(self.settings, async_copies=False))
