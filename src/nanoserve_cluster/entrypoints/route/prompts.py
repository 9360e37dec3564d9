"""Reads a request for the router: its prompt as ids, for an index of prefixes, and the name of its conversation.

Real token ids come from a replica's own `/tokenize`, and are asked for where replicas publish what they have cached. Without them, and
for protocols that it does not know, each 4 bytes of the prompt's JSON are one id: equal beginnings make equal ids, which is all that guesses
need. These are negative, so that none is taken for a token.
"""

from __future__ import annotations

import asyncio
import hashlib
import operator
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import httpx
import msgspec

from nanoserve_cluster.entrypoints.route.bounds import Keeping

_TOKENIZED: Final = {
    "/v1/chat/completions": (
        *("model", "messages", "tools", "chat_template_kwargs", "enable_thinking", "reasoning_effort"),
        *("add_generation_prompt", "continue_final_message"),
    ),
    "/v1/completions": ("model", "prompt", "add_special_tokens"),
}
"""The fields that a replica's `/tokenize` takes as they are."""
_LIMITS: Final = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/messages": ("max_tokens",),
}
"""The fields that bound an answer, by the paths whose prompts can be computed ahead; the first one is set."""
_OF_ANSWERS: Final = (
    *("stream", "stream_options", "n", "best_of", "min_tokens", "logprobs", "top_logprobs", "echo"),
    *("response_format", "guided_json", "structured_outputs", "store"),
)
"""Fields that change no prompt, and would cost time where one token is asked for, or forbid that."""
_PARTS: Final = ("system", "instructions", "tools", "messages", "input", "prompt")
"""The fields of all protocols that make a prompt, in the order in which templates write them."""
_KEYS: Final = {b"authorization", b"x-api-key"}
_SESSION: Final = b"x-session-id"
_HEAD: Final = 1024
"""Bytes of a plain prompt that say which conversation it is of."""
_PLAIN: Final = (b"accept-encoding", b"identity")
_MOST_IDS: Final = 100_000
"""Ids of a prompt that are read; what two longer ones share further on is not seen."""
_MOST_TOKENIZED_BYTES: Final = 1 << 24
_TOKENIZE_SECONDS: Final = 1.0
"""Seconds that a replica has to tokenize a prompt; a guess is worth more than a long wait."""
Headers = Iterable[tuple[bytes, bytes]]


class _Tokenized(msgspec.Struct):
    """The fields of an answer of `/tokenize` that are read."""

    tokens: tuple[int, ...]


@attrs.frozen
class RoutablePrompt:
    """A request as policies see it; `ids` are empty if it has no prompt."""

    ids: tuple[int, ...]
    affinity: int


def read_prompt(headers: Headers, body: bytes) -> tuple[RoutablePrompt, Mapping[str, Any]]:
    """The information in the bytes alone, and the fields of the body.

    Clients with different keys share no prefixes, so the key is a part of the prompt.
    """
    named = dict(headers)
    fields = _fields(body)
    parts = [msgspec.json.encode(fields[name]).rstrip(b"]") for name in _PARTS if fields.get(name)]
    key = b"".join(named.get(each, b"") for each in sorted(_KEYS))
    text = key + b"".join(parts) if parts else b""
    head = named.get(_SESSION) or key + _head(fields)
    affinity = int.from_bytes(hashlib.blake2b(head, digest_size=7).digest())
    return RoutablePrompt(ids=_ids_of_bytes(text), affinity=affinity), fields


async def token_ids(
    client: httpx.AsyncClient, url: str, path: str, headers: Headers, fields: Mapping[str, Any]
) -> tuple[int, ...] | None:
    """A prompt's first token ids; None if they cannot be had soon."""
    if isinstance(prompt := fields.get("prompt"), list):
        read = tuple(prompt[:_MOST_IDS])
        if all(type(each) is int for each in read):
            return read
    wanted = {name: fields[name] for name in _TOKENIZED.get(path, ()) if fields.get(name) is not None}
    if not wanted:
        return None
    sent = [*(each for each in headers if each[0] in _KEYS), (b"content-type", b"application/json"), _PLAIN]
    try:
        content = msgspec.json.encode(wanted)
        async with asyncio.timeout(_TOKENIZE_SECONDS):
            async with client.stream("POST", f"{url}/tokenize", content=content, headers=sent) as answer:
                tokenized = await Keeping().whole(answer, _MOST_TOKENIZED_BYTES)
        if not answer.is_success:
            return None
        return msgspec.json.decode(tokenized, type=_Tokenized).tokens[:_MOST_IDS]
    except (httpx.HTTPError, msgspec.DecodeError, RecursionError, TimeoutError):
        return None


def prefill_body(path: str, fields: Mapping[str, Any]) -> bytes | None:
    """A body that asks for a request's prompt and one token; None for requests whose prompts cannot be computed so."""
    limits = _LIMITS.get(path)
    if limits is None or not fields or _scores_prompt(fields):
        return None
    kept = {name: field for name, field in fields.items() if name not in (*_OF_ANSWERS, *limits)}
    return msgspec.json.encode({**kept, limits[0]: 1})


def _scores_prompt(fields: Mapping[str, Any]) -> bool:
    """True for requests that want log-probabilities of the prompt, which an engine computes again for them."""
    names = ("prompt_logprobs", "logprobs") if fields.get("echo") else ("prompt_logprobs",)
    return any(fields.get(name) is not None for name in names)


def _fields(body: bytes) -> Mapping[str, Any]:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _head(fields: Mapping[str, Any]) -> bytes:
    """A conversation up to its first question, or the beginning of a plain prompt."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return msgspec.json.encode(fields.get("input") or fields.get("prompt"))[:_HEAD]
    asked = (
        place for place, each in enumerate(messages) if isinstance(each, dict) and each.get("role") == "user"
    )
    return msgspec.json.encode([fields.get("system"), messages[: next(asked, 0) + 1]])


def _ids_of_bytes(text: bytes) -> tuple[int, ...]:
    count = min(len(text) // 4, _MOST_IDS)
    return tuple(map(operator.invert, struct.unpack_from(f"<{count}I", text)))
