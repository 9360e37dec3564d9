"""A trace that is drawn: conversations of tenants that have system prompts of their own, in bursts.

Conversations begin at random (Poisson) moments. Each belongs to a tenant, drawn by Zipf's law, and all of a tenant's conversations open with
the same system prompt. A turn's prompt holds everything before it, answers included, so most of it is in the cache of
the replica that answered last, if it is there still. Lengths are log-normal, the number of turns is geometric. Turns come
when the trace says so, however long the answers take.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator
from typing import Final

import attrs

from nanoserve.ports.checks import check_integer, check_number
from nanoserve.ports.traffic import TracedRequest
from nanoserve_cluster.ports.simulation import RandomSource

_SIGMA: Final = 0.6
"""The standard deviation of the logarithm of a length: the 99th percentile is about 3.4 times the mean."""
_LEAD_TURNS: Final = 3.0
"""Conversations begin so many mean durations before the trace does, so that its first minute is like the others."""


@attrs.frozen(kw_only=True)
class WorkloadShape:
    """How a trace is drawn.

    Attributes:
        rate: requests per second on average, bursts not counted.
        duration: seconds.
        tenants: how many system prompts there are; `skew` is the exponent of Zipf's law.
        system_tokens, user_tokens, answer_tokens: mean lengths.
        turns: of a conversation, on average, and `think_seconds` between two of them.
        burst: how many times the rate is in a burst; they last `burst_seconds` and begin every `burst_period`.
        hot_from, hot_share: from that moment on, the first tenant gets that share of all conversations.
    """

    rate: float
    duration: float
    tenants: int = 40
    skew: float = 1.0
    system_tokens: int = 1500
    user_tokens: int = 300
    answer_tokens: int = 250
    turns: float = 5.0
    think_seconds: float = 40.0
    burst: float = 1.0
    burst_seconds: float = 20.0
    burst_period: float = 120.0
    hot_from: float = math.inf
    hot_share: float = 0.0

    def __attrs_post_init__(self) -> None:
        check_number("rate", self.rate, 0.0, 1e6, open_low=True)
        check_number("duration", self.duration, 0.0, 1e7, open_low=True)
        check_number("turns", self.turns, 1.0, 1000.0)
        check_number("burst", self.burst, 1.0, 1e4)
        check_number("hot_share", self.hot_share, 0.0, 1.0)
        for name in ("tenants", "system_tokens", "user_tokens", "answer_tokens"):
            check_integer(name, getattr(self, name), low=1)


def draw_trace(shape: WorkloadShape, random: RandomSource) -> list[TracedRequest]:
    """The requests of one trace in the order of their times; the same source gives the same ones."""
    return sorted(_Drawing(shape, random).requests(), key=lambda each: each.at)


class _Drawing:
    def __init__(self, shape: WorkloadShape, random: RandomSource) -> None:
        self._shape = shape
        self._random = random
        self._ids = itertools.count(0, 2)
        weights = [(1 + rank) ** -shape.skew for rank in range(shape.tenants)]
        self._shares = list(itertools.accumulate(weight / sum(weights) for weight in weights))
        self._systems = [(next(self._ids), self._length(shape.system_tokens)) for _ in weights]

    def requests(self) -> Iterator[TracedRequest]:
        shape = self._shape
        rate = shape.rate / shape.turns
        at = -_LEAD_TURNS * shape.turns * shape.think_seconds
        for conversation in itertools.count():
            at += self._random.expovariate(rate * shape.burst)
            if at >= shape.duration:
                return
            # Thinning: arrivals are drawn as often as in a burst, and outside of bursts only some of them count.
            if self._is_burst(at) or self._random.random() * shape.burst < 1:
                yield from self._conversation(conversation, at)

    def _conversation(self, number: int, at: float) -> Iterator[TracedRequest]:
        shape = self._shape
        prompt: tuple[tuple[int, int], ...] = (self._systems[self._tenant(at)],)
        while at < shape.duration:
            question = next(self._ids)
            prompt = (*prompt, (question, self._length(shape.user_tokens)))
            answer = self._length(shape.answer_tokens)
            if at >= 0:
                yield TracedRequest(at=at, prompt=prompt, output_tokens=answer, affinity=number)
            prompt = (*prompt, (question + 1, answer))
            if self._random.random() * shape.turns < 1:
                return
            at += self._random.expovariate(1 / shape.think_seconds)

    def _tenant(self, at: float) -> int:
        if at >= self._shape.hot_from and self._random.random() < self._shape.hot_share:
            return 0
        return min(bisect.bisect(self._shares, self._random.random()), len(self._shares) - 1)

    def _is_burst(self, at: float) -> bool:
        # Half a period ahead: a trace does not begin with a burst.
        return (at + self._shape.burst_period / 2) % self._shape.burst_period < self._shape.burst_seconds

    def _length(self, mean: int) -> int:
        return max(1, round(self._random.lognormvariate(math.log(mean) - _SIGMA**2 / 2, _SIGMA)))
