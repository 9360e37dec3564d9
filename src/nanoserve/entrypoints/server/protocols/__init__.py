"""Every protocol: the routes that clients call, and how errors are written where that is not OpenAI's way."""

from typing import Final

from nanoserve.entrypoints.server.http.errors import Shapes
from nanoserve.entrypoints.server.protocols import anthropic, ollama, openai, responses

ROUTES: Final = (*openai.ROUTES, *responses.ROUTES, *anthropic.ROUTES, *ollama.ROUTES)
ERROR_SHAPES: Final[Shapes] = {"/v1/messages": anthropic.ErrorBody, "/api/": ollama.ErrorBody}
