"""Who answers: a model in this process, or a server."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

import attrs

from nanoserve.entrypoints.client.chat.conversation import Cost, Message
from nanoserve.entrypoints.client.openai_server import OpenAIServer
from nanoserve.entrypoints.offline.session import Session
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.sampling import SamplingParams


class Speaker(Protocol):
    """Answers a conversation."""

    @property
    def name(self) -> str:
        """What the user is told to be talking to."""
        ...

    def answer(self, messages: Sequence[Message], cost: Cost, /) -> Generator[str]:
        """The answer as it grows; closing it, or Ctrl-C, stops the computation. Raises `NanoserveError`."""
        ...


@attrs.frozen
class LocalSpeaker:
    """The engine in this process."""

    session: Session
    sampling: SamplingParams
    name: str

    def answer(self, messages: Sequence[Message], cost: Cost, /) -> Generator[str]:
        """As `Speaker` says."""
        job = self.session.job(self.session.read_conversation(messages), self.sampling)
        cost.prompt_tokens = len(job.prompt.token_ids)
        with contextlib.closing(self.session.run([job])) as running:
            for progressed in running:
                event = progressed.event
                if not isinstance(event, TokensGenerated):
                    continue
                cost.output_tokens = event.num_generated
                cost.finish_reason = event.finish_reason and event.finish_reason.value
                if event.text:
                    yield event.text


@attrs.frozen
class RemoteSpeaker:
    """A server; `fields` are sampling parameters, sent as they are."""

    server: OpenAIServer
    model: str
    fields: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The model and where it is."""
        return f"{self.model} at {self.server.address.url}"

    def answer(self, messages: Sequence[Message], cost: Cost, /) -> Generator[str]:
        """As `Speaker` says; where the server counts no tokens, pieces of text are counted."""
        pieces = 0
        with contextlib.closing(self.server.chat(self.model, messages, **self.fields)) as chunks:
            for chunk in chunks:
                cost.finish_reason = chunk.finish_reason or cost.finish_reason
                if chunk.usage is not None:
                    cost.prompt_tokens = chunk.usage.prompt_tokens
                    cost.output_tokens = chunk.usage.completion_tokens
                if chunk.text:
                    pieces += 1
                    cost.output_tokens = max(cost.output_tokens, pieces)
                    yield chunk.text
