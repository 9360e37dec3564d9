"""From an `Order` to a running `Generation`: the one way by which every protocol reaches the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nanoserve.entrypoints.app.admission import Admission, Place
from nanoserve.entrypoints.app.edge_checks import EdgeChecks
from nanoserve.entrypoints.app.generation import Generation
from nanoserve.entrypoints.app.measurements import Measurements
from nanoserve.entrypoints.app.orders import Conversation, Order
from nanoserve.entrypoints.app.requests import RequestBuilder
from nanoserve.entrypoints.app.settings import ServiceSettings
from nanoserve.entrypoints.app.tokenizing import Tokenizing, TokenOffsets
from nanoserve.ports.checks import check_vocabulary, shown
from nanoserve.ports.driven import ChatTemplate, Clock, Tokenizer
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.errors import EngineLoadingError, UnknownModelError
from nanoserve.ports.request import Request


class TextService:
    """Takes orders, bounded; lives on one event loop.

    `admission`, `settings` and `measurements` are there to be read by metrics and pages.
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
    ) -> None:
        self.engine = engine
        self.measurements = measurements or Measurements(clock)
        self.settings = settings
        self.admission = Admission(settings)
        self.eos_token_ids = frozenset(eos_token_ids) | frozenset(tokenizer.eos_token_ids)
        self._tokenizing = Tokenizing(tokenizer, template)
        self._checks = EdgeChecks(settings)
        self._clock = clock
        self._builder = RequestBuilder(eos_token_ids=self.eos_token_ids, prefix="r")

    @property
    def facts(self) -> EngineFacts:
        """Of the engine; raises `EngineLoadingError` before the first one is ready."""
        if self.engine.facts is None:
            raise EngineLoadingError("the engine is still loading the model; try again later", retry_after=5)
        return self.engine.facts

    @property
    def model_names(self) -> tuple[str, ...]:
        """Served names; the first is what answers say."""
        return self.settings.model_names

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Sampling values that stand in where a request gives none."""
        return self.settings.defaults

    @property
    def defaults_origin(self) -> str:
        """The file that `defaults` come from."""
        return self.settings.defaults_origin

    @property
    def active(self) -> int:
        """Living generations, those being tokenized included."""
        return self.admission.living

    @property
    def tokenizer_vocab_size(self) -> int:
        """One more than the largest id with a text."""
        return self._tokenizing.vocab_size

    def begin_drain(self) -> None:
        """Take no more orders; those accepted go on."""
        self.admission.draining = True

    def close(self) -> None:
        """Let the tokenizer's thread end."""
        self._tokenizing.close()

    def check_model(self, name: str | None) -> str:
        """The name that answers use; raises `UnknownModelError` for one that is not served. None is any."""
        if name is not None and name not in self.model_names:
            served = ", ".join(self.model_names)
            raise UnknownModelError(f"the model {shown(name)} does not exist here; this server has: {served}")
        return self.model_names[0]

    def check_count(self, orders: int) -> None:
        """Raise `BadValueError` for more orders than `open_all` could ever accept together."""
        self.admission.check_count(orders, rows=self.facts.max_num_seqs)

    async def open(self, order: Order) -> Generation:
        """Accept an order and hand it to the engine.

        Raises `OverloadedError`, `DrainingError` or `EngineLoadingError` before any work, `PromptTooLongError` and
        `BadValueError` for what can be told at the edge; what only the engine can tell, the pieces raise.
        """
        return (await self.open_all([order]))[0]

    async def open_all(self, orders: Sequence[Order]) -> list[Generation]:
        """Accept several orders, or none of them; raises as `open` does."""
        facts = self.facts
        self._checks.check_samplings(orders, facts)
        wanted = [(order.sampling.n, self._checks.check_order(order, facts)) for order in orders]
        places = self.admission.take(wanted, rows=facts.max_num_seqs)
        opened: list[Generation] = []
        try:
            wordings = {order.sampling.bad_words for order in orders}
            encoded = {words: await self._tokenizing.encode_bad_words(words) for words in wordings}
            requests = [
                await self._request(order, place, facts, encoded[order.sampling.bad_words])
                for order, place in zip(orders, places, strict=True)
            ]
            for request, place in zip(requests, places, strict=True):
                reply = self.measurements.measured(request, self.engine.submit(request))
                opened.append(Generation(request, reply, place))
        except BaseException:
            for generation in opened:
                generation.cancel()
            for place in places:
                place.give_back()
            raise
        return opened

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Text to ids; raises `PromptTooLongError` for a text that is not worth reading."""
        self._checks.check_characters(len(text), self.facts)
        with self.admission.visit():
            return await self._tokenizing.encode(text, add_special_tokens=add_special_tokens)

    async def render(self, conversation: Conversation) -> tuple[int, ...]:
        """A conversation to the ids of its prompt; raises `BadValueError` and `PromptTooLongError`."""
        self._checks.check_conversation(conversation, self.facts)
        with self.admission.visit():
            return await self._tokenizing.render(conversation)

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Ids to text; raises `BadValueError` for ids outside the vocabulary."""
        check_vocabulary("tokens", ids, self.facts.vocab_size)
        with self.admission.visit():
            return await self._tokenizing.decode(ids, skip_special_tokens=skip_special_tokens)

    def offsets(self, prompt: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TokenOffsets:
        """Counts characters in a text that continues a prompt's."""
        return self._tokenizing.offsets(prompt, skip_special_tokens=skip_special_tokens)

    async def learn_token_texts(self) -> None:
        """Make `token_text` answer; opening an order with log-probabilities does this too."""
        await self._tokenizing.learn_token_texts()

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself, special ones included; empty for an id without text."""
        return self._tokenizing.token_text(token_id)

    async def _request(
        self, order: Order, place: Place, facts: EngineFacts, bad_words: tuple[tuple[int, ...], ...]
    ) -> Request:
        ids = await self._prompt(order)
        ids = self._checks.fitted(ids, order, facts)
        place.count_tokens(len(ids))
        sampling = order.sampling
        if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            await self.learn_token_texts()
        return self._builder.build(
            ids,
            sampling,
            bad_words,
            priority=order.client.priority + order.priority,
            request_class=order.client.request_class,
            cache_salt=_joined_salt(order),
            deadline=self._deadline(order),
            queue_timeout=self.settings.queue_timeout,
            stream=order.stream,
        )

    async def _prompt(self, order: Order) -> tuple[int, ...]:
        prompt = order.prompt
        if isinstance(prompt, str):
            return await self._tokenizing.encode(prompt, add_special_tokens=order.add_special_tokens)
        if isinstance(prompt, Conversation):
            return await self._tokenizing.render(prompt)
        return prompt

    def _deadline(self, order: Order) -> float | None:
        bounds = [each for each in (order.timeout, self.settings.request_timeout) if each is not None]
        return self._clock.now() + min(bounds) if bounds else None


def _joined_salt(order: Order) -> str:
    """No client can name another's salt: the client's own part comes first and holds no NUL."""
    return f"{order.client.cache_salt}\0{order.cache_salt}" if order.cache_salt else order.client.cache_salt
