"""Threads of `/v1/messages`: what is kept, who may continue it, and what the official client's runner makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import anthropic
import pytest
from anthropic.types import ThreadFingerprintMismatchError, ThreadNotFoundError

from nanoserve.entrypoints.app.answer import CallPart, Part, ReasoningPart, TextPart
from nanoserve.entrypoints.app.conversation_store import ConversationStore
from nanoserve.entrypoints.compose.config.kinds import Secret
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings, BoundSettings
from nanoserve.entrypoints.server.protocols.anthropic.threads import Thread, Threading
from nanoserve.entrypoints.server.protocols.anthropic.wire import CreateMessage, MessageParam, ThreadParam
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world
from tests.unit.entrypoints.server.protocols.talking_world import PARAMETERS, Talker

BETA: Final = {"anthropic-beta": "message-threads-2026-08-12"}
CREATE: Final = {"type": "create"}
TOOL: Final[dict[str, Any]] = {"name": "weather", "description": "rain?", "input_schema": PARAMETERS}


def turn(said: Any, thread: Any, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": said}]
    return {"model": "talker", "max_tokens": 400, "messages": messages, "thread": thread, **fields}


def after(message_id: str) -> dict[str, str]:
    return {"type": "continue", "previous_message_id": message_id}


@pytest.fixture
def client(talker: Talker) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=talker[0].url, api_key="x", max_retries=0, timeout=60) as made:
        yield made


def streamed(client: anthropic.Anthropic, **fields: Any) -> Any:
    with client.beta.messages.stream(**fields, extra_headers=BETA) as stream:
        return stream.get_final_message()


def whole(client: anthropic.Anthropic, **fields: Any) -> Any:
    return client.beta.messages.create(**fields, extra_headers=BETA)


@pytest.mark.parametrize("ask", [whole, streamed])
@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_a_conversation_goes_on_as_if_all_of_it_had_been_sent(
    client: anthropic.Anthropic, talker: Talker, ask: Any, display: str
) -> None:
    thinking = {"type": "adaptive", "display": display}
    first = ask(client, **turn("Rain?", CREATE, system="be kind", tools=[TOOL], thinking=thinking))
    calls = [each for each in first.content if each.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": each.id, "content": "no rain"} for each in calls]
    second = ask(client, **turn(results, after(first.id), thinking=thinking))
    assert [each.text for each in second.content if each.type == "text"] == ["It stays dry."]
    given = talker[1].given
    ask(client, **turn("hello", after(second.id), thinking=thinking))
    third = talker[1].given
    assert [each["role"] for each in third["messages"]] == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "user")
    ]
    said = third["messages"][2]
    assert (said["content"], said["reasoning_content"]) == ("Let me see.", "look up")
    assert [each["function"]["arguments"]["city"] for each in said["tool_calls"]] == ["Rome", "Bonn"]
    assert third["messages"][:5] == given["messages"]
    assert third["tools"] == given["tools"] != []


def test_the_runner_of_the_official_client_asks_its_tool_in_a_thread(
    client: anthropic.Anthropic, talker: Talker
) -> None:
    @anthropic.beta_tool  # type: ignore[untyped-decorator]
    def weather(city: str, days: int = 1) -> str:
        """Say whether it rains."""
        return f"no rain in {city} for {days} days"

    sent: list[dict[str, Any]] = []
    asked = client.with_options().beta.messages
    client._client.event_hooks = {"request": [lambda each: sent.append(json.loads(each.content))]}
    runner = asked.tool_runner(
        model="talker", max_tokens=400, tools=[weather], system="be kind", messages=[{"role": "user", "content": "Rain?"}]
    )  # fmt: skip
    final = runner.until_done()
    assert [each.text for each in final.content if each.type == "text"] == ["It stays dry."]
    assert [each["thread"]["type"] for each in sent] == ["create", "continue"]
    assert "system" not in sent[1]
    assert "tools" not in sent[1]
    assert [each["role"] for each in sent[1]["messages"]] == ["user"]
    texts = [each["content"] for each in talker[1].given["messages"] if each["role"] == "tool"]
    assert texts == ["no rain in Rome for 3 days", "no rain in Bonn for 3 days"]


def test_an_answer_may_be_continued_more_than_once(client: anthropic.Anthropic, talker: Talker) -> None:
    first = whole(client, **turn("hello", CREATE))
    for said in ("hello", "Rain?"):
        whole(client, **turn(said, after(first.id)))
        assert [each["content"] for each in talker[1].given["messages"]] == ["hello", "Hi there", said]


def test_what_is_not_kept_is_not_found_and_the_client_can_tell(client: anthropic.Anthropic) -> None:
    plain = client.messages.create(
        model="talker", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
    )
    for message_id in (plain.id, "msg_none", "resp_none"):
        with pytest.raises(ThreadNotFoundError) as caught:
            whole(client, **turn("hello", after(message_id)))
        assert (caught.value.status_code, caught.value.error_code) == (404, "thread_not_found")
        with pytest.raises(ThreadNotFoundError):
            streamed(client, **turn("hello", after(message_id)))


def test_a_lost_thread_is_created_anew_by_the_official_client(
    client: anthropic.Anthropic, talker: Talker
) -> None:
    thread = client.beta.messages.thread(model="talker", max_tokens=400, system="be kind")
    thread.send({"role": "user", "content": "hello"})
    world = talker[0]
    world.call(lambda: world.server.conversations.drop("anonymous", thread.previous_message_id or ""))
    thread.send({"role": "user", "content": "hello"})
    assert [each["role"] for each in talker[1].given["messages"]] == ["system", "user", "assistant", "user"]


def test_what_is_fixed_may_be_repeated_and_not_changed(client: anthropic.Anthropic) -> None:
    first = whole(client, **turn("hello", CREATE, system="be kind", tools=[TOOL]))
    whole(client, **turn("hello", after(first.id), system="be kind", tools=[TOOL]))
    changes: list[dict[str, Any]] = [{"system": "be rude"}, {"tools": []}]
    for changed in changes:
        with pytest.raises(ThreadFingerprintMismatchError) as caught:
            whole(client, **turn("hello", after(first.id), **changed))
        assert next(iter(changed)) in caught.value.message


@pytest.mark.parametrize(
    ("thread", "headers", "param"),
    [
        (CREATE, {}, "thread"),
        ({"type": "some"}, BETA, "thread.type"),
        ({"type": "continue"}, BETA, "thread.previous_message_id"),
        ({**CREATE, "previous_message_id": "msg_1"}, BETA, "thread.previous_message_id"),
    ],
)
def test_what_is_wrong_is_named(client: anthropic.Anthropic, thread: Any, headers: Any, param: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model="talker", max_tokens=9, messages=[{"role": "user", "content": "hello"}],
                               extra_body={"thread": thread}, extra_headers=headers)  # fmt: skip
    assert caught.value.body["error"]["message"].startswith(f"{param}: ")


@pytest.fixture(scope="module")
def guarded() -> Iterator[AppWorld]:
    with app_world(access=AccessSettings(api_key=(Secret("sk-one"), Secret("sk-two")))) as world:
        yield world


def test_another_key_cannot_continue_a_thread(guarded: AppWorld) -> None:
    def client_of(key: str) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=guarded.url, api_key=key, max_retries=0, timeout=60)

    with client_of("sk-one") as one, client_of("sk-two") as two:
        fields = {**turn("hello", CREATE), "model": "scripted", "max_tokens": 4}
        first = whole(one, **fields)
        with pytest.raises(ThreadNotFoundError):
            whole(two, **{**fields, "thread": after(first.id)})
        whole(one, **{**fields, "thread": after(first.id)})


def keep(store: ConversationStore, name: str, thread: ThreadParam, said: str = "hello") -> None:
    body = CreateMessage(messages=[MessageParam(role="user", content=said)], max_tokens=9, thread=thread)
    parts: list[Part] = [ReasoningPart("hm"), TextPart("Hi"), CallPart("c", "f", '{"a": 1}')]
    Threading(body, is_announced=True, owner="me", store=store, max_bytes=1000).keep(name, parts)


def test_threads_are_bounded_the_oldest_go_and_their_size_is_counted() -> None:
    store = ConversationStore(max_records=2)
    keep(store, "a", ThreadParam(type="create"))
    keep(store, "b", ThreadParam(type="continue", previous_message_id="a"))
    one, two = (store.find("me", each, Thread) for each in "ab")
    assert one is not None
    assert two is not None
    assert two.said[0] is one.said[0]
    assert store.num_bytes == one.num_bytes + two.num_bytes > 2 * sum(map(len, one.said))
    keep(store, "c", ThreadParam(type="continue", previous_message_id="b"))
    assert [name for name in "abc" if store.find("me", name, Thread)] == ["b", "c"]
    small = ConversationStore(max_bytes=5000)
    keep(small, "large", ThreadParam(type="create"), "x" * 6000)
    assert (len(small), small.num_bytes) == (0, 0)


def test_a_thread_that_has_expired_is_named_so_and_created_anew() -> None:
    with (
        app_world(bounds=BoundSettings(conversation_lifetime=60.0)) as world,
        anthropic.Anthropic(base_url=world.url, api_key="x", max_retries=0, timeout=60) as client,
    ):
        fields = {**turn("hello", CREATE), "model": "scripted", "max_tokens": 4}
        first = whole(client, **fields)
        world.skip(59.0)
        second = whole(client, **{**fields, "thread": after(first.id)})
        world.skip(2.0)
        with pytest.raises(ThreadNotFoundError, match="has expired: it was kept for 60 seconds"):
            whole(client, **{**fields, "thread": after(first.id)})
        whole(client, **{**fields, "thread": after(second.id)})


def test_a_small_request_has_no_more_read_than_a_body_may_have() -> None:
    with (
        app_world(bounds=BoundSettings(max_body_size=4096)) as world,
        anthropic.Anthropic(base_url=world.url, api_key="x", max_retries=0, timeout=60) as client,
    ):
        cleared = {"role": "system", "content": "be kind" * 300, "clear_at": "next_user_message"}
        fields = {**turn("hello", CREATE), "model": "scripted", "max_tokens": 4}
        first = whole(client, **{**fields, "messages": [cleared, *fields["messages"]]})
        again = {**fields, "messages": [cleared, *fields["messages"]], "thread": after(first.id)}
        second = whole(client, **again)
        with pytest.raises(
            anthropic.APIStatusError, match="thread: holds more than the 4096 bytes"
        ) as refused:
            whole(client, **{**fields, "thread": after(second.id)})
        assert refused.value.status_code == 413
