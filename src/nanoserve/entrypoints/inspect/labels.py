"""Text of strangers in a picture."""

from __future__ import annotations


def plain(text: str) -> str:
    """What any font can show, in one line: everything but printable ASCII as escapes."""
    return text.encode("unicode_escape").decode()


def shortened(text: str, most: int) -> str:
    """As `plain`, in at most so many letters."""
    shown = plain(text)
    return shown if len(shown) <= most else f"{shown[: most - 2]}.."
