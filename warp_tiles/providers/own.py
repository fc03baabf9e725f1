"""The base class of the providers of this project's own device code, and the C++ that their translation units share."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

from warp_tiles.providers.base import V
from warp_tiles.providers.nvrtc import C, NvrtcProvider
from warp_tiles.toolchain import sources
from warp_tiles.toolchain.sources import DeviceSource


class OwnProvider(NvrtcProvider[V, C]):
    """Builds variants from templates in ``kernels/``, which include only their own headers.

    Attributes:
        header: A header below ``kernels/`` that includes each file that a translation unit can include.
    """

    name = "mma"
    header: ClassVar[str]

    def source(self) -> DeviceSource:
        """See :class:`NvrtcProvider`."""
        kernels = sources.kernels_folder()
        return DeviceSource(kernels / self.header, kernels, (kernels,))

    def options(self, variant: V) -> dict[str, Any]:
        """See :class:`NvrtcProvider`.

        ``gen_opt_lto`` is not set: the optimizer runs at the link, and an earlier run would take longer than it saves.
        """
        return {"arch": f"sm_{variant.arch}", "std": "c++17"}

    def details(self, config: C | None) -> dict[str, object]:
        """See :class:`NvrtcProvider`."""
        return {"tile_config": config.to_json() if config else None}


def constants(kind: str, values: Mapping[str, object]) -> str:
    """C++ of constants as enumerators. Static members would take 65 bytes of LTO-IR each, used or not."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    return f"    enum : {kind} {{ {', '.join(f'{name} = {text}' for name, text in texts.items())} }};"


def unique_name(symbol: str, members: str) -> str:
    """A name for the structure that a variant's templates are instantiated with.

    With equal names, the linker would use one variant's templates for all variants. The name is short, because it is
    part of every other name. An unnamed namespace would also work, but its long names would fill a seventh of the
    LTO-IR.

    Args:
        symbol: Name of the variant's device function.
        members: C++ of the structure's members.
    """
    digest = hashlib.sha256((symbol + members).encode()).digest()
    return f"w{base64.b32encode(digest[:5]).decode().lower()}"
