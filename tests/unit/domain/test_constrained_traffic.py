"""Answers that follow a grammar, under random traffic and faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.request import Request
from tests.unit.domain.constrained_world import (
    EOS,
    LANGUAGES,
    NARROW,
    STATES,
    VOCAB,
    SlowGrammars,
    check,
    constraint,
    world,
)
from tests.unit.domain.faults import Fault
from tests.unit.domain.world import FULL

ERRORS = (
    RuntimeError("lost"),
    KeyboardInterrupt(),
    StepFailedError("row 0", (0,)),
    StepFailedError("rows", (1, 9)),
)


class ConstrainedMachine(RuleBasedStateMachine):
    """A cramped engine, half of whose answers follow a grammar, under random traffic and faults."""

    @initialize(
        groups=st.sampled_from([(FULL,), (NARROW,), (FULL, NARROW), (FULL, STATES)]),
        depth=st.integers(1, 3),
        num_blocks=st.integers(8, 14),
        rows=st.integers(1, 4),
        prefix_caching=st.booleans(),
        looks=st.sampled_from([0, 0, 1, 3, 9]),
        ends=st.sampled_from([(), EOS]),
    )
    def build(
        self, groups: Sequence[CacheGroup], rows: int, looks: int, ends: Sequence[int], **settings: Any
    ) -> None:
        self.world = world(
            groups=groups,
            grammars=SlowGrammars(looks, ends),
            max_num_seqs=rows,
            max_num_batched_tokens=6,
            **settings,
        )
        self.requests: list[Request] = []
        self.window = min((group.window for group in groups if group.window), default=None)

    @rule(
        length=st.integers(1, 12),
        seed=st.integers(0, 5),
        n=st.sampled_from([1, 1, 2, 3]),
        max_tokens=st.one_of(st.none(), st.integers(1, 12)),
        min_tokens=st.sampled_from([0, 0, 0, 3]),
        language=st.one_of(st.none(), st.sampled_from(LANGUAGES)),
        after=st.sampled_from([(), (), (4,)]),
    )
    def add(self, length: int, language: str | None, after: tuple[int, ...], **fields: Any) -> None:
        if fields["max_tokens"] is not None:
            fields["min_tokens"] = min(fields["min_tokens"], fields["max_tokens"])
        bound: dict[str, Any] = (
            {} if language is None else {"constraint": constraint(language, after), "eos": EOS}
        )
        name = f"r{len(self.requests)}"
        self.requests.append(
            self.world.add(name, [token % VOCAB for token in range(length)], **fields, **bound)
        )

    @rule(number=st.integers(0, 20))
    def abort(self, number: int) -> None:
        self.world.engine.abort(f"r{number}")

    @rule(count=st.integers(1, 5))
    def turn(self, count: int) -> None:
        for _ in range(count):
            try:
                self.world.turn()
            except KeyboardInterrupt:
                return

    @rule(fault=st.sampled_from(Fault), kind=st.integers(0, 3))
    def fail(self, fault: Fault, kind: int) -> None:
        self.world.runner.fail(fault, ERRORS[kind])

    @rule(first=st.booleans(), kind=st.integers(0, 3))
    def fail_to_draw(self, first: bool, kind: int) -> None:
        self.world.runner.fail_to_draw(ERRORS[kind], afterwards=first)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.runner.heal()
        self.world.run()
        for request in self.requests:
            check(request, self.world, self.window)
        pools = self.world.scheduler.cache.allocators
        assert self.world.free_blocks == [pool.num_blocks for pool in pools]
        assert not self.world.scheduler.constraints.matchers


TestConstrainedMachine = ConstrainedMachine.TestCase
