"""Every exception that warp_tiles raises.

    WarpTilesError
    ├── SettingError        a setting or environment variable has an unknown name or value
    ├── UnsupportedWarpError  the installed Warp lacks something that warp_tiles hooks into
    ├── ToolchainError      NVRTC, headers or the linker are missing or do not fit together
    │   └── WorkerError     a compiler process or a foreign executor failed; trying again may help
    │       └── RefusedWorkerError  a worker has another compiler, other headers or other sources
    ├── PlanError           a kernel cannot be planned
    ├── BuildError          a function could not be compiled
    │   └── UnsupportedProblem  a provider cannot serve a problem; the message names the field and its value
    ├── MatmulError         an argument of matmul, cholesky or solve does not fit, or a captured graph has no memory
    ├── RecordingError      a launch cannot be recorded, or an argument does not fit the recording
    ├── LinkError           a module could not be compiled or linked
    ├── CacheError          the cache refuses a request, or does not hold the requested entry
    │   └── BundleError     a bundle is malformed or names a path outside the cache
    ├── RemoteError         a remote store, a signing key or a trusted key cannot be used
    ├── RecordError         the store of tuning records refuses a request, or does not hold the requested record
    ├── TuningError         a search cannot begin, or all of its candidates failed; the message gives the reasons
    ├── LockedError         the policy is locked, and a cached function, a tuning record or the toolchain is missing
    ├── OutputError         a file or folder that a command writes cannot be written
    └── ScriptError         a script given to the command line could not be run

A mistake in a kernel itself (unknown dtype, mismatched shapes) raises the same exception as in Warp:
``TypeError`` or ``ValueError``.
"""

from __future__ import annotations


class WarpTilesError(Exception):
    """Base of all errors of this package.

    Args:
        message: The failure and the received value.
        remedy: The user's way to solve it, printed on its own line.
        log: The compiler's or linker's own output, printed last.

    The three parts survive pickling, so an error from a worker process arrives complete.
    """

    def __init__(self, message: str, remedy: str = "", log: str = "") -> None:
        # all three are arguments of the exception, so that pickling and Warp's replay keep them
        super().__init__(message, remedy, log)
        self.message = message
        self.remedy = remedy
        self.log = log

    def __str__(self) -> str:
        parts = [self.message]
        if self.remedy:
            parts.append(f"Remedy: {self.remedy}")
        if self.log:
            parts.append(f"Log:\n{self.log.rstrip()}")
        return "\n".join(parts)


class SettingError(WarpTilesError, ValueError):
    """A setting or environment variable has an unknown name or value."""


class UnsupportedWarpError(WarpTilesError, RuntimeError):
    """The installed Warp lacks something that warp_tiles hooks into."""


class ToolchainError(WarpTilesError, RuntimeError):
    """NVRTC, headers or the linker are missing or do not fit together."""


class WorkerError(ToolchainError):
    """A compiler process or a foreign executor failed; trying again may help."""


class RefusedWorkerError(WorkerError):
    """A worker has another compiler, other headers or other sources. It is not asked again."""


class PlanError(WarpTilesError, RuntimeError):
    """A kernel cannot be planned."""


class BuildError(WarpTilesError, RuntimeError):
    """A function could not be compiled."""


class UnsupportedProblem(BuildError):  # noqa: N818  a name like StopIteration, without "Error"
    """A provider cannot serve a problem; the message names the field and its value."""


class MatmulError(WarpTilesError, ValueError):
    """An argument of matmul, cholesky or solve does not fit, or a captured graph has no memory."""


class RecordingError(WarpTilesError, ValueError):
    """A launch cannot be recorded, or an argument does not fit the recording."""


class LinkError(WarpTilesError, RuntimeError):
    """A module could not be compiled or linked."""


class CacheError(WarpTilesError):
    """The cache refuses a request, or does not hold the requested entry."""


class BundleError(CacheError, ValueError):
    """A bundle is malformed or names a path outside the cache."""


class RemoteError(WarpTilesError):
    """A remote store, a signing key or a trusted key cannot be used."""


class RecordError(WarpTilesError, ValueError):
    """The store of tuning records refuses a request, or does not hold the requested record."""


class TuningError(WarpTilesError, RuntimeError):
    """A search cannot begin, or all of its candidates failed; the message gives the reasons."""


class LockedError(WarpTilesError):
    """The policy is locked, and a cached function, a tuning record or the toolchain is missing."""


class OutputError(WarpTilesError):
    """A file or folder that a command writes cannot be written."""


class ScriptError(WarpTilesError, RuntimeError):
    """A script given to the command line could not be run."""
