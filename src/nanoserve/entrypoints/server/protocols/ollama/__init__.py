"""Ollama's API, over the text service alone."""

from nanoserve.entrypoints.server.protocols.ollama.answer import ErrorBody
from nanoserve.entrypoints.server.protocols.ollama.routes import ROUTES

__all__ = ["ROUTES", "ErrorBody"]
