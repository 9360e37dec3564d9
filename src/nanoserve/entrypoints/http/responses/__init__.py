"""OpenAI's `/v1/responses`: conversations that the server remembers, over the text service alone."""

from nanoserve.entrypoints.http.responses.routes import ROUTES
from nanoserve.entrypoints.http.responses.store import ResponseStore

__all__ = ["ROUTES", "ResponseStore"]
