"""The protocols that the server speaks, put together."""

from __future__ import annotations

from typing import Final

from nanoserve.entrypoints.http import anthropic, openai, responses
from nanoserve.entrypoints.http.anthropic import errors as anthropic_errors
from nanoserve.entrypoints.http.app import Protocols

_ANTHROPIC: Final = "/v1/messages"

PROTOCOLS: Final = Protocols(
    routes=(*openai.ROUTES, *responses.ROUTES, *anthropic.ROUTES),
    error_shapes={_ANTHROPIC: anthropic_errors.error_body},
    error_bodies={_ANTHROPIC: anthropic_errors.ErrorBody},
)
