"""Turns an `Order` into a running `Generation`: every protocol reaches the engine this way.

The tokenizer and the chat template run off the event loop, each in a thread of its own, which also serialises calls.
"""

from __future__ import annotations

import asyncio
import fnmatch
import functools
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import attrs

from nanoserve.domain.text.dialects.tokenized import PROMPT_TAIL, TokenizedDialect
from nanoserve.entrypoints.app.generation import Generation, Reading, Reservation, Reservations
from nanoserve.entrypoints.app.measurements import Measurements, Meter
from nanoserve.entrypoints.app.orders import (
    Conversation,
    EdgeChecks,
    Order,
    RequestBuilder,
    ServiceSettings,
    TextPair,
)
from nanoserve.entrypoints.app.structured_outputs import AnswerConstraints
from nanoserve.entrypoints.app.vectors import check_text
from nanoserve.ports.checks import check_vocabulary, shown
from nanoserve.ports.counts import Counts
from nanoserve.ports.driven import ChatTemplate, Check, Clock, Tokenizer
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.errors import DeadlineError, EngineLoadingError, PromptTooLongError, UnknownModelError
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.pooling import Pooling
from nanoserve.ports.request import Request
from nanoserve.ports.tool_calls import CallMode

_LONGEST_NAME: Final = 256
"""Characters of a name that a client chooses: each piece of a stream repeats it."""


class TextService:
    """Takes orders, bounded; lives on one event loop.

    Where several processes share an engine, `reservations` are counted together, and the engine tells the requests of each
    by its `owner`.

    Attributes:
        tokenizing: the tokenizer, unbounded; `encode`, `render` and `decode` here are bounded like the queue.
        dialect: how the model writes reasoning and calls; None if that is not known.

    Args:
        check_constraint: as in `AnswerConstraints`.
    """

    def __init__(
        self,
        *,
        engine: EngineClient,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        eos_token_ids: Iterable[int],
        clock: Clock,
        settings: ServiceSettings,
        measurements: Measurements | None = None,
        reservations: Counts | None = None,
        owner: str = "",
        dialect: TokenizedDialect | None = None,
        check_constraint: Callable[[Constraint, str, bool], Future[None]] | None = None,
    ) -> None:
        self.engine = engine
        self.measurements = measurements or Measurements(clock)
        self.settings = settings
        self.reservations = Reservations(settings, reservations)
        self.eos_token_ids = frozenset(eos_token_ids) | frozenset(tokenizer.eos_token_ids)
        self.tokenizing = Tokenizing(tokenizer, template, dialect)
        self.dialect = dialect
        self._checks = EdgeChecks(settings)
        self._constraints = AnswerConstraints(check_constraint, settings.whitespace)
        self._clock = clock
        self._builder = RequestBuilder(
            eos_token_ids=self.eos_token_ids, prefix=f"{owner}.r" if owner else "r"
        )

    @property
    def facts(self) -> EngineFacts:
        """The engine's facts; raises `EngineLoadingError` before the first one is ready."""
        if self.engine.facts is None:
            raise EngineLoadingError("the engine is still loading the model; try again later", retry_after=5)
        return self.engine.facts

    @property
    def loras(self) -> tuple[str, ...]:
        """The adapters that requests may name."""
        return () if self.engine.facts is None else self.engine.facts.loras

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that lists show: the model's own, then those of adapters."""
        return (*self.settings.model_names, *self.loras)

    def check_model(self, name: str | None) -> str:
        """The name that answers use; raises `UnknownModelError` for one that is not served. None is any."""
        names = self.settings.model_names
        if name is None or name in names:
            return names[0]
        if name in self.loras:
            return name
        patterns = self.settings.model_aliases if len(name) <= _LONGEST_NAME else ()
        if any(fnmatch.fnmatchcase(name, each.replace("[", "[[]")) for each in patterns):
            return name
        raise UnknownModelError(
            f"the model {shown(name)} does not exist here; this server has: {', '.join(self.names)} "
            "(nanoserve serve --model-alias NAME adds a name)"
        )

    def check_count(self, orders: int) -> None:
        """Raise `BadValueError` for more orders than `open_all` could ever accept together."""
        self.reservations.check_count(orders, rows=self.facts.max_num_seqs)

    async def open(self, order: Order) -> Generation:
        """Accept an order and hand it to the engine.

        Raises `OverloadedError`, `DrainingError` or `EngineLoadingError` before any work, `PromptTooLongError` and
        `BadValueError` for errors that can be found here; the pieces raise errors that only the engine finds.
        """
        return (await self.open_all([order]))[0]

    async def open_all(self, orders: Sequence[Order]) -> list[Generation]:
        """Accept several orders, or none of them; raises as `open` does."""
        facts = self.facts
        if self.settings.pooler is not None and any(order.pooling is None for order in orders):
            check_text(self.settings.pooler)
        self._checks.check_samplings(orders, facts)
        wanted = [(order.sampling.n, self._checks.check_order(order, facts)) for order in orders]
        deferred = all(order.client.is_deferred for order in orders)
        reservations = self.reservations.take(wanted, rows=facts.max_num_seqs, deferred=deferred)
        opened: list[Generation] = []
        try:
            wordings = {order.sampling.bad_words for order in orders}
            encoded = {words: await self.tokenizing.encode_bad_words(words) for words in wordings}
            requests = [
                await self._request(order, reservation, facts, encoded[order.sampling.bad_words])
                for order, reservation in zip(orders, reservations, strict=True)
            ]
            for order, (request, reading), reservation in zip(orders, requests, reservations, strict=True):
                reply, meter = self.engine.submit(request), Meter(request, self.measurements)
                opened.append(
                    Generation(
                        request, reply, reservation, meter, reading, constraint_name=order.constraint_name
                    )
                )
        except BaseException:
            for generation in opened:
                generation.cancel()
            for reservation in reservations:
                reservation.give_back()
            raise
        return opened

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Text to ids; raises `PromptTooLongError` for a text that is not worth reading."""
        self._checks.check_characters(len(text), self.facts)
        with self.reservations.tokenizing():
            return await self.tokenizing.encode(text, add_special_tokens=add_special_tokens)

    async def render(self, conversation: Conversation, name: str = "messages") -> tuple[int, ...]:
        """A conversation to the ids of its prompt; raises `BadValueError` and `PromptTooLongError`, which call it by the name."""
        self._checks.check_conversation(conversation, self.facts, name)
        with self.reservations.tokenizing():
            return await self.tokenizing.render(conversation)

    async def length(self, conversation: Conversation) -> int:
        """The tokens of a conversation's prompt; the context's, where it has too many to be rendered."""
        try:
            return len(await self.render(conversation))
        except PromptTooLongError:
            return self.facts.max_model_len

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Ids to text; raises `BadValueError` for ids outside the vocabulary."""
        check_vocabulary("tokens", ids, self.facts.vocab_size)
        with self.reservations.tokenizing():
            return await self.tokenizing.decode(ids, skip_special_tokens=skip_special_tokens)

    async def _request(
        self,
        order: Order,
        reservation: Reservation,
        facts: EngineFacts,
        bad_words: tuple[tuple[int, ...], ...],
    ) -> tuple[Request, Reading | None]:
        deferred = order.client.is_deferred
        timeout = None if deferred else self.settings.request_timeout
        try:
            async with asyncio.timeout(timeout):
                ids, pooling = await self._prompt(order, facts)
        except TimeoutError:
            raise DeadlineError(
                "the time for this request was over before its prompt was ready; try again later"
            ) from None
        ids = self._checks.fitted(ids, order, facts)
        reservation.count_tokens(len(ids))
        sampling = order.sampling
        reading = await self._reading(order, ids)
        if reading is not None:
            # Its marks may be special tokens; the parser drops those that are no part of an answer.
            sampling = attrs.evolve(sampling, skip_special_tokens=False)
        asked = 0 if order.format is None else len(order.format.constraint.text)
        reservation.count_bytes(asked)
        if reading is not None and order.calls.mode is CallMode.NONE and order.has_tools:
            bad_words += await self.tokenizing.encode_marks(reading.call_marks)
        constraint = None
        if order.format is not None or order.budget is not None or (reading is not None and reading.tools):
            constraint = await self._constraints.of(order, reading)
        if constraint is not None:
            reservation.count_bytes(max(len(constraint.text) - asked, 0))
        if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            await self.tokenizing.learn_token_texts()
        salt = order.client.cache_salt  # first, and without a NUL: no client can name another's
        request = self._builder.build(
            ids,
            sampling,
            bad_words,
            priority=order.client.priority + order.priority,
            request_class=order.client.request_class,
            cache_salt=f"{salt}\0{order.cache_salt}" if order.cache_salt else salt,
            deadline=None if timeout is None else self._clock.now() + timeout,
            queue_timeout=None if deferred else self.settings.queue_timeout,
            stream=order.stream,
            lora=order.model if order.model in self.loras else "",
            constraint=constraint,
            routed_experts=order.routed_experts,
            pooling=pooling,
            client=order.client.identity,
            unsearched_token_ids=() if reading is None else reading.marks_besides(sampling.stop),
        )
        return request, reading

    async def _reading(self, order: Order, ids: tuple[int, ...]) -> Reading | None:
        """How the answers to an order are read: with the model's dialect, where they are turns of a conversation."""
        if self.dialect is None or not order.is_turn:
            return None
        tools = order.prompt.tools if isinstance(order.prompt, Conversation) else ()
        calls = self.dialect.dialect.calls
        if isinstance(order.prompt, Conversation) and order.prompt.continue_final_message:
            tail = self.dialect.text_tail
            if calls is not None and calls.bare:  # they stand at the beginning of a turn alone
                tools = ()
        else:
            tail = await self.tokenizing.decode(ids[-PROMPT_TAIL:], skip_special_tokens=False)
        token_text = None
        if self.dialect.counts_by_text:
            await self.tokenizing.learn_token_texts()
            token_text = self.tokenizing.token_text
        return Reading(self.dialect, order.calls.allowed(tools), tail, token_text)

    async def _prompt(self, order: Order, facts: EngineFacts) -> tuple[tuple[int, ...], Pooling | None]:
        """The ids of a prompt, and how it is pooled, which may depend on where the second of two texts begins."""
        prompt, special, pooling = order.prompt, order.add_special_tokens, order.pooling

        def check(length: int) -> None:
            if length > facts.max_model_len + 1:  # the first one may be dropped
                self._checks.check_length(length, order, facts)

        if isinstance(prompt, TextPair) or (isinstance(prompt, str) and pooling is not None):
            assert pooling is not None
            texts = attrs.astuple(prompt) if isinstance(prompt, TextPair) else (prompt,)
            how: dict[str, Any] = {"add_special_tokens": special, "at_most": order.truncate_prompt_tokens}
            encode = functools.partial(self.tokenizing.tokenizer.encode_pooled, *texts, **how, check=check)
            ids, second = await self.tokenizing.call(encode)
            return tuple(ids), attrs.evolve(pooling, second=second)
        if isinstance(prompt, str):
            return await self.tokenizing.encode(prompt, add_special_tokens=special, check=check), pooling
        if isinstance(prompt, Conversation):
            return await self.tokenizing.render(prompt, check), pooling
        return prompt, pooling


def encode_bad_words(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """Each text as ids, as it is written at the start of a line and after a space."""
    texts = [text for word in words for text in (word, " " + word.lstrip())]
    sequences = [
        tuple(tokenizer.encode(text, add_special_tokens=False, parse_special=False)) for text in texts
    ]
    return tuple(dict.fromkeys(each for each in sequences if each))


T = TypeVar("T")
TOKENIZER_THREADS: Final = min(4, max(1, (os.cpu_count() or 1) // 4))
"""Long prompts of many clients are encoded at the same time, without the interpreter's lock; the engine needs most cores for itself."""


class Tokenizing:
    """Asynchronous calls to a tokenizer, in a few threads, and to a template, in one.

    `token_text` and `token` are the exceptions: look-ups in tables that `learn_token_texts` fills in a thread.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, dialect: TokenizedDialect | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.dialect = dialect
        self._template = template
        self._threads = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")
        self._templates = ThreadPoolExecutor(1, thread_name_prefix="template")  # they may take long
        self._texts: list[str] = []
        self._parts: dict[int, bytes] = {}
        self.vocab_size = tokenizer.vocab_size

    async def encode(
        self, text: str, *, add_special_tokens: bool = True, check: Check = None
    ) -> tuple[int, ...]:
        """Text to ids; special tokens written in it are taken as such, so one that begins it is not put there twice."""

        def encoded() -> tuple[int, ...]:
            ids = tuple(self.tokenizer.encode(text, add_special_tokens=add_special_tokens, check=check))
            repeats = add_special_tokens and len(ids) > 1 and ids[:2] == self._beginning * 2
            return ids[1:] if repeats else ids

        return await self.call(encoded)

    async def render(self, conversation: Conversation, check: Check = None) -> tuple[int, ...]:
        """A conversation to ids; raises `BadValueError`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._templates, self._rendered, conversation, check)

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Ids to text."""
        return await self.call(lambda: self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    async def encode_bad_words(self, words: Collection[str]) -> tuple[tuple[int, ...], ...]:
        """Texts as the ids that must not be generated."""
        return await self.call(lambda: encode_bad_words(self.tokenizer, words)) if words else ()

    async def encode_marks(self, marks: Collection[str]) -> tuple[tuple[int, ...], ...]:
        """Marks as the ids that must not be generated: a mark that is a token is that one alone."""
        tokens = {} if self.dialect is None else self.dialect.control_tokens
        ids = tuple((token_id,) for token_id, text in tokens.items() if text in marks)
        return ids + await self.encode_bad_words(sorted({*marks} - {*tokens.values()}))

    async def learn_token_texts(self) -> None:
        """Fill the tables of `token_text` and `token`, once."""
        if not self._texts:
            self._texts, self._parts = await self.call(self._all_texts)

    def token_text(self, token_id: int) -> str:
        """The text of one token, special ones included; empty for an id without text, or before it was learned."""
        return self._texts[token_id] if token_id < len(self._texts) else ""

    def token(self, token_id: int) -> tuple[str, bytes]:
        """The text and the bytes of one token, which may be a part of a character."""
        text = self.token_text(token_id)
        return text, self._parts.get(token_id) or text.encode()

    def close(self) -> None:
        """End the threads once they are idle."""
        for each in (self._threads, self._templates):
            each.shutdown(wait=False, cancel_futures=True)

    async def call(self, work: Callable[[], T]) -> T:
        """Do something with the tokenizer in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _rendered(self, conversation: Conversation, check: Check) -> tuple[int, ...]:
        messages = conversation.messages
        ids = self._template.render(
            messages if self.dialect is None else self.dialect.messages(messages),
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            tools=conversation.tools,
            options=conversation.options,
            check=check,
        )
        return tuple(ids)

    @functools.cached_property
    def _beginning(self) -> tuple[int, ...]:
        """The token that the tokenizer puts before every text, if it does."""
        return tuple(self.tokenizer.encode("")[:1])

    def _all_texts(self) -> tuple[list[str], dict[int, bytes]]:
        """The text of every token, and the bytes of those that are parts of characters."""
        decode, bytes_of = self.tokenizer.decode, self.tokenizer.bytes_of
        texts = [decode([token], skip_special_tokens=False) for token in range(self.vocab_size)]
        return texts, {token: bytes_of(token) for token, text in enumerate(texts) if "\ufffd" in text}
