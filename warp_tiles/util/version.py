"""The version of this package, in one place."""

__version__ = "1.0.0rc1"
