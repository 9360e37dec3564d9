"""Responses that are computed while nobody waits for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import openai
import pytest

from nanoserve.adapters.system.process import SystemClock
from nanoserve.entrypoints.app.conversation_store import ConversationStore
from nanoserve.entrypoints.app.generation import Generation, Piece, Reservation, Reservations
from nanoserve.entrypoints.app.measurements import Measurements, Meter
from nanoserve.entrypoints.app.orders import Client, Order, ServiceSettings
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.protocols.responses.responding import Responding, StoredResponse
from nanoserve.entrypoints.server.protocols.responses.wire import CreateResponse
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.request import FinishReason, Request
from tests.patience import wait_until
from tests.unit.entrypoints.server.http.app_world import AppWorld
from tests.unit.entrypoints.server.protocols.responses.test_conversations import nameless


def poll(client: openai.OpenAI, response_id: str) -> Any:
    wait_until(lambda: client.responses.retrieve(response_id).status not in {"queued", "in_progress"})
    return client.responses.retrieve(response_id)


def test_a_background_response_is_polled(
    client: openai.OpenAI, world: AppWorld, asked: dict[str, Any]
) -> None:
    world.call(lambda: world.engine.allow(0))
    made = client.responses.create(**asked, background=True)
    assert (made.status, made.background, made.output) == ("queued", True, [])
    assert client.responses.retrieve(made.id).status == "queued"
    world.call(lambda: world.engine.allow(1))
    world.wait_until(lambda: world.engine.budget == 0)
    assert client.responses.retrieve(made.id).status in {"queued", "in_progress"}
    world.call(lambda: world.engine.allow(None))
    done = poll(client, made.id)
    whole = client.responses.create(**asked)
    assert nameless(done) == nameless(whole) | {"background": True}


def test_it_can_be_continued_once_it_is_done(
    client: openai.OpenAI, world: AppWorld, asked: dict[str, Any]
) -> None:
    world.call(lambda: world.engine.allow(0))
    made = client.responses.create(**asked, background=True)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**asked, previous_response_id=made.id)
    assert caught.value.param == "previous_response_id"
    world.call(lambda: world.engine.allow(None))
    said = poll(client, made.id).output_text
    client.responses.create(**asked | {"input": "more"}, previous_response_id=made.id)
    assert world.engine.prompt_text() == f"user.hello.assistant.{said}.user.more.assistant."


def test_a_cancelled_one_stops_computing(
    client: openai.OpenAI, world: AppWorld, asked: dict[str, Any]
) -> None:
    asked["max_output_tokens"] = 400
    world.call(lambda: world.engine.allow(5))
    made = client.responses.create(**asked, background=True)
    world.wait_until(lambda: world.engine.budget == 0)
    before = world.engine.turns
    cancelled = client.responses.cancel(made.id)
    assert cancelled.status == "cancelled"
    assert 0 < len(cancelled.output_text) < 10
    world.call(lambda: world.engine.allow(None))
    world.wait_until(lambda: world.is_idle)
    assert world.engine.turns <= before + 2
    assert client.responses.cancel(made.id).to_dict() == cancelled.to_dict()


def test_one_that_waits_for_its_first_step_is_cancelled(
    client: openai.OpenAI, world: AppWorld, asked: dict[str, Any]
) -> None:
    world.call(lambda: world.engine.allow(0))
    made = client.responses.create(**asked, background=True)
    cancelled = client.responses.cancel(made.id)
    world.call(lambda: world.engine.allow(None))
    assert (made.status, cancelled.status, cancelled.output_text) == ("queued", "cancelled", "")
    assert client.responses.retrieve(made.id).status == "cancelled"


def test_one_that_has_ended_is_not_changed_by_cancelling(
    client: openai.OpenAI, asked: dict[str, Any]
) -> None:
    made = client.responses.create(**asked, background=True)
    done = poll(client, made.id)
    assert client.responses.cancel(made.id).to_dict() == done.to_dict()


def test_a_deleted_one_stops_computing_and_stays_away(
    client: openai.OpenAI, world: AppWorld, asked: dict[str, Any]
) -> None:
    asked["max_output_tokens"] = 400
    world.call(lambda: world.engine.allow(5))
    made = client.responses.create(**asked, background=True)
    world.wait_until(lambda: world.engine.budget == 0)
    before = world.engine.turns
    client.responses.delete(made.id)
    world.call(lambda: world.engine.allow(None))
    world.wait_until(lambda: world.is_idle)
    assert world.engine.turns <= before + 2
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


class EndedReply:
    """Has said everything, and does not come to its end."""

    async def events(self) -> AsyncIterator[Sequence[EngineEvent]]:
        yield [Piece("r", 0, (1, 2, 3, 4), "done", (), FinishReason.STOP, None, 4, 0, None)]
        await asyncio.Event().wait()

    def cancel(self) -> None:
        pass


class SilentReply(EndedReply):
    """Says nothing."""

    async def events(self) -> AsyncIterator[Sequence[EngineEvent]]:
        await asyncio.Event().wait()
        yield []


class OneGeneration:
    """A service that has one answer."""

    settings = ServiceSettings(model_names=("m",))
    facts = SimpleNamespace(max_logprobs=20)

    def __init__(self, reply: EndedReply) -> None:
        self.reply = reply

    @property
    def tokenizing(self) -> OneGeneration:
        return self

    def check_model(self, name: str | None) -> str:
        return "m"

    def token(self, token_id: int) -> tuple[str, bytes]:
        return "", b""

    async def open_all(self, orders: Sequence[Order]) -> list[Generation]:
        place = Reservation(1, 2, Reservations(self.settings))
        request = Request(request_id="r", prompt_token_ids=(1, 2), sampling=orders[0].sampling, seed=1)
        return [Generation(request, self.reply, place, Meter(request, Measurements(SystemClock())))]


async def cancelled_answer(reply: EndedReply) -> Any:
    """The response to a request that is cancelled as soon as it is accepted."""
    store = ConversationStore()
    responding = Responding(
        CreateResponse(input="hello", background=True),
        service=cast(TextService, OneGeneration(reply)),
        client=Client(name="me"),
        store=store,
    )
    made = await responding.in_background()
    record = store.find("me", made.id, StoredResponse)
    assert record is not None
    await record.cancel()
    assert record.task is None
    return json.loads(record.answer)


def test_one_that_is_cancelled_at_once_is_cancelled() -> None:
    assert asyncio.run(cancelled_answer(SilentReply()))["status"] == "cancelled"


def test_one_that_is_complete_stays_so_when_it_is_cancelled_too_late() -> None:
    answer = asyncio.run(cancelled_answer(EndedReply()))
    assert answer["status"] == "completed"
    assert answer["output"][0]["content"][0]["text"] == "done"
