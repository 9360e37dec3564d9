"""What is let in: orders are checked before the engine sees them, and places reserved before any work is done for them.

A reservation is refused where too much waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.entrypoints.app.orders import Conversation, Order
from nanoserve.entrypoints.app.settings import ServiceSettings
from nanoserve.ports.checks import check_integer, check_vocabulary
from nanoserve.ports.counts import Counts
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.errors import BadValueError, DrainingError, OverloadedError, PromptTooLongError
from nanoserve.ports.sampling import MAX_SEQUENCES_PER_REQUEST
from nanoserve.ports.tool_calls import CallMode

_DEEPEST_MESSAGE = 64
_MOST_PRIORITY = 2**31
_MOST_LISTED = 2**18
_CHARACTERS_PER_TOKEN = 4
"""An estimate for prompts that are not tokenized yet; `Reservation.count_tokens` replaces it by the truth."""


RESERVATION_NAMES: Final = (
    *("draining", "living", "waiting", "waiting_tokens", "waiting_bytes"),
    *("running_sequences", "tokenizing_now"),
)
"""The counters: `running_sequences` of the started requests, `tokenizing_now` texts that belong to no request."""


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
            return len(prompt) // _CHARACTERS_PER_TOKEN + 1
        if isinstance(prompt, Conversation):
            return self.check_conversation(prompt, facts, name) // _CHARACTERS_PER_TOKEN + 1
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


@attrs.define(eq=False)
class Reservation:
    """One accepted request: it waits until the engine has started it, and lives until it is given back.

    Attributes:
        num_sequences: how many device rows it will want.
        num_tokens: its prompt's length, estimated until it is tokenized.
        num_bytes: its constraint's length.
    """

    num_sequences: int
    num_tokens: int
    _reservations: Reservations
    num_bytes: int = 0
    _waits: bool = True
    _lives: bool = True

    def count_tokens(self, num_tokens: int) -> None:
        """The prompt is tokenized."""
        if self._waits:
            self._reservations.change(waiting_tokens=num_tokens - self.num_tokens)
        self.num_tokens = num_tokens

    def count_bytes(self, num_bytes: int) -> None:
        """The constraint is known. Raises `OverloadedError` where too much of others' waits."""
        self._reservations.add_bytes(num_bytes)
        self.num_bytes += num_bytes

    def start(self) -> None:
        """The engine has begun; idempotent."""
        if self._waits:
            self._waits = False
            running = self.num_sequences if self._lives else 0
            self._reservations.change(
                waiting=-1,
                waiting_tokens=-self.num_tokens,
                waiting_bytes=-self.num_bytes,
                running_sequences=running,
            )

    def give_back(self) -> None:
        """The request has ended, or was never sent; idempotent."""
        if self._lives:
            self._lives = False
            self._reservations.change(living=-1, running_sequences=0 if self._waits else -self.num_sequences)
            self.start()


class Reservations:
    """Counts the living requests and refuses those beyond the bounds.

    The engine takes as many sequences as it has free rows without a wait, so those are let in beside the queue.

    Args:
        counts: of `RESERVATION_NAMES`; shared by all processes that hand requests to one engine.
    """

    def __init__(self, settings: ServiceSettings, counts: Counts | None = None) -> None:
        self._settings = settings
        self.counts = counts or Counts()

    @property
    def draining(self) -> bool:
        """True if nothing more is taken."""
        return self.counts["draining"] > 0

    @property
    def living(self) -> int:
        """Accepted requests that have not ended."""
        return self.counts["living"]

    @property
    def waiting(self) -> int:
        """Those of them that were not started yet."""
        return self.counts["waiting"]

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of the waiting ones."""
        return self.counts["waiting_tokens"]

    def begin_drain(self) -> None:
        """Take nothing more, in any process."""
        self.change(draining=1)

    def change(self, **changes: int) -> None:
        """Change several counts at once."""
        with self.counts.lock:
            for name, number in changes.items():
                self.counts.add(name, number)

    def add_bytes(self, number: int) -> None:
        """More of a constraint waits, or raise `OverloadedError`."""
        with self.counts.lock:
            waiting = self.counts["waiting_bytes"]
            if waiting and waiting + number > self._settings.max_waiting_bytes:
                message = f"too many constraints: {waiting} characters of them waiting and {number} more"
                raise OverloadedError(f"{message}; try again later")
            self.counts.add("waiting_bytes", number)

    def take(self, wanted: Sequence[tuple[int, int]], *, rows: int) -> list[Reservation]:
        """Reservations for requests that are wanted together, as (sequences, prompt tokens) each: all of them, or none.

        `rows` is how many sequences the engine runs at once. Raises `DrainingError`, `OverloadedError`, or
        `BadValueError` for more requests at once than could ever be let in.
        """
        requests, all_tokens = len(wanted), sum(tokens for _, tokens in wanted)
        with self.counts.lock:
            if self.draining:
                raise DrainingError("the server is shutting down and takes no more requests", retry_after=5)
            self.check_count(requests, rows=rows)
            self._check_sequences(sum(sequences for sequences, _ in wanted), rows)
            self._check_room(requests, all_tokens, rows)
            self.counts.add("living", requests)
            self.counts.add("waiting", requests)
            self.counts.add("waiting_tokens", all_tokens)
        return [Reservation(sequences, tokens, self) for sequences, tokens in wanted]

    def check_count(self, requests: int, *, rows: int) -> None:
        """Raise `BadValueError` for more requests at once than could ever be let in."""
        most = self._settings.max_waiting_requests + rows
        if requests > most:
            raise BadValueError("prompt", f"holds {requests} prompts and this server takes at most {most}")

    def _check_sequences(self, sequences: int, rows: int) -> None:
        """The bound on what one request may multiply itself to: as many as may wait as requests, or one prompt's most."""
        most = max(MAX_SEQUENCES_PER_REQUEST, self._settings.max_waiting_requests + rows)
        if sequences > most:
            message = (
                f"makes {sequences} answers with all prompts and this server gives at most {most} at once"
            )
            raise BadValueError("n", message)

    @contextlib.contextmanager
    def tokenizing(self) -> Iterator[None]:
        """Tokenizing for its own sake, bounded like the queue; raises `OverloadedError`."""
        with self.counts.lock:
            now = self.counts["tokenizing_now"]
            if now >= max(1, self._settings.max_waiting_requests):
                raise OverloadedError(f"too many texts: {now} being tokenized; try again later")
            self.counts.add("tokenizing_now")
        try:
            yield
        finally:
            self.counts.add("tokenizing_now", -1)

    def _check_room(self, requests: int, tokens: int, rows: int) -> None:
        free_rows = max(0, rows - self.counts["running_sequences"])
        most = self._settings.max_waiting_requests + free_rows
        if self.waiting + requests > most:
            raise OverloadedError(f"too many requests: {self.waiting} waiting already; try again later")
        if self.waiting and self.waiting_tokens + tokens > self._settings.max_waiting_tokens:
            message = f"too many prompt tokens: {self.waiting_tokens} waiting and {tokens} more"
            raise OverloadedError(f"{message}; try again later")
