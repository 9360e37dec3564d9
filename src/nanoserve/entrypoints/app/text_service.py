"""From an `Order` to a running `Generation`: the one way by which every protocol reaches the engine."""

from __future__ import annotations

import asyncio
import fnmatch
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final

import attrs

from nanoserve.domain.text.dialects.schema import held, outline
from nanoserve.domain.text.dialects.tokenized import PROMPT_TAIL, TokenizedDialect
from nanoserve.entrypoints.app.admission import EdgeChecks, Reservation, Reservations
from nanoserve.entrypoints.app.generation import Generation, Reading
from nanoserve.entrypoints.app.measurements import Measurements
from nanoserve.entrypoints.app.orders import Conversation, Order
from nanoserve.entrypoints.app.settings import ServiceSettings
from nanoserve.entrypoints.app.tokenizing import RequestBuilder, Tokenizing
from nanoserve.ports.checks import check_vocabulary, shown
from nanoserve.ports.counts import Counts
from nanoserve.ports.driven import ChatTemplate, Clock, Tokenizer
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.errors import BadValueError, DeadlineError, EngineLoadingError, UnknownModelError
from nanoserve.ports.grammar import BOUNDED_WHITESPACE, Constraint, ConstraintKind
from nanoserve.ports.request import Request
from nanoserve.ports.tool_calls import Tool

_LONGEST_NAME: Final = 256
"""Characters of a name that a client chooses: each piece of a stream repeats it."""


class TextService:
    """Takes orders, bounded; lives on one event loop.

    Where several processes share an engine, `reservations` are counted together, and the engine tells the requests of each
    by its `owner`.

    Attributes:
        settings: the names, defaults and bounds that it was built with.
        reservations: what is accepted, waits and runs.
        tokenizing: the tokenizer, unbounded; `encode`, `render` and `decode` here are bounded like the queue.
        measurements: what is counted of its requests.
        dialect: how the model writes reasoning and calls; None where that is not known.

    Args:
        check_constraint: begins to look at one for a client, elsewhere, and raises `BadValueError` for one that cannot be kept; True for
            one that is composed around another that was looked at.
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
        self._check_constraint = check_constraint
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

    def begin_drain(self) -> None:
        """Take no more orders; those accepted go on."""
        self.reservations.begin_drain()

    def close(self) -> None:
        """Let the tokenizer's thread end."""
        self.tokenizing.close()

    def check_model(self, name: str | None) -> str:
        """The name that answers use; raises `UnknownModelError` for one that is not served. None is any."""
        names = self.settings.model_names
        if name is None or name in names:
            return names[0]
        patterns = self.settings.model_aliases if len(name) <= _LONGEST_NAME else ()
        if any(fnmatch.fnmatchcase(name, each.replace("[", "[[]")) for each in patterns):
            return name
        raise UnknownModelError(
            f"the model {shown(name)} does not exist here; this server has: {', '.join(names)} "
            "(nanoserve serve --model-alias NAME adds a name)"
        )

    def check_count(self, orders: int) -> None:
        """Raise `BadValueError` for more orders than `open_all` could ever accept together."""
        self.reservations.check_count(orders, rows=self.facts.max_num_seqs)

    async def open(self, order: Order) -> Generation:
        """Accept an order and hand it to the engine.

        Raises `OverloadedError`, `DrainingError` or `EngineLoadingError` before any work, `PromptTooLongError` and
        `BadValueError` for what can be checked at the edge; what only the engine can check, the pieces raise.
        """
        return (await self.open_all([order]))[0]

    async def open_all(self, orders: Sequence[Order]) -> list[Generation]:
        """Accept several orders, or none of them; raises as `open` does."""
        facts = self.facts
        self._checks.check_samplings(orders, facts)
        wanted = [(order.sampling.n, self._checks.check_order(order, facts)) for order in orders]
        reservations = self.reservations.take(wanted, rows=facts.max_num_seqs)
        opened: list[Generation] = []
        try:
            wordings = {order.sampling.bad_words for order in orders}
            encoded = {words: await self.tokenizing.encode_bad_words(words) for words in wordings}
            requests = [
                await self._request(order, reservation, facts, encoded[order.sampling.bad_words])
                for order, reservation in zip(orders, reservations, strict=True)
            ]
            for order, (request, reading), reservation in zip(orders, requests, reservations, strict=True):
                reply, meter = self.engine.submit(request), self.measurements.meter(request)
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

    async def render(self, conversation: Conversation) -> tuple[int, ...]:
        """A conversation to the ids of its prompt; raises `BadValueError` and `PromptTooLongError`."""
        self._checks.check_conversation(conversation, self.facts)
        with self.reservations.tokenizing():
            return await self.tokenizing.render(conversation)

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
        try:
            async with asyncio.timeout(self.settings.request_timeout):
                ids = await self._prompt(order)
        except TimeoutError:
            raise DeadlineError(
                "the time for this request was over before its prompt was ready; try again later"
            ) from None
        ids = self._checks.fitted(ids, order, facts)
        reservation.count_tokens(len(ids))
        sampling, timeout = order.sampling, self.settings.request_timeout
        reading = await self._reading(order, ids)
        if reading is not None:
            # Its marks may be special tokens; the parser drops those that are no part of an answer.
            sampling = attrs.evolve(sampling, skip_special_tokens=False)
        asked = 0 if order.format is None else len(order.format.constraint.text)
        reservation.count_bytes(asked)
        constraint = await self._constraint(order, reading)
        if constraint is not None:
            reservation.count_bytes(max(len(constraint.text) - asked, 0))
        if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            await self.tokenizing.learn_token_texts()
        request = self._builder.build(
            ids,
            sampling,
            bad_words,
            priority=order.client.priority + order.priority,
            request_class=order.client.request_class,
            cache_salt=_joined_salt(order),
            deadline=None if timeout is None else self._clock.now() + timeout,
            queue_timeout=self.settings.queue_timeout,
            stream=order.stream,
            constraint=constraint,
            client=order.client.identity,
            unsearched_token_ids=() if reading is None else reading.marks_besides(sampling.stop),
        )
        return request, reading

    async def _constraint(self, order: Order, reading: Reading | None) -> Constraint | None:
        """The constraint of the answers, checked as far as it can be without the engine; raises `BadValueError`."""
        name, client = order.constraint_name, order.client.identity
        if order.format is not None and order.format.constraint.whitespace == BOUNDED_WHITESPACE:
            constraint = attrs.evolve(order.format.constraint, whitespace=self.settings.whitespace)
            order = attrs.evolve(order, format=attrs.evolve(order.format, constraint=constraint))
        found = None if order.format is None else order.format.constraint
        if found is not None:  # alone first: what is wrong with a part is said in its own words
            await self._check(client, name, found)
        if reading is not None:
            for tool in reading.tools:
                if tool.form is not None:  # also before it is changed, which takes as long as it is large
                    await self._check(client, "tools", tool.form, f"{shown(tool.name)} ")
            found = await asyncio.to_thread(reading.constraint, order)
        if found is None:
            return None
        if order.sampling.ignore_eos:
            raise BadValueError("ignore_eos", f"does not go with {name}, which says where an answer ends")
        if reading is None or not reading.tools:
            await self._check(client, name, found, is_composed=reading is not None)
            return found
        reading = attrs.evolve(
            reading, tools=tuple([await self._held(client, tool) for tool in reading.tools])
        )
        try:
            return await self._checked(client, name, reading, order)
        except BadValueError:
            outlined = tuple(
                tool if tool.strict else attrs.evolve(tool, parameters=outline(tool.parameters))
                for tool in reading.tools
            )
            if outlined == reading.tools:
                raise
            return await self._checked(client, name, attrs.evolve(reading, tools=outlined), order)

    async def _checked(self, client: str, name: str, reading: Reading, order: Order) -> Constraint | None:
        found = await asyncio.to_thread(reading.constraint, order)
        if found is not None:
            await self._check(client, name, found)
        return found

    async def _held(self, client: str, tool: Tool) -> Tool:
        """A tool as a grammar can hold it. Raises `BadValueError` for a strict one that cannot be held; any other loses what cannot."""
        if tool.form is not None:
            return tool
        options = {} if tool.strict else {"x-guidance": {"lenient": True}}
        schema = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps({**held(tool), **options}))
        try:
            await self._check(client, "tools", schema, f"{shown(tool.name)} ")
        except BadValueError:
            if tool.strict:
                raise
            return attrs.evolve(tool, parameters=outline(tool.parameters))
        return tool

    async def _check(
        self, client: str, name: str, constraint: Constraint, which: str = "", *, is_composed: bool = False
    ) -> None:
        if self._check_constraint is None:
            return
        try:
            await asyncio.wrap_future(self._check_constraint(constraint, client, is_composed))
        except BadValueError as error:
            raise BadValueError(name, f"{which}cannot be kept: {error}") from None

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

    async def _prompt(self, order: Order) -> tuple[int, ...]:
        prompt = order.prompt
        if isinstance(prompt, str):
            return await self.tokenizing.encode(prompt, add_special_tokens=order.add_special_tokens)
        if isinstance(prompt, Conversation):
            return await self.tokenizing.render(prompt)
        return prompt


def _joined_salt(order: Order) -> str:
    """No client can name another's salt: the client's own part comes first and holds no NUL."""
    return f"{order.client.cache_salt}\0{order.cache_salt}" if order.cache_salt else order.client.cache_salt
