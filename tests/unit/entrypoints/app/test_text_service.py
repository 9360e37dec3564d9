"""Orders on their way to the engine, where no protocol shows it: places, refusals, what clients' settings add up to, and time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import attrs
import pytest

from nanoserve.adapters.system.process import SystemClock
from nanoserve.entrypoints.app.answer import Answer
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.app.orders import Client, Conversation, Order, ServiceSettings
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.assembly import Assembly
from nanoserve.ports.driven import Message
from nanoserve.ports.errors import (
    BadValueError,
    DeadlineError,
    PromptTooLongError,
)
from nanoserve.ports.request import DEFERRED_CLASS
from nanoserve.ports.sampling import SamplingParams
from tests.unit.entrypoints.scripted_engine import ScriptedEngine
from tests.unit.entrypoints.scripted_world import ColonTemplate, alone, scripted_assembly

SETTINGS = ServiceSettings(model_names=("m", "other"), max_waiting_requests=4)
SHORT = SamplingParams(max_tokens=12, seed=7)


@contextlib.asynccontextmanager
async def played(
    settings: ServiceSettings = SETTINGS, assembly: Assembly | None = None
) -> AsyncIterator[tuple[TextService, ScriptedEngine]]:
    """A service over an engine; afterwards nothing may be left of it."""
    built = assembly or scripted_assembly()
    engine = ScriptedEngine(built)
    service = TextService(
        engine=engine,
        tokenizer=built.tokenizer,
        template=built.template,
        eos_token_ids=built.spec.eos_token_ids,
        clock=SystemClock(),
        settings=settings,
    )
    await engine.start()
    try:
        yield service, engine
    finally:
        await engine.stop()
        service.tokenizing.close()
    held = service.reservations
    assert (
        held.living,
        held.counts["waiting"],
        held.counts["waiting_tokens"],
        held.counts["running_sequences"],
    ) == (0, 0, 0, 0)


async def until(condition: Callable[[], bool]) -> None:
    """Look between any two turns of the engine."""
    while not condition():  # noqa: ASYNC110 - it looks between any two turns
        await asyncio.sleep(0)


async def text_of(turns: AsyncIterator[list[Piece]]) -> str:
    return "".join([piece.text async for pieces in turns for piece in pieces])


async def test_a_place_is_kept_while_the_prompt_is_tokenized() -> None:
    async with played() as (service, engine):
        opening = asyncio.ensure_future(service.open(Order(prompt="hello", sampling=SHORT)))
        await asyncio.sleep(0)
        assert service.reservations.living == 1
        assert not engine.requests
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert not engine.requests


async def test_cancelling_frees_the_engine_at_any_moment_and_any_number_of_times() -> None:
    async with played() as (service, engine):
        params = SamplingParams(max_tokens=100, n=2, seed=1)
        for read in (0, 1, 5):
            generation = await service.open(Order(prompt="hello", sampling=params, stream=True))
            pieces = generation.pieces()
            for _ in range(read):
                await anext(pieces)
            generation.cancel()
            generation.cancel()
            before = engine.turns
            await until(lambda: engine.is_idle)
            assert engine.turns - before <= 2
            assert service.reservations.living == 0


async def test_what_is_refused_leaves_nothing_behind() -> None:
    orders: list[tuple[Order, type[Exception]]] = [
        (Order(prompt="", sampling=SHORT), BadValueError),
        (Order(prompt=(), sampling=SHORT), BadValueError),
        (Order(prompt=(31,), sampling=SHORT), BadValueError),
        (Order(prompt=(True,), sampling=SHORT), BadValueError),
        (Order(prompt="a" * 128, sampling=SHORT), PromptTooLongError),
        (Order(prompt="a" * 117, sampling=SHORT), PromptTooLongError),
        (Order(prompt="a" * (8 * 128 + 1), sampling=SHORT), PromptTooLongError),
        (Order(prompt="a", sampling=SHORT, truncate_prompt_tokens=0), BadValueError),
        (Order(prompt="a", sampling=SamplingParams(stop_token_ids=[31])), BadValueError),
        (Order(prompt="a", sampling=SamplingParams(n=128, max_tokens=2**20)), BadValueError),
        (
            Order(prompt=Conversation([{"role": "u", "content": "x" * 1025}]), sampling=SHORT),
            PromptTooLongError,
        ),
        (Order(prompt=Conversation([{}] * 5000), sampling=SHORT), BadValueError),
    ]

    async with played() as (service, engine):
        for order, error in orders:
            with pytest.raises(error):
                await service.open_all([Order(prompt="fine", sampling=SHORT), order])
            assert service.reservations.living == 0
        assert not engine.requests


async def test_what_only_the_engine_can_refuse_is_raised_by_the_pieces() -> None:
    async with played() as (service, _engine):
        stranger = Client(request_class="unheard of")
        generation = await service.open(Order(prompt="a", sampling=SHORT, client=stranger))
        with pytest.raises(Exception, match="unheard of"):
            await text_of(generation.pieces())


async def test_the_bounds_of_time_are_the_requests() -> None:
    settings = attrs.evolve(SETTINGS, request_timeout=60, queue_timeout=30)
    async with played(settings) as (service, engine):
        generation = await service.open(Order(prompt="a", sampling=SHORT))
        deadline = engine.requests[-1].deadline
        assert deadline is not None
        assert 0 < deadline - SystemClock().now() <= 60
        assert engine.requests[-1].queue_timeout == 30
        await text_of(generation.pieces())


async def test_what_can_wait_has_no_bounds_of_time() -> None:
    settings = attrs.evolve(SETTINGS, request_timeout=60, queue_timeout=30)
    async with played(settings) as (service, engine):
        client = Client(request_class=DEFERRED_CLASS)
        generation = await service.open(Order(prompt="a", sampling=SHORT, client=client))
        assert (engine.requests[-1].deadline, engine.requests[-1].queue_timeout) == (None, None)
        await text_of(generation.pieces())


async def test_salts_of_clients_and_orders_cannot_meet() -> None:
    async with played() as (service, engine):
        for client, own in (("ab", ""), ("ab", "c"), ("a", "bc"), ("", "ab")):
            order = Order(prompt="a", sampling=SHORT, client=Client(cache_salt=client), cache_salt=own)
            await text_of((await service.open(order)).pieces())
        salts = [each.cache_salt for each in engine.requests]
        assert len(set(salts)) == 4
        assert salts[0] == "ab"


async def test_priorities_of_clients_and_orders_add_up() -> None:
    async with played() as (service, engine):
        order = Order(prompt="a", sampling=SHORT, client=Client(priority=3), priority=-5)
        await text_of((await service.open(order)).pieces())
        assert engine.requests[0].priority == -2


async def test_several_generations_as_one_stream() -> None:
    async with played() as (service, _engine):
        prompts = ["hello", "abc", "xyz"]
        orders = [Order(prompt=each, sampling=SHORT, stream=True) for each in prompts]
        answer = Answer(await service.open_all(orders), keep=True)
        order_of_arrival = []
        async with answer.reading() as turns:
            async for pieces in turns:
                order_of_arrival += [answer.add(piece).index for piece in pieces]
        assert [each.joined().text for each in answer.choices] == [alone(each) for each in prompts]
        assert order_of_arrival != sorted(order_of_arrival), "one is read while another goes on"
        async with Answer(await service.open_all(orders), keep=False).reading() as turns:
            await anext(turns)
        assert service.reservations.living == 0


async def test_the_time_of_a_request_counts_while_its_template_is_filled() -> None:
    may_go = threading.Event()

    class Blocked(ColonTemplate):
        def render(self, messages: Sequence[Message], /, **given: Any) -> list[int]:
            may_go.wait()
            return super().render(messages, **given)

    async with played(attrs.evolve(SETTINGS, request_timeout=0.5)) as (service, _engine):
        service.tokenizing._template = Blocked()
        order = Order(prompt=Conversation(messages=({"role": "u", "content": "a"},)), sampling=SHORT)
        with pytest.raises(DeadlineError, match="before its prompt was ready"):
            await service.open(order)
        assert service.reservations.living == 0
        may_go.set()
