"""Reads OpenAI's harmony: an answer is messages, each with a header that names its channel and, for a call, the function.

A header is `<|channel|>commentary to=functions.f <|constrain|>json<|message|>`; the recipient may stand before the channel.
The analysis channel is reasoning, and so are messages to tools that are not functions; every other message is text.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from nanoserve.domain.text.dialects.dialect import Channels
from nanoserve.domain.text.dialects.output import Output
from nanoserve.domain.text.dialects.reader import END, Reader, Reading

_LONGEST_HEADER: Final = 512
_PREFIX: Final = "functions."


def read_channels(form: Channels, reader: Reader, output: Output, prompt_tail: str) -> Reading[None]:
    """The whole answer; the prompt has begun the first message, at least with its role."""
    header, has_header, _ = prompt_tail.rpartition(form.start)[2].partition(form.message)
    ends = (*form.ends, form.start, form.channel)
    while True:
        if not has_header:
            prompted = header
            header, is_whole = yield from _header(form, reader, prompted)
            if not is_whole and form.channel not in header:
                output.text(header.removeprefix(prompted))
        has_header = ""
        channel, function = _meaning(header, form, output.tools)
        output.mark()
        if function and output.tools:
            output.begin_call(function)
            mark = yield from reader.until(ends, output.arguments, keep_tokens=True)
            output.end_call()
        else:
            is_reasoning = channel == "analysis" or "to=" in header
            mark = yield from reader.until(ends, output.reasoning if is_reasoning else output.text)
        if mark == END:
            return
        header = mark if mark == form.channel else ""


def _header(form: Channels, reader: Reader, header: str) -> Reading[tuple[str, bool]]:
    """The header up to its end; False if the answer ends within it, or it is too long to be one."""
    marks = (form.channel, form.constrain, form.message, form.start, *form.ends)
    while True:
        more, mark = yield from reader.collect(marks, _LONGEST_HEADER)
        if mark == form.message:
            return header + more, True
        if mark == END:
            return header + more, False
        header = header + more + mark if mark in {form.channel, form.constrain} else ""


def _meaning(header: str, form: Channels, names: Collection[str]) -> tuple[str, str]:
    """The channel, and the function that is called, if one is; those of these `names` may stand without their prefix."""
    words = header.replace(form.channel, f" {form.channel} ").replace(form.constrain, " ").split()
    channel = next(iter(words[words.index(form.channel) + 1 :]), "") if form.channel in words else ""
    recipients = [word.removeprefix("to=") for word in words if word.startswith("to=")]
    functions = [
        each.removeprefix(_PREFIX) for each in recipients if each.startswith(_PREFIX) or each in names
    ]
    return channel, functions[0] if functions else ""
