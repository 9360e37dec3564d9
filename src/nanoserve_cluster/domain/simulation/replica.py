"""One replica of a simulated cluster: an engine that is turned when its time has come, and what its last turn will yield."""

from __future__ import annotations

import functools
from collections.abc import Callable

import attrs

from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.events import EngineEvent
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.traffic import TracedRequest
from nanoserve_cluster.domain.routing.router import Placement
from nanoserve_cluster.domain.simulation.cost_runner import CostRunner
from nanoserve_cluster.ports.simulation import ComputedStep, VirtualClock


@attrs.frozen
class SimulatedEngine:
    """An engine as it is shipped, over a runner that only counts time.

    Attributes:
        max_model_len: tokens at which every answer ends, its prompt's included.
        least_step: seconds; no step takes less.
    """

    engine: EngineHandle
    runner: CostRunner
    clock: VirtualClock
    max_model_len: int
    least_step: float = 0.0


@attrs.define(eq=False)
class Attempt:
    """A request that was sent to a replica.

    Attributes:
        number: of the request in its trace; also its id and its seed.
        count: 1, and 1 more for each replica that died over it.
        life: of the replica that has it; a later life knows nothing of it.
        last_step: of the replica's steps, the first one that may yield its last token; None while its prompt is computed.
        decodes: where its request is decoded when this attempt has computed the prompt; None if the attempt is to answer it.
        is_handed: whether its prompt was computed elsewhere.
    """

    number: int
    traced: TracedRequest
    placement: Placement
    count: int
    life: int
    last_step: int | None = None
    decodes: Attempt | None = None
    is_handed: bool = False


class SimulatedReplica:
    """An engine, its clock, and the requests that it has.

    The engine's clock runs ahead of the simulation by at most one turn. What that turn yields is kept in `steps` and
    `events` until the simulation has come so far: a replica that dies before has not yielded it. `steps_yielded` counts the
    steps before. `when_drained` is called when a replica that takes no more requests has ended those that it had. `due` is
    when it must be turned again, if it is queued for that.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.life = 0
        self.up_since = 0.0
        self.due = 0.0
        self.is_queued = False
        self.when_drained: Callable[[float], None] | None = None
        self.attempts: dict[int, Attempt] = {}
        self.steps: list[ComputedStep] = []
        self.events: list[EngineEvent] = []
        self.steps_yielded = 0
        self.last_token = 0.0
        self._running: SimulatedEngine | None = None

    @property
    def is_up(self) -> bool:
        """True while it has an engine."""
        return self._running is not None

    @property
    def time(self) -> float:
        """The time of its own clock."""
        return self._engine.clock.time

    @property
    def _engine(self) -> SimulatedEngine:
        assert self._running is not None
        return self._running

    def answer_tokens(self, traced: TracedRequest) -> int:
        """The length of a request's answer here: as long as it asks for, or as there is room for behind its prompt."""
        return min(traced.output_tokens, self._engine.max_model_len - traced.num_tokens)

    def quiet_until(self) -> float:
        """Until then no prompt is computed and no request ends, if none is added: each step yields one token for each.

        Not before the end of the turn that was taken last.
        """
        running = self._engine
        last_steps = [each.last_step for each in self.attempts.values() if each.last_step is not None]
        if not last_steps or len(last_steps) < len(self.attempts):
            return running.clock.time
        steps = min(last_steps) - self.steps_yielded
        # The first of them is taken already, and one more is for what rounding may do to a sum of so many.
        return running.clock.time + max(steps - 2, 0) * running.least_step

    @property
    def busy_seconds(self) -> float:
        """Seconds that its device has computed in this life."""
        return self._engine.runner.busy

    @property
    def num_steps(self) -> int:
        """Planned in this life."""
        return self._engine.engine.counts().steps

    def start(self, made: SimulatedEngine, at: float) -> None:
        """Begin a life, with an empty cache."""
        self._running = made
        made.clock.time = self.last_token = self.up_since = at

    def end(self) -> list[Attempt]:
        """End this life; returns the requests that it had."""
        lost = list(self.attempts.values())
        self._running = None
        self.life += 1
        self.is_queued = False
        self.attempts, self.steps, self.events = {}, [], []
        return lost

    def add(self, attempt: Attempt, token_ids: tuple[int, ...], at: float) -> None:
        """Hand a request to the engine, which looks at it in its next turn. Raises what the engine raises."""
        running = self._engine
        running.engine.add(
            Request(
                request_id=str(attempt.number),
                prompt_token_ids=token_ids,
                sampling=_sampling(attempt.traced.output_tokens),
                seed=attempt.number,
                stream=False,
            )
        )
        self.attempts[attempt.number] = attempt
        if attempt.is_handed:
            running.runner.handed.add(attempt.number)
        if not self.is_queued:
            running.clock.time = max(running.clock.time, at)

    def turn(self) -> bool:
        """Turn the engine once, if there is something to do; returns whether there was."""
        running = self._engine
        if not running.engine.has_work:
            return False
        self.events = running.engine.turn()
        self.steps = running.runner.take()
        return True


@functools.lru_cache(maxsize=4096)
def _sampling(max_tokens: int) -> SamplingParams:
    """Many requests ask for equally many tokens, and checking parameters takes longer than adding a short prompt."""
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, detokenize=False)
