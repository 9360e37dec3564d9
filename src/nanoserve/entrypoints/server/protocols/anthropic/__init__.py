"""Anthropic's `/v1/messages`, over the text service alone."""

from nanoserve.entrypoints.server.protocols.anthropic.errors import ErrorBody, error_body
from nanoserve.entrypoints.server.protocols.anthropic.routes import ROUTES

__all__ = ["ROUTES", "ErrorBody", "error_body"]
