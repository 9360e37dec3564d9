"""`GET /v1/models`: the names under which the model is served."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath

from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.protocols.openai.answers import Model, ModelList

_CREATED: Final = datetime.now(UTC).replace(microsecond=0)
"""When this server began to serve them."""


@get("/v1/models")
async def list_models(service: NamedDependency[TextService]) -> ModelList:
    """All names; requests may use any of them."""
    names = service.settings.model_names
    return ModelList(data=[_model(name, service) for name in names], first_id=names[0], last_id=names[-1])


@get("/v1/models/{name:path}")
async def get_model(name: FromPath[str], service: NamedDependency[TextService]) -> Model:
    """One name; a name of the hub has a slash in it."""
    name = name.removeprefix("/")
    service.check_model(name)
    return _model(name, service)


def _model(name: str, service: TextService) -> Model:
    facts = service.facts
    return Model(
        id=name,
        created=int(_CREATED.timestamp()),
        display_name=name,
        created_at=_CREATED,
        root=facts.model,
        max_model_len=facts.max_model_len,
        default_sampling=dict(service.settings.defaults),
    )
