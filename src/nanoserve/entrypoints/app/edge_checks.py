"""Checks of an order before the engine sees it: lengths and the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nanoserve.entrypoints.app.orders import Conversation, Order
from nanoserve.entrypoints.app.reservations import estimated_tokens
from nanoserve.entrypoints.app.settings import ServiceSettings
from nanoserve.ports.checks import check_integer, check_vocabulary
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.errors import BadValueError, PromptTooLongError
from nanoserve.ports.tool_calls import CallMode

_DEEPEST_MESSAGE = 64
_MOST_PRIORITY = 2**31
_MOST_LISTED = 2**18


class EdgeChecks:
    """Raises `BadValueError` or `PromptTooLongError`, in time linear in the order and without the tokenizer."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings

    def check_order(self, order: Order, facts: EngineFacts) -> int:
        """Everything that does not need the prompt's ids; returns about how many tokens the prompt has."""
        check_integer("priority", order.priority, -_MOST_PRIORITY, _MOST_PRIORITY)
        if order.truncate_prompt_tokens is not None:
            check_integer("truncate_prompt_tokens", order.truncate_prompt_tokens, 1)
        self._check_output(order, facts)
        if isinstance(order.prompt, Conversation) and order.prompt.continue_final_message:
            _check_free_end(order)
        return self._check_prompt(order, facts)

    def check_samplings(self, orders: Sequence[Order], facts: EngineFacts) -> None:
        """The lists that orders carry: each is read once where they share it, but sent with every order."""
        for sampling in {id(order.sampling): order.sampling for order in orders}.values():
            lists: Mapping[str, Sequence[int]] = {
                "stop_token_ids": sampling.stop_token_ids,
                "allowed_token_ids": sampling.allowed_token_ids or (),
                "logit_bias": [token for token, _ in sampling.logit_bias],
            }
            for name, ids in lists.items():
                if len(ids) > facts.vocab_size:
                    message = (
                        f"holds {len(ids)} token ids, which is more than the {facts.vocab_size} there are"
                    )
                    raise BadValueError(name, message)
                check_vocabulary(name, ids, facts.vocab_size)
            listed = len(sampling.bad_words) + sum(map(len, lists.values()))
            if len(orders) * listed > _MOST_LISTED:
                message = f"{len(orders)} prompts with {listed} listed tokens and words each are too many"
                raise BadValueError("prompt", f"{message}; send fewer prompts at a time")

    def check_characters(self, count: int, facts: EngineFacts, name: str = "prompt") -> None:
        """A text so long cannot fit, however it is tokenized."""
        most = self._settings.max_prompt_chars_factor * facts.max_model_len
        if count > most:
            message = f"the prompt has {count} characters and the context holds {facts.max_model_len} tokens"
            raise PromptTooLongError(f"{message}; at most {most} characters are read", name)

    def check_conversation(
        self, conversation: Conversation, facts: EngineFacts, name: str = "messages"
    ) -> int:
        """Not too many messages, and not too long all together; returns how many characters they have."""
        count, most = len(conversation.messages), self._settings.max_messages
        if count > most:
            raise BadValueError("messages", f"holds {count} messages and this server takes at most {most}")
        if conversation.continue_final_message:
            _check_continued(conversation, name)
        characters = _characters(conversation.messages, _DEEPEST_MESSAGE)
        for tool in conversation.tools:
            characters += _characters(tool.as_message(), _DEEPEST_MESSAGE, "tools")
        characters += _characters(conversation.options, _DEEPEST_MESSAGE, "chat_template_kwargs")
        self.check_characters(characters, facts, name)
        return characters

    def fitted(self, ids: tuple[int, ...], order: Order, facts: EngineFacts) -> tuple[int, ...]:
        """The prompt as it will be computed: with room for the answer, cut only where the order says so."""
        if order.truncate_prompt_tokens is not None:
            ids = ids[-order.truncate_prompt_tokens :]
        if not ids:
            raise BadValueError(order.prompt_name, "is empty: there is nothing to continue")
        budget, context = order.sampling.max_tokens or 1, facts.max_model_len
        if len(ids) + budget > context:
            message = f"the prompt has {len(ids)} tokens, the answer may have {budget}, and the context holds {context}"
            if len(ids) >= context or order.max_tokens_name is None:
                raise PromptTooLongError(f"{message}; shorten the prompt", order.prompt_name)
            name = order.max_tokens_name
            raise PromptTooLongError(f"{message}; shorten the prompt or lower {name}", name)
        return ids

    def _check_prompt(self, order: Order, facts: EngineFacts) -> int:
        prompt, name = order.prompt, order.prompt_name
        if isinstance(prompt, str):
            self.check_characters(len(prompt), facts, name)
            return estimated_tokens(len(prompt))
        if isinstance(prompt, Conversation):
            return estimated_tokens(self.check_conversation(prompt, facts, name))
        check_vocabulary(name, prompt, facts.vocab_size)
        return len(prompt)

    def _check_output(self, order: Order, facts: EngineFacts) -> None:
        sampling, most = order.sampling, self._settings.max_output_tokens
        each = facts.max_model_len if sampling.max_tokens is None else sampling.max_tokens
        if sampling.n > 1 and sampling.n * each > most:
            message = f"{sampling.n} sequences of up to {each} tokens are more than {most} tokens together"
            raise BadValueError("n", f"{message}; lower n or {order.max_tokens_name or 'max_tokens'}")


def _check_continued(conversation: Conversation, name: str) -> None:
    last = conversation.messages[-1] if conversation.messages else {}
    if last.get("role") != "assistant" or not last.get("content") or last.get("tool_calls"):
        raise BadValueError(
            name, "can be continued only where they end with text of the assistant and no calls"
        )


def _check_free_end(order: Order) -> None:
    """Nothing that would have to come before the text that is continued."""
    if order.calls.mode is CallMode.REQUIRED:
        message = (
            "cannot force a call where the assistant's last message is continued; it can be auto or none"
        )
        raise BadValueError("tool_choice", message)
    if order.budget is not None:
        message = (
            "does not go with an assistant's last message that is continued: nothing is reasoned any more"
        )
        raise BadValueError(order.budget.name, message)


def _characters(value: Any, depth: int, name: str = "messages") -> int:
    """The characters of all texts inside a JSON value."""
    if isinstance(value, str):
        return len(value)
    if depth == 0:
        raise BadValueError(name, "are nested too deeply")
    inside: Sequence[Any] = ()
    if isinstance(value, Mapping):
        inside = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple)):
        inside = value
    return sum(_characters(each, depth - 1, name) for each in inside)
