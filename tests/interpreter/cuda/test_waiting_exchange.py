"""Ranks that wait for one another, with the flags that the kernels themselves set and look for.

Each rank is a thread, and one of them runs at a time: whose turn it is, a die says at every instruction that touches memory. What a part will
lie in is NaN until it is written, so that who reads too early, or writes too early, is found out.
"""

from __future__ import annotations

import ctypes
import functools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.ranks.exchange import Exchange
from nanoserve.adapters.pytorch.cuda.sums import Pending
from nanoserve.adapters.pytorch.parallel.communicator import Communicator
from nanoserve.kernels.rank_sums.triton import add_ranks_kernel
from nanoserve.ports.errors import StepFailedError
from tests.interpreter.matrix import cases
from tests.triton_interpreter import REACHED

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="takes the place of instructions")
HIDDEN, VOCABULARY, CPU = 6, 13, torch.device("cpu")
ANY_KERNEL: Any = add_ranks_kernel
PATIENCE: Final = 3000
"""Looks of all ranks in a row that find nothing new, after which they wait for ever."""


class Turns:
    """Lets one of `size` threads run at a time, and another one after each instruction, as the dice fall."""

    def __init__(self, size: int, dice: random.Random) -> None:
        self.waits = 0
        self._condition, self._current, self._dice = threading.Condition(), 0, dice
        self._stays = dice.choice((0.0, 0.5, 0.9, 0.99))  # with which one rank comes far ahead of the others
        self._running = set(range(size))
        self._own = threading.local()

    def run(self, rank: int, work: Callable[[int], Any]) -> Any:
        self._own.rank = rank
        with self._condition:
            self._condition.wait_for(lambda: self._current == rank)
        try:
            return work(rank)
        finally:
            with self._condition:
                self._running.discard(rank)
                self._choose()

    def pass_on(self, builder: Any, *, waits: bool = False) -> None:
        """A place where another rank may run, unless it waits as well; the interpreter's program is this one's again afterwards."""
        rank, program, grid = self._own.rank, builder.grid_idx, builder.grid_dim
        if not waits and self._dice.random() < self._stays:
            return
        with self._condition:
            self._choose()
            self._condition.wait_for(lambda: self._current == rank)
        builder.grid_idx, builder.grid_dim = program, grid

    def _choose(self) -> None:
        if self._running:
            self._current = self._dice.choice(sorted(self._running))
        self._condition.notify_all()


Play = Callable[[int, random.Random, Callable[..., Any]], list[Any]]


class Value(NamedTuple):
    """The one result of an instruction."""

    handle: Any

    def get_result(self, _: int) -> Any:
        return self.handle


@attrs.define
class Memory:
    """A rank's block; the others' flags are looked for."""

    own: Tensor
    addresses: list[int] = attrs.field(factory=list)
    waits: bool = True

    def meet(self, ranks: Communicator) -> None:
        """All blocks are there already."""


@attrs.define
class Seat:
    """A rank that exchanges nothing over the host."""

    rank: int
    size: int

    all_reduce: Any = None
    all_gather: Any = None


def word(place: Any) -> Any:
    return ctypes.c_int64.from_address(int(place))


def halves(place: Any) -> list[tuple[int, int]]:
    """Of two words at a place, the number that is sent, and that of the exchange."""
    words = [word(place + 8 * half).value for half in (0, 1)]
    return [(each & 0xFFFFFFFF, each >> 32) for each in words]


def perform(asm: str, values: Sequence[Any], now: Turns, builder: Any) -> Any:
    """An instruction of `rank_sums/triton.py`, of each element; what it yields."""
    place, *others = [each.data for each in values]
    if "st.release.sys" in asm:
        word(place.item()).value = int(others[0].item())
    elif "st.relaxed.sys.global.v2" in asm:
        for at, packed, number in zip(place.flat, *(each.flat for each in others), strict=True):
            for half in (0, 1):
                now.pass_on(builder)
                low = int(packed) >> 32 * half & 0xFFFFFFFF
                word(at + 8 * half).value = low | int(number) << 32
    elif "ld." in asm:
        number, words, missed = (each.flat[0] for each in others)
        is_sent = "ld.relaxed.sys.global.v2" in asm

        def is_missing(at: int) -> bool:
            return any(each != number for _, each in halves(at)) if is_sent else word(at).value < number

        while any(map(is_missing, place.flat)) and not word(words).value:
            now.waits += 1
            if now.waits > PATIENCE:
                word(words).value = int(missed)
            now.pass_on(builder, waits=True)
        if is_sent:
            pairs = [halves(at) for at in place.flat]
            now.waits = 0
            return np.array([low | high << 32 for (low, _), (high, _) in pairs], "uint64").view("int64")
    now.waits = 0
    return 0 * place.astype("int32")


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Runs `work` on so many ranks, given the exchange of each, and a pause in which others may run."""
    from triton.runtime import interpreter  # noqa: PLC0415 - once it is known what interprets

    builder, turns = interpreter.InterpreterBuilder, list[Turns]()
    load, store = builder.create_masked_load, builder.create_masked_store

    def instruct(self: Any, asm: str, _constraints: str, values: Sequence[Any], *_: Any) -> Value:
        [now] = turns
        now.pass_on(self)
        found = perform(asm, values, now, self)
        dtype = interpreter.tl.int64 if found.dtype == "int64" else interpreter.tl.int32
        return Value(interpreter.TensorHandle(found, dtype))

    def passing(original: Callable[..., Any]) -> Callable[..., Any]:
        def access(self: Any, *arguments: Any) -> Any:
            turns[0].pass_on(self)
            return original(self, *arguments)

        return access

    def run(size: int, dice: random.Random, work: Callable[..., Any]) -> list[Any]:
        turns[:] = [Turns(size, dice)]
        exchanges = [make_exchange(Seat(rank, size)) for rank in range(size)]
        for each in exchanges:
            each._memory.addresses = [other._memory.own.data_ptr() for other in exchanges]
            each.meet()
        REACHED[:] = [each._memory.own for each in exchanges]
        REACHED.extend(tensor for each in exchanges for tensor in each._peers if isinstance(tensor, Tensor))
        with ThreadPoolExecutor(size) as pool:
            pause = functools.partial(turns[0].pass_on, interpreter.interpreter_builder)
            begin = functools.partial(turns[0].run, work=lambda rank: work(exchanges[rank], pause))
            return list(pool.map(begin, range(size)))

    monkeypatch.setattr(builder, "create_inline_asm", instruct)
    monkeypatch.setattr(builder, "create_masked_load", passing(load))
    monkeypatch.setattr(builder, "create_masked_store", passing(store))
    interpreter.interpreter_builder.set_grid_dim(1, 1, 1)
    interpreter.interpreter_builder.set_grid_idx(0, 0, 0)
    language = interpreter._patch_lang(ANY_KERNEL.fn)  # kept, whichever of several launches ends first
    monkeypatch.setattr(interpreter, "_patch_lang", lambda _: interpreter._LangPatchScope())
    try:
        yield run
    finally:
        language.restore()
        REACHED.clear()


def make_exchange(seat: Seat) -> Exchange:
    def make_memory(size: int) -> Memory:
        return Memory(torch.zeros(size, dtype=torch.uint8))

    sizes = {"max_tokens": 9, "hidden": HIDDEN, "max_logits": 3, "vocab_size": VOCABULARY}
    return Exchange(seat, make_memory, **sizes, dtype=torch.float32, device=CPU)


class Step(NamedTuple):
    """The rows of each of an even number of sums, gatherings of logits, and whether parts of few rows are sent."""

    rows: tuple[int, ...]
    gathered: int
    sends: bool = False


def draw_steps(dice: random.Random) -> list[Step]:
    rows = [tuple(sorted(dice.choices(range(1, 4), k=2), reverse=True)) for _ in range(3)]
    return [Step(each, dice.randint(0, 3), dice.random() < 0.5) for each in rows]


def numbers(rank: int, *what: int) -> Tensor:
    """Small integers [3, VOCABULARY] that a rank adds or fills in."""
    generator = torch.Generator().manual_seed(hash((rank, *what)))
    return torch.randint(-50, 50, (3, VOCABULARY), generator=generator).float()


def fill(place: Tensor, found: Tensor, pause: Callable[[], None]) -> Tensor:
    """As a kernel does it that another one waits for."""
    place.fill_(torch.nan)
    pause()
    return place.copy_(found)


def reached(tensor: Tensor) -> Tensor:
    REACHED.append(tensor)
    return tensor


def compute(steps: Sequence[Step], exchange: Exchange, pause: Callable[[], None]) -> list[list[Any]]:
    """What a rank finds in all steps."""
    found = []
    for number, step in enumerate(steps):
        exchange.begin(sends=step.sends)
        for turn, rows in enumerate(step.rows):
            stream = reached(torch.zeros(rows, HIDDEN))
            own = numbers(exchange.ranks.rank, number, turn)[:rows, :HIDDEN]
            part = fill(exchange.part(rows), own, pause)
            exchange.complete(stream, Pending(part[None]), None, stream)
            found.append(stream.tolist())
        for turn in range(step.gathered):
            share = exchange._share
            begin, end = (
                min(VOCABULARY, each * share) for each in (exchange.ranks.rank, exchange.ranks.rank + 1)
            )
            logits = reached(torch.zeros(1 + turn, VOCABULARY))
            own = numbers(0, number, turn, 1)[: len(logits), begin:end]
            fill(exchange.columns(logits, end - begin), own, pause)
            exchange.gather(logits)
            found.append(logits.tolist())
    exchange.check()
    return found


def wanted(steps: Sequence[Step], size: int) -> list[list[Any]]:
    """The same by formulas."""
    found = []
    for number, step in enumerate(steps):
        for turn, rows in enumerate(step.rows):
            parts = [numbers(rank, number, turn)[:rows, :HIDDEN] for rank in range(size)]
            found.append(torch.stack(parts).sum(0).tolist())
        found += [numbers(0, number, turn, 1)[: 1 + turn].tolist() for turn in range(step.gathered)]
    return found


@cases("seed", [*range(5), 69], also=[*range(5, 69), *range(70, 100)])
def test_whoever_is_ahead_all_ranks_read_what_the_others_have_written(play: Play, seed: int) -> None:
    dice = random.Random(seed)
    size, steps = dice.randint(2, 3), draw_steps(dice)
    assert play(size, dice, functools.partial(compute, steps)) == [wanted(steps, size)] * size


@pytest.mark.parametrize("sends", [False, True])
def test_a_rank_that_makes_one_sum_less_is_missed(play: Play, *, sends: bool) -> None:
    """The others do not wait for ever, and who is missed is known."""

    def work(exchange: Exchange, pause: Callable[[], None]) -> None:
        compute([Step((1, 1), 1, sends)], exchange, pause)
        if exchange.ranks.rank == 1:
            return
        with pytest.raises(StepFailedError, match="rank 1 did not answer"):
            compute([Step((1, 1), 0, sends)], exchange, pause)

    play(2, random.Random(0), work)
