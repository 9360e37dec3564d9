"""The values that describe how a model family writes reasoning and calls; parser and grammar are functions of them.

A mark is a literal text. If the tokenizer has the mark as one added token, it counts only as that token: the same letters in
other tokens are plain text. Names of attributes follow the order in which things are written.
"""

from __future__ import annotations

from typing import Literal

import attrs


@attrs.frozen
class Region:
    """Text between two marks; an empty `close` ends with the answer."""

    open: str
    close: str


@attrs.frozen
class KeyedCall:
    """One JSON object holds name and arguments.

    Attributes:
        keys: of the name and of the arguments, as the model writes them; `arguments` and `parameters` are both read.
        listed: the objects are the items of one JSON array.
    """

    keys: tuple[str, str] = ("name", "arguments")
    listed: bool = False


@attrs.frozen
class JsonArguments:
    """The arguments are one JSON object; `behind` is constant text, such as the end of a code fence, that follows it."""

    behind: str = ""


@attrs.frozen
class XmlArguments:
    """Each argument has an element of its own: `key_open` name `key_close` `value_open` value `value_close`.

    Attributes:
        pad: white space that the template puts around a value and that is no part of it.
        between: what stands before each element.
    """

    key_open: str
    key_close: str
    value_close: str
    value_open: str = ""
    pad: str = ""
    between: str = ""


@attrs.frozen
class NamedCall:
    """The name comes first, then the arguments.

    Attributes:
        kind: constant text in front of `before`.
        before: a mark in front of the name.
        after: what ends the name; an opening brace ends it too where the arguments are JSON.
        id_mark: what separates the name from an id that may follow it.
        qualified: the name is written as `functions.NAME:INDEX`, which is the call's id.
    """

    after: str
    arguments: JsonArguments | XmlArguments = JsonArguments()
    kind: str = ""
    before: str = ""
    id_mark: str = ""
    qualified: bool = False


@attrs.frozen
class PythonicCall:
    """The calls are a Python list of calls with keyword arguments: `[f(a=1), g(b="x")]`."""


@attrs.frozen(kw_only=True)
class Calls:
    """The place and the form of calls.

    Attributes:
        section: around all calls of an answer, or around each where `one_each` is set.
        loose: a call without its section is a call, too.
        open: before each call; empty if nothing is.
        also: what some models of the family write instead of `open`.
        close: after each call; empty if its arguments end it.
        bare: calls may also begin without `open`, as the first thing of the answer.
        pad: white space behind `open` and before `close`.
        between: what stands between two calls.
    """

    form: KeyedCall | NamedCall | PythonicCall
    section: Region | None = None
    one_each: bool = False
    loose: bool = False
    open: str = ""
    also: tuple[str, ...] = ()
    close: str = ""
    bare: bool = False
    pad: str = ""
    between: str = ""

    @property
    def opens(self) -> tuple[str, ...]:
        """The marks before each call."""
        return (self.open, *self.also) if self.open else ()


@attrs.frozen
class Channels:
    """OpenAI's harmony: messages with a header that names the channel and, for a call, the function."""

    start: str = "<|start|>"
    channel: str = "<|channel|>"
    constrain: str = "<|constrain|>"
    message: str = "<|message|>"
    ends: tuple[str, ...] = ("<|end|>", "<|return|>", "<|call|>")


CallIds = Literal["any", "nine", "qualified"]
"""The shape of ids that the chat template takes: any text, nine letters and digits, `functions.NAME:INDEX`."""


@attrs.frozen(kw_only=True)
class Dialect:
    """How a family writes an answer.

    Attributes:
        name: by which an operator asks for it.
        reasoning: None if the family has none that is marked.
        calls: None if the family has no calls that are known.
        channels: for families whose answers are messages of channels; the other two are None then.
        earlier_arguments: as what the chat template reads the arguments of earlier calls.
    """

    name: str
    reasoning: Region | None = None
    calls: Calls | None = None
    channels: Channels | None = None
    earlier_arguments: Literal["object", "text"] = "object"
    call_ids: CallIds = "any"

    @property
    def marks(self) -> frozenset[str]:
        """Every mark; a tokenizer says which of them are tokens."""
        found = {""}
        if self.reasoning is not None:
            found |= {self.reasoning.open, self.reasoning.close}
        if self.calls is not None:
            found |= _marks_of(self.calls)
        if (channels := self.channels) is not None:
            found |= {channels.start, channels.channel, channels.constrain, channels.message, *channels.ends}
        return frozenset(found - {""})

    @property
    def reasoning_marks(self) -> tuple[tuple[str, ...], tuple[str, ...], str] | None:
        """The beginning and the end of reasoning, in marks and the texts between them, and the end of a prompt that has no more of it."""
        if (form := self.channels) is not None:
            opening = (form.channel, "analysis", form.message)
            return opening, (form.ends[0], form.start, "assistant"), form.message
        if (region := self.reasoning) is not None:
            return (region.open,), (region.close,), region.close
        return None


def _marks_of(calls: Calls) -> set[str]:
    found = {calls.open, *calls.also, calls.close}
    if calls.section is not None:
        found |= {calls.section.open, calls.section.close}
    if isinstance(form := calls.form, NamedCall):
        found |= {form.before, form.after, form.id_mark}
        if isinstance(xml := form.arguments, XmlArguments):
            found |= {xml.key_open, xml.key_close, xml.value_open, xml.value_close}
    return found
