"""Text for Warp's module hash: everything of warp_tiles that the code of a module depends on."""

from __future__ import annotations

from warp_tiles.build.chain import Chain
from warp_tiles.build.context import BuildContext
from warp_tiles.errors import ToolchainError
from warp_tiles.version import __version__


def module_fingerprint(chain: Chain, context: BuildContext, *, trust: str, code: str) -> str:
    """The text of one chain of providers.

    Args:
        chain: The providers, with their settings and tuning records.
        context: The compiler and the linker.
        trust: Who may choose the code of modules.
        code: Digest of the files that affect the code.
    """
    parts = [
        "warp_tiles",
        __version__,
        f"store={trust}",
        f"code={code}",
        choices_of(chain),
    ]
    for provider in chain.providers:
        try:
            parts += [f"{provider.name} {name}={value}" for name, value in provider.fingerprint().items()]
        except ToolchainError as error:
            parts.append(f"{provider.name}: {error.message}")
    if any(provider.compiles for provider in chain.providers):
        try:
            if context.toolchain().nvjitlink is not None:
                parts.append(f"linker={context.store.linker_digest()}")
        except ToolchainError as error:
            parts.append(f"no toolchain: {error.message}")
    return "\n".join(parts)


def choices_of(chain: Chain) -> str:
    """The part of the text that a program can change while it runs: settings, providers and tuning records."""
    parts = [f"{name}={value}" for name, value in chain.settings.affecting_code().items()]
    parts.append("providers=" + " ".join(provider.name for provider in chain.providers))
    if chain.tuned is not None:
        parts.append(f"tuned={chain.tuned.fingerprint}")
    return "\n".join(parts)
