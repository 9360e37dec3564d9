"""A small world for control-plane tests: an engine over the memory runner, a clock that tests set, and plain tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from nanoserve.domain.engine import Engine
from nanoserve.domain.failures import FailureNote
from nanoserve.domain.scheduling.admission import derive_seed
from nanoserve.domain.scheduling.constraints import Constraints
from nanoserve.domain.scheduling.limits import Limits, RequestClass
from nanoserve.ports.driven import Tokenizer
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.events import (
    EngineEvent,
    PromptPooled,
    SequenceAdmitted,
    SequencePreempted,
    TokensGenerated,
)
from nanoserve.ports.grammar import Grammars
from nanoserve.ports.kv import BlockDirectory, KVEventPublisher
from nanoserve.ports.lora import LoraStore
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.steering import WeightStore
from nanoserve.ports.step import StepPlan, StepResult
from tests.fakes.memory_runner import BrokenPlanError, expected_token
from tests.unit.domain.faults import FlakyRunner

FULL = CacheGroup(layers=(0, 1))
INTERACTIVE = RequestClass(name="default", priority=0)
BATCH = RequestClass(name="batch", priority=5, max_running=2, max_waiting=4)
VOCAB = 1000


@attrs.define
class HandClock:
    """A clock that tests set."""

    time: float = 0.0

    def now(self) -> float:
        return self.time


@attrs.define
class Answer:
    """What a client has received of one sequence."""

    token_ids: list[int] = attrs.field(factory=list)
    text: str = ""
    pieces: list[str] = attrs.field(factory=list)
    logprobs: list[int] = attrs.field(factory=list)
    reason: FinishReason | None = None
    last: TokensGenerated | None = None


class RecordingRunner(FlakyRunner):
    """Remembers the plans it was given, and that one of them was broken.

    An engine makes an error event of whatever a runner raises, so that alone would not fail a test.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.plans: list[StepPlan] = []
        self.broken: BrokenPlanError | None = None

    def keep(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        super().keep(plan)

    def collect(self, ticket: StepPlan, /) -> StepResult:
        try:
            return super().collect(ticket)
        except BrokenPlanError as error:
            self.broken = error
            raise


class BreakingRunner(RecordingRunner):
    """The logits of rows are not finite in the steps that `breaks` names them for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.breaks: dict[int, tuple[int, ...]] = {}

    def collect(self, ticket: StepPlan, /) -> StepResult:
        return attrs.evolve(super().collect(ticket), broken=self.breaks.get(ticket.step, ()))


class World:
    """An engine, its runner, and every answer so far."""

    def __init__(
        self,
        *,
        groups: Sequence[CacheGroup] = (FULL,),
        tokenizer: Tokenizer | None = None,
        depth: int = 1,
        fail_at: dict[int, StepFailedError] | None = None,
        grammars: Grammars | None = None,
        kv_events: KVEventPublisher | None = None,
        runner: Callable[..., RecordingRunner] = RecordingRunner,
        directory: Callable[[RecordingRunner], BlockDirectory] | None = None,
        on_failure: FailureNote | None = None,
        paranoid: bool = True,
        lora_store: LoraStore | None = None,
        weight_store: WeightStore | None = None,
        **limits: Any,
    ) -> None:
        settings: dict[str, Any] = {
            "max_num_seqs": 8,
            "max_num_batched_tokens": 32,
            "max_model_len": 96,
            "vocab_size": VOCAB,
        }
        settings |= {"block_size": 4, "num_blocks": 64, "watermark": 0.0} | limits
        self.limits = Limits(**settings)
        self.groups = tuple(groups)
        self.clock = HandClock()
        self.runner = runner(
            groups,
            num_blocks=self.limits.num_blocks,
            block_size=self.limits.block_size,
            vocab_size=self.limits.vocab_size,
            fail_at=fail_at,
        )
        self.directory: Any = None if directory is None else directory(self.runner)
        self.engine = Engine(
            limits=self.limits,
            cache_groups=groups,
            runner=self.runner,
            clock=self.clock,
            tokenizer=tokenizer,
            depth=depth,
            paranoid=paranoid,
            on_failure=on_failure,
            constraints=None if grammars is None else Constraints(grammars, self.runner),
            kv_events=kv_events,
            directory=self.directory,
            lora_store=lora_store,
            weight_store=weight_store,
        )
        self.scheduler = self.engine.scheduler
        self.answers: dict[tuple[str, int], Answer] = {}
        self.vectors: dict[tuple[str, int], tuple[float, ...]] = {}
        self.preemptions = 0
        self._turns_left = 10_000

    def add(
        self, name: str, prompt: Sequence[int], *, seed: int = 0, eos: Sequence[int] = (), **kwargs: Any
    ) -> Request:
        """Queue a request; sampling fields and request fields may be mixed."""
        fields = {attribute.name for attribute in attrs.fields(Request)}
        request_fields = {key: kwargs.pop(key) for key in list(kwargs) if key in fields}
        params = SamplingParams(**({"max_tokens": 8} | kwargs))
        request = Request(
            request_id=name,
            prompt_token_ids=tuple(prompt),
            sampling=params,
            seed=seed,
            eos_token_ids=frozenset(eos),
            **request_fields,
        )
        self.engine.add(request)
        for index in range(params.n):
            self.answers[name, index] = Answer()
        return request

    def turn(self) -> list[EngineEvent]:
        """One turn, with its events filed under the answers they belong to."""
        self.clock.time += 0.001
        self._turns_left -= 1
        assert self._turns_left, "the engine does not come to an end"
        events = self.engine.turn()
        if self.runner.broken is not None:
            raise self.runner.broken
        for event in events:
            if isinstance(event, SequencePreempted):
                self.preemptions += 1
            if isinstance(event, PromptPooled):
                assert (event.request_id, event.index) not in self.vectors
                self.vectors[event.request_id, event.index] = event.vector
            if isinstance(event, TokensGenerated):
                self._file(event)
        return events

    def _file(self, event: TokensGenerated) -> None:
        answer = self.answers[event.request_id, event.index]
        assert answer.reason is None, "an answer goes on after its end"
        answer.token_ids.extend(event.token_ids)
        answer.text += event.text
        answer.pieces.append(event.text)
        answer.logprobs.extend(score.token_id for score in event.logprobs)
        answer.reason, answer.last = event.finish_reason, event

    def run(self) -> None:
        """Turn until nothing is left to do; being stuck is a failure."""
        while self.engine.has_work:
            self.turn()

    def admissions(self, name: str) -> list[int]:
        """Run to the end; how many tokens each admission of a request found in the cache."""
        found = []
        while self.engine.has_work:
            found += [
                event.num_cached_tokens
                for event in self.turn()
                if isinstance(event, SequenceAdmitted) and event.request_id == name
            ]
        return found

    def answer(self, name: str, index: int = 0) -> Answer:
        """One answer."""
        return self.answers[name, index]

    @property
    def free_blocks(self) -> list[int]:
        """Free blocks of each group."""
        return [pool.num_free for pool in self.scheduler.cache.allocators]


def oracle(
    prompt: Sequence[int],
    count: int,
    *,
    seed: int = 0,
    index: int = 0,
    vocab: int = VOCAB,
    window: int | None = None,
) -> list[int]:
    """What the memory runner's model says after a prompt, computed with no engine at all."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(expected_token(tokens, derive_seed(seed, index), vocab, window))
    return tokens[len(prompt) :]
