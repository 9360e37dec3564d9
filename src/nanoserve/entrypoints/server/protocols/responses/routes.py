"""The endpoints of `/v1/responses`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from litestar import MediaType, Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, QueryParameter

from nanoserve.entrypoints.app.conversation_store import ConversationStore
from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.server.http.bodies import documented
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.http.paging import Page, page
from nanoserve.entrypoints.server.http.sse import RequestContext
from nanoserve.entrypoints.server.protocols.responses import wire
from nanoserve.entrypoints.server.protocols.responses.responding import Responding, StoredResponse
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError

Conversations = NamedDependency[ConversationStore]
Found = NamedDependency[StoredResponse]
_ITEM_LIMIT: Final = 100
_NO_VALUES: Final = {"", "false", "0"}
_ANSWER: Final = {200: ResponseSpec(wire.ResponseObject, description="The response, or its events")}


@post("/v1/responses", status_code=200, responses=_ANSWER, **documented(wire.CreateResponse))
async def create_response(
    context: NamedDependency[RequestContext], conversations: Conversations
) -> Response[Any]:
    """Answer a conversation: at once, as a stream of events, or in the background."""
    body = await context.read(wire.CreateResponse)
    responding = Responding(body, service=context.service, client=context.client, store=conversations)
    if body.background:
        return Response(await responding.in_background())
    return await context.respond(responding.writer, [responding.order], opening=responding.open)


@post("/v1/responses/input_tokens", status_code=200, **documented(wire.CreateResponse))
async def count_input_tokens(
    context: NamedDependency[RequestContext], conversations: Conversations
) -> wire.InputTokens:
    """The number of tokens of the prompt that a response to this body would answer, earlier responses included."""
    body = await context.read(wire.CreateResponse)
    responding = Responding(body, service=context.service, client=context.client, store=conversations)
    return wire.InputTokens(
        input_tokens=len(await context.unless_left(context.service.render(responding.prompt, "input")))
    )


@get("/v1/responses/{response_id:str}", responses=_ANSWER)
async def get_response(request: Request[Any, Any, Any], record: Found) -> Response[bytes]:
    """A stored response in its present state."""
    for name in ("stream", "starting_after"):
        if request.query_params.get(name, "").lower() not in _NO_VALUES:
            raise BadValueError(name, "stored responses are not streamed again; fetch it whole")
    return Response(record.answer, media_type=MediaType.JSON)


@delete("/v1/responses/{response_id:str}", status_code=200)
async def delete_response(record: Found, conversations: Conversations) -> wire.Deleted:
    """Forget a response; one that is under way is cancelled."""
    conversations.drop(record.owner, record.record_id)
    await record.cancel()
    return wire.Deleted(id=record.record_id)


@post("/v1/responses/{response_id:str}/cancel", status_code=200, responses=_ANSWER)
async def cancel_response(record: Found) -> Response[bytes]:
    """End a background response; one that has ended stays as it is."""
    if not record.background:
        raise BadValueError("response_id", "only responses created with background can be cancelled")
    await record.cancel()
    return Response(record.answer, media_type=MediaType.JSON)


@get("/v1/responses/{response_id:str}/input_items")
async def list_input_items(
    response_id: FromPath[str],
    client: NamedDependency[Client],
    conversations: Conversations,
    *,
    after: FromQuery[str | None] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=_ITEM_LIMIT)] = 20,
    order: FromQuery[Literal["asc", "desc"]] = "desc",
) -> Page:
    """The conversation that a response answered, earlier responses included."""
    record = stored_response(response_id, client, conversations)  # behind the checks of the parameters
    ids = [each["id"] for each in record.asked]
    return page(record.asked, ids, after=after, limit=limit, newest_first=order == "desc")


def stored_response(
    response_id: FromPath[str],
    client: NamedDependency[Client],
    conversations: Conversations,
) -> StoredResponse:
    """The response that the path names, for injection into handlers. Raises `RequestError`."""
    record = conversations.find(client.name, response_id, StoredResponse)
    if record is None:
        raise RequestError(
            404,
            f"the response {shown(response_id)} {conversations.fate(client.name, response_id)}",
            code="response_not_found",
            param="response_id",
        )
    return record


ROUTES: Final = (
    *(create_response, get_response, delete_response, cancel_response),
    *(count_input_tokens, list_input_items),
)
