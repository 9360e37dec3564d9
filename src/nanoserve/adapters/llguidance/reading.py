"""From a `Constraint` to the text that llguidance makes a grammar of."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final

import attrs
import msgspec
from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import gbnf_to_lark

from nanoserve.adapters.llguidance import limits
from nanoserve.adapters.llguidance.rehearsing import LIMITS, is_plain, rehearse
from nanoserve.adapters.llguidance.schemas import in_known_words
from nanoserve.adapters.llguidance.work import Work
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import ANY_WHITESPACE, BOUNDED_WHITESPACE, Constraint, ConstraintKind

PARSER_LIMITS: Final = LLParserLimits(max_lexer_states=50_000, **LIMITS)
MAX_MESSAGE: Final = 400
MAX_VERDICTS: Final = 4_096
_VERDICTS: Final[dict[bytes, tuple[str, str]]] = {}
"""By digest, those that were asked for last at the end."""
_LOCK: Final = threading.Lock()
_ONE_OF: Final = (
    "Enable 'coerce_one_of' option to approximate oneOf with anyOf",
    "Choices must exclude each other; or write anyOf",
)
"""Advice of the library where it cannot know that only one choice fits, and what can be done here."""
NOTHING_FITS: Final = "no text of this model's tokens fits"
_IN_OTHER_WORDS: Final = {
    "NoExtension": NOTHING_FITS,
    "Parser Error: Current row has": "too much may come next at once: an object may have some 500 optional properties of other schemas, with those of "
    "its alternatives, and a rule as many alternatives",
    "lexer error: too many": "an expression has too many states: write counted repetitions such as .{40} smaller, or none behind one "
    "without end",
}
"""The beginnings of the library's errors, and their meaning for a client."""

_OF_SCHEMA: Final = re.compile(r"at \d+\(\d+\): failed to compile JSON schema: ")
_LARK: Final = re.compile(r"^[^\S\n]*+(%llguidance\b|start[^\S\n]*+:)", re.MULTILINE)
"""In a text that should be GBNF; looks at each line once."""
_NOT_PLAIN: Final = re.compile(r'["\\\x00-\x1f\x7f]')
_JSON_IN_LARK: Final = re.compile(r"%json\s*(?=\{)")

_UNFORCED: Final = '\n%llguidance {"no_forcing": true}\n'
"""Constant text may be cut into tokens in any way. Else the library asks the tokenizer how to cut it, all of it for each mask, and finds
special tokens in it, which it then refuses."""
_OWN_LINE: Final = re.compile(r"\n *\d+ \| *%llguidance \{\"no_forcing\": true\}")
"""The line that was added, where an error shows what a client has written."""

IsSpecial = Callable[[str], bool]
"""True if a text is a special token of the vocabulary."""


def grammar_text(constraint: Constraint, is_special: IsSpecial) -> str:
    """The grammar in Lark, as llguidance reads it. Raises `BadValueError`, which names the keyword where it is known."""
    kind = limits.check_size(constraint)
    try:
        text = _READERS[kind](constraint, is_special) + _UNFORCED
        text.encode()
    except UnicodeEncodeError:
        raise BadValueError(kind, "holds half of a surrogate pair, which is no character") from None
    except BadValueError:
        raise
    except RecursionError:
        raise BadValueError(kind, "is nested too deeply") from None
    except ValueError as error:
        raise refusal(kind, str(error)) from None
    return text


def check(constraint: Constraint, *, is_composed: bool = False) -> None:
    """Raises `BadValueError` for a constraint that cannot be kept, whatever the vocabulary; takes milliseconds.

    What only a vocabulary can show, such as the name of a special token, is found when it is made ready. One that `is_composed` around another that was checked
    is weighed and not compiled. The newest verdicts are kept, so that a constraint that is sent again costs no more than its digest.
    """
    limits.check_size(constraint)
    key = _digest(constraint, is_composed)
    with _LOCK:
        known = _VERDICTS.pop(key, None)
    verdict = _verdict(constraint, is_composed) if known is None else known
    with _LOCK:
        _VERDICTS[key] = verdict
        while len(_VERDICTS) > MAX_VERDICTS:
            del _VERDICTS[next(iter(_VERDICTS))]
    if verdict[0]:
        raise BadValueError(*verdict)


def is_known(constraint: Constraint, *, is_composed: bool = False) -> bool:
    """True if checking it takes a digest alone."""
    return _digest(constraint, is_composed) in _VERDICTS


def _digest(constraint: Constraint, is_composed: bool) -> bytes:
    key = sha256(f"{constraint.kind}\0{constraint.whitespace}\0{is_composed}\0".encode())
    key.update(constraint.text.encode(errors="surrogatepass"))
    return key.digest()


def _verdict(constraint: Constraint, is_composed: bool) -> tuple[str, str]:
    """The fault and its cause; empty if there is none."""
    try:
        text = grammar_text(constraint, lambda _: False)
    except BadValueError as refused:
        return refused.parameter, str(refused).removeprefix(f"{refused.parameter}: ")
    if is_composed or _is_plain(constraint) or not (error := rehearse(text, constraint.text)):
        return "", ""
    return constraint.kind, str(refusal(constraint.kind, error)).removeprefix(f"{constraint.kind}: ")


def _is_plain(constraint: Constraint) -> bool:
    is_usual = constraint.whitespace in {"", BOUNDED_WHITESPACE, ANY_WHITESPACE}
    return is_usual and constraint.kind == ConstraintKind.JSON_SCHEMA and is_plain(constraint.text)


def refusal(kind: str, message: str) -> BadValueError:
    """The library's complaint as an error of one line; an empty one is that nothing fits."""
    message = _OF_SCHEMA.sub("", message).partition("\n   1 | ")[0] if _OF_SCHEMA.match(message) else message
    message = _OWN_LINE.sub("", message)
    known = (words for start, words in _IN_OTHER_WORDS.items() if message.startswith(start))
    line = next(known, " ".join((message or NOTHING_FITS).split()).replace(*_ONE_OF))
    return BadValueError(kind, line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]}...")


def _json_schema(constraint: Constraint, _is_special: IsSpecial) -> str:
    schema = limits.read_json(constraint.kind, constraint.text)
    return f"start: %json {_kept(constraint.kind, schema, Work(constraint.kind), constraint.whitespace)}"


def _kept(kind: str, schema: Any, work: Work, whitespace: str = BOUNDED_WHITESPACE) -> str:
    """A schema as llguidance reads it, beside others whose work is counted already. Raises `BadValueError`."""
    limits.check_schema(kind, schema)
    known = in_known_words(kind, schema, whitespace)
    work.add(known)
    return json.dumps(known, ensure_ascii=False, separators=(",", ":"))


def _json_object(constraint: Constraint, _is_special: IsSpecial) -> str:
    return _json_schema(attrs.evolve(constraint, text='{"type": "object"}'), _is_special)


def _regex(constraint: Constraint, _is_special: IsSpecial) -> str:
    limits.check_repetitions(constraint.kind, constraint.text)
    Work(constraint.kind).add_expression(constraint.text, "classes")
    (grammar,) = json.loads(LLMatcher.grammar_from_regex(constraint.text))["grammars"]
    return str(grammar["lark_grammar"])


def _choice(constraint: Constraint, _is_special: IsSpecial) -> str:
    choices = limits.read_json(constraint.kind, constraint.text)
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) for each in choices):
        raise BadValueError(constraint.kind, "must be a list of at least one text")
    if len(choices) > limits.MAX_VALUES:
        raise BadValueError(constraint.kind, f"may have {limits.MAX_VALUES} texts, got {len(choices)}")
    limits.check_literals(constraint.kind, "choice", choices)
    # One expression: as alternatives of a rule, of which the library follows 2,000 at once, most would be too many.
    return f"start: CHOICE\nCHOICE: {' | '.join(map(literal, choices))}\n"


def _lark(constraint: Constraint, _is_special: IsSpecial) -> str:
    limits.check_rules(constraint.kind, constraint.text)
    return _with_checked_schemas(constraint.kind, constraint.text)


def _with_checked_schemas(kind: str, lark: str) -> str:
    """A grammar may hold JSON schemas, which cost as much there as alone."""
    parts, end, work = [], 0, Work(kind)
    work.add_expression(lark, "expressions")
    for found in _JSON_IN_LARK.finditer(lark):
        if found.end() < end:
            continue
        schema, after = limits.json_at(kind, lark, found.end())
        limits.check_terminals(kind, lark[end : found.end()])
        parts += [lark[end : found.end()], _kept(kind, schema, work)]
        end = after
    limits.check_terminals(kind, lark[end:])
    return "".join([*parts, lark[end:]])


def _gbnf(constraint: Constraint, is_special: IsSpecial) -> str:
    if _LARK.search(constraint.text):
        return _lark(constraint, is_special)
    limits.check_gbnf(constraint.kind, constraint.text)
    try:
        lark = gbnf_to_lark(constraint.text)
    except RecursionError:
        raise BadValueError(constraint.kind, "is nested too deeply") from None
    except Exception as error:  # noqa: BLE001 - the library raises `Exception` itself
        raise refusal(constraint.kind, str(error)) from None
    limits.check_rules(constraint.kind, lark)
    limits.check_terminals(constraint.kind, lark)
    return lark


def _structural_tag(constraint: Constraint, is_special: IsSpecial) -> str:
    """`{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, or that as a `triggered_tags` format."""
    triggers, tags = _tags(constraint.text)
    if not tags or len(tags) > limits.MAX_TAGS:
        message = f"must have triggers and 1 to {limits.MAX_TAGS} tags, got {len(tags)}"
        raise BadValueError(constraint.kind, message)
    rules, work = [], Work(constraint.kind)
    for number, (begin, schema, end) in enumerate(tags):
        options = _kept(constraint.kind, schema, work)
        trigger = next((each for each in triggers if begin.startswith(each)), None)
        if not trigger:
            raise BadValueError(constraint.kind, f"begin: must start with a trigger, got {begin!r:.80}")
        if is_special(trigger):
            head = f"TEXT {trigger}"
        else:
            head = f"begin_{number}"
            rules.append(f"begin_{number}[lazy]: TEXT {literal(trigger)}")
        rest = begin.removeprefix(trigger)
        parts = (head, rest and literal(rest), f"%json {options}", end and literal(end))
        rules.append(f"tag_{number}: {' '.join(filter(None, parts))}")
    names = " | ".join(f"tag_{number}" for number in range(len(tags)))
    lines = (f"start: ({names})* rest", "rest: TEXT", r"TEXT: /(.|\n)*/", *rules)
    return "\n".join(lines) + "\n"


def _tags(text: str) -> tuple[list[str], list[tuple[str, Any, str]]]:
    """The triggers, and each tag's beginning, schema and end."""
    limits.read_json(ConstraintKind.STRUCTURAL_TAG, text)
    try:
        tag = msgspec.json.decode(text, type=_Tag)
    except msgspec.DecodeError as error:
        message = str(error).replace("`", "").replace("Object missing required field", "needs the member")
        message = message.replace("Expected", "must be", 1)
        raise BadValueError(ConstraintKind.STRUCTURAL_TAG, message) from None
    if (form := tag.format) is None:
        return tag.triggers, [(each.begin, each.schema, each.end) for each in tag.structures]
    if form.type != "triggered_tags" or form.at_least_one or form.stop_after_first:
        message = f"format: must be plain triggered_tags, got {form.type!r:.40}"
        raise BadValueError(ConstraintKind.STRUCTURAL_TAG, message)
    for each in form.tags:
        if each.content.type != "json_schema":
            message = f"content: must be json_schema, got {each.content.type!r:.40}"
            raise BadValueError(ConstraintKind.STRUCTURAL_TAG, message)
    return form.triggers, [(each.begin, each.content.json_schema, each.end) for each in form.tags]


class _Structure(msgspec.Struct):
    begin: str
    schema: Any
    end: str = ""


class _Content(msgspec.Struct):
    type: str
    json_schema: Any = None


class _FormTag(msgspec.Struct):
    begin: str
    content: _Content
    end: str


class _Form(msgspec.Struct):
    type: str
    triggers: list[str] = []
    tags: list[_FormTag] = []
    at_least_one: bool = False
    stop_after_first: bool = False


class _Tag(msgspec.Struct):
    triggers: list[str] = []
    structures: list[_Structure] = []
    format: _Form | None = None


def literal(text: str) -> str:
    """A text as Lark writes it."""
    return f'"{_NOT_PLAIN.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    return f"\\{found[0]}" if found[0] in '"\\' else f"\\x{ord(found[0]):02x}"


_READERS: Final[Mapping[ConstraintKind, Callable[[Constraint, IsSpecial], str]]] = {
    ConstraintKind.JSON_SCHEMA: _json_schema,
    ConstraintKind.JSON_OBJECT: _json_object,
    ConstraintKind.REGEX: _regex,
    ConstraintKind.CHOICE: _choice,
    ConstraintKind.LARK: _lark,
    ConstraintKind.GBNF: _gbnf,
    ConstraintKind.STRUCTURAL_TAG: _structural_tag,
}
