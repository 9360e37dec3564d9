"""The endpoints of `/v1/messages`."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec

from nanoserve.entrypoints.app.conversation_store import ConversationStore
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.bodies import bounds_of, documented, read_body
from nanoserve.entrypoints.server.http.fields import make_order, read_sampling
from nanoserve.entrypoints.server.http.sse import respond, unless_left
from nanoserve.entrypoints.server.protocols.anthropic.answer import Message, TokenCount
from nanoserve.entrypoints.server.protocols.anthropic.body import CountTokens, CreateMessage
from nanoserve.entrypoints.server.protocols.anthropic.edits import edited
from nanoserve.entrypoints.server.protocols.anthropic.reading import (
    read_budget,
    read_choice,
    read_format,
    read_prompt,
)
from nanoserve.entrypoints.server.protocols.anthropic.threads import Threading, is_of_thread
from nanoserve.entrypoints.server.protocols.anthropic.writer import MessageWriter
from nanoserve.ports.sampling import Api

_ANSWER: Final = {200: ResponseSpec(Message, description="The message, or its events if streamed")}


@post("/v1/messages", status_code=200, responses=_ANSWER, **documented(CreateMessage))
async def create_message(
    request: Request[Any, Any, Any],
    service: NamedDependency[TextService],
    client: NamedDependency[Client],
    conversations: NamedDependency[ConversationStore],
) -> Response[Any]:
    """Answer a conversation, at once or as a stream of events."""
    body = await read_body(request, CreateMessage)
    model = service.check_model(body.model)
    threading = Threading(
        body,
        is_announced=is_of_thread(request.scope["headers"]),
        owner=client.name,
        store=conversations,
        max_bytes=bounds_of(request).max_body_size,
    )
    body = threading.body
    prompt, edits = await unless_left(request, edited(body, read_prompt(body, service), service))
    order = make_order(
        body,
        prompt=prompt,
        prompt_name="messages",
        sampling=read_sampling(body, Api.ANTHROPIC, service.settings.defaults),
        client=client,
        calls=read_choice(body.tool_choice, prompt.tools),
        format=read_format(body),
        budget=read_budget(body, service),
    )
    writer = MessageWriter(
        model,
        omits_thinking=body.thinking is not None and body.thinking.display == "omitted",
        edits=edits,
        on_end=None if body.thread is None else threading.keep,
    )
    return await respond(request, service, writer, [order])


@post("/v1/messages/count_tokens", status_code=200, **documented(CountTokens))
async def count_tokens(request: Request[Any, Any, Any], service: NamedDependency[TextService]) -> TokenCount:
    """How many tokens the prompt has."""
    body = await read_body(request, CountTokens)
    service.check_model(body.model)
    return await unless_left(request, _counted(body, service))


async def _counted(body: CountTokens, service: TextService) -> TokenCount:
    prompt, edits = await edited(body, read_prompt(body, service), service)
    counted = TokenCount(len(await service.render(prompt)))
    if edits is not None:
        cleared = sum(each.cleared_input_tokens for each in edits)
        counted.context_management = {"original_input_tokens": counted.input_tokens + cleared}
    return counted


ROUTES: Final = (create_message, count_tokens)
