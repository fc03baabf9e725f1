"""Texts that a terminal does not obey."""

from __future__ import annotations


def printable(text: str, *, lines: bool = False) -> str:
    """The text with escapes in place of what a terminal would obey and of what a stream cannot encode.

    Args:
        text: The text, of which a part may come from a file or from another machine.
        lines: Keep ends of lines and tabs.
    """
    kept = "\n\t" if lines else ""
    return "".join(char if char.isprintable() or char in kept else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
