"""The simulation itself: arrivals, incidents and turns in the order of their times.

Theory of operation. Each replica has its own clock. A heap holds the replicas that have something to do by the time at which
they must be turned. Between two moments of the outside world (a request arrives, a replica dies or comes back) those
that are behind are turned, the one furthest behind first. A turn moves its replica's clock to the end of a step. What the step yields
counts from then on: tokens, ends, reports to the router. So all that happens is ordered in time over all replicas, a request that
arrives during a turn is seen by the next one, as in a real engine, and the run is the same every time.

A replica is no concern of others while it only decodes: it reports nothing before the first of its requests can have all its tokens,
one with each step, and no step is shorter than the least. Until then it need not be turned, and then many turns follow one another, which
is several times faster than one of each replica in turn: what they touch stays in the processor's caches. It is turned
before that if a request is sent to it, or if it dies.

With replicas for prompts, a request is placed where it is decoded, then its prompt is computed elsewhere, and when that and the way of its blocks are
done, it is added there at no cost for its prompt: what a real engine would load beside its steps.

A request whose replica dies is sent to another one, from its beginning; it counts as the same request. While no replica takes
requests, they wait in the router.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable

import attrs

from nanoserve.ports.errors import BadValueError, RequestRefusedError
from nanoserve.ports.events import SequencePreempted, TokensGenerated
from nanoserve.ports.request import FinishReason
from nanoserve.ports.traffic import TracedRequest
from nanoserve_cluster.domain.routing.prefix_index import PrefixIndex
from nanoserve_cluster.domain.routing.router import Router
from nanoserve_cluster.domain.simulation.replica import Attempt, SimulatedEngine, SimulatedReplica
from nanoserve_cluster.domain.simulation.summary import gap_bucket
from nanoserve_cluster.ports.routing import RandomDraw
from nanoserve_cluster.ports.simulation import (
    Incident,
    Outage,
    RollingRestart,
    ScaleUp,
    Scenario,
    ServedRequest,
    SimulatedRun,
)


class Cluster:
    """Replicas behind a router; `run` is called once.

    Args:
        scenario: what is simulated.
        make_engine: a fresh engine with an empty cache.
        draw: the router's, seeded.
    """

    def __init__(
        self, scenario: Scenario, make_engine: Callable[[], SimulatedEngine], draw: RandomDraw
    ) -> None:
        self._scenario = scenario
        self._make_engine = make_engine
        index = PrefixIndex(scenario.index_blocks)
        self._router = Router(scenario.policy, index, block_size=scenario.block_size, draw=draw)
        prefixes = PrefixIndex(scenario.index_blocks)
        self._prefill_router = Router(scenario.policy, prefixes, block_size=scenario.block_size, draw=draw)
        self._replicas: list[SimulatedReplica] = []
        self._routers: dict[int, Router] = {}
        self._busy: list[tuple[float, int, int]] = []
        self._timeline: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._reports: deque[tuple[float, Attempt, bool]] = deque()
        self._stranded: deque[tuple[int, TracedRequest, int]] = deque()
        self._run = SimulatedRun(scenario=scenario)

    def run(self, trace: Iterable[TracedRequest]) -> SimulatedRun:
        """Serve the whole trace, which is in the order of its times; raises `BadValueError` for replicas that there are not."""
        self._add_replicas(self._scenario.replicas, 0.0)
        self._add_replicas(self._scenario.prefill_replicas, 0.0, self._prefill_router)
        for incident in self._scenario.incidents:
            self._plan_incident(incident)
        arrivals = iter(trace)
        coming = next(arrivals, None)
        while coming is not None or self._timeline or self._busy:
            arrival = math.inf if coming is None else coming.at
            due = self._timeline[0][0] if self._timeline else math.inf
            at = min(arrival, due)
            self._advance(at)
            if self._timeline and self._timeline[0][0] < at:
                continue  # what happened meanwhile has set a date before this one
            if due <= arrival and self._timeline:
                heapq.heappop(self._timeline)[2](at)
            elif coming is not None:
                self._send(self._run.sent, coming, 1, at)
                self._run.sent += 1
                coming = next(arrivals, None)
        for replica in self._replicas:
            self._add_times(replica, self._run.ended)
        return self._run

    # Time

    def _at(self, when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._timeline, (when, next(self._order), what))

    def _advance(self, until: float) -> None:
        """Turn every replica that is behind, up to a date that is set meanwhile."""
        busy, timeline = self._busy, self._timeline
        while busy and busy[0][0] < until and not (timeline and timeline[0][0] < busy[0][0]):
            due, number, life = busy[0]
            replica = self._replicas[number]
            if (replica.life, replica.due) != (life, due):
                heapq.heappop(busy)  # it has died, or was queued again
            elif replica.time != due:
                self._catch_up(replica, due)
                self._requeue(replica)
            elif self._turn(replica):
                self._requeue(replica)
            else:
                heapq.heappop(busy)

    def _requeue(self, replica: SimulatedReplica) -> None:
        """The first in the queue is to be turned again."""
        replica.due = replica.quiet_until()
        heapq.heapreplace(self._busy, (replica.due, replica.number, replica.life))

    def _turn(self, replica: SimulatedReplica) -> bool:
        """Take the result of a replica's last turn, and begin its next one; returns whether there is one."""
        life = replica.life
        if replica.steps or replica.events:
            self._deliver(replica, replica.time)
        if replica.life != life:
            return False
        replica.is_queued = replica.turn()
        return replica.is_queued

    def _catch_up(self, replica: SimulatedReplica, until: float) -> None:
        """Turn a busy replica that is behind, in turns that nothing else could notice."""
        while replica.is_queued and replica.time < until:
            self._turn(replica)

    def _deliver(self, replica: SimulatedReplica, at: float) -> None:
        """Take the result of the replica's last turn."""
        steps, events = replica.steps, replica.events
        replica.steps, replica.events = [], []
        for step in steps:
            replica.steps_yielded += 1
            if step.decoding:
                bucket = gap_bucket(step.ended - replica.last_token)
                window = int(step.ended // self._scenario.window)
                self._run.gaps[window][bucket] += step.decoding
            replica.last_token = step.ended
            for number in step.prefilled:
                self._note_prefilled(replica, replica.attempts.get(number), at)
        for event in events:
            if isinstance(event, TokensGenerated):
                self._note_ended(replica, event, at)
            elif isinstance(event, SequencePreempted):
                self._run.preemptions += 1
        if replica.when_drained is not None and not replica.attempts:
            replica.when_drained(at)

    def _note_prefilled(self, replica: SimulatedReplica, attempt: Attempt | None, at: float) -> None:
        if attempt is not None and attempt.last_step is None:
            attempt.last_step = replica.steps_yielded + replica.answer_tokens(attempt.traced) - 1
            self._report(attempt, at, has_ended=False)

    def _note_ended(self, replica: SimulatedReplica, event: TokensGenerated, at: float) -> None:
        times = event.times
        assert event.finish_reason is FinishReason.LENGTH, event
        assert times is not None
        assert times.first_token is not None
        assert times.finished is not None
        attempt = replica.attempts.pop(int(event.request_id))
        traced = attempt.traced
        self._note_prefilled(replica, attempt, at)
        self._report(attempt, at, has_ended=True)
        if (decodes := attempt.decodes) is not None:
            decodes.is_handed = True
            self._at(at + self._scenario.handover * traced.num_tokens, lambda then: self._add(decodes, then))
            return
        self._run.ended = max(self._run.ended, times.finished)
        self._run.served.append(
            ServedRequest(
                at=traced.at,
                ttft=times.first_token - traced.at,
                e2e=times.finished - traced.at,
                prompt_tokens=traced.num_tokens,
                cached_tokens=event.num_cached_tokens,
                output_tokens=event.num_generated,
                replica=replica.number,
                attempts=attempt.count,
            )
        )

    # Routing

    def _report(self, attempt: Attempt, at: float, *, has_ended: bool) -> None:
        self._reports.append((at, attempt, has_ended))

    def _hear(self, at: float) -> None:
        """Let the router know of what was reported long enough ago."""
        reports, delay = self._reports, self._scenario.report_delay
        while reports and reports[0][0] + delay <= at:
            _, attempt, has_ended = reports.popleft()
            if self._replicas[attempt.placement.replica].life == attempt.life:
                router = self._router if attempt.decodes is None else self._prefill_router
                note = router.note_ended if has_ended else router.note_prefilled
                note(attempt.placement)

    def _send(self, number: int, traced: TracedRequest, count: int, at: float) -> None:
        if self._router.is_empty:
            self._stranded.append((number, traced, count))
            return
        self._hear(at)
        placement = self._router.route(traced.token_ids(), traced.affinity)
        attempt = Attempt(number, traced, placement, count, self._replicas[placement.replica].life)
        is_long = placement.new_tokens >= self._scenario.prefill_tokens
        self._add(self._prefilling(attempt) if is_long and not self._prefill_router.is_empty else attempt, at)

    def _prefilling(self, decodes: Attempt) -> Attempt:
        """The attempt to compute the prompt of one that decodes, and one token, elsewhere."""
        traced = attrs.evolve(decodes.traced, output_tokens=1)
        placement = self._prefill_router.route(traced.token_ids(), traced.affinity)
        life = self._replicas[placement.replica].life
        return Attempt(decodes.number, traced, placement, decodes.count, life, decodes=decodes)

    def _send_again(self, lost: Attempt, at: float) -> None:
        decodes = lost.decodes
        if decodes is None:
            self._send(lost.number, lost.traced, lost.count + 1, at)
            return
        decodes.count += 1
        self._add(decodes if self._prefill_router.is_empty else self._prefilling(decodes), at)

    def _add(self, attempt: Attempt, at: float) -> None:
        """Add a request to the replica that it was placed at, if that still lives."""
        replica = self._replicas[attempt.placement.replica]
        if replica.life != attempt.life:
            self._send(attempt.number, attempt.traced, attempt.count + 1, at)
            return
        self._catch_up(replica, at)
        try:
            replica.add(attempt, attempt.traced.token_ids(), at)
        except (RequestRefusedError, BadValueError) as error:
            self._run.refused[type(error).__name__] += 1
            for each in (attempt,) if attempt.decodes is None else (attempt, attempt.decodes):
                self._report(each, at, has_ended=False)
                self._report(each, at, has_ended=True)
            return
        if not replica.is_queued or replica.due != replica.time:
            replica.is_queued, replica.due = True, replica.time
            heapq.heappush(self._busy, (replica.due, replica.number, replica.life))

    # Incidents

    def _plan_incident(self, incident: Incident) -> None:
        match incident:
            case Outage():
                self._check_replicas(incident)
                self._at(incident.at, lambda at: self._begin_outage(incident, at))
            case ScaleUp():
                self._at(incident.at, lambda at: self._add_replicas(incident.replicas, at))
            case RollingRestart():
                self._at(incident.at, lambda at: self._begin_rolling(incident, at))

    def _check_replicas(self, outage: Outage) -> None:
        last = self._scenario.replicas + self._scenario.prefill_replicas - 1
        for each in outage.replicas:
            if not 0 <= each <= last:
                raise BadValueError("fail", f"there is no replica {each}: they are numbered 0 to {last}")

    def _begin_outage(self, outage: Outage, at: float) -> None:
        replicas = [self._replicas[number] for number in outage.replicas if self._replicas[number].is_up]
        lost = [attempt for replica in replicas for attempt in self._take_down(replica, at)]
        self._at(at + outage.seconds, lambda then: self._bring_up(replicas, then))
        for replica in replicas:
            if replica.when_drained is not None:
                replica.when_drained(at)
        for attempt in sorted(lost, key=lambda each: each.number):
            self._send_again(attempt, at)

    def _begin_rolling(self, rolling: RollingRestart, at: float) -> None:
        left = deque(replica for replica in self._replicas if replica.is_up)

        def restart_next(at: float) -> None:
            while left and not left[0].is_up:
                left.popleft()
            if left:
                replica = left.popleft()
                self._routers[replica.number].leave(replica.number)
                replica.when_drained = lambda then: drained(replica, then)
                if not replica.attempts:
                    drained(replica, at)

        def drained(replica: SimulatedReplica, at: float) -> None:
            replica.when_drained = None
            if replica.is_up:
                self._take_down(replica, at)
            self._at(at + rolling.seconds, lambda then: back(replica, then))

        def back(replica: SimulatedReplica, at: float) -> None:
            self._bring_up([replica], at)
            restart_next(at)

        for _ in range(rolling.at_once):
            restart_next(at)

    def _add_replicas(self, count: int, at: float, router: Router | None = None) -> None:
        fresh = [SimulatedReplica(len(self._replicas) + place) for place in range(count)]
        self._replicas += fresh
        self._routers.update((each.number, router or self._router) for each in fresh)
        self._bring_up(fresh, at)

    def _bring_up(self, replicas: Iterable[SimulatedReplica], at: float) -> None:
        """Let replicas take requests; what waited in the router is sent when all of them do."""
        for replica in replicas:
            if not replica.is_up:
                replica.start(self._make_engine(), at)
                self._routers[replica.number].join(replica.number)
        stranded, self._stranded = self._stranded, deque()
        for each in stranded:
            self._send(*each, at)

    def _take_down(self, replica: SimulatedReplica, at: float) -> list[Attempt]:
        self._routers[replica.number].leave(replica.number)
        self._catch_up(replica, at)
        self._add_times(replica, at)
        return replica.end()

    def _add_times(self, replica: SimulatedReplica, at: float) -> None:
        if replica.is_up:
            self._run.replica_seconds += max(at - replica.up_since, 0.0)
            self._run.busy_seconds += replica.busy_seconds
            self._run.steps += replica.num_steps
