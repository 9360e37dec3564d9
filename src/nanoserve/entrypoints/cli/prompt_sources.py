"""Where prompts come from: the argument, standard input as one prompt, or a file (`-` too) with one prompt per line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from nanoserve.entrypoints.app.structured_outputs import constraint_of
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.sampling import PARAMETERS

JSON_LINES: Final = (".jsonl", ".ndjson")
_ASKED: Final = ("structured_outputs", "response_format")
_OWN_FIELDS: Final = {"id", "prompt", "prompt_token_ids", "messages", "priority", *_ASKED}


@attrs.frozen(kw_only=True)
class Source:
    """One thing to generate from.

    Attributes:
        place: where it was written, for error messages; empty for the argument.
        id: what the caller calls it; its number where they do not.
        prompt: text, or token ids; None if there are messages.
        priority: under the priority policy the lowest runs first.
    """

    place: str = ""
    id: Any = 0
    prompt: Any = None
    messages: Any = None
    sampling: Mapping[str, Any] = attrs.field(factory=dict)
    priority: int = 0
    constraint: Constraint | None = None


def read_sources(argument: str | None, file: str | None) -> list[Source]:
    """Everything to generate from, in order; raises `BadValueError`."""
    if file is not None:
        if argument is not None:
            raise BadValueError("file", "give a PROMPT or --file, not both")
        return _read_file(Path(file))
    if argument is None or argument == "-":
        return [Source(place="standard input", prompt=_read_standard_input(argument))]
    if not argument:
        raise BadValueError("PROMPT", "is empty: there is nothing to continue")
    return [Source(prompt=decode(argument.encode(errors="surrogateescape"), "the argument"))]


def _read_standard_input(argument: str | None) -> str:
    if argument is None and sys.stdin.isatty():
        raise BadValueError("PROMPT", "is missing: give one, pipe one in, or use --file")
    text = decode(sys.stdin.buffer.read(), "standard input").removesuffix("\n")
    if not text:
        raise BadValueError("PROMPT", "is missing, and standard input is empty")
    return text


def _read_file(path: Path) -> list[Source]:
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        text = decode(raw, str(path))
    except OSError as error:
        raise BadValueError("file", f"cannot read {path}: {error.strerror or error}") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise BadValueError("file", f"{path} holds no prompt")
    if path.suffix.lower() in JSON_LINES:
        return list(_read_json_lines(path, lines))
    return [
        Source(place=f"{path} line {number}", id=index, prompt=line.removesuffix("\r"))
        for index, (number, line) in enumerate(lines)
    ]


def _read_json_lines(path: Path, lines: list[tuple[int, str]]) -> Iterator[Source]:
    for index, (number, line) in enumerate(lines):
        place = f"{path} line {number}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadValueError("file", f"{place} is not JSON: {error}") from None
        yield _read_entry(entry, index, place)


def _read_entry(entry: Any, index: int, place: str) -> Source:
    if not isinstance(entry, dict):
        raise BadValueError("file", f"{place} is not a JSON object")
    unknown = sorted(entry.keys() - PARAMETERS.keys() - _OWN_FIELDS)
    if unknown:
        raise BadValueError("file", f"{place} has an unknown field {unknown[0]!r}")
    prompts = [entry[name] for name in ("prompt", "prompt_token_ids") if name in entry]
    if len(prompts) + ("messages" in entry) != 1:
        raise BadValueError("file", f"{place} needs one of `prompt`, `prompt_token_ids` and `messages`")
    priority = entry.get("priority", 0)
    if type(priority) is not int:
        raise BadValueError("file", f"{place}: priority must be an integer, got {priority!r}")
    return Source(
        place=place,
        id=_read_id(entry.get("id", index), place),
        prompt=prompts[0] if prompts else None,
        messages=entry.get("messages"),
        sampling={name: value for name, value in entry.items() if name in PARAMETERS},
        priority=priority,
        constraint=_read_constraint(entry, place),
    )


def _read_constraint(entry: Mapping[str, Any], place: str) -> Constraint | None:
    try:
        return constraint_of(**{name: entry.get(name) for name in _ASKED})
    except BadValueError as error:
        raise BadValueError("file", f"{place}: {error}") from None


def _read_id(value: Any, place: str) -> Any:
    """The id as it came; refused where it could not be written back as JSON."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        message = f"{place}: id must be valid Unicode without NaN and infinities, got {value!r:.80}"
        raise BadValueError("file", message) from None
    return value


def decode(raw: bytes, place: str, name: str = "PROMPT") -> str:
    """The text of UTF-8, without its byte order mark; raises `BadValueError` about `name`."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"{place} is not UTF-8 text: byte {raw[error.start]:#x} at offset {error.start}"
        raise BadValueError(name, message) from None
