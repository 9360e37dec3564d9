"""What an answer must look like, whatever was asked."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import NoReturn

ANTHROPIC = "/v1/messages"
OLLAMA = "/api/"
IDS = {"x-request-id", "request-id"}
SLIPS = (
    "Traceback",
    'File "',
    "site-packages",
    "litestar",
    "msgspec",
    "uvicorn",
    "nanoserve.",
    "0x7f",
    "Error(",
    "Exception",
)
"""Words of exceptions and of the machine's own that no client should read."""


def error_flaw(path: str, body: bytes) -> str | None:
    """What is wrong with the body of an error; None where it has the shape of the path's protocol."""
    try:
        answer = json.loads(body)
    except ValueError:
        return f"not JSON: {body[:200]!r}"
    error = answer.get("error") if isinstance(answer, dict) else None
    if path.startswith(OLLAMA):
        is_its_shape = isinstance(error, str) and error and set(answer) == {"error"}
        return _message_flaw(str(error)) if is_its_shape else f"not a text called error: {body[:200]!r}"
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or not error["message"]:
        return f"no error object with a message: {body[:200]!r}"
    is_anthropics = path.startswith(ANTHROPIC)
    members = (
        ({"type", "error"}, {"type", "message"})
        if is_anthropics
        else ({"error"}, {"message", "type", "param", "code"})
    )
    if (set(answer), set(error)) != members or not isinstance(error["type"], str):
        return f"members {set(answer)}, {set(error)}"
    if is_anthropics and answer["type"] != "error":
        return f"type {answer['type']!r}"
    return _message_flaw(error["message"])


def _message_flaw(message: str) -> str | None:
    if len(message) > 1000:
        return "a message without end"
    slips = [each for each in SLIPS if each in message]
    return f"it shows {slips}: {message}" if slips else None


def answer_flaw(
    path: str, status: int, headers: Mapping[str, str], body: bytes, statuses: Collection[int]
) -> str | None:
    """What is wrong with an answer; None where nothing is."""
    if status not in statuses:
        return f"status {status}: {body[:300]!r}"
    media_type = headers.get("content-type", "").partition(";")[0]
    leaked = [name for name in headers if "evil" in name or name in {"set-cookie", "server"}]
    if leaked or any("evil" in value for name, value in headers.items() if name not in IDS):
        return f"headers {dict(headers)}"
    if any(name.startswith("access-control-") for name in headers):
        return "CORS headers without CORS settings"
    if status >= 400:
        return f"content type {media_type}" if media_type != "application/json" else error_flaw(path, body)
    if media_type == "text/event-stream":
        return _stream_flaw(body)
    if media_type == "application/json" and body:
        json.loads(body, parse_constant=_refuse)
    return None


def _stream_flaw(body: bytes) -> str | None:
    events = body.decode().split("\n\n")
    if events.pop() != "":
        return "a stream that ends in the middle"
    wrong = [each for each in events if '"error":{' in each.replace(" ", "") and '"error":null' not in each]
    return f"an error in a stream: {wrong[0][:300]}" if wrong else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
