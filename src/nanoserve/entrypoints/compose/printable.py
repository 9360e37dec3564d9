"""Text for a terminal: foreign text made safe, and counts in plain English."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with every character that is not printable as an escape."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def counted(number: float, thing: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
