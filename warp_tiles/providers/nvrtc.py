"""The base class of providers that compile device sources of ``kernels/`` with NVRTC and cache the result."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from warp_tiles.compile import sources
from warp_tiles.compile.find import require_arch
from warp_tiles.compile.sources import DeviceSource
from warp_tiles.compile.toolchain import ToolchainStore
from warp_tiles.errors import UnsupportedVariant
from warp_tiles.providers.base import Built, Provider, ProviderContext, Recipe, V

if TYPE_CHECKING:
    from warp_tiles.compile.compiler import Compiled, CompileRequest
    from warp_tiles.store.key import CacheKey, KeyValue


class NvrtcProvider(Provider[V]):
    """Builds variants with NVRTC, from templates in ``kernels/`` that include only their own headers.

    Args:
        store: Finds the toolchain and digests its files.

    Attributes:
        schema: Version of the translation unit's format.
        header: A header below ``kernels/`` that includes each file that a translation unit can include.
    """

    name = "own"
    compiles = True
    schema: ClassVar[int] = 1
    header: ClassVar[str]

    def __init__(self, store: ToolchainStore) -> None:
        self._store = store
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
            self.flags(recipe.variant.arch),
            tuple(map(os.fspath, self.source().include_dirs)),
            f"the {self.name} function {recipe.variant.describe()}",
        )

    def fingerprint(self) -> dict[str, str]:
        """See :meth:`Provider.fingerprint`. The digests are taken once per provider and so per chain."""
        if self._identity is None:
            self._identity = {
                "provider": f"{self.name}/{self.schema}",
                "source": self._store.source_digest(self.source()),
                "compiler": self._store.compiler_digest(),
            }
        return self._identity

    def manifest(self, recipe: Recipe, compiled: Compiled) -> dict[str, object]:
        """Facts that the cache stores with LTO-IR."""
        return {
            "symbol": recipe.symbol,
            "variant": recipe.variant.to_json(),
            "provider": self.name,
            "build_seconds": round(compiled.seconds, 3),
            "compiler": compiled.compiler,
            **({"tile_config": recipe.tile_config.to_json()} if recipe.tile_config else {}),
        }

    def require(self, variant: V, context: ProviderContext) -> None:
        require_arch(context.toolchain(), variant.arch)
        if reason := context.unlinkable_reason:
            raise UnsupportedVariant(reason)
        self.fingerprint()

    def key_of(self, recipe: Recipe) -> CacheKey:
        """See :meth:`Provider.key_of`. Raises a ToolchainError without a toolchain."""
        from warp_tiles.store.key import CacheKey

        fields: dict[str, KeyValue] = dict(self.fingerprint())
        fields.update({f"variant.{name}": str(value) for name, value in recipe.variant.to_json().items()})
        if recipe.tile_config is not None:
            fields.update({f"tile_config.{name}": str(value) for name, value in recipe.tile_config.to_json().items()})
        fields["flags"] = self.flags(recipe.variant.arch)
        fields["translation_unit"] = self.text(recipe)
        return CacheKey.of(fields)

    def build(self, recipe: Recipe, context: ProviderContext) -> Built:
        key = self.key_of(recipe)
        manifest = functools.partial(self.manifest, recipe)
        payload, hit = context.get_or_compile(key, self.request(recipe), manifest)
        return Built(recipe.symbol, payload, key.digest, hit)


def constants(kind: str, values: Mapping[str, object]) -> str:
    """C++ of constants as enumerators. Static members would take 65 bytes of LTO-IR each, used or not."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    return f"    enum : {kind} {{ {', '.join(f'{name} = {text}' for name, text in texts.items())} }};"


def struct(name: str, *members: str) -> str:
    """C++ of a structure."""
    return "\n".join([f"struct {name} {{", *members, "};"])


def unique_name(symbol: str, members: str) -> str:
    """A name for the structure that a variant's templates are instantiated with.

    With equal names, the linker would use one variant's templates for all variants. The name is short, because it is
    part of every other name. An unnamed namespace would also work, but its long names would fill a seventh of the
    LTO-IR.
    """
    digest = hashlib.sha256((symbol + members).encode()).digest()
    return f"w{base64.b32encode(digest[:5]).decode().lower()}"
