"""Anything may happen in any order: at the end every answer is what it would have been alone, and nothing is lost."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nanoserve.domain.invariants import audit
from nanoserve.domain.kv.kinds import law_of
from nanoserve.domain.scheduling.limits import Policy, RequestClass
from nanoserve.domain.text.stream import find_stop
from nanoserve.domain.tracing.recorder import read_snapshot
from nanoserve.domain.tracing.replay import Replay
from nanoserve.ports.errors import QueueFullError, StepFailedError
from nanoserve.ports.model_spec import CacheGroup, Latent, Recurrent, Window
from nanoserve.ports.pooling import Pooling, PoolingKind
from nanoserve.ports.request import DEFERRED_CLASS, FinishReason, Request
from tests.fakes.memory_runner import expected_vector
from tests.fakes.scripted_drafter import ScriptedDrafter
from tests.unit.domain.faults import Fault
from tests.unit.domain.kv_event_reader import KVEventReader, check_reader
from tests.unit.domain.late_copies import LateDirectory, LateRunner
from tests.unit.domain.tokenizers import characters
from tests.unit.domain.world import FULL, Answer, World, oracle

VOCAB = 24
LETTERS = characters("abcdefghijklmnopqrstuvwx")
NARROW = CacheGroup(layers=(2,), kind=Window(5))
WIDE = CacheGroup(layers=(3,), kind=Window(11))
STATE = CacheGroup(layers=(4,), kind=Recurrent(prompt_interval=6, decode_interval=3))
LATENT = CacheGroup(layers=(6,), kind=Latent())
RARE = CacheGroup(layers=(5,), kind=Recurrent(prompt_interval=16, decode_interval=16))
GROUPS = (
    (FULL,), (NARROW,), (FULL, NARROW), (NARROW, WIDE), (FULL, WIDE),
    (STATE,), (FULL, STATE), (STATE, FULL), (NARROW, STATE), (FULL, STATE, RARE), (FULL, NARROW, STATE), (FULL, RARE),
    (LATENT,), (LATENT, STATE), (FULL, LATENT, NARROW, STATE), (STATE, NARROW, LATENT, FULL),
)  # fmt: skip
CLASSES = (
    RequestClass(),
    RequestClass(name="batch", priority=2, max_running=2, max_waiting=7),
    RequestClass(name=DEFERRED_CLASS),
)
CUT_SHORT = {FinishReason.ABORT, FinishReason.TIMEOUT, FinishReason.ERROR}


@attrs.frozen
class Expectation:
    """What a sequence must say: computed from its request alone. A stop string hides tokens that were generated."""

    token_ids: list[int]
    text: str
    reason: FinishReason
    stop: str | int | None
    num_generated: int


def expectation(request: Request, index: int, max_model_len: int, window: int | None) -> Expectation:
    params = request.sampling
    if request.pooling is not None:
        return Expectation([], "", FinishReason.STOP, None, 0)
    count = min(params.max_tokens or max_model_len, max_model_len - len(request.prompt_token_ids))
    said = oracle(request.prompt_token_ids, count, seed=request.seed, index=index, vocab=VOCAB, window=window)
    text = LETTERS.decode(said)
    stop_ids = set(params.stop_token_ids) | (set() if params.ignore_eos else request.eos_token_ids)
    for number in range(params.min_tokens + 1, count + 1):
        last = said[number - 1]
        if last in stop_ids:
            stop = last if last in params.stop_token_ids else None
            shown = number if params.include_stop_str_in_output else number - 1
            return Expectation(said[:number], text[:shown], FinishReason.STOP, stop, number)
        if match := find_stop(text[:number], params.stop, params.min_tokens):
            end = match.end if params.include_stop_str_in_output else match.start
            return Expectation(said[:end], text[:end], FinishReason.STOP, match.stop, number)
    return Expectation(said, text, FinishReason.LENGTH, None, count)


REQUESTS = st.fixed_dictionaries(
    {
        "length": st.integers(1, 22),
        "seed": st.integers(0, 2),
        "n": st.sampled_from([1, 1, 1, 2, 4]),
        "max_tokens": st.one_of(st.none(), st.integers(1, 18)),
        "min_tokens": st.sampled_from([0, 0, 3]),
        "priority": st.integers(-1, 1),
        "request_class": st.sampled_from(["default", "default", "batch", DEFERRED_CLASS]),
        "cache_salt": st.sampled_from(["", "", "salt"]),
        "eos": st.sampled_from([(), (3,), (3, 7, 11)]),
        "stop_token_ids": st.sampled_from([(), (5,)]),
        "stop": st.sampled_from([(), (), ("ab", "c"), ("abc", "q", "qr")]),
        "ignore_eos": st.sampled_from([False, False, True]),
        "include_stop_str_in_output": st.booleans(),
        "detokenize": st.sampled_from([True, True, False]),
        "stream": st.booleans(),
        "logprobs": st.sampled_from([None, 0]),
        "deadline": st.sampled_from([None, None, 0.01]),
        "queue_timeout": st.sampled_from([None, None, 0.005]),
        "prompt_logprobs": st.sampled_from([None, None, None, 0]),
        "pooling": st.sampled_from([None, None, None, Pooling(), Pooling(kind=PoolingKind.MEAN)]),
    }
)


class EngineMachine(RuleBasedStateMachine):
    """A cramped engine under random traffic, faults and time."""

    @initialize(
        groups=st.sampled_from(GROUPS),
        slack=st.lists(st.integers(0, 8), min_size=4, max_size=4),
        depth=st.integers(1, 3),
        host_slots=st.sampled_from([0, 2, 12]),
        acceptance=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
        dice=st.randoms(use_true_random=False),
        limits=st.fixed_dictionaries(
            {
                "block_size": st.integers(1, 4),
                "max_num_batched_tokens": st.integers(4, 12),
                "max_num_seqs": st.integers(1, 4),
                "max_model_len": st.sampled_from([24, 32]),
                "policy": st.sampled_from(Policy),
                "watermark": st.sampled_from([0.0, 0.2]),
                "prefix_caching": st.booleans(),
                "isolated": st.booleans(),
                "max_itl": st.sampled_from([None, 0.0005, 1.0]),
                "max_width": st.sampled_from([1, 2, 4, 8]),
            }
        ),
    )
    def build(
        self,
        *,
        groups: tuple[CacheGroup, ...],
        slack: list[int],
        depth: int,
        host_slots: int,
        acceptance: float,
        dice: random.Random,
        limits: dict[str, Any],
    ) -> None:
        is_carried = groups in {(FULL,), (LATENT,)} and limits["prefix_caching"]
        longest, budget = limits["max_model_len"] - 1, limits["max_num_batched_tokens"]
        laws = [law_of(group, limits["block_size"]) for group in groups]
        self.window = min((group.window for group in groups if group.window), default=None)
        drafter = ScriptedDrafter(
            lambda tokens, count: oracle(
                tokens, count, seed=dice.choice((0, 1, 2)), vocab=VOCAB, window=self.window
            ),
            acceptance,
            dice,
            vocab_size=VOCAB,
        )
        self.kv_events = KVEventReader(limits["block_size"], isolated=limits["isolated"])
        self.world = World(
            groups=groups,
            depth=depth,
            tokenizer=LETTERS,
            num_blocks=tuple(
                law.peak_pages(longest, budget) + more for law, more in zip(laws, slack, strict=False)
            ),
            vocab_size=VOCAB,
            classes=CLASSES,
            kv_events=self.kv_events if limits["prefix_caching"] else None,
            runner=functools.partial(LateRunner, dice=dice, drafter=drafter),
            directory=lambda runner: LateDirectory(runner, dice),
            host_slots=host_slots if is_carried else 0,
            min_offload_tokens=2,
            **limits,
        )
        self.recorder = self.world.engine.record(LETTERS)
        self.replay = Replay(self.recorder.snapshot())
        self.requests: dict[str, Request] = {}

    @rule(fields=REQUESTS, tail=st.just(()))
    def add(self, fields: dict[str, Any], tail: Sequence[int]) -> None:
        fields = dict(fields)
        name, length = f"r{len(self.requests)}", fields.pop("length")
        if fields["deadline"] is not None:
            fields["deadline"] += self.world.clock.time
        if fields["max_tokens"] is not None:
            fields["min_tokens"] = min(fields["min_tokens"], fields["max_tokens"])
        if not fields["detokenize"]:
            fields["stop"] = ()
        waiting = len(self.world.scheduler.table.waiting)
        try:
            prompt = [*(token % VOCAB for token in range(length)), *tail]
            self.requests[name] = self.world.add(name, prompt[:22], **fields)
        except QueueFullError:
            assert fields["request_class"] == "batch"
            assert len(self.world.scheduler.table.waiting) == waiting

    @rule(
        fields=REQUESTS,
        tails=st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=3), min_size=2, max_size=5),
    )
    def add_crowd(self, fields: dict[str, Any], tails: list[list[int]]) -> None:
        """Prompts of one beginning that arrive together."""
        for tail in tails:
            self.add(fields, tail)

    @rule(number=st.integers(0, 30))
    def abort(self, number: int) -> None:
        self.world.engine.abort(f"r{number}")

    @rule()
    def forget_prefixes(self) -> None:
        self.world.engine.forget_prefixes()

    @rule(count=st.integers(1, 6))
    def turn(self, count: int) -> None:
        for _ in range(count):
            try:
                self.world.turn()
            except KeyboardInterrupt:
                return
            self.follow()
            assert self.replay.snapshot() == read_snapshot(self.world.scheduler, at=self.replay.at)

    def follow(self) -> None:
        for turn in self.recorder.take():
            self.replay.apply(turn)

    @rule()
    def look_between_turns(self) -> None:
        snapshot = self.recorder.snapshot()
        self.follow()
        assert attrs.evolve(self.replay.snapshot(), at=snapshot.at) == snapshot

    @rule()
    def record_anew(self) -> None:
        self.recorder = self.world.engine.record()
        self.replay = Replay(self.recorder.snapshot())

    @rule(seconds=st.sampled_from([0.001, 0.004, 0.02]))
    def wait(self, seconds: float) -> None:
        self.world.clock.time += seconds

    @rule(fault=st.sampled_from(Fault), kind=st.integers(0, 3))
    def fail(self, fault: Fault, kind: int) -> None:
        errors = [
            RuntimeError("lost"),
            KeyboardInterrupt(),
            StepFailedError("row 0", (0,)),
            StepFailedError("rows", (1, 9)),
        ]
        self.world.runner.fail(fault, errors[kind])

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "world"):
            audit(self.world.scheduler)

    @invariant()
    def events_say_what_can_be_found(self) -> None:
        if hasattr(self, "world") and self.world.limits.prefix_caching:
            cache = self.world.scheduler.cache
            assert cache.naming.events is not None
            if (left := cache.naming.events.take()) is not None:  # of a turn that was interrupted
                self.kv_events.publish(left)
            check_reader(self.kv_events, cache)

    @invariant()
    def classes_keep_their_bounds(self) -> None:
        if hasattr(self, "world"):
            scheduler = self.world.scheduler
            batch = [seq for seq in scheduler.table.rows.running if seq.request.request_class == "batch"]
            assert len(batch) <= 2
            assert scheduler.table.waiting.length("batch") <= 7 + 2

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.runner.heal()
        self.world.run()
        audit(self.world.scheduler)
        for (name, index), answer in self.world.answers.items():
            self.check_answer(self.requests[name], index, answer)
        pools = self.world.scheduler.cache.allocators
        assert self.world.free_blocks == [pool.num_blocks for pool in pools]
        self.check_ledger()

    def check_answer(self, request: Request, index: int, answer: Answer) -> None:
        expected = expectation(request, index, self.world.limits.max_model_len, self.window)
        text = expected.text if request.sampling.detokenize else ""
        assert answer.last is not None
        vector = self.world.vectors.get((request.request_id, index))
        assert (vector is not None) == (request.pooling is not None and answer.reason is FinishReason.STOP)
        if vector is not None and request.pooling is not None:
            assert vector == expected_vector(request.prompt_token_ids, request.pooling)
        assert answer.logprobs == ([] if request.sampling.logprobs is None else answer.token_ids)
        assert request.stream or len(answer.pieces) == 1
        if answer.reason in CUT_SHORT:
            assert answer.token_ids == expected.token_ids[: len(answer.token_ids)]
            assert text.startswith(answer.text)
        else:
            assert (answer.token_ids, answer.text) == (expected.token_ids, text)
            assert (answer.reason, answer.last.stop) == (expected.reason, expected.stop)
            assert answer.last.num_generated == expected.num_generated

    def check_ledger(self) -> None:
        tally = self.world.scheduler.counters
        reasons = [answer.reason for answer in self.world.answers.values()]
        assert tally.accepted == len(reasons)
        assert tally.finished == {reason: reasons.count(reason) for reason in FinishReason}


TestEngineMachine = EngineMachine.TestCase
