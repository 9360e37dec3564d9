"""The classes of `benchmarks.traffic`: the same for a seed, and each of the shape that it says."""

from __future__ import annotations

import itertools

import attrs
import pytest

from benchmarks.traffic_classes import (
    AGENTS,
    BURSTS,
    CHAT,
    CLASSES,
    CONVERSATIONS,
    FEW_SHOT,
    MOST,
    RAG,
    STEADY,
    SUMMARIES,
    SYSTEM_PROMPT,
    TrafficClass,
    draw_sessions,
    traced_sessions,
)
from nanoserve.entrypoints.bench.serving.request_files import IDS
from nanoserve.ports.traffic import TracedRequest

COUNT = 60


def prompts(traffic: TrafficClass) -> list[tuple[int, ...]]:
    return [each.turns[0].tokens for each in draw_sessions(traffic, COUNT, 1)]


@pytest.mark.parametrize("traffic", [each for some in CLASSES.values() for each in some], ids=str)
def test_a_seed_draws_a_class_once_and_within_its_bound(traffic: TrafficClass) -> None:
    small = traffic.scaled(0.1)
    sessions = draw_sessions(small, COUNT, 1, 10.0)
    assert sessions == draw_sessions(small, COUNT, 1, 10.0)
    assert sessions != draw_sessions(small, COUNT, 2, 10.0)
    assert sessions != draw_sessions(attrs.evolve(small, name="another"), COUNT, 1, 10.0)
    assert COUNT <= sum(len(each.turns) for each in sessions) < COUNT + traffic.turns
    lengths = [sum(len(turn.tokens) + turn.output_len for turn in each.turns) for each in sessions]
    assert max(lengths) <= small.longest
    assert small.sigma or set(lengths) == {small.longest}
    starts = [each.start for each in sessions]
    assert starts == sorted(starts)
    assert any(starts) == bool(small.pause or small.bursts or small.load)


def test_a_system_prompt_is_common_and_the_rest_is_not() -> None:
    found = prompts(SYSTEM_PROMPT)
    assert len({each[: SYSTEM_PROMPT.document_len] for each in found}) == 1
    assert len({each[SYSTEM_PROMPT.document_len :] for each in found}) == COUNT
    assert {token for each in found for token in each} <= set(IDS)


def test_few_shot_groups_share_a_beginning_each() -> None:
    assert len({each[: FEW_SHOT.document_len] for each in prompts(FEW_SHOT)}) == FEW_SHOT.documents


def test_retrieved_documents_come_several_at_a_time_in_any_order() -> None:
    size, count = RAG.document_len, RAG.documents_each
    chosen = [[each[place * size : (place + 1) * size] for place in range(count)] for each in prompts(RAG)]
    assert len({document for each in chosen for document in each}) == RAG.documents
    assert all(len(set(each)) == count for each in chosen)
    firsts = {each[0] for each in chosen}
    assert firsts & {document for each in chosen for document in each[1:]}


def test_later_turns_have_nothing_of_the_beginning() -> None:
    for traffic in (CONVERSATIONS, AGENTS):
        for session in draw_sessions(traffic, COUNT, 1):
            first, *later = session.turns
            assert len(session.turns) == traffic.turns
            assert len(first.tokens) == traffic.document_len + traffic.input_len
            assert {len(each.tokens) for each in later} == {traffic.input_len}
            assert all(each.pause > 0 for each in later)
    assert len({each[: AGENTS.document_len] for each in prompts(AGENTS)}) == 1
    assert len(set(prompts(CONVERSATIONS))) == len(prompts(CONVERSATIONS))


def test_chats_have_log_normal_lengths_and_summaries_are_long() -> None:
    lengths = sorted(len(each.turns[0].tokens) for each in draw_sessions(CHAT, 999, 1))
    assert CHAT.input_len * 0.8 < lengths[499] < CHAT.input_len * 1.25
    assert lengths[-1] == MOST * CHAT.input_len
    assert lengths[0] < CHAT.input_len / 8
    assert {len(each) for each in prompts(SUMMARIES)} == {8192}


def test_bursts_are_apart_and_have_as_many_requests_each() -> None:
    starts = [each.start for each in draw_sessions(BURSTS, COUNT, 1)]
    groups = [list(some) for _, some in itertools.groupby(starts, key=lambda start: start // BURSTS.period)]
    assert [len(each) for each in groups] == [COUNT / BURSTS.bursts] * BURSTS.bursts
    assert all(start % BURSTS.period <= BURSTS.burst_seconds for start in starts)


def test_steady_arrivals_have_their_fraction_of_the_capacity() -> None:
    for traffic in STEADY:
        assert traffic.load is not None
        last = draw_sessions(traffic, COUNT, 1, 10.0)[-1].start
        assert 0.8 * COUNT / (10.0 * traffic.load) < last <= COUNT / (10.0 * traffic.load)


def test_a_scale_multiplies_lengths_and_times_and_keeps_the_shape() -> None:
    small = AGENTS.scaled(0.01)
    assert (small.document_len, small.input_len, small.output_len, small.turns) == (41, 1, 1, 12)
    assert small.pause == pytest.approx(0.001)
    assert BURSTS.scaled(0.5).period == BURSTS.period / 2
    assert SUMMARIES.scaled(1.0) == attrs.evolve(SUMMARIES, document_len=1)


def test_equal_pieces_of_a_trace_are_equal_ids_and_others_are_not() -> None:
    traced = [
        TracedRequest(at=4.0 * number, prompt=((8, 512), (10 + 2 * number, 40)), output_tokens=20, affinity=0)
        for number in range(3)
    ]
    sessions = traced_sessions(traced, 0.5)
    assert [each.start for each in sessions] == [0.0, 2.0, 4.0]
    [turns] = zip(*(each.turns for each in sessions), strict=True)
    assert {(len(each.tokens), each.output_len) for each in turns} == {(276, 10)}
    assert len({each.tokens[:256] for each in turns}) == 1
    assert len({each.tokens[256:] for each in turns}) == 3
    assert sessions == traced_sessions(traced, 0.5)
