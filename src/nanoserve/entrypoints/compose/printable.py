"""What comes from strangers, made safe to print on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with every character that is not printable as an escape."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
