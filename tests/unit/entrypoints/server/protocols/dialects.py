"""The protocols as the contract's tests see them: how to ask, how a stream is read, and what whole it tells."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

Json = dict[str, Any]
USER: Final[list[Json]] = [{"role": "user", "content": "hello"}]
_NAMELESS: Final = {
    *("id", "item_id", "object", "created", "created_at", "completed_at"),
    *("total_duration", "prompt_eval_duration", "eval_duration"),
}
_salts = itertools.count()


@attrs.frozen(kw_only=True, eq=False)
class Dialect:
    """One way of asking for an answer.

    Attributes:
        body: asks for the answer to a short prompt; `max_tokens` and `stop` are what the protocol calls those, and
            `options` is the field in which it wants sampling parameters.
        whole: puts a stream's events together as clients do.
        text, reason: of a whole answer.
        ends: the reasons for a stop and for the token bound.
        usage: prompt tokens and generated ones.
        error: what an error says; the type of an event that tells one.
        logprobs: what asks for two alternatives for each token.
    """

    path: str
    body: Mapping[str, Any]
    whole: Callable[[Sequence[Json]], Json]
    text: Callable[[Json], str]
    reason: Callable[[Json], str]
    ends: tuple[str, str] = ("stop", "length")
    usage: Callable[[Json], tuple[int, int]]
    max_tokens: str = "max_tokens"
    stop: str = "stop"
    options: str | None = None
    error: Callable[[Json], str] = lambda told: str(told["error"]["message"])
    logprobs: Mapping[str, Any] | None = None
    ping: str = ": ping\n\n"

    @property
    def is_lines(self) -> bool:
        """Whether it streams lines instead of events."""
        return self.path.startswith("/api/")

    def ask(self, *, stream: bool, max_tokens: int = 12, stop: Any = None, **sampling: Any) -> Json:
        """A body with sampling parameters under their own names; no two share a cached prefix."""
        wanted: Json = {"seed": 7, "ignore_eos": True, "cache_salt": f"s{next(_salts)}", **sampling}
        wanted[self.max_tokens] = max_tokens
        if stop is not None:
            wanted[self.stop] = stop
        body = {**self.body, "stream": stream}
        return {**body, self.options: wanted} if self.options else {**body, **wanted}

    def events(self, raw: str) -> list[Json]:
        """The events of a stream, read strictly; pings are left out."""
        if self.is_lines:
            assert raw.endswith("\n")
            return [json.loads(line) for line in raw.split("\n")[:-1]]
        assert raw.endswith("\n\n")
        told = [each for each in raw.removesuffix("\n\n").split("\n\n") if each + "\n\n" != self.ping]
        if self.path in {"/v1/completions", "/v1/chat/completions"}:
            assert told.pop() == "data: [DONE]"
            assert all(each.startswith("data: {") and "\n" not in each for each in told)
            return [json.loads(each.removeprefix("data: ")) for each in told]
        found = []
        for each in told:
            name, _, data = each.partition("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
        return found


def comparable(answer: Any) -> Any:
    """An answer without what differs between any two."""
    if isinstance(answer, dict):
        return {key: comparable(value) for key, value in answer.items() if key not in _NAMELESS}
    return [comparable(each) for each in answer] if isinstance(answer, list) else answer


def joined_chunks(chunks: Sequence[Json]) -> Json:
    """Of OpenAI's older endpoints."""
    assert len({(each["id"], each["created"], each["model"]) for each in chunks}) == 1
    whole: Json = {"choices": {}}
    for chunk in copy.deepcopy(chunks):
        whole |= {
            key: value for key, value in chunk.items() if key not in {"choices", "id", "created", "object"}
        }
        for choice in chunk["choices"]:
            _add(whole["choices"].setdefault(choice["index"], {"finish_reason": None}), choice)
    whole["choices"] = [whole["choices"][index] for index in sorted(whole["choices"])]
    return whole


def _add(whole: Json, choice: Json) -> None:
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


def joined_message(events: Sequence[Json]) -> Json:
    """Of Anthropic's."""
    whole: Json = copy.deepcopy(events[0]["message"])
    for event in copy.deepcopy(events[1:]):
        if event["type"] == "content_block_start":
            whole["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            whole["content"][event["index"]]["text"] += event["delta"]["text"]
        elif event["type"] == "message_delta":
            whole |= event["delta"] | {"usage": event["usage"]}
    return whole


def joined_response(events: Sequence[Json]) -> Json:
    """Of OpenAI's newer endpoint: the last event repeats what the others have said."""
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    whole: Json = events[-1]["response"]
    deltas = [each for each in events if each["type"] == "response.output_text.delta"]
    (part,) = whole["output"][0]["content"]
    assert "".join(each["delta"] for each in deltas) == part["text"]
    assert [entry for each in deltas for entry in each["logprobs"]] == part["logprobs"]
    return whole


def joined_lines(lines: Sequence[Json]) -> Json:
    """Of Ollama's: the last line says how it went."""
    assert [each["done"] for each in lines] == [False] * (len(lines) - 1) + [True]
    whole = dict(lines[-1])
    if "response" in whole:
        whole["response"] = "".join(each["response"] for each in lines)
    else:
        content = "".join(each["message"]["content"] for each in lines)
        whole["message"] = {"role": "assistant", "content": content}
    if logprobs := [entry for each in lines for entry in each.get("logprobs", [])]:
        whole["logprobs"] = logprobs
    return whole


def _openai_usage(whole: Json) -> tuple[int, int]:
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"]


DIALECTS: Final = {
    "completions": Dialect(
        path="/v1/completions",
        body={"prompt": "user.hello.assistant."},
        whole=joined_chunks,
        text=lambda whole: str(whole["choices"][0]["text"]),
        reason=lambda whole: str(whole["choices"][0]["finish_reason"]),
        usage=_openai_usage,
        logprobs={"logprobs": 2},
    ),
    "chat": Dialect(
        path="/v1/chat/completions",
        body={"messages": USER},
        whole=joined_chunks,
        text=lambda whole: str(whole["choices"][0]["message"]["content"]),
        reason=lambda whole: str(whole["choices"][0]["finish_reason"]),
        usage=_openai_usage,
        logprobs={"logprobs": True, "top_logprobs": 2},
    ),
    "responses": Dialect(
        path="/v1/responses",
        body={"input": "hello"},
        max_tokens="max_output_tokens",
        whole=joined_response,
        text=lambda whole: str(whole["output"][0]["content"][0]["text"]),
        reason=lambda whole: str(whole["status"]),
        ends=("completed", "incomplete"),
        usage=lambda whole: (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]),
        error=lambda told: str(told.get("response", told)["error"]["message"]),
        logprobs={"top_logprobs": 2},
    ),
    "messages": Dialect(
        path="/v1/messages",
        body={"messages": USER},
        stop="stop_sequences",
        whole=joined_message,
        text=lambda whole: "".join(each["text"] for each in whole["content"]),
        reason=lambda whole: str(whole["stop_reason"]),
        ends=("end_turn", "max_tokens"),
        usage=lambda whole: (
            whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"],
            whole["usage"]["output_tokens"],
        ),
        ping='event: ping\ndata: {"type":"ping"}\n\n',
    ),
    "generate": Dialect(
        path="/api/generate",
        body={"model": "scripted", "prompt": "hello"},
        max_tokens="num_predict",
        options="options",
        whole=joined_lines,
        text=lambda whole: str(whole["response"]),
        reason=lambda whole: str(whole["done_reason"]),
        usage=lambda whole: (whole["prompt_eval_count"], whole["eval_count"]),
        error=lambda told: str(told["error"]),
        logprobs={"logprobs": True, "top_logprobs": 2},
        ping=" ",
    ),
    "ollama-chat": Dialect(
        path="/api/chat",
        body={"model": "scripted:latest", "messages": USER},
        max_tokens="num_predict",
        options="options",
        whole=joined_lines,
        text=lambda whole: str(whole["message"]["content"]),
        reason=lambda whole: str(whole["done_reason"]),
        usage=lambda whole: (whole["prompt_eval_count"], whole["eval_count"]),
        error=lambda told: str(told["error"]),
        logprobs={"logprobs": True, "top_logprobs": 2},
        ping=" ",
    ),
}
