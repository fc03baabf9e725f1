"""URLs of stores of objects."""

from __future__ import annotations

from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

SCHEMES = ("file", "http", "https", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")


def checked_url(text: str) -> str:
    """A store's URL. Raises a ValueError that lists the known kinds of stores."""
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"its scheme is {parts.scheme!r}; known are {', '.join(f'{name}://' for name in SCHEMES)}")
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not parts.path.startswith("/")):
        raise ValueError("give a folder with its whole path: file:///path")
    if parts.scheme != "file" and not parts.hostname:
        raise ValueError("it names no host or bucket")
    if parts.netloc.rpartition("@")[2].count(":") == 1 and not _has_port(parts):
        raise ValueError("the text after the host is not a port; a password needs %2F for /, %3F for ? and %23 for #")
    return text


def _has_port(parts: SplitResult) -> bool:
    try:
        return parts.port is not None
    except ValueError:
        return False


def without_password(url: str) -> str:
    """A URL for messages, without user name, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(no URL)"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def secrets_of(url: str) -> tuple[str, ...]:
    """Parts of a URL that no message may contain, the longest first: user name and password, and the query."""
    parts = urlsplit(url)
    secrets = {parts.netloc.rpartition("@")[0], parts.password or "", unquote(parts.password or ""), parts.query}
    secrets |= {unquote(parts.query)}
    return tuple(sorted(filter(None, secrets), key=len, reverse=True))
