"""A grammar tried out at the door, over the 256 bytes instead of a model's tokens: some texts are begun, as chance has it.

That shows what only goes wrong later: a schema that refers to itself without end, rows that are too wide, and expressions whose lexer has a new state for each
text that it reads, of which it may not keep so many. It takes as long as to make the grammar; plain schemas, in which nothing of that can be, are spared it.
"""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

from nanoserve.adapters.llguidance.schemas import LEAF, WIDE

BYTES: Final = 256
GUIDED: Final = 200
"""Bytes of a text that are drawn one by one from what is allowed."""
TEXTS: Final = 16
"""Read of a grammar whose lexer may grow with each byte, of so many `PIECES` each."""
PIECES: Final = 128
PIECE: Final = 16
"""In bytes."""
TOGETHER: Final = 16
"""Pieces that are read at once, less than a millisecond; then others have the interpreter's lock, who would wait for it longer."""
PAUSE: Final = 0.0001
MAX_STATES: Final = 8_000
LIMITS: Final[dict[str, Any]] = {"max_grammar_size": 250_000, "verbose_errors": False}
"""The library's own except these; errors do not quote the grammar."""
_PLAIN_WORDS: Final = frozenset(
    {"type", "title", "description", "default", "$comment", "enum", "items"}
    | {"properties", "required", "additionalProperties"}
)
_TYPES: Final = frozenset({"null", "boolean", "number", "integer", "string", "array", "object"})
_COUNTED: Final = re.compile(r"\{\s*+(?:\d++\s*+,\s*+)?\d{2}")
"""A repetition of ten or more, which is what a lexer can have to remember."""


class _Bytes:
    """A vocabulary of one token for each byte."""

    eos_token_id = BYTES
    bos_token_id = None
    special_token_ids = (BYTES,)
    tokens = (*(bytes([each]) for each in range(BYTES)), b"<end>")

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


_VOCABULARY: Final = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=BYTES + 1, eos_token=BYTES, slices=[])


def is_plain(written: str) -> bool:
    """True if a JSON schema says of each value what it is and what it holds, all of it in its place, and each object has few optional members.

    The library follows such a schema whatever its size, and some value fits it.
    """
    held, joins = [json.loads(written)], "allOf" in written
    while held:
        schema = held.pop()
        if not isinstance(schema, dict) or not schema.keys() <= _PLAIN_WORDS:
            return False
        named, required = schema.get("properties", {}), schema.get("required", [])
        if not _says_a_type(schema) or not isinstance(named, dict) or not _are_texts(required):
            return False
        optional = [named[name] for name in named.keys() - set(required)]
        is_one_group = not joins and all(each == optional[0] for each in optional)
        if not named.keys() >= set(required) or (len(optional) > WIDE and not is_one_group):
            return False
        held += [each for each in named.values() if not _is_leaf(each)]
        held += [schema["items"]] if "items" in schema else []
        others = schema.get("additionalProperties", False)
        held += [] if isinstance(others, bool) else [others]
    return True


def _is_leaf(schema: Any) -> bool:
    """True for what most members are: a type that is said in one word, and no more."""
    if not isinstance(schema, dict) or not schema.keys() <= LEAF:
        return False
    return isinstance(said := schema.get("type"), str) and said in _TYPES


def _says_a_type(schema: dict[str, Any]) -> bool:
    """Or texts, or nothing."""
    said, values = schema.get("type", ["string"]), schema.get("enum", [""])
    kinds = [said] if isinstance(said, str) else said
    if not (_are_texts(kinds) and kinds and _are_texts(values) and values):
        return False
    return _TYPES.issuperset(kinds) and ("enum" not in schema or kinds == ["string"])


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) for each in values)


def rehearse(grammar: str, written: str) -> str:
    """The failure of a grammar that a client has `written` so; empty if there is none."""
    limits = LLParserLimits(max_lexer_states=MAX_STATES, **LIMITS)
    beginning = LLMatcher(_VOCABULARY, grammar, log_level=0, limits=limits)
    if beginning.is_error():  # its special tokens may be those of another vocabulary
        is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar, None, limits=limits)
        return messages[0] if is_error else ""
    chance = random.Random(len(written))  # noqa: S311 - the same texts each time
    if error := _begin_text(beginning.deep_copy(), chance):
        return error
    return _grow(beginning, written, chance) if _COUNTED.search(written) else ""


def _begin_text(matcher: LLMatcher, chance: random.Random) -> str:
    for _ in range(GUIDED):
        if not _go_on(matcher, chance):
            return "" if matcher.is_accepting() else matcher.get_error() or "NoExtension"
    return ""


def _grow(beginning: LLMatcher, written: str, chance: random.Random) -> str:
    """Read texts of the characters that stand before a counted repetition, such as the `a` of `.*a.{40}`."""
    counted = [each.start() for each in _COUNTED.finditer(written)]
    for _ in range(TEXTS):
        place, matcher = chance.choice(counted), beginning.deep_copy()
        alphabet = [*(set(written[max(place - 8, 0) : place].encode()) - set(b'"\\')), ord(" ")]
        for piece in range(PIECES):
            if piece % TOGETHER == 0:
                time.sleep(PAUSE)
            read = matcher.try_consume_tokens(chance.choices(alphabet, k=PIECE))
            if matcher.is_error():
                return matcher.get_error()
            if not (read or _go_on(matcher, chance)):
                break
    return ""


def _go_on(matcher: LLMatcher, chance: random.Random) -> bool:
    """Go on by one of the bytes that may come next, the first behind a random one, if there is one."""
    mask = int.from_bytes(matcher.compute_bitmask(), "little") & (1 << BYTES) - 1
    if not mask or matcher.is_error():
        return False
    behind = mask >> (first := chance.randrange(BYTES)) << first or mask
    return matcher.consume_token((behind & -behind).bit_length() - 1)
