"""The interface of a provider of device functions: its recipes for a problem, its requirements, and the build.

Those that compile device sources of ``kernels/`` with NVRTC, and cache the result, are a :class:`NvrtcProvider`. The
provider ``scalar``, which builds nothing, is here too.
"""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from warp_tiles.compile import sources
from warp_tiles.compile.find import require_arch
from warp_tiles.compile.sources import DeviceSource
from warp_tiles.compile.toolchain import ToolchainFacts
from warp_tiles.errors import UnsupportedProblem
from warp_tiles.gemm.main_loop import PipelineMeasurements
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.solver.problem import Config, Problem, SolverProblem

if TYPE_CHECKING:
    from warp_tiles.compile.compiler import Compiled, CompileRequest
    from warp_tiles.compile.find import Toolchain
    from warp_tiles.store.key import CacheKey, KeyValue


@dataclass(frozen=True)
class Recipe:
    """One way in which a provider builds the device function of a problem.

    Attributes:
        title: Name for messages, e.g. ``cuBLASDx without alignment``, with what it costs more than the own templates.
        problem: What the function computes: the requested problem, or the same with a weaker promise about alignment.
        symbol: Name of the function; empty if there is none.
        tile_config: The tile configuration; None if the provider has none.
    """

    title: str
    problem: Problem
    symbol: str
    tile_config: Config | None = None


@dataclass(frozen=True)
class Built:
    """The result of a recipe.

    Attributes:
        symbol: Name of the function; empty on the scalar path.
        payload: LTO-IR; empty on the scalar path, and for a function in the module's source.
        key: Digest of the cache key; empty if the build is not cached.
        hit: True if the LTO-IR comes from the cache.
    """

    symbol: str
    payload: bytes
    key: str = ""
    hit: bool = False


class ProviderContext(Protocol):
    """Resources that the engine gives to providers."""

    def toolchain(self) -> Toolchain:
        """The toolchain.

        Raises:
            ToolchainError: There is no toolchain.
        """

    @property
    def unlinkable_reason(self) -> str:
        """The reason why the linker of the module cannot read the LTO-IR of the toolchain; empty if it can.

        Raises:
            ToolchainError: There is no toolchain.
        """

    def get_or_compile(
        self, key: CacheKey, request: CompileRequest, info: Callable[[Compiled], dict[str, object]]
    ) -> tuple[bytes, bool]:
        """LTO-IR from the cache or from the compiler. The flag is True if it comes from the cache.

        Args:
            key: The cache key.
            request: The source to compile on a cache miss.
            info: Returns the facts that the cache stores with the LTO-IR.
        """


@dataclass(frozen=True)
class TunedChoice:
    """The fastest measured way to compute a product.

    Attributes:
        tile_config: The tile configuration for the provider ``own``; None for other providers.
        reason: Its speed and the comparison, as text for the plan.
    """

    provider: str
    tile_config: TileConfig | None
    reason: str


class Tuned(PipelineMeasurements, Protocol):
    """What was measured for the problems of a module."""

    @property
    def fingerprint(self) -> str:
        """A text that changes whenever a choice changes."""

    def best(self, problem: GemmProblem, providers: Sequence[str]) -> TunedChoice | None:
        """The fastest measured function among these providers; None leaves the choice to the heuristics."""


V = TypeVar("V", bound=Problem)


class Provider(ABC, Generic[V]):
    """Builds the device functions of problems. It refuses a problem that it cannot serve, and names the field.

    Attributes:
        name: Its name in the setting ``provider``.
        compiles: True if it needs NVRTC. All such providers need the same NVRTC.
        in_source: True if its functions stand in the source of the module that calls them.
        serves: The kinds of problems that it is tried for.
    """

    name: ClassVar[str]
    compiles: ClassVar[bool] = False
    in_source: ClassVar[bool] = False
    serves: tuple[type, ...] = (GemmProblem,)

    @abstractmethod
    def recipes(self, problem: V) -> tuple[Recipe, ...]:
        """The recipes for a problem, best first. They do not depend on the machine.

        Raises:
            UnsupportedProblem: There is no recipe. The message names the field and its value.
        """

    def require(self, problem: V, context: ProviderContext) -> None:
        """Check that this machine has all that a build needs.

        Raises:
            ToolchainError: Something is missing.
            UnsupportedProblem: Nothing is missing, but the module cannot use the result.
        """

    def key_of(self, recipe: Recipe) -> CacheKey | None:
        """The cache key of a recipe's result; None if it is not cached."""
        return None

    def fingerprint(self) -> dict[str, str]:
        """The inputs, besides the problems, of a module that is built with this provider.

        Raises:
            ToolchainError: There is no toolchain.
        """
        return {}

    @abstractmethod
    def build(self, recipe: Recipe, context: ProviderContext) -> Built:
        """Build the device function of a recipe.

        Raises:
            BuildError: The build failed.
            ToolchainError: The machine lacks something that the build needs.
        """


def refusal(provider: str, field: str, value: object, reason: str) -> UnsupportedProblem:
    return UnsupportedProblem(f"{provider} cannot serve {field}={value}: {reason}")


class NvrtcProvider(Provider[V]):
    """Builds device functions with NVRTC, from templates in ``kernels/`` that include only their own headers.

    Args:
        facts: Finds the toolchain and digests its files.

    Attributes:
        schema: Version of the translation unit's format.
        header: A header below ``kernels/`` that includes each file that a translation unit can include.
    """

    name = "own"
    compiles = True
    schema: ClassVar[int] = 1
    header: ClassVar[str]

    def __init__(self, facts: ToolchainFacts) -> None:
        self._facts = facts
        self._identity: dict[str, str] | None = None

    @abstractmethod
    def text(self, recipe: Recipe) -> str:
        """The translation unit of a recipe."""

    def source(self) -> DeviceSource:
        """The device source that translation units include. Raises a ToolchainError if included headers are missing."""
        kernels = sources.kernels_folder()
        return DeviceSource(kernels / self.header, kernels, (kernels,))

    def flags(self, arch: int) -> tuple[str, ...]:
        """The flags of the compiler that affect the code.

        ``gen_opt_lto`` is not set: the optimizer runs at the link, and an earlier run would take longer than it saves.
        """
        return (f"-arch=sm_{arch}", "--std=c++17")

    def request(self, recipe: Recipe) -> CompileRequest:
        from warp_tiles.compile.compiler import CompileRequest

        return CompileRequest(
            f"{recipe.symbol}_{self.name}.cu",
            self.text(recipe),
            self.flags(recipe.problem.arch),
            tuple(map(os.fspath, self.source().include_dirs)),
            f"the {self.name} function {recipe.problem.describe()}",
        )

    def fingerprint(self) -> dict[str, str]:
        """See :meth:`Provider.fingerprint`. The digests are taken once per provider and so per chain."""
        if self._identity is None:
            self._identity = {
                "provider": f"{self.name}/{self.schema}",
                "source": self._facts.source_digest(self.source()),
                "compiler": self._facts.compiler_digest(),
            }
        return self._identity

    def manifest(self, recipe: Recipe, compiled: Compiled) -> dict[str, object]:
        """Facts that the cache stores with LTO-IR."""
        return {
            "symbol": recipe.symbol,
            "problem": recipe.problem.to_json(),
            "provider": self.name,
            "build_seconds": round(compiled.seconds, 3),
            "compiler": compiled.compiler,
            **({"tile_config": recipe.tile_config.to_json()} if recipe.tile_config else {}),
        }

    def require(self, problem: V, context: ProviderContext) -> None:
        require_arch(context.toolchain(), problem.arch)
        if reason := context.unlinkable_reason:
            raise UnsupportedProblem(reason)
        self.fingerprint()

    def key_of(self, recipe: Recipe) -> CacheKey:
        """See :meth:`Provider.key_of`. Raises a ToolchainError without a toolchain."""
        from warp_tiles.store.key import CacheKey

        fields: dict[str, KeyValue] = dict(self.fingerprint())
        fields.update({f"problem.{name}": str(value) for name, value in recipe.problem.to_json().items()})
        if recipe.tile_config is not None:
            fields.update({f"tile_config.{name}": str(value) for name, value in recipe.tile_config.to_json().items()})
        fields["flags"] = self.flags(recipe.problem.arch)
        fields["translation_unit"] = self.text(recipe)
        return CacheKey.of(fields)

    def build(self, recipe: Recipe, context: ProviderContext) -> Built:
        key = self.key_of(recipe)
        manifest = functools.partial(self.manifest, recipe)
        payload, hit = context.get_or_compile(key, self.request(recipe), manifest)
        return Built(recipe.symbol, payload, key.digest, hit)


class ScalarProvider(Provider[Problem]):
    """Leaves a product to Warp's templates, which compute it without a device function."""

    name = "scalar"
    serves = (GemmProblem, SolverProblem)

    def recipes(self, problem: Problem) -> tuple[Recipe, ...]:
        if isinstance(problem, GemmProblem) and problem.c.dtype == "bfloat16":
            raise refusal(self.name, "c_dtype", problem.c.dtype, "Warp's scalar path would accumulate in bfloat16")
        return (Recipe("Warp's scalar path, which uses no tensor cores", problem, ""),)

    def build(self, recipe: Recipe, context: ProviderContext) -> Built:
        return Built("", b"")
