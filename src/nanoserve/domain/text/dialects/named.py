"""Reads calls whose name stands before their arguments."""

from __future__ import annotations

from typing import Final

from nanoserve.domain.text.dialects.dialect import NamedCall, XmlArguments
from nanoserve.domain.text.dialects.output import Output
from nanoserve.domain.text.dialects.reader import END, Reader, Reading
from nanoserve.domain.text.dialects.xml import read_elements

_LONGEST_NAME: Final = 256


def read_named(
    form: NamedCall, reader: Reader, output: Output, closers: tuple[str, ...]
) -> Reading[tuple[bool, str]]:
    """Name and arguments; whether they are whole, and the mark that ended them, where one did."""
    if form.before:
        _, mark = yield from reader.collect((form.before, *closers), _LONGEST_NAME)
        if mark != form.before:
            return False, mark
    xml = form.arguments if isinstance(form.arguments, XmlArguments) else None
    stops = tuple(filter(None, (form.after, form.id_mark, "" if xml else "{", xml.key_open if xml else "")))
    written, mark = yield from reader.collect((*stops, *closers), _LONGEST_NAME)
    call_id = ""
    if form.id_mark and mark == form.id_mark:
        call_id, mark = yield from reader.collect((form.after, "{", *closers), _LONGEST_NAME)
    if mark == "{":
        reader.put_back(mark)
    name = written.partition("`")[0].strip()
    if form.qualified:
        head, colon, _ = name.rpartition(":")
        call_id, name = (
            (name, head.removeprefix("functions.")) if colon else ("", name.removeprefix("functions."))
        )
    if not name or (mark == END and form.after):
        return False, mark
    output.begin_call(name, call_id.strip())
    reader.forget()
    if mark in closers:
        return True, mark
    if xml is not None:
        schema = output.tools[name].parameters if name in output.tools else {}
        return (yield from read_elements(xml, reader, output.arguments, closers, schema=schema, mark=mark))
    if (yield from reader.skip_fence()) == "{":
        return (yield from reader.value(output.arguments, closers)), END
    return False, END
