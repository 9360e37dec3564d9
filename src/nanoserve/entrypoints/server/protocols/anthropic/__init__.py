"""Anthropic's `/v1/messages`, over the text service alone."""
