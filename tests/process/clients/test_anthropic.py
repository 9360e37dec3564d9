"""The official `anthropic` client against a server process."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.process.clients.access import MODEL
from tests.process.server_process import ServerProcess

HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]


def test_errors_have_the_classes_of_the_client(server: ServerProcess, claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        claude.messages.create(model=MODEL, messages=HELLO, max_tokens=0)
    assert bad.value.type == "invalid_request_error"
    assert "max_tokens" in bad.value.message
    assert bad.value.request_id
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model=MODEL, messages=[{"role": "user", "content": "a " * 3000}], max_tokens=1)
    with pytest.raises(anthropic.NotFoundError) as unknown:
        claude.messages.create(model="another", messages=HELLO, max_tokens=1)
    assert unknown.value.type == "not_found_error"
    with (
        anthropic.Anthropic(base_url=server.url, api_key="sk-wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError) as caught,
    ):
        stranger.messages.create(model=MODEL, messages=HELLO, max_tokens=1)
    assert caught.value.type == "authentication_error"
