"""Reads traces of requests: Mooncake's JSON lines, which say what is shared, and Azure's tables, which have lengths alone.

Mooncake (github.com/kvcache-ai/Mooncake, FAST'25 traces): a line has `timestamp` in milliseconds, `input_length`, `output_length` and `hash_ids`, one
for each 512 tokens of the prompt; equal ids are equal text with equal text before it. Azure (github.com/Azure/AzurePublicDataset, LLM inference): the columns
TIMESTAMP, ContextTokens, GeneratedTokens.
"""

from __future__ import annotations

import csv
import datetime as dt
import pathlib
import random
from collections.abc import Iterable, Iterator
from typing import Final

import attrs
import msgspec

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.traffic import TracedRequest

MOONCAKE_BLOCK: Final = 512
AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_FORMATS: Final = (
    'Mooncake\'s JSON lines ({"timestamp": ..., "input_length": ..., "output_length": ..., "hash_ids": [...]}) '
    f"or Azure's table ({','.join(AZURE_COLUMNS)})"
)


IDS: Final = range(20, 1000)
"""Prompts are drawn from these ids, which every model has; the lowest ones are often special tokens."""


def prompt_ids(request: TracedRequest) -> list[int]:
    """A prompt in ids that a model has: those of a piece are drawn, and the same for equal pieces."""
    ids: list[int] = []
    for piece, count in request.prompt:
        draw = random.Random(f"piece {piece}")  # noqa: S311 - a benchmark wants repeatable numbers
        ids += draw.choices(IDS, k=count)
    return ids


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_requests(path: str) -> list[TracedRequest]:
    """The requests of a file, from its first on, in the order of their times; the first line says which format it is.

    Raises `BadValueError` that names the file and the line.
    """
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BadValueError(path, f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadValueError(path, f"is not text; it must be {_FORMATS}") from None
    first = lines[0].strip().lstrip("\ufeff") if lines else ""
    if first.startswith("{"):
        found = list(_mooncake(path, lines))
    elif set(AZURE_COLUMNS) <= {name.strip() for name in first.split(",")}:
        found = list(_azure(path, [first, *lines[1:]]))
    else:
        raise BadValueError(path, f"is not a trace of requests; it must be {_FORMATS}")
    if not found:
        raise BadValueError(path, "has no request")
    found.sort(key=lambda each: each.at)
    return [attrs.evolve(each, at=each.at - found[0].at) for each in found]


def _mooncake(path: str, lines: Iterable[str]) -> Iterator[TracedRequest]:
    decoder = msgspec.json.Decoder(_MooncakeLine)
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadValueError(path, f"line {number}: {error}; expected {_FORMATS}") from None
        whole, ids = line.input_length, line.hash_ids
        if not 0 <= len(ids) * MOONCAKE_BLOCK - whole < MOONCAKE_BLOCK or whole < 1:
            message = f"{whole} tokens take {-(-whole // MOONCAKE_BLOCK)} hash_ids of {MOONCAKE_BLOCK}, got {len(ids)}"
            raise BadValueError(path, f"line {number}: {message}")
        # Even ids, so that no answer, which has the id behind its prompt's, is taken for a prompt.
        lengths = [min(MOONCAKE_BLOCK, whole - start) for start in range(0, whole, MOONCAKE_BLOCK)]
        prompt = tuple((2 * each, length) for each, length in zip(ids, lengths, strict=True))
        # The first block is often a system prompt that all share, so the second one names the conversation.
        request = TracedRequest(
            at=line.timestamp / 1000,
            prompt=prompt,
            output_tokens=line.output_length,
            affinity=ids[min(1, len(ids) - 1)],
        )
        yield _check(f"{path}, line {number}", request)


def _azure(path: str, lines: Iterable[str]) -> Iterator[TracedRequest]:
    for number, row in enumerate(csv.DictReader(lines), start=2):
        try:
            at = dt.datetime.fromisoformat(row["TIMESTAMP"].strip()).replace(tzinfo=dt.UTC).timestamp()
            tokens, generated = (int(row[name]) for name in AZURE_COLUMNS[1:])
        except (ValueError, TypeError, AttributeError) as error:
            raise BadValueError(path, f"line {number}: {error}; expected {','.join(AZURE_COLUMNS)}") from None
        request = TracedRequest(
            at=at, prompt=((2 * number, tokens),), output_tokens=generated, affinity=number
        )
        yield _check(f"{path}, line {number}", request)


def _check(where: str, request: TracedRequest) -> TracedRequest:
    """In a trace an answer may have no token; here it has one, as from any engine."""
    if request.output_tokens < 0 or any(count < 1 or piece < 0 for piece, count in request.prompt):
        raise BadValueError(where, "lengths must be at least 1, and ids at least 0")
    return attrs.evolve(request, output_tokens=max(request.output_tokens, 1))
