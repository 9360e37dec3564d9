"""Sentence templates: text with `[one|or|another]` choices and `{slots}`, parsed once, rendered often.

A slot is `{name}`, filled from the scene; `{Name}` with a capital first letter; `{a name}` with "a" or "an" before
it; `{~list}` draws a fresh word from a word list. Choices may nest, and an option may be empty.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Final

import attrs

_VOWELS: Final = frozenset("aeiouAEIOU")
_CONSONANT_SOUNDS: Final = ("uni", "use", "one", "eu")


@attrs.frozen
class Slot:
    """A hole in a template; `fresh` means drawn anew from a word list rather than taken from the scene."""

    name: str
    article: bool
    capital: bool
    fresh: bool


@attrs.frozen
class Choice:
    """Alternatives of which one is rendered."""

    options: tuple[Template, ...]


Piece = str | Slot | Choice
Template = tuple[Piece, ...]


def capitalized(text: str) -> str:
    """The text with its first letter in upper case and the rest as it is."""
    return text[:1].upper() + text[1:]


def with_article(noun: str) -> str:
    """The noun with the indefinite article that its first sound wants."""
    vowel = (noun[0] in _VOWELS and not noun.startswith(_CONSONANT_SOUNDS)) or noun.startswith(
        ("honest", "hour")
    )
    return f"an {noun}" if vowel else f"a {noun}"


@cache
def parse(source: str) -> Template:
    """Parse a template; raise ValueError when brackets or braces do not match."""
    pieces, end = _sequence(source, 0, nested=False)
    if end != len(source):
        raise ValueError(f"unmatched bracket at {end} in template: {source}")
    return pieces


def _sequence(source: str, start: int, *, nested: bool) -> tuple[Template, int]:
    pieces: list[Piece] = []
    at = text_from = start
    while at < len(source) and source[at] != "]" and not (nested and source[at] == "|"):
        if source[at] not in "[{":
            at += 1
            continue
        pieces.append(source[text_from:at])
        piece, at = _choice(source, at + 1) if source[at] == "[" else _slot(source, at + 1)
        pieces.append(piece)
        text_from = at
    pieces.append(source[text_from:at])
    return tuple(piece for piece in pieces if piece != ""), at


def _choice(source: str, start: int) -> tuple[Choice, int]:
    options: list[Template] = []
    at = start - 1
    while at == start - 1 or source[at] == "|":
        option, at = _sequence(source, at + 1, nested=True)
        options.append(option)
        if at >= len(source):
            raise ValueError(f"unclosed bracket in template: {source}")
    return Choice(tuple(options)), at + 1


def _slot(source: str, start: int) -> tuple[Slot, int]:
    end = source.find("}", start)
    if end < 0:
        raise ValueError(f"unclosed brace in template: {source}")
    head, _, tail = source[start:end].rpartition(" ")
    capital = (head or tail.lstrip("~"))[0].isupper()
    name = tail.lstrip("~").lower()
    return Slot(name=name, article=head.lower() == "a", capital=capital, fresh=tail.startswith("~")), end + 1


def render(template: Template, rng: random.Random, value_of: Callable[[Slot], str]) -> str:
    """Fill a template: choices are drawn from `rng`, slots are looked up through `value_of`."""
    out: list[str] = []
    for piece in template:
        if isinstance(piece, str):
            out.append(piece)
        elif isinstance(piece, Choice):
            out.append(render(rng.choice(piece.options), rng, value_of))
        else:
            value = value_of(piece)
            value = with_article(value) if piece.article else value
            out.append(capitalized(value) if piece.capital else value)
    return "".join(out)
