"""Routes that generate nothing: the names of the model, and its tokenizer for clients that count and cut prompts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import attrs
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http.bodies import documented
from nanoserve.entrypoints.server.http.sse import RequestContext
from nanoserve.entrypoints.server.protocols.openai import wire
from nanoserve.entrypoints.server.protocols.openai.chat import read_conversation
from nanoserve.ports.errors import BadValueError

_CREATED: Final = datetime.now(UTC).replace(microsecond=0)
"""When this server began to serve them."""


@get("/v1/models")
async def list_models(service: NamedDependency[TextService]) -> wire.ModelList:
    """All names; requests may use any of them."""
    names = service.names
    return wire.ModelList(
        data=[_model(name, service) for name in names], first_id=names[0], last_id=names[-1]
    )


@get("/v1/models/{name:path}")
async def get_model(name: FromPath[str], service: NamedDependency[TextService]) -> wire.ModelCard:
    """One name; a name of the hub has a slash in it."""
    name = name.removeprefix("/")
    service.check_model(name)
    return _model(name, service)


def _model(name: str, service: TextService) -> wire.ModelCard:
    facts = service.facts
    return wire.ModelCard(
        id=name,
        created=int(_CREATED.timestamp()),
        display_name=name,
        created_at=_CREATED,
        root=facts.model,
        parent=service.settings.model_names[0] if name in service.loras else None,
        max_model_len=facts.max_model_len,
        default_sampling=dict(service.settings.defaults),
    )


@post("/tokenize", status_code=200, **documented(wire.TokenizeBody))
async def tokenize(context: NamedDependency[RequestContext]) -> wire.TokenizedText:
    """The ids of a text, or of the prompt that the model's template makes of a conversation."""
    (body, _), service = await context.asked(wire.TokenizeBody), context.service
    ids = await context.unless_left(_ids(body, service))
    texts = None
    if body.return_token_strs:
        await service.tokenizing.learn_token_texts()
        texts = [service.tokenizing.token_text(token) for token in ids]
    return wire.TokenizedText(
        count=len(ids), max_model_len=service.facts.max_model_len, tokens=list(ids), token_strs=texts
    )


@post("/detokenize", status_code=200, **documented(wire.DetokenizeBody))
async def detokenize(context: NamedDependency[RequestContext]) -> wire.Text:
    """The text of ids, special tokens included unless they are to be skipped."""
    (body, _), service = await context.asked(wire.DetokenizeBody), context.service
    return wire.Text(await service.decode(body.tokens, skip_special_tokens=body.skip_special_tokens))


@get("/tokenizer_info")
async def tokenizer_info(service: NamedDependency[TextService]) -> wire.TokenizerInfo:
    """The facts to know before using the other two."""
    return wire.TokenizerInfo(
        model=service.settings.model_names[0],
        vocab_size=service.tokenizing.vocab_size,
        max_model_len=service.facts.max_model_len,
        eos_token_ids=sorted(service.eos_token_ids),
        **attrs.asdict(service.settings.tokenizer_facts),
    )


async def _ids(body: wire.TokenizeBody, service: TextService) -> tuple[int, ...]:
    if (body.prompt is None) == (body.messages is None):
        raise BadValueError("prompt", "give either `prompt` or `messages`")
    if body.prompt is not None:
        for name in ("add_generation_prompt", "continue_final_message"):
            if getattr(body, name) is not None:
                raise BadValueError(name, "belongs to `messages`")
        return await service.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    if body.add_special_tokens:
        raise BadValueError("add_special_tokens", "the model's chat template writes them; leave it out")
    return await service.render(read_conversation(body, service))


ROUTES: Final = (list_models, get_model, tokenize, detokenize, tokenizer_info)
