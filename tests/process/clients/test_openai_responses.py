"""The official `openai` client's `responses` against a server process."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.patience import wait_until
from tests.process.clients.access import MODEL

ASK: dict[str, Any] = {"model": MODEL, "input": "Tell me a story.", "max_output_tokens": 24, "temperature": 0}


def test_an_answer_and_its_stream_are_equal(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASK)
    assert whole.output_text
    assert (whole.status, whole.model) == ("incomplete", MODEL)
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 24
    events = list(client.responses.create(**ASK, stream=True))
    assert [each.sequence_number for each in events] == list(range(len(events)))
    kinds = [each.type.removeprefix("response.") for each in events]
    deltas = kinds.count("output_text.delta")
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    text = "".join(each.delta for each in events if each.type == "response.output_text.delta")
    assert text == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == text
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 24


def test_the_clients_own_reader_of_streams(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Hello!", temperature=0, max_output_tokens=200) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text == text != ""


def test_a_conversation_is_remembered(client: openai.OpenAI) -> None:
    greedy: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 32}
    first = client.responses.create(input="My name is Zorin.", **greedy)
    second = client.responses.create(input="Hello!", previous_response_id=first.id, **greedy)
    third = client.responses.create(input="What is my name?", previous_response_id=second.id, **greedy)
    assert "Zorin" in third.output_text
    assert third.previous_response_id == second.id
    found = client.responses.retrieve(third.id)
    assert (found.output_text, found.usage, found.status) == (third.output_text, third.usage, third.status)
    items = [each.model_dump() for each in client.responses.input_items.list(third.id, order="asc")]
    texts = [each["content"][0]["text"] for each in items]
    asked = ["My name is Zorin.", first.output_text, "Hello!", second.output_text, "What is my name?"]
    assert texts == asked
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="And then?", previous_response_id=second.id, **greedy)
    assert caught.value.param == "previous_response_id"


def test_an_answer_in_the_background(client: openai.OpenAI) -> None:
    started = client.responses.create(**ASK, background=True)
    assert started.status in {"queued", "in_progress"}
    wait_until(lambda: client.responses.retrieve(started.id).status not in {"queued", "in_progress"})
    assert client.responses.retrieve(started.id).output_text == client.responses.create(**ASK).output_text
    endless = client.responses.create(
        **ASK | {"max_output_tokens": 900}, background=True, extra_body={"ignore_eos": True}
    )
    assert client.responses.cancel(endless.id).status == "cancelled"
    assert client.responses.retrieve(endless.id).status == "cancelled"
