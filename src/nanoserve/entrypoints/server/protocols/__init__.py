"""Every protocol: the routes that clients call, and how errors are written where that is not OpenAI's way."""

from typing import Final

from litestar.enums import ScopeType
from litestar.types import Scope

from nanoserve.entrypoints.server.http.errors import Shapes
from nanoserve.entrypoints.server.protocols.anthropic import routes as anthropic
from nanoserve.entrypoints.server.protocols.anthropic import wire as anthropic_answer
from nanoserve.entrypoints.server.protocols.anthropic.threads import is_of_thread
from nanoserve.entrypoints.server.protocols.ollama import routes as ollama
from nanoserve.entrypoints.server.protocols.ollama import wire as ollama_answer
from nanoserve.entrypoints.server.protocols.openai import scoring, tokenization
from nanoserve.entrypoints.server.protocols.openai.chat import chat_completions
from nanoserve.entrypoints.server.protocols.openai.completions import completions
from nanoserve.entrypoints.server.protocols.openai.tokens import generate_tokens
from nanoserve.entrypoints.server.protocols.responses import routes as responses

ROUTES: Final = (
    *(completions, chat_completions, generate_tokens),
    *scoring.ROUTES,
    *(*tokenization.ROUTES, *responses.ROUTES, *anthropic.ROUTES, *ollama.ROUTES),
)
MEMBER_PATHS: Final = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"),
        *("/v1/messages", "/v1/messages/count_tokens", "/inference/v1/generate"),
        *("/api/chat", "/api/generate", "/api/embed", "/api/embeddings"),
        *(path for each in scoring.ROUTES for path in each.paths),
    }
)
"""Paths that take a processor's time and remember nothing between two requests: of several processes each answers these, but threads."""
MEMBER_ROUTES: Final = tuple(each for each in ROUTES if each.paths & MEMBER_PATHS)
ERROR_SHAPES: Final[Shapes] = {
    "/v1/messages": anthropic_answer.AnthropicError,
    "/api/": ollama_answer.OllamaError,
    "anthropic-version": anthropic_answer.AnthropicError,
}


def is_for_member(scope: Scope) -> bool:
    """True if each of several processes can answer a request."""
    return (
        scope["type"] == ScopeType.HTTP
        and scope["path"] in MEMBER_PATHS
        and not is_of_thread(scope["headers"])
    )
