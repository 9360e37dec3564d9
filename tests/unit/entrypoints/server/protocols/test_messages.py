"""What `/v1/messages` has beyond the contract, as the official client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import ANY

import anthropic
import pytest

from tests.unit.entrypoints.server.http.app_world import AppWorld


@pytest.fixture
def client(world: AppWorld) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=world.url, api_key="alice", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def asked() -> dict[str, Any]:
    """A request that generates 12 tokens, the same ones each time."""
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 12,
        "extra_body": {"seed": 7, "ignore_eos": True},
    }


def test_blocks_and_turns_of_one_role_are_joined(
    client: anthropic.Anthropic, world: AppWorld, asked: dict[str, Any]
) -> None:
    asked["messages"] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}],
        },
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
        {"role": "user", "content": "more"},
    ]
    system: Any = [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}]
    client.messages.create(**asked, system=system)
    assert world.engine.prompt_text() == "system.be kind.user.one two.assistant.yes.user.more.assistant."


def test_a_stop_sequence_is_named(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    (block,) = client.messages.create(**asked).content
    assert block.type == "text"
    message = client.messages.create(**asked, stop_sequences=["QQ", block.text[9:]])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", block.text[9:])
    with client.messages.stream(**asked, stop_sequences=[block.text[0]]) as stream:
        final = stream.get_final_message()
    assert (final.content, final.stop_sequence) == ([], block.text[0])


def test_tokens_are_counted(client: anthropic.Anthropic, world: AppWorld, asked: dict[str, Any]) -> None:
    client.messages.create(**asked, system="be brief")
    counted = client.messages.count_tokens(
        model="scripted", messages=asked["messages"], system="be brief", tools=[]
    )
    assert counted.input_tokens == len(world.engine.requests[-1].prompt_token_ids)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="other", messages=asked["messages"])


def test_the_request_has_an_id(client: anthropic.Anthropic, asked: dict[str, Any]) -> None:
    named = {"X-Request-Id": "mine-1"}
    assert client.messages.create(**asked, extra_headers=named)._request_id == "mine-1"
    with client.messages.stream(**asked, extra_headers=named) as stream:
        assert stream.request_id == "mine-1"
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**asked | {"model": "other"}, extra_headers=named)
    assert caught.value.request_id == "mine-1"


def test_models_have_names_and_dates(client: anthropic.Anthropic) -> None:
    listed = client.models.list()
    assert [(each.id, each.display_name, each.type) for each in listed] == [
        ("scripted", "scripted", "model"),
        ("alias", "alias", "model"),
    ]
    assert (listed.first_id, listed.last_id, listed.has_more) == ("scripted", "alias", False)
    one = client.models.retrieve("alias")
    assert one.display_name == "alias"
    assert one.created_at == listed.data[0].created_at
    assert one.created_at.tzinfo is not None
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("nothing")
    assert caught.value.body == {"type": "error", "error": {"type": "not_found_error", "message": ANY}}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": []}],
        [{"role": "assistant", "content": []}],
        [
            {"role": "system", "content": "be", "clear_at": "next_user_message"},
            {"role": "user", "content": []},
        ],
    ],
)
def test_turns_that_say_nothing_are_no_conversation(
    client: anthropic.Anthropic, asked: dict[str, Any], messages: Any
) -> None:
    for ask in (client.messages.create, client.messages.count_tokens):
        given = asked if ask == client.messages.create else {"model": "scripted"}
        with pytest.raises(anthropic.BadRequestError, match="messages: must hold at least one"):
            ask(**given | {"messages": messages})


@pytest.mark.parametrize(
    ("letters", "max_tokens", "told"),
    [
        (40, 600, "input length and `max_tokens` exceed context limit: {n} + 600 > 512, decrease input"),
        (600, 5, "prompt is too long: {n} tokens > 512 maximum"),
        (5000, 5, "prompt is too long: messages: the prompt has 5015 characters, and this model's maximum"),
    ],
)
def test_what_does_not_fit_is_told_in_words_that_clients_read(
    client: anthropic.Anthropic, letters: int, max_tokens: int, told: str
) -> None:
    """By the first they ask again for fewer tokens, by the second they shorten the conversation."""
    asked: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "a" * letters}]}
    n = client.messages.count_tokens(**asked).input_tokens if "{n}" in told else 0
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**asked, max_tokens=max_tokens)
    assert told.format(n=n) in caught.value.message
