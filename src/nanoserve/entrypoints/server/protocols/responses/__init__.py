"""OpenAI's `/v1/responses`: conversations that the server remembers, over the text service alone."""
