"""Anthropic's `/v1/messages`, over the text service alone."""

from nanoserve.entrypoints.server.protocols.anthropic.answer import ErrorBody
from nanoserve.entrypoints.server.protocols.anthropic.routes import ROUTES
from nanoserve.entrypoints.server.protocols.anthropic.threads import is_of_thread

__all__ = ["ROUTES", "ErrorBody", "is_of_thread"]
