"""Responses that are kept: continued, fetched, listed, deleted, and nobody else's."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from nanoserve.entrypoints.compose.config.kinds import Secret
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings, BoundSettings
from tests.patience import PATIENCE
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world
from tests.unit.entrypoints.server.protocols.protocol_world import serving
from tests.unit.entrypoints.server.protocols.responses.conftest import openai_client


def test_a_conversation_goes_on(client: openai.OpenAI, world: AppWorld, asked: dict[str, Any]) -> None:
    first = client.responses.create(**asked, instructions="be brief")
    second = client.responses.create(**asked | {"input": "more"}, previous_response_id=first.id)
    third = client.responses.create(
        **asked | {"input": "last"}, previous_response_id=second.id, instructions="be kind"
    )
    assert third.previous_response_id == second.id
    assert world.engine.prompt_text() == (
        f"system.be kind.user.hello.assistant.{first.output_text}.user.more.assistant.{second.output_text}"
        ".user.last.assistant."
    )


def test_a_conversation_survives_the_deletion_of_its_beginning(
    client: openai.OpenAI, world: AppWorld, asked: dict[str, Any]
) -> None:
    first = client.responses.create(**asked)
    second = client.responses.create(**asked | {"input": "more"}, previous_response_id=first.id)
    client.responses.delete(first.id)
    client.responses.create(**asked | {"input": "last"}, previous_response_id=second.id)
    assert world.engine.prompt_text().startswith(f"user.hello.assistant.{first.output_text}.user.more.")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_is_fetched_as_it_was(
    client: openai.OpenAI, asked: dict[str, Any], streamed: bool
) -> None:
    if streamed:
        with client.responses.create(**asked, stream=True) as stream:
            *_, last = stream
        made = getattr(last, "response")  # noqa: B009 - the union of events has no such field
    else:
        made = client.responses.create(**asked)
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()


def test_the_tokens_of_a_prompt_are_counted_without_an_answer(
    client: openai.OpenAI, world: AppWorld, asked: dict[str, Any]
) -> None:
    first = client.responses.create(**asked)
    body = {"model": "scripted", "input": "more", "previous_response_id": first.id, "instructions": "be kind"}
    turns = world.engine.turns
    counted = client.responses.input_tokens.count(**body)
    assert world.engine.turns == turns
    answered = client.responses.create(**body, max_output_tokens=1)
    assert answered.usage is not None
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", answered.usage.input_tokens)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.input_tokens.count(model="scripted", input="a" * 9999)
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")


def test_a_response_that_has_expired_is_named_so() -> None:
    with app_world(bounds=BoundSettings(conversation_lifetime=60.0)) as world, openai_client(world) as client:
        made = client.responses.create(model="scripted", input="hello", max_output_tokens=4)
        world.skip(59.0)
        client.responses.retrieve(made.id)
        world.skip(2.0)
        said = r"has expired: it was kept for 60 seconds \(--conversation-lifetime\)"
        with pytest.raises(openai.NotFoundError, match=said) as caught:
            client.responses.retrieve(made.id)
        assert caught.value.code == "response_not_found"
        with pytest.raises(openai.BadRequestError, match=f"{made.id}' not found: it {said}") as refused:
            client.responses.create(model="scripted", input="more", previous_response_id=made.id)
        assert refused.value.code == "previous_response_not_found"


def test_a_deleted_response_is_gone(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    made = client.responses.create(**asked)
    client.responses.delete(made.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError) as caught:
            call(made.id)
        assert caught.value.code == "response_not_found"


def test_what_is_not_to_be_stored_is_not(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    made = client.responses.create(**asked, store=False)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_another_key_sees_nothing(asked: dict[str, Any]) -> None:
    access = AccessSettings(api_key=(Secret("alice"), Secret("mallory")))
    with (
        app_world(access=access) as world,
        openai_client(world) as client,
        openai_client(world, "mallory") as other,
    ):
        made = client.responses.create(**asked)
        calls = other.responses
        for call in (calls.retrieve, calls.delete, calls.cancel, calls.input_items.list):
            with pytest.raises(openai.NotFoundError):
                call(made.id)
        with pytest.raises(openai.BadRequestError) as caught:
            calls.create(**asked, previous_response_id=made.id)
        assert caught.value.param == "previous_response_id"
        assert client.responses.retrieve(made.id).id == made.id


def test_only_background_responses_are_cancelled(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    made = client.responses.create(**asked)
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(made.id)


def test_a_stored_response_is_not_streamed_again(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    made = client.responses.create(**asked)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.retrieve(made.id, stream=True)
    assert caught.value.param == "stream"


def test_the_conversation_is_listed_in_pages(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    first = client.responses.create(**asked)
    second = client.responses.create(**asked | {"input": "more"}, previous_response_id=first.id)
    page = client.responses.input_items.list(second.id, order="asc", limit=2)
    assert page.has_more
    listed = list(page)
    assert [getattr(item, "role", None) for item in listed] == ["user", "assistant", "user"]
    assert [getattr(item, "content")[0].text for item in listed] == ["hello", first.output_text, "more"]  # noqa: B009
    newest = client.responses.input_items.list(second.id, limit=1)
    assert newest.data[0].id == listed[-1].id


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=no", "after")],
)
def test_a_bad_page_is_refused(
    client: openai.OpenAI, world: AppWorld, asked: dict[str, Any], query: str, param: str
) -> None:
    made = client.responses.create(**asked)
    url = f"{world.url}/v1/responses/{made.id}/input_items?{query}"
    answer = httpx.get(url, headers={"authorization": "Bearer alice"}, timeout=PATIENCE)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_failed_response_is_not_continued(asked: dict[str, Any]) -> None:
    with serving() as world, openai_client(world) as client:
        world.call(lambda: world.engine.allow(3))
        made = client.responses.create(**asked, background=True)
        world.wait_until(lambda: world.engine.budget == 0)
        world.call(world.engine.die)
        world.wait_until(lambda: not world.service.reservations.living)
        fetched = client.responses.retrieve(made.id)
        assert fetched.status == "failed"
        assert fetched.error is not None
        assert fetched.error.code == "server_error"
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**asked, previous_response_id=made.id)
        assert caught.value.param == "previous_response_id"
