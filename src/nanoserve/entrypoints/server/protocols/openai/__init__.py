"""The endpoints of OpenAI's interface, over the text service alone."""

from typing import Final

from nanoserve.entrypoints.server.protocols.openai.chat import chat_completions
from nanoserve.entrypoints.server.protocols.openai.completions import completions
from nanoserve.entrypoints.server.protocols.openai.tokenization import (
    detokenize,
    get_model,
    list_models,
    tokenize,
    tokenizer_info,
)

ROUTES: Final = (
    completions,
    chat_completions,
    list_models,
    get_model,
    tokenize,
    detokenize,
    tokenizer_info,
)
