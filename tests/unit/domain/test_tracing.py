"""The step log: what a turn says, what it costs to say it, and that it says nothing of what was said."""

from __future__ import annotations

from nanoserve.ports.trace import Admission, Arrival, Ending, PlannedStep, TracedChunk, Turn
from tests.unit.domain.tokenizers import characters
from tests.unit.domain.world import World

LETTERS = characters("abcdefghijklmnopqrstuvwxyz")


def turns(world: World) -> list[Turn]:
    recorder = world.engine.record()
    recorder.snapshot()
    world.run()
    return recorder.take()


def happened(log: list[Turn], kind: type) -> list[object]:
    return [each for turn in log for each in turn.happened if isinstance(each, kind)]


def test_one_request_from_its_arrival_to_its_end() -> None:
    world = World(max_num_batched_tokens=6, max_num_seqs=4)
    recorder = world.engine.record()
    world.add("a", range(10), max_tokens=3)
    world.run()
    log = recorder.take()
    assert log[0].arrived == (Arrival(0, "a", 0, 10, 13),)
    assert happened(log, Admission) == [Admission(0, 0, 0, False)]
    assert happened(log, PlannedStep) == [
        PlannedStep(1, (TracedChunk(0, 0, 6, False),), ()),
        PlannedStep(2, (TracedChunk(0, 6, 4, True),), None),
        PlannedStep(3, (), (0,)),
        PlannedStep(4, (), None),
    ]
    assert [turn.committed for turn in log] == [1, 2, 3, 4]
    assert [turn.num_generated for turn in log] == [0, 1, 1, 1]
    assert [turn.ended for turn in log] == [(), (), (), (Ending(0, "length", 3),)]


def test_a_steady_step_says_nothing_but_its_number() -> None:
    world = World(block_size=16)
    for name in "abcd":
        world.add(name, range(4), max_tokens=8)
    log = turns(world)
    steady = log[3]
    assert steady.happened == (PlannedStep(4, (), None),)
    assert (steady.arrived, steady.ended, steady.kv, steady.words) == ((), (), (), ())


def test_an_abort_between_two_turns_is_in_the_next_one() -> None:
    world = World()
    world.add("a", range(9), max_tokens=50)
    recorder = world.engine.record()
    world.turn()
    recorder.take()
    world.engine.abort("a")
    world.turn()
    assert recorder.take()[0].ended == (Ending(0, "abort", 1),)


def test_after_the_end_nothing_is_recorded() -> None:
    world = World()
    recorder = world.engine.record()
    world.engine.stop_recording()
    world.add("a", range(9), max_tokens=5)
    world.run()
    assert recorder.take() == []
    assert world.scheduler.cache.journal is None


def test_words_are_there_only_where_they_are_asked_for() -> None:
    for tokenizer in (None, LETTERS):
        world = World(tokenizer=LETTERS, vocab_size=26)
        recorder = world.engine.record(tokenizer)
        world.add("a", [1, 2, 2], max_tokens=4)
        world.run()
        words = [each for turn in recorder.take() for each in turn.words]
        assert [token for each in words for token in each.token_ids] == (
            [1, 2, 2, *world.answers["a", 0].token_ids] if tokenizer else []
        )
        spelled = [token for each in words for token in each.texts]
        assert len(spelled) == len(set(spelled))
        assert all(text == LETTERS.decode([token]) for each in words for token, text in each.texts.items())
