"""OpenAI's `/v1/responses`: conversations that the server remembers, over the text service alone."""

from nanoserve.entrypoints.server.protocols.responses.routes import ROUTES

__all__ = ["ROUTES"]
