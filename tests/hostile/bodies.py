"""Hostile JSON bodies for every field that the server's own OpenAPI document shows, in a fixed order."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

CONTEXT = 1024
SOUND: Mapping[str, Mapping[str, Any]] = {
    "/v1/completions": {"prompt": "Once", "max_tokens": 2},
    "/inference/v1/generate": {"token_ids": [5], "sampling_params": {"max_tokens": 2}},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/tokenize": {"prompt": "Once"},
    "/detokenize": {"tokens": [1, 2]},
    "/v1/responses": {"input": [{"role": "user", "content": "Hi"}], "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": [{"role": "user", "content": "Hi"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/api/generate": {"model": "built-in", "prompt": "Once", "stream": False, "options": {"num_predict": 2}},
    "/api/chat": {
        "model": "built-in",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": False,
        "options": {"num_predict": 2},
    },
    "/api/show": {"model": "built-in"},
    "/api/pull": {"model": "built-in", "stream": False},
    # The server makes no vectors and judges no texts, and says so.
    "/v1/embeddings": {"model": "built-in", "input": "Once"},
    "/api/embed": {"model": "built-in", "input": "Once"},
    "/api/embeddings": {"model": "built-in", "prompt": "Once"},
    "/pooling": {"model": "built-in", "input": "Once"},
    "/classify": {"model": "built-in", "input": "Once"},
    "/score": {"model": "built-in", "text_1": "Once", "text_2": "Twice"},
    "/v1/score": {"model": "built-in", "text_1": "Once", "text_2": "Twice"},
    "/rerank": {"model": "built-in", "query": "Once", "documents": ["Twice"]},
    "/v1/rerank": {"model": "built-in", "query": "Once", "documents": ["Twice"]},
    "/v2/rerank": {"model": "built-in", "query": "Once", "documents": ["Twice"]},
}
"""A body for each path that takes one, to which one hostile member is added."""
VALUES = (
    b"null", b"true", b"-1", b"0", b"0.5", b"1e999", b"-1e999", b"NaN", b"-Infinity", b"9" * 400, b"9223372036854775808",
    b'""', b'"\\u0000"', b'"\\ud800"', b'"\xff"', b'"x\\r\\ny: z"', b"[]", b"[null]", b'[""]', b"[[-1]]", b"{}", b'{"": {"a": []}}',
)  # fmt: skip
"""What every field is given."""
MILLION = 10**6
MASSES: Mapping[str, bytes] = {
    "a million numbers": b"[" + b",".join([b"1"] * MILLION) + b"]",
    "a million wrong numbers": b"[" + b",".join([b"-1"] * MILLION) + b"]",
    "a million texts": b"[" + b",".join([b'"a"'] * MILLION) + b"]",
    "a million lists": b"[" + b",".join([b"[1]"] * MILLION) + b"]",
    "a million objects": b"[" + b",".join([b"{}"] * MILLION) + b"]",
    "a million characters": b'"' + b"a" * MILLION + b'"',
    "depth": b"[" * MILLION + b"]" * MILLION,
    "depth without end": b'{"a":' * MILLION,
    "escapes without end": b'"' + b'\\"' * MILLION + b"[" * 99,
    "many members": b"{" + b",".join(b'"%d":0' % number for number in range(10**5)) + b"}",
}
"""Given to the fields that hold lists or texts of any length, and to one that no one knows."""
MASSIVE: Mapping[str, Sequence[str]] = {
    "/v1/completions": ("prompt", "stop", "stop_token_ids", "bad_words", "logit_bias", "unheard_of"),
    "/inference/v1/generate": ("token_ids", "sampling_params"),
    "/v1/chat/completions": ("messages", "allowed_token_ids", "tools"),
    "/tokenize": ("prompt",),
    "/detokenize": ("tokens",),
    "/v1/responses": ("input", "metadata"),
    "/v1/messages": ("messages", "stop_sequences", "system"),
    "/api/generate": ("prompt", "context", "options.stop"),
}
BOUNDS: Mapping[str, Mapping[str, tuple[Sequence[str], Sequence[str]]]] = json.loads(
    pathlib.Path(__file__).with_name("bounds.json").read_text()
)
"""Fields of each path with values at their bounds, which are taken, and beyond them, which are not."""
EVERY_PATH = "every sampled path"
SAMPLED = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")


@attrs.frozen
class HostileBody:
    """A body, and the statuses that are right for it."""

    name: str
    path: str
    body: bytes
    statuses: frozenset[int]


def fields_of(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """By path, the dotted names of the members of its body, those of objects and lists inside it too."""
    schemas = document["components"]["schemas"]
    found = {}
    for path, item in document["paths"].items():
        body = item.get("post", {}).get("requestBody")
        if body is not None:
            found[path] = list(_members(body["content"]["application/json"]["schema"], schemas))
    return found


def with_member(path: str, name: str, value: bytes) -> bytes:
    """The path's sound body with one member changed, however wrong the value is as JSON."""
    body = json.loads(json.dumps(SOUND[path]))
    place, parts = body, name.split(".")
    for part in parts[:-1]:
        key = part.removesuffix("[]")
        inner = place.get(key)
        if part == key and not isinstance(inner, dict):
            place[key] = {}
        elif part != key and not (isinstance(inner, list) and isinstance(inner[0], dict)):
            place[key] = [{"type": "text"}]
        place = place[key][0] if part != key else place[key]
    place[parts[-1]] = "@@"
    if name.startswith("stream_options"):
        body["stream"] = True
    return json.dumps(body).encode().replace(b'"@@"', value)


def field_poisons(fields: Mapping[str, Sequence[str]], every: int) -> Iterator[HostileBody]:
    """One in `every` values for every field, by turns: refused, or harmless."""
    allowed = frozenset({200, 400, 404})
    for path, names in fields.items():
        for turn, name in enumerate((*names, "unheard_of")):
            for value in VALUES[turn % every :: every]:
                label = f"{path} {name}={value[:30]!r}"
                yield HostileBody(label, path, with_member(path, name, value), allowed)


def mass_poisons(every: int) -> Iterator[HostileBody]:
    """Much of everything, one in `every` masses for each field by turns."""
    fields = [(path, name) for path, names in MASSIVE.items() for name in names]
    for turn, (path, name) in enumerate(fields):
        for label, value in list(MASSES.items())[turn % every :: every]:
            body = with_member(path, name, value)
            yield HostileBody(f"{path} {name}: {label}", path, body, frozenset({200, 400}))


def bound_poisons() -> Iterator[HostileBody]:
    """Values at the bounds of what is allowed, and just beyond."""
    more = [(path, BOUNDS[path]) for path in BOUNDS if path != EVERY_PATH]
    tables = [(path, BOUNDS[EVERY_PATH]) for path in SAMPLED] + more
    for path, table in tables:
        for name, (inside, outside) in table.items():
            for values, status in ((inside, 200), (outside, 400)):
                for value in values:
                    body = with_member(path, name, value.encode())
                    label = f"{path} {name}={value[:30]} is {status}"
                    yield HostileBody(label, path, body, frozenset({status}))


def form_poisons() -> Iterator[HostileBody]:
    """Bodies that are wrong as a whole."""
    refused, either = frozenset({400}), frozenset({200, 400})
    for path, sound in SOUND.items():
        whole = json.dumps(sound).encode()
        for end in range(0, len(whole), 7):
            yield HostileBody(f"{path} cut at {end}", path, whole[:end], refused)
        wrong = (b"null", b"[]", b'""', b"1", b"{", b"\x00", b"\xff\xfe{}", whole + b"x", whole + whole)
        for body in wrong:
            yield HostileBody(f"{path} {body[:20]!r}", path, body, refused)
        yield HostileBody(f"{path} BOM", path, b"\xef\xbb\xbf" + whole, refused)
        yield HostileBody(f"{path} UTF-16", path, whole.decode().encode("utf-16"), refused)
        yield HostileBody(f"{path} blanks", path, b" " * 10**6 + whole, either)
        twice = whole[:-1] + b', "model": 1, "model": "built-in"}'
        yield HostileBody(f"{path} a key twice", path, twice, either)
        yield HostileBody(f"{path} a key twice, wrong at last", path, whole[:-1] + b', "model": 1}', refused)


def _members(schema: Mapping[str, Any], schemas: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for each in (schema, *schema.get("anyOf", ())):
        if "items" in each:
            yield from _members(each["items"], schemas, f"{path.removesuffix('.')}[].")
        found = schemas[each["$ref"].rpartition("/")[2]] if "$ref" in each else {}
        for name, inner in found.get("properties", {}).items():
            yield f"{path}{name}"
            yield from _members(inner, schemas, f"{path}{name}.")
