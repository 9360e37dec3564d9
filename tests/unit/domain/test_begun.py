"""Answers that another engine had begun go on behind what it had reported of them, as if it had gone on itself."""

from __future__ import annotations

from typing import Any

import pytest

from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.model_spec import CacheGroup, Recurrent, Window
from nanoserve.ports.request import TRIED, FinishReason
from tests.unit.domain.constrained_world import EOS, LANGUAGES, SlowGrammars, check, constraint
from tests.unit.domain.constrained_world import world as constrained_world
from tests.unit.domain.faults import Fault
from tests.unit.domain.test_wide_steps import drafting_world
from tests.unit.domain.tokenizers import ByteTokenizer
from tests.unit.domain.world import FULL, World, oracle

PROMPT = list(range(10, 19))
KINDS = {
    "full": (FULL,),
    "window": (FULL, CacheGroup(layers=(2,), kind=Window(7))),
    "state": (FULL, CacheGroup(layers=(3,), kind=Recurrent(prompt_interval=8, decode_interval=4))),
}
WORDS = ByteTokenizer(
    [b"ab \xe2\x82", b"\xac!", b"\xac", b"\xe2", b"\x82\xac", b"stop", b"st", b"op", b"x ", b"y"] * 100
)


def pieces(world: World, name: str) -> list[TokensGenerated]:
    """All that is reported of a request."""
    found: list[TokensGenerated] = []
    while world.engine.has_work:
        found += [
            each for each in world.turn() if isinstance(each, TokensGenerated) and each.request_id == name
        ]
    return found


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [5, 64])
def test_every_answer_goes_on_from_every_place(kind: str, depth: int, chunk: int) -> None:
    window = 7 if kind == "window" else None
    whole = [oracle(PROMPT, 20, seed=3, index=index, window=window) for index in (0, 1)]
    for place in range(1, 20):
        settings: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": chunk, "num_blocks": 99}
        world = World(groups=KINDS[kind], depth=depth, **settings)
        begun = ((tuple(whole[0][:place]), 0), ((), 0))
        world.add("r", PROMPT, seed=3, n=2, max_tokens=20, logprobs=0, begun=begun)
        world.add("beside", PROMPT[:5], max_tokens=9)
        world.run()
        answers = [world.answer("r", index) for index in (0, 1)]
        assert [each.token_ids for each in answers] == [whole[0][place:], whole[1]]
        assert answers[0].logprobs == whole[0][place:]
        assert {each.reason for each in answers} == {FinishReason.LENGTH}
        assert answers[0].last is not None
        assert answers[0].last.num_generated == 20


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("how", ["drafts", "invariant steps", "host memory"])
def test_a_crowd_goes_on_with_drafts_by_invariant_steps_and_with_blocks_in_host_memory(
    how: str, depth: int
) -> None:
    whole = [oracle(PROMPT, 40, seed=number) for number in range(6)]
    for place in (1, 7, 22, 39):
        settings: dict[str, Any] = {"depth": depth, "num_blocks": 40, "max_num_seqs": 4}
        if how == "drafts":
            world, _ = drafting_world(0.7, 4, **settings)
        else:
            world = World(**settings, host_slots=64 * (how == "host memory"), min_offload_tokens=4)
        for number, said in enumerate(whole):
            begun = ((tuple(said[: place - number % 2]), 0),)
            fields: dict[str, Any] = {"deterministic": how == "invariant steps", "is_suspect": number < 2}
            world.add(str(number), PROMPT, seed=number, max_tokens=40, begun=begun, **fields)
        world.run()
        for number, said in enumerate(whole):
            assert world.answer(str(number)).token_ids == said[place - number % 2 :]


@pytest.mark.parametrize("stop", [(), ("stopx", "!st")])
@pytest.mark.parametrize("seed", range(8))
def test_text_goes_on_where_it_ended_in_the_middle_of_a_character_and_of_a_stop_string(
    stop: tuple[str, ...], seed: int
) -> None:
    asked: dict[str, Any] = {"seed": seed, "max_tokens": 40, "stop": stop}
    whole = World(tokenizer=WORDS)
    whole.add("r", PROMPT, **asked)
    reported = pieces(whole, "r")
    for place in range(1, len(reported)):
        before, behind = reported[:place], reported[place:]
        ids = tuple([token for each in before for token in each.token_ids])
        world = World(tokenizer=WORDS)
        world.add("r", PROMPT, **asked, begun=((ids, sum(len(each.text) for each in before)),))
        world.run()
        answer = world.answer("r")
        assert answer.token_ids == [token for each in behind for token in each.token_ids]
        assert answer.text == "".join(each.text for each in behind)
        assert answer.reason is reported[-1].finish_reason


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("after", [(), (4,)])
@pytest.mark.parametrize("looks", [0, 3])
def test_what_follows_a_grammar_goes_on_at_its_place(depth: int, after: tuple[int, ...], looks: int) -> None:
    """From before its mark, behind it, and within what is bound."""
    for seed, language in enumerate((LANGUAGES[1], LANGUAGES[4])):
        asked: dict[str, Any] = {"seed": seed, "eos": EOS, "max_tokens": 60}
        asked["constraint"] = constraint(language, after)
        whole = constrained_world(max_model_len=96, num_blocks=64)
        request = whole.add("r", [1], **asked)
        whole.run()
        check(request, whole)
        said = whole.answer("r")
        for place in range(1, len(said.token_ids)):
            grammars = SlowGrammars(looks)
            world = constrained_world(depth=depth, grammars=grammars, max_model_len=96, num_blocks=64)
            world.add("r", [1], **asked, begun=((tuple(said.token_ids[:place]), 0),))
            world.run()
            assert world.answer("r").token_ids == said.token_ids[place:]
            assert world.answer("r").reason is said.reason


def test_scores_of_the_prompt_are_not_reported_again() -> None:
    world = World()
    said = tuple(oracle(PROMPT, 3))
    world.add("r", PROMPT, prompt_logprobs=0, begun=((said, 0),))
    events = []
    while world.engine.has_work:
        events += world.turn()
    assert not [each for each in events if type(each).__name__ == "PromptScored"]
    assert world.answer("r").token_ids == oracle(PROMPT, 8)[3:]


def test_a_suspect_is_tried_behind_what_there_is_of_it() -> None:
    """So the one that ends engines late is alone when it ends the next one."""
    world = World(max_num_seqs=4)
    for number in range(3):
        said = tuple(oracle(PROMPT, 30, seed=number))
        fields: dict[str, Any] = {"is_suspect": True, "begun": ((said, 0),)}
        world.add(str(number), PROMPT, seed=number, max_tokens=60, **fields)
    for number in range(3):
        while len(world.answer(str(number)).token_ids) < TRIED:
            world.turn()
        assert all(not world.answer(str(later)).token_ids for later in range(number + 1, 3))
    world.run()
    for number in range(3):
        assert world.answer(str(number)).token_ids == oracle(PROMPT, 60, seed=number)[30:]


def test_one_that_has_begun_is_preempted_and_fails_as_any_other() -> None:
    world = World(max_num_seqs=4, num_blocks=24)
    whole = {str(number): oracle(PROMPT, 40, seed=number) for number in range(4)}
    for name, said in whole.items():
        world.add(name, PROMPT, seed=int(name), max_tokens=40, begun=((tuple(said[:10]), 0),))
    for _ in range(4):
        world.turn()
    world.runner.fail(Fault.COLLECT_LATE, StepFailedError("lost"))
    world.run()
    assert world.preemptions
    assert {name: world.answer(name).token_ids for name in whole} == {
        n: each[10:] for n, each in whole.items()
    }
