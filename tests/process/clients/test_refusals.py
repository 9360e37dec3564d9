"""What the official `openai` client raises for whatever can go wrong, against a server process."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Generator
from typing import Any

import anthropic
import openai
import pytest

from tests.patience import PATIENCE
from tests.ports import reserved_port
from tests.process.clients.access import KEY, LIMITED_KEY, MODEL
from tests.process.scripted_engine import SLOW
from tests.process.server_process import ServerProcess

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}
ENDLESS: dict[str, Any] = {
    "model": MODEL,
    "prompt": [SLOW],
    "max_tokens": 1000,
    "extra_body": {"ignore_eos": True},
}

IMAGE = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]

Until = Callable[[str], None]


@pytest.fixture(scope="session")
def server(scripted_server: ServerProcess) -> ServerProcess:
    """What is refused is no question to a model."""
    return scripted_server


def opened(server: ServerProcess, key: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=key, **{"max_retries": 0, "timeout": PATIENCE} | options
    )


def test_a_wrong_key(server: ServerProcess) -> None:
    with opened(server, "sk-wrong") as stranger:
        for call in (
            stranger.models.list,
            lambda: stranger.chat.completions.create(**CHAT),
            lambda: stranger.chat.completions.create(**CHAT, stream=True),
            lambda: stranger.completions.create(model=MODEL, prompt="a"),
            lambda: stranger.responses.create(model=MODEL, input="a"),
        ):
            with pytest.raises(openai.AuthenticationError) as caught:
                call()
            assert caught.value.code == "invalid_api_key"
            assert caught.value.response.headers["www-authenticate"]
            assert "sk-" not in caught.value.message


def test_what_does_not_exist(client: openai.OpenAI) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: client.models.retrieve("another"),
        lambda: client.chat.completions.create(**CHAT | {"model": "another"}),
        lambda: client.chat.completions.create(**CHAT | {"model": "another"}, stream=True),
        lambda: client.completions.create(model="another", prompt="a"),
        lambda: client.responses.create(model="another", input="a"),
    )
    for call in calls:
        with pytest.raises(openai.NotFoundError) as caught:
            call()
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="makes no vectors"):
        client.embeddings.create(model=MODEL, input="a")


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"seed": "one"}, "seed"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"extra_body": {"min_p": 7}}, "min_p"),
        ({"messages": [{"role": "user", "content": IMAGE}]}, "messages[0].content[0]"),
    ],
)
def test_values_that_are_wrong(client: openai.OpenAI, wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**CHAT | wrong)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.code in {"invalid_value", "invalid_type"}
    assert caught.value.request_id


def test_a_key_that_asks_too_often(server: ServerProcess) -> None:
    with opened(server, LIMITED_KEY) as limited:
        limited.chat.completions.create(**CHAT)
        with pytest.raises(openai.RateLimitError) as caught:
            limited.chat.completions.create(**CHAT)
        limited.models.list()
    assert 0 < int(caught.value.response.headers["retry-after"]) <= 6000


def test_a_client_whose_patience_ends(server: ServerProcess, client: openai.OpenAI, until: Until) -> None:
    with opened(server, KEY, timeout=0.3) as hasty, pytest.raises(openai.APITimeoutError):
        hasty.completions.create(**ENDLESS)
    until("num_requests_running 0")
    with opened(server, KEY, max_retries=1) as patient:
        with pytest.raises(openai.APITimeoutError):
            patient.with_options(timeout=0.3).completions.create(**ENDLESS)
        until("num_requests_running 0")
        assert patient.chat.completions.create(**CHAT).choices[0].message.content


def test_no_server() -> None:
    with (
        reserved_port() as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        client.models.list()


def test_a_server_that_is_full(server: ServerProcess, client: openai.OpenAI, until: Until) -> None:
    """Every row is taken for long; one request may wait, and waits too long; the next are refused at once.

    Time that a request waits is the engine's, which is held until all have come, however long that takes.
    """
    until("num_requests_running 0")

    def refused(*, stream: bool = False) -> openai.InternalServerError:
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(**CHAT, stream=stream)
        return caught.value

    with (
        client.completions.create(**ENDLESS, n=8, logprobs=5, stream=True) as filling,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        next(iter(filling))
        until("num_requests_running 8")
        with server.held_engine():
            waiting = pool.submit(refused)
            until("num_requests_waiting 1")
            for other in (refused(), refused(stream=True)):
                assert (other.status_code, other.code) == (503, "overloaded")
                assert int(other.response.headers["retry-after"]) >= 1
        late = waiting.result(PATIENCE)
    assert (late.status_code, late.code) == (504, "deadline_exceeded")
    until("num_requests_running 0")
    assert client.chat.completions.create(**CHAT).choices[0].message.content


def test_an_engine_that_dies(server: ServerProcess, client: openai.OpenAI, until: Until) -> None:
    """The stream that had begun goes on; whoever asks next is answered by the next engine, in a kept thread too."""

    def chunks() -> Generator[str, None, None]:
        with client.completions.create(**ENDLESS, stream=True) as stream:
            for chunk in stream:
                yield chunk.choices[0].text

    claude = anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=30, timeout=PATIENCE)
    thread = claude.beta.messages.thread(model=MODEL, max_tokens=8)
    thread.send(CHAT["messages"][0])
    kept = thread.previous_message_id
    answer = chunks()
    next(answer)
    (engine,) = server.children()
    engine.kill()
    until("engine_restarts_total 1")
    with opened(server, KEY, max_retries=30) as patient:
        assert patient.chat.completions.create(**CHAT).choices[0].message.content
    for _ in range(20):
        next(answer)
    answer.close()
    follow: Any = {"type": "continue", "previous_message_id": kept}
    with claude:
        claude.beta.messages.create(
            model=MODEL,
            max_tokens=8,
            messages=CHAT["messages"],
            thread=follow,
            betas=["message-threads-2026-08-12"],
        )
