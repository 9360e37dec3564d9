"""Anything may happen in any order: at the end every answer is what it would have been alone, and nothing is lost."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest import mock

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nanoserve.domain.invariants import audit
from nanoserve.domain.kv.kinds import law_of
from nanoserve.domain.scheduling import verification
from nanoserve.domain.scheduling.admission import derive_seed
from nanoserve.domain.scheduling.limits import Policy, RequestClass
from nanoserve.domain.text.stream import find_stop
from nanoserve.domain.tracing.recorder import read_snapshot
from nanoserve.domain.tracing.replay import Replay
from nanoserve.ports.errors import (
    BadValueError,
    ConflictError,
    QueueFullError,
    StepFailedError,
    UnknownModelError,
)
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.model_spec import CacheGroup, Latent, Recurrent, Window
from nanoserve.ports.pooling import Pooling, PoolingKind
from nanoserve.ports.request import DEFERRED_CLASS, FinishReason, Request
from nanoserve.ports.steering import PARTS, PauseMode, WeightsFacts
from tests.fakes.fickle_grammars import FickleGrammars
from tests.fakes.finite_grammars import KIND, language_of
from tests.fakes.memory_runner import expected_token, expected_vector
from tests.fakes.scripted_drafter import ScriptedDrafter
from tests.unit.domain.faults import Fault
from tests.unit.domain.kv_event_reader import KVEventReader, check_reader
from tests.unit.domain.late_copies import LateDirectory
from tests.unit.domain.strict_runner import HeldLoras, StrictRunner, StrictStore, seed_with
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
WEIGHTS = ("w1", "w2")
ROOTS = [
    (*asks, *salt)
    for asks in ((), ("deterministic",))
    for salt in (
        ("salt", ""),
        *(("weights", f"{each}{number}", "", "") for each in WEIGHTS for number in range(100)),
    )
]
UNKNOWN = f"{VOCAB}"
"""A language that cannot be compiled."""
LANGUAGES = ("4 5|4 6 2|8 9 10 12", "12 13 14 15 16 17 18 19 20 21", "6 2|6 8 9 6 8 9 6 8 9 6 8 9", UNKNOWN)
CONSTRAINTS = tuple(Constraint(KIND, text, after=after) for text in LANGUAGES for after in ((), (), (9,)))
CUT_SHORT = {FinishReason.ABORT, FinishReason.TIMEOUT, FinishReason.ERROR}


@attrs.frozen
class Expectation:
    """What a sequence must say: computed from its request alone. A stop string hides tokens that were generated."""

    token_ids: list[int]
    text: str
    reason: FinishReason
    stop: str | int | None
    num_generated: int


def say(request: Request, seed: int, count: int, window: int | None) -> tuple[list[int], bool]:
    """What the model says, as the constraint lets it, and whether it is stuck then."""
    tokens, constraint, mark = list(request.prompt_token_ids), request.constraint, 0
    language = language_of(constraint.text) if constraint is not None else frozenset()
    if constraint is not None and constraint.text == UNKNOWN:
        return [], True
    is_free = constraint is not None and bool(constraint.after)
    for number in range(count):
        allowed: set[int] | None = None
        if is_free:
            allowed = set(range(VOCAB)) - request.eos_token_ids
        elif constraint is not None:
            said = tuple(tokens[mark or len(request.prompt_token_ids) :])
            allowed = {
                each[len(said)] for each in language if len(each) > len(said) and each[: len(said)] == said
            }
            if said in language and number >= request.sampling.min_tokens:
                allowed |= request.eos_token_ids
        if allowed is not None and not allowed:
            return tokens[len(request.prompt_token_ids) :], True
        mask = None if allowed is None else sum(1 << each for each in allowed).to_bytes(VOCAB // 8, "little")
        tokens.append(expected_token(tokens, seed, VOCAB, window, mask))
        if is_free and constraint is not None and number + 1 >= len(constraint.after):
            is_free = tuple(tokens[-len(constraint.after) :]) != constraint.after
            mark = 0 if is_free else len(tokens)
        if constraint is not None and tokens[-1] in request.eos_token_ids:
            break
    return tokens[len(request.prompt_token_ids) :], False


def expectation(
    request: Request, index: int, lora: bytes, max_model_len: int, window: int | None
) -> Expectation:
    params = request.sampling
    if request.pooling is not None:
        return Expectation([], "", FinishReason.STOP, None, 0)
    count = min(params.max_tokens or max_model_len, max_model_len - len(request.prompt_token_ids))
    said, is_stuck = say(request, seed_with(lora, derive_seed(request.seed, index)), count, window)
    text = LETTERS.decode(said)
    stop_ids = set(params.stop_token_ids) | (set() if params.ignore_eos else request.eos_token_ids)
    for number in range(params.min_tokens + 1, len(said) + 1):
        last = said[number - 1]
        if last in stop_ids:
            stop = last if last in params.stop_token_ids else None
            shown = number if params.include_stop_str_in_output else number - 1
            return Expectation(said[:number], text[:shown], FinishReason.STOP, stop, number)
        if match := find_stop(text[:number], params.stop, params.min_tokens):
            end = match.end if params.include_stop_str_in_output else match.start
            return Expectation(said[:end], text[:end], FinishReason.STOP, match.stop, number)
    reason = FinishReason.ERROR if is_stuck else FinishReason.LENGTH
    return Expectation(said, text, reason, None, len(said))


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
        "deterministic": st.sampled_from([False, False, True]),
        "lora": st.sampled_from(["", "", "a", "b", "c"]),
        "constraint": st.sampled_from([None, None, *CONSTRAINTS]),
        "drafts": st.sampled_from([True, True, True, False]),
    }
)


TURNS = st.integers(0, 6)
PLAIN: dict[str, Any] = {
    "deadline": None,
    "queue_timeout": None,
    "pooling": None,
    "prompt_logprobs": None,
    "constraint": None,
    "deterministic": False,
    "lora": "",
    "n": 1,
    "stop": (),
    "stop_token_ids": (),
    "eos": (),
    "cache_salt": "",
    "request_class": "default",
}
"""Requests of one run have about half of these in common: features meet more often where they are few."""


class EngineMachine(RuleBasedStateMachine):
    """A cramped engine under random traffic, faults and time."""

    @initialize(
        groups=st.sampled_from(GROUPS),
        slack=st.lists(st.integers(0, 8), min_size=4, max_size=4),
        depth=st.integers(1, 3),
        host_slots=st.sampled_from([0, 2, 12]),
        acceptance=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
        dice=st.builds(random.Random, st.integers(0, 1 << 16)),
        slots=st.integers(1, 3),
        plain=st.lists(st.booleans(), min_size=len(PLAIN), max_size=len(PLAIN)),
        short=st.sampled_from([6, 2048]),
        late=st.sampled_from([0.15, 0.5, 0.8, 0.95]),
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
                "max_width": st.sampled_from([1, 1, 2, 4, 8]),
                "most_unverified": st.sampled_from([0, 3, 5, 31]),
                "invariant_decoding": st.booleans(),
                "deferred_rows": st.sampled_from([None, 1]),
                "hands_over": st.booleans(),
                "step_seconds": st.sampled_from(
                    [(), ((1, 0.001), (64, 0.003)), ((8, 0.001), (16, 0.0012), (64, 0.01))]
                ),
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
        slots: int,
        plain: list[bool],
        short: int,
        late: float,
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
        self.kv_events = KVEventReader(limits["block_size"], isolated=limits["isolated"], roots=ROOTS)
        loras, self.store = HeldLoras(), StrictStore(dice)
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
            grammars=FickleGrammars(VOCAB, frozenset((3,)), dice, late=late),
            runner=functools.partial(StrictRunner, dice=dice, drafter=drafter),
            directory=lambda runner: LateDirectory(runner, dice),
            host_slots=host_slots if is_carried else 0,
            min_offload_tokens=2,
            max_loras=slots,
            lora_store=loras,
            weight_store=self.store,
            on_failure=self.note_failure,
            **limits,
        )
        assert isinstance(self.world.runner, StrictRunner)
        self.runner = self.store.runner = self.world.runner
        self.runner.held, self.runner.scheduler = loras.held, self.world.scheduler
        self.recorder = self.world.engine.record(LETTERS)
        self.replay = Replay(self.recorder.snapshot())
        self.requests: dict[str, tuple[Request, bytes]] = {}
        self.plain = dict(itertools.compress(PLAIN.items(), plain))
        self.loras: dict[str, bytes] = {}
        self.aborted, self.failed = set[str](), set[str]()
        self.is_calm = groups in {(FULL,), (LATENT,), (FULL, LATENT)}
        self.short = mock.patch.object(verification, "SHORT", short)
        self.short.start()

    def note_failure(self, _step: int, error: Exception, request_ids: list[str]) -> None:
        """Of rows whose numbers are not finite none may be named that has not computed them."""
        if "not finite" in str(error):
            assert set(request_ids) <= self.runner.guilty
        self.failed.update(request_ids)

    @rule(fields=REQUESTS, turns=TURNS)
    def add(self, fields: dict[str, Any], turns: int = 0) -> None:
        self.ask(range(fields["length"]), fields)
        self.turn(turns)

    @rule(
        fields=REQUESTS,
        tails=st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=3), min_size=2, max_size=5),
        turns=TURNS,
    )
    def add_crowd(self, fields: dict[str, Any], tails: list[list[int]], turns: int = 0) -> None:
        """Prompts of one beginning that arrive together."""
        for tail in tails:
            self.ask([*range(fields["length"]), *tail], fields)
        self.turn(turns)

    @rule(fields=REQUESTS, number=st.integers(0, 30), turns=TURNS)
    def go_on(self, fields: dict[str, Any], number: int, turns: int = 0) -> None:
        """A request whose prompt is an earlier one's with what it has said so far."""
        if f"r{number}" in self.requests:
            request, _ = self.requests[f"r{number}"]
            prompt = [*request.prompt_token_ids, *self.world.answer(f"r{number}").token_ids]
            self.ask(prompt, fields | {"seed": request.seed, "deterministic": request.sampling.deterministic})
            self.turn(turns)

    def ask(self, prompt: Sequence[int], fields: dict[str, Any]) -> None:
        name, fields = f"r{len(self.requests)}", fields | self.plain
        del fields["length"]
        if fields["deadline"] is not None:
            fields["deadline"] += self.world.clock.time
        if fields["max_tokens"] is not None:
            fields["min_tokens"] = min(fields["min_tokens"], fields["max_tokens"])
        if not fields["detokenize"]:
            fields["stop"] = ()
        if fields["pooling"] is not None:
            fields["constraint"] = None
        if fields["constraint"] is not None:
            fields["eos"], fields["ignore_eos"] = fields["eos"] or (3,), False
        waiting = len(self.world.scheduler.table.waiting)
        try:
            request = self.world.add(name, prompt[:22], **fields)
        except QueueFullError:
            assert fields["request_class"] == "batch"
        except UnknownModelError:
            assert fields["lora"] not in self.loras
        except BadValueError:
            assert fields["constraint"].text == UNKNOWN
        else:
            self.requests[name] = request, self.loras.get(fields["lora"], b"")
            return
        assert len(self.world.scheduler.table.waiting) == waiting

    @rule(number=st.integers(0, 30))
    def abort(self, number: int) -> None:
        self.world.engine.abort(f"r{number}")
        self.aborted.add(f"r{number}")

    @rule(with_directory=st.booleans())
    def forget_prefixes(self, with_directory: bool) -> None:
        self.is_calm = False
        self.world.engine.forget_prefixes(with_directory=with_directory)

    @rule(name=st.sampled_from("abc"), folder=st.sampled_from(["v1", "v2", "v3", ""]))
    def name_lora(self, name: str, folder: str) -> None:
        """An empty folder takes the name away."""
        engine = self.world.engine
        if folder:
            engine.name_lora(name, engine.read_lora(folder))
            self.loras[name] = folder.encode()
        elif self.loras.pop(name, None):
            engine.forget_lora(name)

    @rule(
        mode=st.sampled_from([*PauseMode, None, None, None]), parts=st.sampled_from([(), PARTS, *zip(PARTS)])
    )
    def steer(self, mode: PauseMode | None, parts: Sequence[str]) -> None:
        """Wake parts up, and pause or resume."""
        self.wake(parts)
        if mode is None:
            self.resume()
        else:
            self.pause(mode)

    def pause(self, mode: PauseMode) -> None:
        self.aborted.update(self.requests if mode is PauseMode.ABORT else ())
        self.world.engine.pause(mode)

    def resume(self) -> None:
        self.world.engine.resume()

    @rule(level=st.integers(1, 2), is_patient=st.booleans())
    def sleep(self, level: int, is_patient: bool) -> None:
        self.is_calm = False
        self.come_home(is_patient=is_patient)
        try:
            self.world.engine.sleep(level)
        except ConflictError:
            assert self.world.scheduler.flights or self.world.engine.steering.asleep

    def wake(self, parts: Sequence[str]) -> None:
        self.world.engine.note_awake(parts)

    @rule(digest=st.sampled_from(WEIGHTS), is_patient=st.booleans())
    def write_weights(self, digest: str, is_patient: bool) -> None:
        self.is_calm = False
        self.come_home(is_patient=is_patient)
        version = self.store.written
        try:
            self.world.engine.write_weights(WeightsFacts(version=version + 1, digest=f"{digest}{version}"))
        except ConflictError:
            assert self.store.written == version

    def come_home(self, *, is_patient: bool) -> None:
        """Pause, and wait until nothing is in flight."""
        if is_patient:
            self.world.engine.pause(PauseMode.KEEP)
            self.turn(4)

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

    @rule(
        where=st.sampled_from(["before a draw", "behind a draw", "in numbers", *Fault]),
        kind=st.integers(0, 3),
    )
    def go_wrong(self, where: Fault | str, kind: int) -> None:
        if isinstance(where, Fault):
            self.fail(where, kind)
        elif where == "in numbers":
            self.break_numbers()
        else:
            self.fail_to_draw(afterwards=where == "behind a draw")

    def break_numbers(self) -> None:
        self.is_calm = False
        self.runner.breaks += 1

    def fail_to_draw(self, *, afterwards: bool) -> None:
        self.is_calm = False
        self.runner.fail_to_draw(RuntimeError("not drawn"), afterwards=afterwards)

    def fail(self, fault: Fault, kind: int) -> None:
        self.is_calm = False
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
        self.short.stop()
        self.runner.heal()
        self.runner.breaks, self.store.is_lost = 0, False
        self.world.engine.note_awake(PARTS)
        self.world.engine.resume()
        self.world.run()
        audit(self.world.scheduler)
        for (name, index), answer in self.world.answers.items():
            self.check_answer(*self.requests[name], index, answer)
        pools = self.world.scheduler.cache.allocators
        assert self.world.free_blocks == [pool.num_blocks for pool in pools]
        if self.is_calm and not self.world.preemptions and not any(pool.num_evicted for pool in pools):
            assert max(self.runner.chunks.values(), default=0) <= 1, "a beginning is computed twice"
        self.check_loras()
        self.check_ledger()

    def check_answer(self, request: Request, lora: bytes, index: int, answer: Answer) -> None:
        expected = expectation(request, index, lora, self.world.limits.max_model_len, self.window)
        text = expected.text if request.sampling.detokenize else ""
        assert answer.last is not None
        vector = self.world.vectors.get((request.request_id, index))
        assert (vector is not None) == (request.pooling is not None and answer.reason is FinishReason.STOP)
        if vector is not None and request.pooling is not None:
            assert vector == expected_vector(request.prompt_token_ids, request.pooling)
        assert answer.logprobs == ([] if request.sampling.logprobs is None else answer.token_ids)
        assert request.stream or len(answer.pieces) == 1
        if answer.reason in CUT_SHORT:
            self.check_cut(request, expected, answer)
            assert answer.token_ids == expected.token_ids[: len(answer.token_ids)]
            assert text.startswith(answer.text)
        else:
            assert (answer.token_ids, answer.text) == (expected.token_ids, text)
            assert (answer.reason, answer.last.stop) == (expected.reason, expected.stop)
            assert answer.last.num_generated == expected.num_generated

    def check_cut(self, request: Request, expected: Expectation, answer: Answer) -> None:
        """What ended an answer before its time has happened."""
        match answer.reason:
            case FinishReason.ABORT:
                assert request.request_id in self.aborted
            case FinishReason.TIMEOUT:
                assert request.deadline is not None or request.queue_timeout is not None
            case _:
                is_stuck = expected.reason is FinishReason.ERROR and answer.token_ids == expected.token_ids
                assert is_stuck or request.request_id in self.failed, answer.last

    def check_loras(self) -> None:
        """Adapters without a name and without a request are dropped."""
        assert +self.runner.held == Counter(self.loras.values())
        for name in list(self.loras):
            self.name_lora(name, "")
        assert not +self.runner.held
        assert not self.world.scheduler.table.loras.audit([], [])

    def check_ledger(self) -> None:
        tally = self.world.scheduler.counters
        reasons = [answer.reason for answer in self.world.answers.values()]
        assert tally.accepted == len(reasons)
        assert tally.finished == {reason: reasons.count(reason) for reason in FinishReason}


TestEngineMachine = EngineMachine.TestCase
