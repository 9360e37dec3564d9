"""Measures the requests that the server sends to the engine, and counts refused ones.

Measuring never delays a request. The engine client counts accepted and ended sequences (`EngineState`).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import attrs
import structlog

from nanoserve.entrypoints.app.orders import CURRENT, RequestFacts
from nanoserve.ports.counts import Counts, Distribution
from nanoserve.ports.driven import Clock
from nanoserve.ports.engine_facts import EngineState
from nanoserve.ports.events import EngineEvent, SequenceAdmitted, SequenceTimes, TokensGenerated
from nanoserve.ports.request import Request


class Histogram:
    """The number of values up to each bound, and the sum of all.

    Args:
        bounds: ascending; beyond the last one everything falls into one more bucket.
        own: where this process counts, one more bucket than bounds; others: where those count that share its work.
    """

    def __init__(
        self, bounds: Sequence[float], own: Distribution | None = None, others: Sequence[Distribution] = ()
    ) -> None:
        self.bounds = tuple(bounds)
        own = own or Distribution([0] * (len(self.bounds) + 1), [0.0])
        self._all = (own, *others)
        self._counts, self._sum = own.counts, own.sum

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, or several equal ones."""
        self._counts[bisect.bisect_left(self.bounds, value)] += times
        self._sum[0] += value * times

    @property
    def sum(self) -> float:
        """The sum of all values."""
        return math.fsum(each.sum[0] for each in self._all)

    @property
    def counts(self) -> tuple[int, ...]:
        """Values in each bucket, the last one beyond all bounds."""
        return tuple(map(sum, zip(*(each.counts for each in self._all), strict=True)))

    def cumulative(self) -> list[int]:
        """Values up to each bound, and last all of them."""
        return list(itertools.accumulate(self.counts))


class RecentValues:
    """The values that a histogram got in the latest `span` seconds, as long as `mark` is called again and again; marks that are kept are `period` seconds apart."""

    def __init__(self, whole: Histogram, span: float = 30.0, period: float = 1.0) -> None:
        self._whole = whole
        self._span = span
        self._period = period
        self._marks = deque([(-math.inf, whole.counts)])

    def mark(self, now: float) -> None:
        """Note the state at this reading of a clock."""
        marks = self._marks
        if now - marks[-1][0] >= self._period:
            marks.append((now, self._whole.counts))
        while len(marks) > 1 and marks[1][0] <= now - self._span:
            marks.popleft()

    def quantile(self, share: float) -> float | None:
        """A value that `share` of them are at most, as far as the buckets tell; None without values."""
        counts = [new - old for new, old in zip(self._whole.counts, self._marks[0][1], strict=True)]
        rank, below, bounds = share * sum(counts), 0, self._whole.bounds
        for number, count in enumerate(counts):
            if count and below + count >= rank:
                low = bounds[number - 1] if number else 0.0
                return low + (bounds[min(number, len(bounds) - 1)] - low) * (rank - below) / count
            below += count
        return None


SpanWriter = Callable[[Request, float, SequenceTimes], None]
"""Called for each sequence that ended, with its request, when that was accepted, and its times."""
_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
_GAPS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0),
)
_TOKENS: Final = tuple(float(2**power) for power in range(18))


TIMINGS: Final = {
    "first_token": _SECONDS,
    "inter_token": _GAPS,
    "whole": _SECONDS,
    "queue": _SECONDS,
    "prefill": _SECONDS,
    "decode": _SECONDS,
    "prompt_tokens": _TOKENS,
    "generated_tokens": _TOKENS,
    "step_tokens": _TOKENS,
}
"""The bounds of each distribution over ended sequences; those of one token's wait and of one step's size over tokens and steps."""
SERVED: Final = "served"
DISCONNECTED: Final = "disconnected"
EXCHANGES: Final = (SERVED, DISCONNECTED)
PID: Final = "pid"
RESTARTS: Final = "restarts"
PROCESSES: Final = (PID, RESTARTS)


@attrs.frozen(kw_only=True, eq=False)
class Tallies:
    """Counters of requests, of one process or of all processes of a server.

    Attributes:
        timings: how long requests took, by the names of `TIMINGS`.
        accepted: sequences handed to the engine, by request class; `living` those that have not ended.
        exchanges: HTTP requests that are being `served`, and clients that hung up before their answer was complete
            (`disconnected`).
        processes: the number (`pid`) of each HTTP process but the main one, and how many were started in the place of
            another (`restarts`).
    """

    timings: Mapping[str, Histogram] = attrs.field(
        factory=lambda: {name: Histogram(bounds) for name, bounds in TIMINGS.items()}
    )
    accepted: Counts = attrs.field(factory=Counts)
    living: Counts = attrs.field(factory=Counts)
    rejected: Counts = attrs.field(factory=Counts)
    exchanges: Counts = attrs.field(factory=Counts)
    processes: Counts = attrs.field(factory=Counts)


class Measurements:
    """Measures requests and their answers; `timings` are those of the tallies, `recent` the latest values of two of them."""

    def __init__(
        self, clock: Clock, *, spans: SpanWriter | None = None, tallies: Tallies | None = None
    ) -> None:
        self.tallies = tallies or Tallies()
        self.timings = self.tallies.timings
        self.recent = {name: RecentValues(self.timings[name]) for name in ("first_token", "inter_token")}
        self.clock = clock
        self.spans = spans
        self._seen = (0, 0)

    def refresh(self, state: EngineState | None) -> None:
        """Read the engine's counters; more frequent reads give finer step times and recent values."""
        for recent in self.recent.values():
            recent.mark(self.clock.now())
        if state is not None:
            steps, tokens = state.steps, state.prompt_tokens + state.generated_tokens
            new_steps, new_tokens = steps - self._seen[0], tokens - self._seen[1]
            if new_steps > 0:  # their sizes are not known one by one, so each counts with the mean
                self.timings["step_tokens"].observe(max(new_tokens, 0) / new_steps, new_steps)
            self._seen = (steps, tokens)


class Meter:
    """Counts one request on its way, which is accepted from now on."""

    def __init__(self, request: Request, measurements: Measurements) -> None:
        self._request = request
        self._counts = measurements
        self._timings = measurements.timings
        self._accepted = measurements.clock.now()
        self._living = set(range(request.sampling.n))
        self._last_token: dict[int, float] = {}
        self._generated: dict[int, int] = {}
        self._facts = CURRENT.get() or RequestFacts(request_id="")
        self._facts.engine_ids.append(request.request_id)
        self._facts.prompt_tokens += len(request.prompt_token_ids)
        if request.stream:
            self._count_generated(0, 0)
        self._counts.tallies.accepted.add(request.request_class, len(self._living))
        self._counts.tallies.living.add(request.request_class, len(self._living))

    def note(self, events: Sequence[EngineEvent]) -> None:
        """Count an event; raises nothing."""
        try:
            now = self._counts.clock.now()
            for event in events:
                if isinstance(event, TokensGenerated):
                    self._note_tokens(event, now)
                elif isinstance(event, SequenceAdmitted) and not event.resumed:
                    self._facts.cached_tokens += event.num_cached_tokens
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the counters, the answer goes on
            structlog.get_logger().error("an event could not be counted", exc_info=error)

    def _count_generated(self, index: int, count: int) -> None:
        """A sequence has so many tokens by now; fewer than before, if another engine begins again."""
        before, self._generated[index] = self._generated.get(index, 0), count
        self._facts.generated_tokens = (self._facts.generated_tokens or 0) + count - before

    def _note_tokens(self, event: TokensGenerated, now: float) -> None:
        count = len(event.token_ids)
        self._count_generated(event.index, event.num_generated)
        if self._request.stream and count:
            last = self._last_token.get(event.index)
            self._last_token[event.index] = now
            if last is not None:
                self._timings["inter_token"].observe((now - last) / count, count)
        if event.finish_reason is not None and event.index in self._living:
            self._end({event.index}, event.finish_reason.value)
            self._note_end(event)

    def _note_end(self, event: TokensGenerated) -> None:
        self._timings["prompt_tokens"].observe(len(self._request.prompt_token_ids))
        self._timings["generated_tokens"].observe(event.num_generated)
        if event.times is not None:
            self._note_times(event.times, event.num_generated)

    def _note_times(self, times: SequenceTimes, generated: int) -> None:
        start, scheduled, first = self._accepted, times.first_scheduled, times.first_token
        if scheduled is not None:
            self._facts.queue = max(scheduled - start, 0.0)
            self._timings["queue"].observe(self._facts.queue)
            if first is not None:
                self._facts.first_token = max(first - start, 0.0)
                self._timings["first_token"].observe(self._facts.first_token)
                self._timings["prefill"].observe(first - scheduled)
        if times.finished is not None:
            self._timings["whole"].observe(max(times.finished - start, 0.0))
            if first is not None:
                seconds = times.finished - first
                self._timings["decode"].observe(seconds)
                if not self._request.stream and generated > 1:
                    self._timings["inter_token"].observe(seconds / (generated - 1), generated - 1)
        if self._counts.spans is not None:
            self._counts.spans(self._request, start, times)

    def end(self, reason: str) -> None:
        """Sequences that have not ended end now; may be called again."""
        self._end(self._living, reason)

    def _end(self, indices: Iterable[int], reason: str) -> None:
        ended = self._living.intersection(indices)
        self._living -= ended
        self._counts.tallies.living.add(self._request.request_class, -len(ended))
        self._facts.finish += [reason] * len(ended)
