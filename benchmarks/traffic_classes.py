"""The classes of `benchmarks.traffic`: what their requests share, how long they are, and when they are sent."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.bench.serving.client import draw_schedule
from nanoserve.entrypoints.bench.serving.request_files import IDS, prompt_ids
from nanoserve.ports.traffic import TracedRequest

MOST: Final = 8
"""Log-normal lengths are cut at so many times their median."""


@attrs.frozen(kw_only=True)
class TrafficClass:
    """One kind of traffic. Lengths are tokens, times are seconds.

    Attributes:
        documents: how many common beginnings there are, of `document_len` each.
        documents_each: how many of them a request has, in random order, before tokens of its own.
        input_len, output_len: a turn's own tokens, and its answer's; with a `sigma`, medians of log-normal lengths.
        turns: requests of one conversation, each of which repeats everything before it.
        pause: mean time from an answer to the next turn, exponentially distributed; conversations begin within the first.
        bursts: so many of `burst_seconds`, a `period` apart; 0 sends everything at once.
        load: arrivals are a Poisson process at this fraction of the measured capacity.
    """

    name: str
    documents: int = 0
    document_len: int = 0
    documents_each: int = 1
    input_len: int = 512
    output_len: int = 128
    sigma: float = 0.0
    turns: int = 1
    pause: float = 0.0
    bursts: int = 0
    burst_seconds: float = 0.5
    period: float = 4.0
    load: float | None = None

    @property
    def longest(self) -> int:
        """The most tokens that a prompt and its answer can have together."""
        own = self.turns * (self.input_len + self.output_len) * (MOST if self.sigma else 1)
        return own + (self.documents_each * self.document_len if self.documents else 0)

    def scaled(self, scale: float) -> TrafficClass:
        """With all lengths and times multiplied; no length is below one token."""
        lengths = {
            name: max(1, round(scale * getattr(self, name)))
            for name in ("document_len", "input_len", "output_len")
        }
        times = {name: scale * getattr(self, name) for name in ("pause", "burst_seconds", "period")}
        return attrs.evolve(self, **lengths, **times)


SYSTEM_PROMPT: Final = TrafficClass(name="system-prompt", documents=1, document_len=2048, input_len=128)
FEW_SHOT: Final = TrafficClass(name="few-shot", documents=8, document_len=1024, input_len=64, output_len=32)
RAG: Final = TrafficClass(name="rag", documents=16, document_len=512, documents_each=4, input_len=64)
CONVERSATIONS: Final = TrafficClass(name="conversations", input_len=128, turns=6, pause=2.0)
AGENTS: Final = TrafficClass(
    name="agents", documents=1, document_len=4096, input_len=128, output_len=48, turns=12, pause=0.1
)
CHAT: Final = TrafficClass(name="chat", input_len=256, sigma=1.0)
SUMMARIES: Final = TrafficClass(name="summaries", input_len=8192, output_len=200)
BURSTS: Final = TrafficClass(name="bursts", bursts=4)
CAPACITY: Final = TrafficClass(name="steady, all at once")
STEADY: Final = [TrafficClass(name=f"steady at {load:g}", load=load) for load in (0.5, 0.8, 1.0, 1.2)]

CLASSES: Final[Mapping[str, Sequence[TrafficClass]]] = {
    **{each.name: [each] for each in (SYSTEM_PROMPT, FEW_SHOT, RAG, CONVERSATIONS, AGENTS)},
    **{each.name: [each] for each in (CHAT, SUMMARIES, BURSTS)},
    "steady": [CAPACITY, *STEADY],
}
"""By the names that the command takes. The requests per second of `CAPACITY` are those that `STEADY` takes fractions of."""


@attrs.frozen
class Turn:
    """What is new in a request, how many tokens its answer has, and how long after the last answer it is sent."""

    tokens: tuple[int, ...]
    output_len: int
    pause: float


@attrs.frozen
class Session:
    """One client: when it begins, and its turns, of which each repeats those before it with their answers."""

    start: float
    turns: tuple[Turn, ...]


def draw_sessions(
    traffic: TrafficClass, requests: int, seed: int, capacity: float | None = None
) -> list[Session]:
    """At least so many requests, in whole sessions; `capacity` is in requests per second, for a class with a load.

    The same seed gives the same ones, and other ones for every class.
    """
    draw = random.Random(f"{traffic.name} {seed}")
    documents = [_tokens(draw, traffic.document_len) for _ in range(traffic.documents)]
    sessions = []
    for start in _starts(traffic, -(-requests // traffic.turns), draw, capacity):
        chosen = draw.sample(documents, traffic.documents_each) if documents else []
        beginning = tuple(token for each in chosen for token in each)
        turns = tuple(_turn(traffic, draw, () if number else beginning) for number in range(traffic.turns))
        sessions.append(Session(start, turns))
    return sessions


def traced_sessions(requests: Iterable[TracedRequest], scale: float = 1.0) -> list[Session]:
    """A trace as sessions of one turn each, with lengths and times multiplied; equal pieces of prompts are equal ids."""
    scaled = (each.scaled(scale) for each in requests)
    return [Session(each.at, (Turn(tuple(prompt_ids(each)), each.output_tokens, 0.0),)) for each in scaled]


def _starts(
    traffic: TrafficClass, count: int, draw: random.Random, capacity: float | None
) -> Sequence[float]:
    if traffic.load is not None:
        assert capacity is not None
        return draw_schedule(traffic.load * capacity, count, draw)
    if traffic.bursts:
        moments = [
            number % traffic.bursts * traffic.period + draw.uniform(0.0, traffic.burst_seconds)
            for number in range(count)
        ]
        return sorted(moments)
    return sorted(draw.uniform(0.0, traffic.pause) for _ in range(count))


def _turn(traffic: TrafficClass, draw: random.Random, beginning: tuple[int, ...]) -> Turn:
    own, answer = (_length(draw, median, traffic.sigma) for median in (traffic.input_len, traffic.output_len))
    pause = draw.expovariate(1 / traffic.pause) if traffic.pause else 0.0
    return Turn(beginning + _tokens(draw, own), answer, pause)


def _length(draw: random.Random, median: int, sigma: float) -> int:
    if not sigma:
        return median
    return min(max(round(median * math.exp(draw.gauss(0.0, sigma))), 1), MOST * median)


def _tokens(draw: random.Random, count: int) -> tuple[int, ...]:
    return tuple(draw.choices(IDS, k=count))
