"""Lark grammars that clients write, changed so that they can stand within the grammar of an answer.

Where the dialect writes arguments as JSON, the texts of such a grammar are written with JSON's escapes: a grammar of texts
becomes one of JSON strings. Within XML elements nothing is escaped; there a class of characters must not swallow the mark that
ends the element.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Final

import attrs

from nanoserve.domain.text.dialects.escaped_regex import AS_JSON, UNCHANGED, Writing, escaped, refused, split

_TOKEN: Final = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)
    |(?P<range>"(?:[^"\\\n]|\\.)*"\s*\.\.\s*"(?:[^"\\\n]|\\.)*")
    |(?P<string>"(?:[^"\\\n]|\\.)*")(?P<string_flags>i?)
    |/(?P<regex>(?:[^/\\\n]|\\.)+)/(?P<flags>[imslux]*)
    |(?P<special><[^<>\s]+>)
    |%import\s+common\s*\.\s*(?P<imported>\w+)(?:\s*->\s*(?P<alias>\w+))?
    |(?P<command>%\w+)
    |(?P<defined>\w++)(?=\s*:)
    |(?P<name>[^\W\d]\w*)
    |(?P<other>\d+|.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMON: Final = {
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "SQL_COMMENT": r"--[^\n]*",
    "C_COMMENT": r"\/\*([^*]|\*+[^*\/])*\*+\/",
}
"""Those of Lark's own terminals that have characters which may need escapes."""
_SPLIT: Final = "split_"
"""The beginning of names of terminals that have become rules."""


def embedded(definition: str, writing: Writing) -> str:
    """The grammar with its texts written as they stand. Raises `BadValueError` for what cannot stand within another grammar.

    With escapes, terminals become rules in which each escape is a token, unless the grammar ignores something between tokens.
    """
    return _Definition(definition, writing).written()


@attrs.define
class _Written:
    """A part of the changed grammar, in the definition of `owner`; `name` is what it refers to or defines."""

    text: str
    owner: str
    name: str = ""
    is_split: bool = False


class _Definition:
    def __init__(self, definition: str, writing: Writing) -> None:
        self._definition, self._writing = definition, writing
        tokens = [each for each in _TOKEN.finditer(definition) if each.lastgroup != "comment"]
        self._splits = writing is AS_JSON and not any(each[0] == "%ignore" for each in tokens)
        self._parts: list[_Written] = []
        owner = ""
        for token in tokens:
            owner = token["defined"] or owner
            self._parts.append(self._part(token, owner))

    def written(self) -> str:
        """All of it; what refers to a terminal that became a rule is a rule, too."""
        owners = defaultdict[str, set[str]](set)
        """The terminals that refer to each name."""
        for each in self._parts:
            if each.name and _is_terminal(each.owner):
                owners[each.name].add(each.owner)
        split_ones = {each.owner for each in self._parts if each.is_split and _is_terminal(each.owner)}
        pending = list(split_ones)
        while pending:
            more = owners[pending.pop()] - split_ones
            split_ones |= more
            pending += more
        if any(each.text == "&" and each.owner in split_ones for each in self._parts):
            raise refused("has an intersection (&) of what may need an escape, which cannot be changed")
        return "".join(
            each.text.replace(each.name, _SPLIT + each.name.lower(), 1)
            if each.name in split_ones
            else each.text
            for each in self._parts
        )

    def _part(self, token: re.Match[str], owner: str) -> _Written:
        kind = token.lastgroup
        self._check(token)
        if self._writing is UNCHANGED or kind in {"command", "other", "name", "defined"}:
            return _Written(token[0], owner, name=token["name"] or token["defined"] or "")
        if kind == "string_flags":
            return self._string(_text(token["string"]), token["string_flags"], owner)
        if kind == "range":
            low, high = (_text(each.strip()) for each in re.split(r'(?<=")\s*\.\.\s*(?=")', token[0]))
            return self._regex(f"[{_in_class(low)}-{_in_class(high)}]", "", owner)
        if kind == "flags":
            return self._regex(token["regex"], token["flags"], owner)
        return self._imported(token, owner)

    def _check(self, token: re.Match[str]) -> None:
        if token.lastgroup == "special":
            raise refused(f"names the token {token[0]!r:.40}; its text may have characters alone")
        if token["command"] not in {None, "%ignore"}:
            what = (
                f"{token[0]} of another form than %import common.NAME" if token[0] == "%import" else token[0]
            )
            raise refused(f"has {what:.60}, which cannot stand in the grammar of a tool")
        is_complement = token[0] == "~" and not self._definition[token.end() : token.end() + 1].isdigit()
        if is_complement and self._writing is not UNCHANGED:
            raise refused("has a complement (~), which cannot be changed; say what a text may be")

    def _string(self, text: str, flags: str, owner: str) -> _Written:
        changed = "".join(self._writing.escapes.get(each) or each for each in text)
        if changed == text or not flags:
            return _Written(json.dumps(changed, ensure_ascii=False) + flags, owner)
        return self._regex(re.escape(text).replace("/", r"\/"), flags, owner)

    def _imported(self, token: re.Match[str], owner: str) -> _Written:
        name = token["alias"] or token["imported"]
        if token["imported"] not in _COMMON:
            return _Written(token[0], owner)
        made = self._regex(_COMMON[token["imported"]], "", name)
        return attrs.evolve(made, text=f"{name}: {made.text}", name=name)

    def _regex(self, source: str, flags: str, owner: str) -> _Written:
        pieces = split(source, flags, self._writing) if self._splits else None
        if pieces is not None:
            return _Written(pieces, owner, is_split=True)
        return _Written(f"/{escaped(source, flags, self._writing)}/{flags}", owner)


def _is_terminal(name: str) -> bool:
    return name.strip("_")[:1].isupper()


def _text(string: str) -> str:
    """The content of a string in its quotes."""
    try:
        found: str = json.loads(re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", string), strict=False)
    except ValueError:
        raise refused(f"has a string that cannot be read: {string!r:.60}") from None
    return found


def _in_class(character: str) -> str:
    if len(character) != 1:
        raise refused(f"has a range from or to {character!r:.40}, which is not one character")
    return f"\\x{{{ord(character):x}}}"
