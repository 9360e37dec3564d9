"""`truncation: "auto"`: a conversation that is too long loses its oldest turns instead of being refused."""

from __future__ import annotations

import attrs

from nanoserve.entrypoints.app.generation import Generation
from nanoserve.entrypoints.app.orders import Conversation, Order
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import PromptTooLongError


async def open_fitting(service: TextService, order: Order) -> Generation:
    """Open a conversation's order with as many of the latest turns as fit; `PromptTooLongError` where the last does not.

    System messages at the beginning stay. What remains of the rest begins with a user's message, because many
    templates take nothing else.
    """
    try:
        return await service.open(order)
    except PromptTooLongError:
        assert isinstance(order.prompt, Conversation)
        room = order.sampling.max_tokens or 1
        shorter = await _longest_fitting(service, order.prompt, room=room)
        if shorter is None:
            raise
    return await service.open(attrs.evolve(order, prompt=attrs.evolve(order.prompt, messages=shorter)))


async def _longest_fitting(
    service: TextService, conversation: Conversation, *, room: int
) -> list[Message] | None:
    """The conversation from the earliest turn on with which it fits, found by bisection."""
    messages = conversation.messages
    heads = next((at for at, each in enumerate(messages) if each["role"] != "system"), len(messages))
    starts = [at for at in range(heads + 1, len(messages)) if messages[at]["role"] == "user"]
    best: list[Message] | None = None
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        candidate = [*messages[:heads], *messages[starts[middle] :]]
        if await _fits(service, attrs.evolve(conversation, messages=candidate), room):
            best, high = candidate, middle
        else:
            low = middle + 1
    return best


async def _fits(service: TextService, conversation: Conversation, room: int) -> bool:
    try:
        prompt = await service.render(conversation)
    except PromptTooLongError:
        return False
    return len(prompt) + room <= service.facts.max_model_len
