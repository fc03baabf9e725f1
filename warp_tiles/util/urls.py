"""URLs of stores of objects."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

SCHEMES = ("file", "http", "https", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")


def checked_url(text: str) -> str:
    """A store's URL.

    Raises:
        ValueError: It is not the URL of a known kind of store. The message lists them.
    """
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"its scheme is {parts.scheme!r}; known are {', '.join(f'{name}://' for name in SCHEMES)}")
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not parts.path.startswith("/")):
        raise ValueError("give a folder with its whole path: file:///path")
    if parts.scheme != "file" and not parts.hostname:
        raise ValueError("it names no host or bucket")
    return text


def without_password(url: str) -> str:
    """A URL for messages, without user name, password and query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
