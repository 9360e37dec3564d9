"""The grammar of an answer by its dialect: calls of given tools, in Lark as llguidance reads it.

It covers the whole answer from its first token on: reasoning where the family has some, free text where calls are not required,
then calls whose arguments fit their schemas. Marks that are tokens are named by id, so that no text can forge them. Separators
inside arguments are those of the templates' `tojson`, so a model cannot write endless blanks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nanoserve.domain.text.dialects.dialect import (
    Calls,
    Channels,
    Dialect,
    KeyedCall,
    NamedCall,
    PythonicCall,
    Region,
    XmlArguments,
)
from nanoserve.domain.text.dialects.schema import (
    NO_ARGUMENTS,
    closed,
    held,
    properties_of,
    types_of_argument,
    without_parameters,
)
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import BOUNDED_WHITESPACE, Constraint, ConstraintKind, ReasoningLimit
from nanoserve.ports.tool_calls import CallMode, Tool, ToolChoice

_TEXT: Final = "/(?s:.*)/"
_BLANK: Final = "/[ \\n]{0,2}/"
_INDEX: Final = "/[0-9]{1,3}/"
_SPACING: Final = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
INPUT_HEAD: Final = '{"input": '
_REMARKS: Final = frozenset({"title", "description", "examples", "default", "$comment"})
_NAMED_SCHEMAS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_VALUES: Final = frozenset({"enum", "const"})
_QUOTED: Final = re.compile(r'"(?>(?:[^"\\\n]++|\\.)*)"|/(?>(?:[^/\\\n]++|\\.)+)/|//[^\n]*+|#[^\n]*+')
"""Texts, expressions and remarks of Lark."""
_TOKEN: Final = re.compile(r"<[^<>\s]+>")
_TEXT_TYPES: Final = frozenset({"string", "null"})


def answer_grammar(
    dialect: Dialect,
    tools: Sequence[Tool],
    choice: ToolChoice,
    ids: Mapping[str, int],
    prompt_tail: str,
    *,
    schema: Mapping[str, Any] | None = None,
    whitespace: str = BOUNDED_WHITESPACE,
    limit: ReasoningLimit | None = None,
) -> str:
    """The grammar of an answer that calls tools as the choice says; `ids` are those of the marks that are tokens.

    With a `schema` an answer without calls is JSON of it, with `whitespace` as in `Constraint`, else text as the model likes. With a `limit` it can reason once,
    as that says, and where the prompt has begun that the grammar is of what follows.
    """
    reasoning = dialect.reasoning
    lark = _Lark(ids, limit, "" if limit is None or reasoning is None else reasoning.open)
    json_text = None if schema is None else lark.json_text(schema, whitespace)
    if dialect.channels is not None:
        answer = lark.channel_answer(dialect.channels, tools, choice, prompt_tail, json_text or _TEXT)
        return lark.page(answer)
    body = json_text or lark.text()
    if dialect.calls is not None and tools:
        body = lark.body(dialect.calls, tools, choice, json_text)
    return lark.page(f"{lark.reasoning(dialect.reasoning, prompt_tail)} {body}")


class _Lark:
    """Rules, as they are needed; every method returns an expression."""

    def __init__(
        self, ids: Mapping[str, int], limit: ReasoningLimit | None = None, forbidden: str = ""
    ) -> None:
        self._ids = ids
        self._forbidden = [forbidden] if forbidden and forbidden not in ids else []
        self._is_behind = limit is not None and not limit.open
        self._times = "*" if limit is None else "?"
        self._rules: list[str] = []
        self._names: dict[str, str] = {}

    def page(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules, ""])

    def rule(self, expression: str, options: str = "") -> str:
        """A rule of its own; the same one for the same expression."""
        written = f"{options}: {expression}"
        if written not in self._names:
            self._names[written] = f"r{len(self._rules)}"
            self._rules.append(f"{self._names[written]}{written}")
        return self._names[written]

    def mark(self, mark: str) -> str:
        return f"<[{self._ids[mark]}]>" if mark in self._ids else literal(mark)

    def text(self, *without: str) -> str:
        """Free text without these marks, and without the beginning of reasoning if that is allowed only once."""
        marks = "|".join(_escaped(each) for each in (*without, *self._forbidden))
        if not marks:
            return _TEXT
        name = f"TEXT{len(self._rules)}"
        self._rules.append(f"{name}: {_TEXT} & ~/(?s:.*)({marks})(?s:.*)/")
        return name

    def up_to(self, mark: str, before: str = "", text: str = _TEXT) -> str:
        """Text and the mark that ends it, with constant text between them."""
        if mark in self._ids:
            return f"/(?s:.*){_escaped(before)}/ {self.mark(mark)}"
        return self.rule(f"{text} {literal(before + mark)}", "[lazy]")

    def reasoning(self, region: Region | None, prompt_tail: str) -> str:
        """The reasoning that may come first, or must if the prompt has opened it."""
        if region is None:
            return ""
        if self._is_behind or prompt_tail.endswith(region.close):
            return _BLANK
        if prompt_tail.rstrip().endswith(region.close):
            return ""
        if prompt_tail.rstrip().endswith(region.open):
            return f"{self.up_to(region.close)} {_BLANK}"
        return f"({self.mark(region.open)} {self.up_to(region.close)} {_BLANK})?"

    def body(self, calls: Calls, tools: Sequence[Tool], choice: ToolChoice, json_text: str | None) -> str:
        """Only calls, or JSON instead of them, or text with calls in it."""
        is_required = choice.mode is CallMode.REQUIRED
        each = [self.rule(self.call(calls, tool, is_strict=is_required or tool.strict)) for tool in tools]
        opening, rest = self._several(calls, f"({' | '.join(each)})", parallel=choice.parallel)
        if calls.bare:
            opening = f"{self.mark(opening)}?" if opening in self._ids else ""
            if is_required or json_text is not None:
                return _either(f"{opening} {rest}", None if is_required else json_text)
            first = _escaped("[" if isinstance(calls.form, PythonicCall) else "{")
            return f"(/([^{first}\\s](?s:.*))?/ | {self.rule(f'{opening} {rest}')})"
        if is_required or json_text is not None:
            return _either(f"{self.mark(opening)} {rest}", None if is_required else json_text)
        times = "*" if choice.parallel else "?"
        if opening in self._ids:
            return f"({self.text()} {self.mark(opening)} {rest}){times} {self.text()}"
        return f"({self.up_to(opening, text=self.text())} {rest}){times} {self.text(opening)}"

    def _several(self, calls: Calls, one: str, *, parallel: bool) -> tuple[str, str]:
        """The mark that opens all calls, and what follows it; `one` is any call without its own open mark."""
        open_mark, section = self.mark(calls.open) if calls.open else "", calls.section
        between = literal(calls.between)
        if isinstance(calls.form, PythonicCall) or (isinstance(calls.form, KeyedCall) and calls.form.listed):
            more = f"({between} {one})*" if parallel else ""
            bracket = "" if calls.open.endswith("[") else '" "? "["'
            closing = f"{self.mark(calls.close)}?" if calls.close in self._ids else ""
            return calls.open, f'{bracket} {one} {more} "]" {closing}'
        if calls.bare:
            return calls.open, f"{one} ({between} {one})*" if parallel else one
        if section is None:
            return calls.open, f"{one} ({between} {open_mark} {one})*" if parallel else one
        opening = f"{literal(calls.pad)} {open_mark}"
        closing = f"{literal(calls.pad)} {self.mark(section.close)}"
        if calls.one_each:
            between = f"{closing} {between} {self.mark(section.open)} {literal(calls.pad)}"
        more = f"({between} {open_mark} {one})*" if parallel else ""
        return section.open, f"{opening} {one} {more} {closing}"

    def call(self, calls: Calls, tool: Tool, *, is_strict: bool) -> str:
        """One call of the tool after its open mark."""
        schema = held(tool) if is_strict else _free(tool)
        form = calls.form
        if isinstance(form, PythonicCall):
            return f"{literal(tool.name + '(')} {self._keywords(tool, schema)} {literal(')')}"
        if isinstance(form, KeyedCall):
            head = f"{{{json.dumps(form.keys[0])}: {json.dumps(tool.name)}, {json.dumps(form.keys[1])}: "
            written = f"{literal(head)} {self.arguments(tool, schema)} {literal('}')}"
            return written if form.listed or calls.bare else self._closed(calls, written, calls.pad)
        return self._closed(calls, self._named(form, tool, schema), "")

    def _closed(self, calls: Calls, written: str, pad: str) -> str:
        closing = f"{literal(pad)} {self.mark(calls.close)}" if calls.close else ""
        return f"{literal(pad)} {written} {closing}"

    def _named(self, form: NamedCall, tool: Tool, schema: Mapping[str, Any]) -> str:
        name = literal(tool.name)
        if form.qualified:
            name = f"{literal(f'functions.{tool.name}:')} {_INDEX}"
        if form.before:
            name = f"{literal(form.kind)} {self.mark(form.before)} {name}"
        arguments = form.arguments
        if isinstance(arguments, XmlArguments):
            after = "" if form.after.isspace() else self.mark(form.after)
            return f"{name} {after} {self._elements(arguments, tool, schema)} {literal(arguments.between)}"
        return f"{name} {self.mark(form.after)} {self.arguments(tool, schema)} {literal(arguments.behind)}"

    def _elements(self, form: XmlArguments, tool: Tool, schema: Mapping[str, Any]) -> str:
        """One element for each property, in the schema's order; without any, whatever the model writes."""
        properties = properties_of(tool.parameters)
        required = schema.get("required", ())
        found = []
        for key in properties:
            gap = literal(form.between) + " " + self.mark(form.value_open) if form.value_open else ""
            head = f"{literal(form.between)} {self.mark(form.key_open)} {literal(key)} {self.mark(form.key_close)} {gap}"
            value = (
                self._element_value(form, schema, key, is_lenient=not tool.strict)
                if tool.form is None
                else self._element_text(form, tool.form)
            )
            found.append(f"({head} {literal(form.pad)} {value}){'' if key in required else '?'}")
        return " ".join(found)

    def _element_value(
        self, form: XmlArguments, schema: Mapping[str, Any], key: str, *, is_lenient: bool
    ) -> str:
        types = types_of_argument(schema, key)
        described = properties_of(schema).get(key)
        values = described.get("enum") if isinstance(described, Mapping) else None
        closing = f"{literal(form.pad)} {self.mark(form.value_close)}"
        if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
            return f"({' | '.join(literal(value) for value in values)}) {closing}"
        if types & _TEXT_TYPES:
            return self.up_to(form.value_close, form.pad)
        return f"{self.json(_rooted(described, schema), is_lenient=is_lenient)} {closing}"

    def _element_text(self, form: XmlArguments, text: Constraint) -> str:
        """The text for a custom tool, unchanged; it must not include the mark after it."""
        is_token = form.value_close in self._ids
        if text.kind == ConstraintKind.LARK:
            pad = literal(form.pad) + "?" if form.pad and not is_token else literal(form.pad)
            nested = self.rule(f"%lark {{\n{_of_characters(text.text)}\n}}")
            return f"{nested} {pad} {self.mark(form.value_close)}"
        if is_token:
            return f"{_terminal(text.text)} {literal(form.pad)} {self.mark(form.value_close)}"
        name = f"INPUT{len(self._rules)}"
        self._rules.append(f"{name}: {_terminal(text.text)} & ~/(?s:.*){_escaped(form.value_close)}(?s:.*)/")
        return self.rule(f"{name} {literal(form.pad + form.value_close)}", "[lazy]")

    def arguments(self, tool: Tool, schema: Mapping[str, Any]) -> str:
        """The arguments of a call as a JSON object."""
        if tool.form is None:
            return self.json(schema, is_lenient=not tool.strict)
        return f"{literal(INPUT_HEAD)} {self._json_text(tool.name, tool.form)} {literal('}')}"

    def _json_text(self, name: str, text: Constraint) -> str:
        """The text for a custom tool as a JSON string."""
        if text.kind != ConstraintKind.REGEX:
            message = "a lark grammar works only with models that write arguments in XML elements; this one writes JSON: use a regex"
            raise BadValueError("tools", f"{name:.64}: {message}")
        return self.json({"type": "string", "pattern": f"^(?:{text.text})$"})

    def _keywords(self, tool: Tool, schema: Mapping[str, Any]) -> str:
        """Keyword arguments in the schema's order, with commas between those that are there."""
        root = closed(tool.parameters) if tool.strict else tool.parameters
        properties = properties_of(root)
        required = schema.get("required", ())
        first = later = ""
        for key, described in reversed(properties.items()):
            types = types_of_argument(tool.parameters, key)
            is_word = types == {"boolean"}
            value = (
                '("True" | "False")'
                if is_word
                else self.json(_rooted(described, root), is_lenient=not tool.strict)
            )
            value = value if tool.form is None else self._json_text(tool.name, tool.form)
            given = f"{literal(key + '=')} {value} {later}"
            is_needed = key in required
            first = self.rule(given if is_needed else f"{given} | {first}" if first else f"({given})?")
            comma = literal(", ")
            given = f"{comma} {given}"
            later = self.rule(given if is_needed else f"{given} | {later}" if later else f"({given})?")
        return first

    def channel_answer(
        self, form: Channels, tools: Sequence[Tool], choice: ToolChoice, prompt_tail: str, text: str
    ) -> str:
        """Free analysis, then one call; in `AUTO` a preamble before it, or a final text instead."""
        final = self._message(form, "final", text)
        if not tools:
            return self._after_analysis(form, final, prompt_tail)
        is_required = choice.mode is CallMode.REQUIRED
        each = []
        for tool in tools:
            to = literal(f"commentary to=functions.{tool.name} ")
            kind = f'{self.mark(form.constrain)} "json" {self.mark(form.message)}'
            schema = held(tool) if is_required or tool.strict else _free(tool)
            each.append(self.rule(f"{self.mark(form.channel)} {to} {kind} {self.arguments(tool, schema)}"))
        calls = f"({' | '.join(each)})"
        if is_required:
            return self._after_analysis(form, calls, prompt_tail)
        preamble = f"({self._message(form, 'commentary', _TEXT)} {self._next(form)})?"
        return self._after_analysis(form, f"({preamble} {calls} | {final})", prompt_tail)

    def _after_analysis(self, form: Channels, body: str, prompt_tail: str) -> str:
        if self._is_behind:
            return body
        if prompt_tail.rstrip().endswith(form.message):
            return _TEXT
        return f"({self._message(form, 'analysis', _TEXT)} {self._next(form)}){self._times} {body}"

    def _message(self, form: Channels, channel: str, content: str) -> str:
        return f"{self.mark(form.channel)} {literal(channel)} {self.mark(form.message)} {content}"

    def _next(self, form: Channels) -> str:
        return f'{self.mark(form.ends[0])} {self.mark(form.start)} "assistant"'

    def json_text(self, schema: Mapping[str, Any] | bool, whitespace: str) -> str:
        """JSON instead of text."""
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        options: dict[str, Any] = (
            {"whitespace_pattern": whitespace} if whitespace else {"whitespace_flexible": False}
        )
        return self.rule(f"%json {json.dumps({**_lean(schema), 'x-guidance': options})}")

    def json(self, schema: Mapping[str, Any], *, is_lenient: bool = False) -> str:
        options = {**_SPACING, "lenient": True} if is_lenient else _SPACING
        return self.rule(f"%json {json.dumps({**_lean(schema), 'x-guidance': options})}")


def _free(tool: Tool) -> Mapping[str, Any]:
    """Any arguments, unless the tool takes none."""
    return NO_ARGUMENTS if without_parameters(tool.parameters) else {"type": "object"}


def _either(calls: str, text: str | None) -> str:
    return calls if text is None else f"({calls} | {text})"


def literal(text: str) -> str:
    """A text as Lark writes it; nothing for none."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def _terminal(regex: str) -> str:
    """A regular expression within slashes."""
    pieces = re.findall(r"\\.|[^\\]|\\$", regex, re.DOTALL)
    written = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
    return f"/(?:{''.join(written.get(each, each) for each in pieces)})/"


def _of_characters(lark: str) -> str:
    """A client's grammar, if it names no tokens; raises `BadValueError` for one that could write marks."""
    if found := _TOKEN.search(_QUOTED.sub("", lark)):
        message = f"a grammar names the token {found[0]!r:.40}; it may only contain characters"
        raise BadValueError("tools", message)
    return lark


def _escaped(text: str) -> str:
    """A text within a regex within slashes."""
    return "".join(each if each.isalnum() else f"\\x{{{ord(each):x}}}" for each in text)


def _lean(schema: Any) -> Any:
    """A schema without annotations, which may be most of it."""
    if isinstance(schema, list):
        return [_lean(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    lean = {key: value for key, value in schema.items() if key not in _REMARKS}
    for key, value in lean.items():
        if key in _NAMED_SCHEMAS and isinstance(value, Mapping):
            lean[key] = {name: _lean(each) for name, each in value.items()}
        elif key not in _VALUES:
            lean[key] = _lean(value)
    return lean


def _rooted(described: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a property, with the definitions that it may refer to."""
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**definitions, **(described if isinstance(described, Mapping) else {})}
