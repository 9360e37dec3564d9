"""Tools with signatures, what users say to have them called, and what they return; read from toolbox/*.txt.

Names of tools and parameters are drawn anew for each conversation, so that a model learns to copy them from what it is
offered.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from tools.embedded_model.corpus.cast import invented_name
from tools.embedded_model.corpus.template import with_article
from tools.embedded_model.corpus.values import Json, Value, draw_value, joined, schema_of

Toolbox = Literal["tools", "held_out"]
_HERE: Final = Path(__file__).parent / "toolbox"
_CHOICE: Final = re.compile(r"\[([^\[\]]*)\]")
_SLOT: Final = re.compile(r"\{([^{}]*)\}")
_REPEATABLE: Final = frozenset(
    {"city", "person", "animal", "country", "topic", "word", "code", "invented", "title"}
)
_ERRORS: Final = ("not found", "no such {}", "unknown {}", "timeout", "not allowed", "bad {}")
_LITERAL_KINDS: Final = (
    "city",
    "person",
    "int 0 999",
    "word",
    "color",
    "number 1 99",
    "code",
    "list animal",
    "time",
)


@attrs.frozen
class Parameter:
    """A parameter: the name by which asks refer to it, the name that the tool has for it, and the kind of its values."""

    slot: str
    name: str
    kind: str
    optional: bool


@attrs.frozen
class Tool:
    """An offered tool, what is said to have it called, and what it returns; tools of one `topic` could be confused."""

    topic: str
    name: str
    about: str
    parameters: tuple[Parameter, ...]
    asks: tuple[str, ...]
    fields: tuple[str, ...]
    texts: tuple[str, ...]

    def described(self) -> dict[str, Any]:
        """The tool as a client of the chat endpoint sends it."""
        function: dict[str, Any] = {"name": self.name}
        if self.about:
            function["description"] = self.about
        function["parameters"] = {
            "type": "object",
            "properties": {each.name: schema_of(each.kind) for each in self.parameters},
            "required": [each.name for each in self.parameters if not each.optional],
        }
        return {"type": "function", "function": function}


@attrs.frozen
class Call:
    """A call with its arguments, and the tool's result: a text for the model, and the answer that says it."""

    tool: Tool
    arguments: Mapping[str, Json]

    def as_message(self) -> dict[str, Any]:
        """The call as an assistant's message holds it, its arguments as an object."""
        return {"type": "function", "function": {"name": self.tool.name, "arguments": dict(self.arguments)}}


@cache
def _blocks(toolbox: Toolbox) -> tuple[tuple[str, ...], ...]:
    text = (_HERE / f"{toolbox}.txt").read_text(encoding="utf-8")
    blocks = (
        tuple(line for line in block.splitlines() if not line.startswith("#")) for block in text.split("\n\n")
    )
    return tuple(block for block in blocks if block)


def _entries(text: str, separator: str = ",") -> list[str]:
    return [entry.strip() for entry in text.split(separator)]


def draw_tool(rng: random.Random, toolbox: Toolbox = "tools") -> Tool:
    """Draw a tool with its names."""
    if toolbox == "tools" and rng.random() < 0.2:
        return _literal_tool(rng)
    head, about, *rest = rng.choice(_blocks(toolbox))
    topic, _, names = head.rpartition(": ")
    rows = [line for line in rest if line[0] not in "?>'"]
    style = _style(rng)
    parameters = []
    for row in rows:
        listed, _, kind = row.partition(": ")
        own, optional = _entries(listed.rstrip("?")), listed.endswith("?")
        name = rng.choice(own)
        if len(rows) == 1 and rng.random() < 0.15:
            name = invented_name(rng).lower()
        parameters.append(Parameter(own[0], style(name) if style is _camel else name, kind, optional))
    if len({each.name for each in parameters}) < len(parameters):
        return draw_tool(rng, toolbox)
    name, drawn = rng.choice(_entries(names)), rng.random()
    if toolbox == "tools" and drawn < 0.25:
        name = rng.choice(("", "get_", "do_", "run_")) + invented_name(rng).lower()
    texts = _entries(about.removeprefix("= "), "|")
    return Tool(
        topic=topic or _entries(names)[0],
        name=style(name),
        about="" if 0.25 <= drawn < 0.33 else rng.choice(texts),
        parameters=tuple(parameters),
        asks=tuple(line[2:] for line in rest if line.startswith("? ")),
        fields=tuple(line[2:] for line in rest if line.startswith("> ")),
        texts=tuple(line[2:] for line in rest if line.startswith("' ")),
    )


def _style(rng: random.Random) -> Callable[[str], str]:
    return rng.choice((str, str, str, str, _camel, _kebab))


def styled(name: str, rng: random.Random) -> str:
    """The name with underscores, dashes or capitals between its words."""
    return _style(rng)(name)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _literal_tool(rng: random.Random) -> Tool:
    """A tool that means nothing: what it is given is said by the names of its parameters."""
    name = rng.choice(("", "get_", "make_", "set_")) + invented_name(rng).lower()
    drawn = [
        rng.choice((invented_name(rng).lower(), *"abnxyk", "name", "value", "id", "key"))
        for _ in range(rng.randint(1, 4))
    ]
    slots = list(dict.fromkeys(drawn))
    parameters = tuple(Parameter(slot, slot, rng.choice(_LITERAL_KINDS), optional=False) for slot in slots)
    listed = [f"{slot} {{{slot}}}" for slot in slots]
    equal = [f"{slot} = {{{slot}}}" for slot in slots]
    asks = (
        f"[Call|Use|Run] {name} with {joined(listed)}.",
        f"{name}, please: {joined(listed)}.",
        f"[Call|Use] {name}[ with|:] {', '.join(equal)}.",
    )
    about = rng.choice(
        ("", f"Makes {with_article(invented_name(rng).lower())}.", "A test.", "Nothing is known about it.")
    )
    results = (f"{rng.choice(('result', 'value', 'count'))}: int 0 99", f"{invented_name(rng).lower()}: word")
    return Tool(name, name, about, parameters, asks, results, ("ok", "{int 0 99}", "{word}"))


def _spoken(template: str, rng: random.Random) -> str:
    return _CHOICE.sub(lambda found: rng.choice(found[1].split("|")), template)


def ask(tool: Tool, rng: random.Random, times: int = 1) -> tuple[str, list[Call]]:
    """A user's message, and the calls that it wants: one, or several that differ in one argument.

    Raises `LookupError` where no argument of the tool can be several things at once.
    """
    template = _spoken(rng.choice(tool.asks), rng)
    mentioned = {slot.removeprefix("a ") for slot in _SLOT.findall(template)}
    used = [each for each in tool.parameters if each.slot in mentioned]
    values = {each.slot: draw_value(each.kind, rng) for each in used}
    if times == 1:
        return _say(template, values), [_call(tool, used, values)]
    several = next((each for each in used if each.kind in _REPEATABLE), None)
    if several is None:
        raise LookupError(tool.name)
    more = [draw_value(several.kind, rng) for _ in range(times)]
    if len({value.said for value in more}) < times:
        raise LookupError(tool.name)
    text = joined([value.said for value in more])
    calls = [_call(tool, used, {**values, several.slot: value}) for value in more]
    return _say(template, {**values, several.slot: Value("", text)}), calls


def _say(template: str, values: Mapping[str, Value]) -> str:
    def said(found: re.Match[str]) -> str:
        slot = found[1]
        text = values[slot.removeprefix("a ")].said
        return with_article(text) if slot.startswith("a ") else text

    text = _SLOT.sub(said, template)
    return (
        text[0].upper() + text[1:] if text.split(",")[0].islower() and "_" not in text.split(" ")[0] else text
    )


def _call(tool: Tool, used: list[Parameter], values: Mapping[str, Value]) -> Call:
    return Call(tool, {each.name: values[each.slot].json for each in used})


def follow_up(call: Call, rng: random.Random) -> tuple[str, Call]:
    """A short question for the same tool with one other value; raises `LookupError` where that cannot be said."""
    swapped = [
        each for each in call.tool.parameters if each.kind in _REPEATABLE and each.name in call.arguments
    ]
    if not swapped:
        raise LookupError(call.tool.name)
    changed = swapped[0]
    value = draw_value(changed.kind, rng)
    is_place = changed.kind == "city" and changed.slot == "city"
    asked = rng.choice(
        ("And {}?", "What about {}?", "And now {}.", "And in {}?" if is_place else "The same for {}.")
    )
    return asked.format(value.said), Call(call.tool, {**call.arguments, changed.name: value.json})


def outcome(call: Call, rng: random.Random) -> tuple[str, str]:
    """The tool's result for a call, and the sentence that tells it."""
    draw = rng.random()
    if draw < 0.08:
        names = [each.slot for each in call.tool.parameters]
        error = rng.choice(_ERRORS).format(rng.choice(names).replace("_", " "))
        shown = rng.choice((f"error: {error}", f"Error: {error}", json.dumps({"error": error})))
        return shown, f"Sorry, that did not work: {error}."
    if draw < 0.45 and call.tool.texts:
        text = _text_result(rng.choice(call.tool.texts), call, rng)
        return text, said_result(text)
    pairs = [entry.partition(": ") for entry in _entries(rng.choice(call.tool.fields), ";")]
    result = {name: _field(name, kind, call, rng) for name, _, kind in pairs}
    alone = next(iter(result.values()))
    if len(result) == 1 and rng.random() < 0.4:
        shown = alone if isinstance(alone, str) else json.dumps(alone, ensure_ascii=False)
        return shown, said_result(shown)
    shown = json.dumps(result, ensure_ascii=False)
    return shown, said_result(shown)


def _field(name: str, kind: str, call: Call, rng: random.Random) -> Json:
    """A field that has the name of an argument mostly repeats it."""
    given = {each.slot: each.name for each in call.tool.parameters}
    if name in given and given[name] in call.arguments and rng.random() < 0.9:
        return call.arguments[given[name]]
    return draw_value(kind, rng).json


def _text_result(template: str, call: Call, rng: random.Random) -> str:
    given = {each.slot: call.arguments.get(each.name) for each in call.tool.parameters}

    def filled(found: re.Match[str]) -> str:
        slot = found[1].removeprefix("a ")
        value = (
            given[slot]
            if given.get(slot) is not None
            else draw_value(slot if slot not in given else "word", rng).json
        )
        return with_article(str(value)) if found[1].startswith("a ") else str(value)

    return _SLOT.sub(filled, _spoken(template, rng))


def said_result(text: str) -> str:
    """A result as a sentence: fields by their names, a list as what was found, a number as the answer, text as it is."""
    try:
        result = json.loads(text)
    except json.JSONDecodeError:
        if text in {"ok", "done"}:
            return "It is done."
        return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")
    if isinstance(result, dict):
        clauses = [f"the {name.replace('_', ' ')} {_is(name, value)}" for name, value in result.items()]
        sentence = joined(clauses)
        return f"{sentence[0].upper()}{sentence[1:]}."
    if isinstance(result, list):
        return f"I found {joined([str(entry) for entry in result])}."
    return f"The answer is {text}."


def _is(name: str, value: Json) -> str:
    plural = name.endswith("s") and not name.endswith(("ss", "us"))
    if isinstance(value, list):
        shown = joined([str(entry) for entry in value])
    else:
        shown = json.dumps(value) if isinstance(value, bool) else str(value)
    return f"{'are' if plural else 'is'} {shown}"
