"""The interface of a provider of GEMM functions: whether it supports a variant, its recipes, and the build."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from warp_tiles.errors import UnsupportedVariant
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.gemm.variant import GemmVariant

if TYPE_CHECKING:
    from warp_tiles.cache import CacheKey
    from warp_tiles.compile.compiler import Compiled, CompileRequest
    from warp_tiles.toolchain.search import Toolchain


@dataclass(frozen=True)
class Recipe:
    """One way in which a provider builds a variant.

    Attributes:
        title: For messages, e.g. ``cuBLASDx without alignment``.
        variant: What is built: the variant that was asked for, or the same with weaker promises.
        symbol: Name of the function; empty where there is none.
        tile_config: How it is computed; None where the provider decides that itself.
    """

    title: str
    variant: GemmVariant
    symbol: str
    tile_config: TileConfig | None = None


@dataclass(frozen=True)
class Built:
    """The result of a recipe.

    Attributes:
        symbol: Name of the function; empty on the scalar path.
        payload: LTO-IR; empty on the scalar path.
        key: Digest of its cache key; empty where nothing is cached.
        hit: Whether the cache held it.
    """

    symbol: str
    payload: bytes
    key: str = ""
    hit: bool = False


class Context(Protocol):
    """Resources that the engine gives to providers."""

    def toolchain(self) -> Toolchain:
        """The toolchain, checked against Warp's linker; raises ToolchainError."""

    def is_cached(self, key: CacheKey) -> bool:
        """Whether the cache holds a key."""

    def get_or_compile(
        self, key: CacheKey, request: CompileRequest, info: Callable[[Compiled], dict[str, object]]
    ) -> tuple[bytes, bool]:
        """LTO-IR from the cache or from the compiler, and whether the cache held it.

        Args:
            key: Its key.
            request: The source to compile if the cache misses.
            info: Facts that the cache stores with it.
        """


@dataclass(frozen=True)
class TunedChoice:
    """The fastest way to compute a variant, by measurement.

    Attributes:
        provider: The provider that builds it.
        tile_config: How the provider ``mma`` computes it; None with others.
        reason: How fast it is, and against what, for the plan.
    """

    provider: str
    tile_config: TileConfig | None
    reason: str


class Tuned(Protocol):
    """Measurements of GEMM variants."""

    @property
    def fingerprint(self) -> str:
        """Changes with every winner."""

    def best(self, variant: GemmVariant, providers: Sequence[str]) -> TunedChoice | None:
        """The fastest measured way among these providers; None if nothing usable was measured."""


class Provider(ABC):
    """Builds GEMM variants, or says which field of one it cannot serve.

    Attributes:
        name: Its value of the setting ``provider``.
        compiles: Whether it needs NVRTC; where one such provider lacks it, all do.
    """

    name: ClassVar[str]
    compiles: ClassVar[bool] = False

    @abstractmethod
    def recipes(self, variant: GemmVariant) -> tuple[Recipe, ...]:
        """The ways to build a variant, best first, whatever this machine has.

        Raises:
            UnsupportedVariant: There is none; the field and its value are named.
        """

    def require(self, variant: GemmVariant, context: Context) -> None:  # noqa: B027  most need nothing
        """Check that this machine has what a build needs.

        Raises:
            ToolchainError: It has not.
        """

    def key_of(self, recipe: Recipe) -> CacheKey | None:
        """Key of what a recipe gives; None where nothing is cached."""
        return None

    def salt(self) -> dict[str, str]:
        """Return the inputs, besides its variants, of a module that is built with this provider.

        Raises:
            ToolchainError: There is no toolchain.
        """
        return {}

    @abstractmethod
    def build(self, recipe: Recipe, context: Context) -> Built:
        """Build a variant.

        Raises:
            BuildError: It cannot be built so.
            ToolchainError: The machine lacks something.
        """


def refusal(provider: str, field: str, value: object, why: str) -> UnsupportedVariant:
    """The error that says what a provider cannot serve."""
    return UnsupportedVariant(f"{provider} cannot serve {field}={value}: {why}")
