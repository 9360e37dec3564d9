"""Anthropic's `/v1/messages`, over the text service alone."""

from nanoserve.entrypoints.server.protocols.anthropic.answer import ErrorBody
from nanoserve.entrypoints.server.protocols.anthropic.routes import ROUTES

__all__ = ["ROUTES", "ErrorBody"]
