"""Reads a stream of events off the wire, strictly, and puts the chunks together into the answer they tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

DONE = "data: [DONE]"


def events(raw: str) -> list[str]:
    """The events of a body: each ends with a blank line."""
    assert raw.endswith("\n\n")
    return raw.removesuffix("\n\n").split("\n\n")


def chunks(client: httpx.Client, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a streamed answer; checks what every stream has in common."""
    answer = client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    told = [each for each in events(answer.text) if each != ": ping"]
    assert told[-1] == DONE
    assert all(each.startswith("data: {") and "\n" not in each for each in told[:-1])
    found = [json.loads(each.removeprefix("data: ")) for each in told[:-1]]
    assert len({(each["id"], each["created"], each["model"]) for each in found}) == 1
    return found


def joined(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole answer that a client builds from chunks of either endpoint."""
    whole: dict[str, Any] = {"choices": {}}
    for chunk in found:
        for key in ("prompt_logprobs", "prompt_token_ids", "model"):
            if key in chunk:
                whole[key] = chunk[key]
        if "usage" in chunk:
            whole["usage"] = chunk["usage"]
        for choice in chunk["choices"]:
            _add(whole["choices"].setdefault(choice["index"], {"finish_reason": None}), choice)
    whole["choices"] = [whole["choices"][index] for index in sorted(whole["choices"])]
    return whole


def _add(whole: dict[str, Any], choice: dict[str, Any]) -> None:
    assert whole["finish_reason"] is None, "nothing follows the finish reason"
    delta = choice.pop("delta", None)
    if delta is not None:
        assert ("role" in delta) == ("message" not in whole), "the role rides on the first chunk alone"
        message = whole.setdefault("message", {"content": "", "role": delta.get("role")})
        message["content"] += delta.get("content", "")
    for key, value in choice.items():
        if key in {"text", "token_ids"} and key in whole:
            whole[key] += value
        elif key == "logprobs" and whole.get(key) is not None:
            for name, entries in value.items():
                whole[key][name] += entries
        else:
            whole[key] = value


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """An unstreamed answer without what differs between any two requests."""
    return {key: value for key, value in answer.items() if key not in {"id", "created", "object"}}
