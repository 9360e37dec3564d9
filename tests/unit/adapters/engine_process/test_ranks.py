"""Ranks follow one engine: plans and masks reach them as they are, and whatever parts them ends the group; threads are the processes here."""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from nanoserve.adapters.engine_process.ranks import leader
from nanoserve.adapters.engine_process.ranks.follower import follow
from nanoserve.adapters.engine_process.ranks.leader import LeadingRunner, Rank, Ranks
from nanoserve.adapters.engine_process.wire.plans import Build, Join, RankWire
from nanoserve.adapters.system.process import SystemClock
from nanoserve.domain.engine import Engine
from nanoserve.domain.scheduling.limits import Limits
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.errors import BadValueError, ModelLoadError, RunnerLostError, StepFailedError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.grammar import Masks
from nanoserve.ports.model_spec import CacheGroup
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.steering import PARTS, SharedTensor
from nanoserve.ports.step import Chunk, StepPlan, StepResult
from tests.fakes.memory_runner import MemoryRunner, expected_token
from tests.plans import admitted

SIZES = EngineSizes(
    max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, vocab_size=50, block_size=4, num_blocks=40
)
GROUPS = (CacheGroup(layers=(0,)),)


class SpyRunner(MemoryRunner):
    """Keeps the plans; `spoil` may change what a step has drawn."""

    def __init__(self, spoil: Callable[[StepResult], object] = lambda result: None, **faults: Any) -> None:
        super().__init__(GROUPS, num_blocks=40, block_size=4, vocab_size=50, **faults)
        self.plans: list[StepPlan] = []
        self._spoil = spoil

    def submit(self, plan: StepPlan, /) -> StepPlan:
        self.plans.append(plan)
        return super().submit(plan)

    def collect(self, ticket: StepPlan, /) -> StepResult:
        result = super().collect(ticket)
        self._spoil(result)
        return result


class ThreadProcess:
    """What a leader asks of a process."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("thread", timeout or 0)
        return 1


@attrs.define(eq=False)
class World:
    """An engine over two ranks."""

    ranks: Ranks
    rank: Rank
    own: SpyRunner
    other: SpyRunner
    leading: LeadingRunner[Any]
    built: list[Build] = attrs.field(factory=list)

    def engine(self) -> Engine[Any]:
        limits = Limits(**SIZES.sizes())
        return Engine(limits=limits, cache_groups=GROUPS, runner=self.leading, clock=SystemClock(), depth=2)


class SpyStore:
    """What a rank is told of its weights; it refuses `refused`."""

    def __init__(self, refused: object = None) -> None:
        self.told: list[object] = []
        self._refused = refused

    def sleep(self, level: int) -> None:
        self._note(level)

    def wake(self, part: str) -> None:
        self._note(part)

    def read(self, source: object, *, anew: bool, partial: bool) -> None:
        self._note((source, anew, partial))

    def complete(self) -> str:
        return ""

    def _note(self, what: object) -> None:
        self.told.append(what)
        if what == self._refused:
            raise BadValueError("level", "not now")


@contextlib.contextmanager
def group(
    other: SpyRunner | None = None,
    *,
    load: Callable[[Join], int] = lambda join: 77,
    store: SpyStore | None = None,
) -> Iterator[World]:
    follower, built = other or SpyRunner(), list[Build]()

    def make(build: Build) -> tuple[SpyRunner, Any]:
        built.append(build)
        return follower, store

    ours, theirs = socket.socketpair()

    def work() -> None:
        with theirs:
            follow(theirs, lambda join: (load(join), make), is_watchful=lambda join: True)

    thread = threading.Thread(target=work, daemon=True)
    process: Any = ThreadProcess(thread)
    rank = Rank(1, process, ours)
    ranks = Ranks([rank])
    ranks.join([Join(1, 2, {"model": "m"})])
    own = SpyRunner()
    thread.start()
    try:
        yield World(ranks, rank, own, follower, LeadingRunner(own, ranks, is_watchful=True), built)
    finally:
        ranks.close()
        thread.join(60)
        assert not thread.is_alive()


def begin(world: World) -> World:
    assert world.ranks.loaded() == [77]
    world.ranks.send(Build(SIZES, 4711))
    return world


def answer(engine: Engine[Any], *names: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {name: [] for name in names}
    for name in names:
        sampling = SamplingParams(temperature=0.0, max_tokens=9)
        engine.add(Request(request_id=name, prompt_token_ids=(1, 2, len(name)), sampling=sampling))
    while engine.has_work:
        for event in engine.turn():
            if isinstance(event, TokensGenerated):
                found[event.request_id] += event.token_ids
    return found


def test_every_rank_gets_every_plan_and_steady_rows_as_one_object() -> None:
    with group() as world:
        engine = begin(world).engine()
        answers = answer(engine, "a", "bb", "ccc")
        assert world.built == [Build(SIZES, 4711)]
        assert world.other.plans == world.own.plans
        pairs = [list(itertools.pairwise(each.plans)) for each in (world.own, world.other)]
        steady = [[a.decoding is b.decoding for a, b in each] for each in pairs]
        assert steady[0] == steady[1]
        assert any(steady[0])
    for name, tokens in answers.items():
        known = [1, 2, len(name)]
        for token in tokens:
            assert token == expected_token(known, 0, 50)
            known.append(token)


def test_masks_reach_every_rank() -> None:
    with group() as world:
        runner = begin(world).leading
        plan = StepPlan(
            step=1, admitted=(admitted(0, (1, 2), (1,)),), chunks=(Chunk(0, 0, 2, True),), masked=(0,)
        )
        ticket = runner.submit(plan)
        block = runner.mask_block(1)
        block.mask(0)[:] = b"\x00\x02" + bytes(6)
        runner.draw(ticket, Masks(block, {0: 0}))
        assert runner.collect(ticket).token_ids == [9]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            SpyRunner(lambda result: result.token_ids.reverse()),
            "rank 1 drew other tokens than rank 0 in step",
        ),
        (SpyRunner(fail_at={2: StepFailedError("a fault")}), "rank 1 has ended: StepFailedError: a fault"),
    ],
)
def test_ranks_that_part_end_the_engine_and_no_request(other: SpyRunner, reason: str) -> None:
    with group(other) as world:
        engine = begin(world).engine()
        with pytest.raises(RunnerLostError, match=reason):
            answer(engine, "a", "bb")
        assert engine.request_ids() == ["a", "bb"]


def test_every_rank_sleeps_and_wakes_and_if_one_refuses_none_sleeps() -> None:
    store = SpyStore(refused=2)
    with group(store=store) as world:
        begin(world)
        world.ranks.sleep(1)
        world.ranks.wake("kv_cache")
        assert store.told == [1, "kv_cache"]
        with pytest.raises(BadValueError, match="rank 1: level: not now"):
            world.ranks.sleep(2)
        assert store.told[2:] == [2, *PARTS]


def test_every_rank_reads_folders_and_tensors_of_another_process() -> None:
    tensors = (SharedTensor("model.norm.weight", "float32", (2, 3), bytes(range(64)), 512),)
    store = SpyStore()
    with group(store=store) as world:
        begin(world)
        world.ranks.read_weights(["folder", tensors], partial=True)
    assert store.told == [("folder", True, True), (tensors, False, True)]


def test_a_fault_of_the_first_rank_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "LAST_WORDS", 0.1)
    with group() as world:
        world.own.fail_at[3] = StepFailedError("a fault")
        with pytest.raises(RunnerLostError, match=r"a step failed on rank 0: StepFailedError\('a fault'\)"):
            answer(begin(world).engine(), "a")


def test_a_step_that_the_first_rank_launches_too_late_ends_the_group() -> None:
    """The others may have given it up, and what they hand over then is nonsense."""
    with group() as world:
        runner: LeadingRunner[Any] = LeadingRunner(
            begin(world).own, world.ranks, is_watchful=False, most_seconds=0.0
        )
        with pytest.raises(RunnerLostError, match="rank 0 launched step 1 0 s after it was planned"):
            runner.submit(StepPlan(step=1))


class Abandoned(threading.Event):
    """What is called when a rank is lost."""


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_rank_that_ends_is_noticed_without_being_asked_for(*, is_lost: bool) -> None:
    abandoned = Abandoned()
    with group() as world:
        begin(world).ranks.watch(abandoned.set)
        if is_lost:
            world.rank.connection.shutdown(socket.SHUT_WR)
            assert abandoned.wait(60)
    assert abandoned.is_set() == is_lost


def test_an_idle_engine_notices_that_a_rank_has_ended() -> None:
    with group() as world:
        engine = begin(world).engine()
        engine.state()
        world.rank.connection.shutdown(socket.SHUT_WR)
        world.rank.process.wait(60)
        with pytest.raises(RunnerLostError, match="rank 1 has ended: it ended with 1"):
            engine.state()
        with pytest.raises(RunnerLostError, match="rank 1 has ended"):
            answer(engine, "a")


def test_a_rank_that_cannot_load_says_why() -> None:
    def load(join: Join) -> int:
        raise ModelLoadError(f"no part {join.rank} of {join.size} of {join.settings['model']}")

    message = r"rank 1 could not load its part: .*no part 1 of 2 of m"
    with group(load=load) as world, pytest.raises(ModelLoadError, match=message):
        world.ranks.loaded()


@pytest.mark.parametrize(
    ("error", "is_told"), [(BadValueError("draft", "is refused"), False), (RuntimeError("a fault"), True)]
)
def test_a_refusal_is_the_first_ranks_to_tell(
    error: Exception, is_told: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Settings that one rank refuses are refused by the first one, too, which ends at once; a fault that it did not hear is printed."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(RankWire().encode(Join(1, 2, {})))

        def load(_: Join) -> Any:
            ours.close()
            raise error

        assert follow(theirs, load, is_watchful=lambda _: False) == 1
    assert bool(capfd.readouterr().err) == is_told
