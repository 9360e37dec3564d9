"""Keeps control tokens that are written inside a conversation apart from those that its chat template writes.

A chat template renders text, and in text the `<|im_end|>` that a user typed looks like the template's own. So the
user's are wrapped into marks before rendering: noncharacters (U+FDD0 .. U+FDEF) that occur nowhere in the
conversation, hence cannot be forged. The template still sees the whole content, and can trim and search it. The
approach is that of transformers' `sanitize_control_tokens`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from nanoserve.ports.errors import BadValueError

NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


@attrs.frozen
class Marks:
    """Three characters: around a control token (`start`, `end`), and where text must not join (`edge`)."""

    start: str
    end: str
    edge: str


def choose_marks(texts: Iterable[str]) -> Marks:
    """Marks that occur in none of the texts. Raises `BadValueError` where they leave no three."""
    used = set().union(*texts)
    free = [each for each in NONCHARACTERS if each not in used]
    if len(free) < 3:
        raise BadValueError(
            "messages", "contain almost all of the noncharacters U+FDD0 to U+FDEF; remove them"
        )
    return Marks(*free[:3])


class ControlTokens:
    """The tokens, by their text, that only the template may write."""

    def __init__(self, tokens: Iterable[str]) -> None:
        longest_first = sorted(set(tokens), key=len, reverse=True)
        self._anywhere = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._heads = tuple({token[:cut] for token in longest_first for cut in range(1, len(token))})
        self._tails = tuple({token[cut:] for token in longest_first for cut in range(1, len(token))})

    def suspicious(self, text: str) -> bool:
        """True if text contains a control token, or could become part of one beside other text."""
        core = text.strip()
        return bool(core.endswith(self._heads) or core.startswith(self._tails) or self._anywhere.search(text))

    def mark(self, text: str, marks: Marks) -> str:
        """Text with its control tokens wrapped, and with an edge where a part of one might be completed."""
        core = text.strip()
        start = text.index(core)
        left = marks.edge if core.startswith(self._tails) else ""
        right = marks.edge if core.endswith(self._heads) else ""
        wrapped = self._anywhere.sub(lambda found: f"{marks.start}{found[0]}{marks.end}", core)
        return text[:start] + left + wrapped + right + text[start + len(core) :]

    def find(self, text: str) -> list[str]:
        """The control tokens of a text in order."""
        return self._anywhere.findall(text)

    def split(self, rendered: str, marks: Marks) -> list[tuple[str, bool]]:
        """A rendered text without its marks, as pieces; True for a control token that is to be plain text."""
        wrapped = f"{marks.start}({self._anywhere.pattern}){marks.end}"
        pieces = re.split(f"{wrapped}|[{marks.start}{marks.end}{marks.edge}]", rendered)
        return [(piece, place % 2 == 1) for place, piece in enumerate(pieces) if piece]


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of nested dicts and lists with `change` applied to every text: to values, and to keys that are no plain names."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            key if key.isidentifier() else change(key): map_texts(item, change) for key, item in value.items()
        }
    if isinstance(value, list):
        return [map_texts(item, change) for item in value]
    return value


def texts_of(value: Any) -> list[str]:
    """Every text that `map_texts` changes."""
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    map_texts(value, collect)
    return texts
