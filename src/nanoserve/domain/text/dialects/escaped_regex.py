"""Regular expressions of texts, as regular expressions of what these texts are written as where some characters are escaped.

Each part of an expression that stands for one character is changed on its own: `.` becomes what it is without the escaped
characters, or one of their escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from nanoserve.ports.errors import BadValueError


@attrs.frozen
class Writing:
    """How a text is written: `escapes` of characters that cannot stand for themselves, and what `classes` must leave out.

    A character whose escape is empty stands for itself where the grammar names it.
    """

    escapes: Mapping[str, str]
    classes: str


_CONTROLS: Final = "".join(map(chr, range(32)))
AS_JSON: Final = Writing({each: json.dumps(each)[1:-1] for each in f'"\\{_CONTROLS}'}, r"\x22\x5c\x00-\x1f")
WITHOUT_TAGS: Final = Writing({"<": ""}, "<")
UNCHANGED: Final = Writing({}, "")
_SHORT: Final = 2
"""The length of an escape that classes may be written with; other control characters are left out of them."""

_SCRIPTS: Final = "Arabic|Cyrillic|Greek|Han|Hangul|Hebrew|Hiragana|Katakana|Latin|Thai"
_PLAIN_PROPERTY: Final = re.compile(
    rf"\\p(?:[LMNZ]|\{{(?:L[ultmo]?|M[nce]?|N[dlo]?|Z[slp]?|Alphabetic|Letter|Number|{_SCRIPTS})\}})"
)
"""None of their characters has an escape."""
_CODE: Final = re.compile(
    r"\\(?:x\{([0-9a-fA-F]+)\}|u\{([0-9a-fA-F]+)\}|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))"
)
_MANY: Final = re.compile(r"\\[wWsSdDpP]")
_ATOM: Final = re.compile(
    r"""(?P<open>\((?:\?(?:P?<\w+>|(?P<flags>[a-zA-Z-]*)(?P<scope>[:)]))|(?!\?)))
    |(?P<kept>[)|^$]|\\[bBAz])
    |(?P<class>\[\^?\]?(?:\\.|[^\]\\])*\])
    |(?P<dot>\.)
    |(?P<character>\\(?:[pP]\{\w+\}|[pP]\w|[xu]\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|[^\\\[(])""",
    re.VERBOSE | re.DOTALL,
)
_TIMES: Final = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})\??")


@attrs.frozen
class _Part:
    """A part of an expression, its repetition, and the flags that hold there."""

    atom: re.Match[str]
    times: str
    flags: frozenset[str]


def as_terminal(regex: str) -> str:
    """A regular expression within slashes."""
    pieces = re.findall(r"\\.|[^\\]|\\$", regex, re.DOTALL)
    written = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
    return f"/(?:{''.join(written.get(each, each) for each in pieces)})/"


def escaped(source: str, flags: str, writing: Writing) -> str:
    """The expression, changed within itself."""
    written = [_changed(each, writing) + each.times for each in _parts(source, flags)]
    return "".join(written)


def split(source: str, flags: str, writing: Writing) -> str | None:
    """The expression as one of Lark, in which each escape is a token of its own; None where no character has an escape.

    A token of several escapes in a row would be taken to go on where an escape begins that belongs to what follows it.
    """
    parts = list(_parts(source.removeprefix("^"), flags))
    if parts and parts[-1].atom[0] == "$":
        del parts[-1]
    if not any(_forms(each, writing) for each in parts):
        return None
    written: list[str] = []
    run, run_flags = "", frozenset[str]()
    for part in [*parts, None]:
        is_plain = part is not None and _is_character(part) and not _forms(part, writing)
        if run and (part is None or not is_plain or part.flags != run_flags):
            written.append(f"/{run}/{''.join(sorted(run_flags))}")
            run = ""
        if part is None:
            break
        if is_plain:
            run, run_flags = run + part.atom[0] + part.times, part.flags
        elif _is_character(part):
            written.append(_alternatives(part, writing))
        elif part.atom["scope"] != ")":
            written.append(_of_lark(part))
    return f"({' '.join(written)})"


def _of_lark(part: _Part) -> str:
    if part.atom["open"]:
        return "("
    if part.atom[0] not in {")", "|"}:
        raise refused(f"has an anchor within a regular expression: {part.atom[0]!r}")
    return part.atom[0] + part.times.removesuffix("?" if len(part.times) > 1 else " ")


def _alternatives(part: _Part, writing: Writing) -> str:
    """Write one character with escapes: it as it is, a run of them where it is repeated, or one of its escapes."""
    forms = [f"{json.dumps(each)}" for each in _forms(part, writing)]
    times = part.times.removesuffix("?" if len(part.times) > 1 else " ")
    if not _is_itself(part.atom):
        run = "+" if times in {"*", "+"} else ""
        forms.insert(0, f"/{_plain(part, writing)}{run}/{''.join(sorted(part.flags))}")
    return f"({' | '.join(forms)}){times}"


def _parts(source: str, flags: str) -> Iterator[_Part]:
    place, held = 0, [frozenset(flags)]
    if "x" in flags:
        raise refused("has a regular expression with the flag x")
    while place < len(source):
        atom = _ATOM.match(source, place)
        if atom is None:
            raise refused(f"has a regular expression that cannot be changed at {source[place:]!r:.40}")
        place = atom.end()
        if atom["open"] is not None:
            added, _, removed = (atom["flags"] or "").partition("-")
            if "x" in added:
                raise refused("has a regular expression with the flag x")
            inner = (held[-1] | set(added)) - set(removed)
            held = [*held[:-1], inner] if atom["scope"] == ")" else [*held, inner]
        elif atom[0] == ")" and len(held) > 1:
            held.pop()
        found = None if atom["open"] is not None else _TIMES.match(source, place)
        place = place if found is None else found.end()
        yield _Part(atom, "" if found is None else found[0], held[-1])


def _changed(part: _Part, writing: Writing) -> str:
    """One character's expression, and behind it those of its escaped forms."""
    if not _is_character(part) or not _found(part, writing):
        return part.atom[0]
    is_itself = _is_itself(part.atom)
    forms = [f"(?-i:{_literal(each)})" for each in _forms(part, writing)]
    if is_itself and not forms:
        return part.atom[0]
    return f"(?:{'|'.join(forms if is_itself else [_plain(part, writing), *forms])})"


def _plain(part: _Part, writing: Writing) -> str:
    """Those of its characters that have no escape."""
    anything = r"[\s\S]" if "s" in part.flags else r"[^\n]"
    return f"[{part.atom[0] if part.atom['dot'] is None else anything}&&[^{writing.classes}]]"


def _forms(part: _Part, writing: Writing) -> list[str]:
    """The escapes of its characters."""
    if not _is_character(part):
        return []
    forms = [writing.escapes[each] for each in _found(part, writing)]
    return [each for each in forms if each and (_is_itself(part.atom) or len(each) == _SHORT)]


def _found(part: _Part, writing: Writing) -> list[str]:
    return _held(part.atom[0], writing.escapes, matches_all="s" in part.flags)


def _is_character(part: _Part) -> bool:
    return part.atom["open"] is None and part.atom["kept"] is None


def _is_itself(atom: re.Match[str]) -> bool:
    """True if it stands for one certain character."""
    return atom["character"] is not None and not _MANY.match(atom[0])


def _held(source: str, characters: Iterable[str], *, matches_all: bool) -> list[str]:
    """Those of the characters for which the expression of one character stands."""
    if source.startswith("[") and re.search(r"(?<!\\)(?:&&|--|~~|\|\||\[)", source[1:]):
        raise refused(f"has a class within a class: {source!r:.40}")
    try:
        readable = _CODE.sub(
            lambda found: re.escape(chr(int(found[1] or found[2] or found[3] or found[4], 16))), source
        )
        readable = _PLAIN_PROPERTY.sub("é", readable)
        expression = re.compile(readable, re.DOTALL if matches_all else re.NOFLAG)
    except (re.error, ValueError, OverflowError):
        raise refused(f"has a regular expression with {source!r:.40}, which cannot be changed") from None
    return [each for each in characters if expression.fullmatch(each)]


def _literal(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", lambda found: f"\\x{{{ord(found[0]):x}}}", text)


def refused(message: str) -> BadValueError:
    """The error for a tool's grammar that cannot stand within another one."""
    return BadValueError("tools", f"a grammar {message}")
