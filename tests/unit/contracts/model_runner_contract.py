"""What every model runner must do, whatever it computes: the same plans, driven by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from nanoserve.ports.driven import ModelRunner
from nanoserve.ports.pooling import Pooling, PoolingKind
from nanoserve.ports.step import BlockCopy, Chunk, SlotCopy, TableUpdate
from tests.plans import Driver, admitted
from tests.tiny_spec import TINY

Build = Callable[[], ModelRunner[Any]]
PROMPT = (5, 6, 7, 8, 9, 10)


@functools.cache
def alone(build: Build, tokens: tuple[int, ...] = PROMPT, count: int = 4) -> list[int]:
    """The answer of one sequence that has the runner to itself."""
    driver = Driver(build())
    length = len(tokens)
    driver.step(admitted=[admitted(0, tokens, range(1, 6))], chunks=[Chunk(0, 0, length, True)])
    for _ in range(count - 1):
        driver.step(decoding=[0])
    return driver.of(0)


class ModelRunnerContract:
    """Subclasses have a fixture `build`, which makes the runner."""

    @pytest.mark.matrix
    def test_a_row_continues_from_its_own_tokens(self, build: Build) -> None:
        said = alone(build)
        again = Driver(build())
        known = [*PROMPT, *said[:2]]
        again.step(
            admitted=[admitted(1, known, range(7, 12), num_prompt=len(PROMPT))],
            chunks=[Chunk(1, 0, len(known), True)],
        )
        again.step(decoding=[1])
        assert again.of(1) == said[2:]

    @pytest.mark.parametrize("cuts", [(1, 5), (4, 2), pytest.param((1, 1, 1, 3), marks=pytest.mark.matrix)])
    def test_chunks_change_nothing(self, build: Build, cuts: tuple[int, ...]) -> None:
        driver, start = Driver(build()), 0
        for number, length in enumerate(cuts):
            end = start + length
            new = [admitted(0, PROMPT, range(1, 6))] if number == 0 else []
            driver.step(admitted=new, chunks=[Chunk(0, start, length, end == len(PROMPT))])
            start = end
        driver.step(decoding=[0])
        assert driver.of(0) == alone(build, count=2)

    @pytest.mark.parametrize("depth", [2, 3])
    @pytest.mark.matrix
    def test_steps_in_flight_change_nothing(self, build: Build, depth: int) -> None:
        driver = Driver(build(), depth=depth)
        driver.step(admitted=[admitted(0, PROMPT, (1, 2))], chunks=[Chunk(0, 0, 6, True)])
        driver.step(decoding=[0])
        driver.step(decoding=[0], table_updates=[TableUpdate(0, 0, 2, (9,))])
        driver.step(decoding=[0])
        assert driver.of(0) == alone(build)

    @pytest.mark.matrix
    def test_neighbours_and_their_order_change_nothing(self, build: Build) -> None:
        driver = Driver(build())
        driver.step(admitted=[admitted(0, [1, 2, 3], (20, 21))], chunks=[Chunk(0, 0, 3, True)])
        driver.step(
            admitted=[admitted(3, PROMPT, (9, 5, 14)), admitted(1, [40] * 9, (2, 3, 4))],
            chunks=[Chunk(3, 0, 6, True), Chunk(1, 0, 5, False)],
            decoding=[0],
        )
        driver.step(chunks=[Chunk(1, 5, 4, True)], decoding=[0, 3])
        driver.step(decoding=[3, 1, 0], table_updates=[TableUpdate(0, 0, 2, (22,))])
        assert [row for row, _ in driver.finish()] == [0, 3, 0, 1, 0, 3, 3, 1, 0]
        assert driver.of(3) == alone(build, count=3)
        assert driver.of(0) == alone(build, (1, 2, 3))
        assert driver.of(1) == alone(build, (40,) * 9, count=2)

    @pytest.mark.matrix
    def test_a_row_released_and_taken_in_one_plan_starts_empty(self, build: Build) -> None:
        driver = Driver(build(), depth=2)
        driver.step(admitted=[admitted(0, [30, 31, 32], (1, 2))], chunks=[Chunk(0, 0, 3, True)])
        driver.step(decoding=[0])
        driver.step(released=[0], admitted=[admitted(0, PROMPT, (2, 1, 3))], chunks=[Chunk(0, 0, 6, True)])
        driver.step(decoding=[0])
        assert driver.of(0)[2:] == alone(build, count=2)

    def test_free_rows_may_be_released(self, build: Build) -> None:
        driver = Driver(build())
        driver.step(
            released=[0, 1, 2, 3], admitted=[admitted(2, PROMPT, (1, 2))], chunks=[Chunk(2, 0, 6, True)]
        )
        assert driver.of(2) == alone(build, count=1)

    def test_a_prefix_computed_by_another_row_is_read_through_the_table(self, build: Build) -> None:
        driver = Driver(build())
        driver.step(admitted=[admitted(0, PROMPT, (7, 8))], chunks=[Chunk(0, 0, 6, True)])
        driver.step(
            released=[0], admitted=[admitted(1, PROMPT, (7, 9), computed=4)], chunks=[Chunk(1, 4, 2, True)]
        )
        driver.step(decoding=[1])
        assert driver.of(1) == alone(build, count=2)

    def test_a_duplicate_block_may_be_exchanged_under_a_running_row(self, build: Build) -> None:
        driver = Driver(build())
        driver.step(
            admitted=[admitted(0, PROMPT, (1, 2)), admitted(1, PROMPT, (3, 4))],
            chunks=[Chunk(0, 0, 6, True), Chunk(1, 0, 6, True)],
        )
        driver.step(
            table_updates=[TableUpdate(1, 0, 0, (1,))],
            admitted=[admitted(2, [50] * 4, (3,))],
            chunks=[Chunk(2, 0, 4, True)],
            decoding=[0, 1],
        )
        driver.step(decoding=[1])
        assert driver.of(1) == alone(build, count=3)

    def test_steps_that_are_never_collected_leave_a_runner_that_goes_on(self, build: Build) -> None:
        driver = Driver(build(), depth=4)
        driver.step(admitted=[admitted(0, [30, 31, 32], (1, 2))], chunks=[Chunk(0, 0, 3, True)])
        driver.step(decoding=[0])
        driver.abandon()
        driver.step(
            released=[0, 1, 2, 3], admitted=[admitted(0, PROMPT, (2, 3))], chunks=[Chunk(0, 0, 6, True)]
        )
        driver.step(decoding=[0])
        assert driver.of(0) == alone(build, count=2)

    @pytest.mark.parametrize("depth", [1, 2])
    def test_copies_are_done_before_the_step_computes(self, build: Build, depth: int) -> None:
        driver = Driver(build(), depth=depth)
        driver.step(admitted=[admitted(0, PROMPT, (1, 2, 3))], chunks=[Chunk(0, 0, 6, True)])
        driver.step(
            admitted=[admitted(1, PROMPT, (8, 7, 9), computed=5)],
            copies=[BlockCopy(0, 1, 8), BlockCopy(0, 2, 7)],
            chunks=[Chunk(1, 5, 1, True)],
            decoding=[0],
        )
        # What is in the sources from here on is no concern of the copies.
        driver.step(
            released=[0],
            admitted=[admitted(2, [90] * 7, (1, 2))],
            chunks=[Chunk(2, 0, 7, True)],
            decoding=[1],
        )
        driver.step(copies=[BlockCopy(0, 7, 5)], table_updates=[TableUpdate(1, 0, 1, (5,))], decoding=[1])
        assert driver.of(1) == alone(build, count=3)
        assert driver.of(2) == alone(build, (90,) * 7, count=1)


def pooled(
    build: Build,
    pooling: Pooling,
    tokens: Sequence[int] = PROMPT,
    cuts: Sequence[int] = (),
    *,
    depth: int = 1,
) -> list[float]:
    """The vector of a prompt that is cut into chunks, beside a row that decodes and one that is pooled as a whole."""
    driver = Driver(build(), depth=depth)
    driver.step(admitted=[admitted(0, [1, 2, 3], (20, 21, 22))], chunks=[Chunk(0, 0, 3, True)])
    start = 0
    rows = [
        attrs.evolve(admitted(2, tokens, (9, 5, 14)), pooling=pooling),
        attrs.evolve(admitted(3, (40, 41), (3,)), pooling=Pooling()),
    ]
    for number, end in enumerate([*cuts, len(tokens)]):
        chunk = Chunk(2, start, end - start, samples=False, pools=end == len(tokens))
        beside = [Chunk(3, 0, 2, samples=False, pools=True)] if not number else []
        driver.step(admitted=() if number else rows, chunks=[*beside, chunk], decoding=[0])
        start = end
    driver.finish()
    assert driver.of(0) == alone(build, (1, 2, 3), len(cuts) + 2)
    assert [[*each.pooled] for each in driver.results][1] == ([3] if cuts else [3, 2])
    return list(driver.results[-1].pooled[2])


class PoolingContract:
    """For runners of a causal model: what a position's state is does not depend on what follows."""

    def test_the_mean_is_that_of_the_last_states_of_all_beginnings(self, build: Build) -> None:
        last = [pooled(build, Pooling(), PROMPT[:end]) for end in range(1, len(PROMPT) + 1)]
        mean = [sum(column) / len(PROMPT) for column in zip(*last, strict=True)]
        for cuts in ((), (4,), (1, 2, 5)):
            averaged = pooled(build, Pooling(kind=PoolingKind.MEAN), cuts=cuts)
            assert averaged == pytest.approx(mean, abs=1e-5)
            first = pooled(build, Pooling(kind=PoolingKind.FIRST), cuts=cuts)
            assert first == pytest.approx(last[0], abs=1e-5)
            assert pooled(build, Pooling(), cuts=cuts, depth=2) == pytest.approx(last[-1], abs=1e-5)

    def test_the_likeliest_token_has_the_largest_logit(self, build: Build) -> None:
        ids = range(TINY.vocab_size)
        logits = pooled(build, Pooling(token_ids=ids))
        driver = Driver(build())
        driver.step(admitted=[admitted(0, PROMPT, (1, 2), temperature=0.0)], chunks=[Chunk(0, 0, 6, True)])
        assert driver.of(0) == [max(ids, key=logits.__getitem__)]
        assert pooled(build, Pooling(token_ids=[7, 3])) == pytest.approx([logits[7], logits[3]])

    def test_a_classifier_multiplies_the_last_state(self, build: Build) -> None:
        state = pooled(build, Pooling())
        rows = [[0.5, -1.0] * (len(state) // 2), [0.0] * (len(state) - 1) + [3.0]]

        def classifying() -> ModelRunner[Any]:
            runner: Any = build()
            getattr(runner, "_mixed_steps", runner)._pooling._layers = (
                lambda vectors: vectors @ vectors.new_tensor(rows).T,
            )
            return runner  # type: ignore[no-any-return]

        expected = [sum(a * b for a, b in zip(row, state, strict=True)) for row in rows]
        assert pooled(classifying, Pooling(), cuts=(2,)) == pytest.approx(expected, abs=1e-5)

    def test_the_next_tenant_of_a_row_is_pooled_only_if_it_asks(self, build: Build) -> None:
        driver = Driver(build())
        mean = Pooling(kind=PoolingKind.MEAN)
        for tokens, pooling in ((PROMPT, mean), (PROMPT[:3], mean), (PROMPT, None)):
            row = attrs.evolve(admitted(0, tokens, (1, 2)), pooling=pooling)
            chunk = Chunk(0, 0, len(tokens), samples=pooling is None, pools=pooling is not None)
            driver.step(released=[0], admitted=[row], chunks=[chunk])
        assert [[*each.pooled] for each in driver.results] == [[0], [0], []]
        assert list(driver.results[1].pooled[0]) == pytest.approx(pooled(build, mean, PROMPT[:3]), abs=1e-5)
        assert driver.of(0) == alone(build, count=1)


class HostMemoryContract:
    """What a runner with host memory must do beside; its sizes have `host_slots=6`."""

    @pytest.mark.parametrize("depth", [1, 2])
    def test_blocks_come_back_from_host_memory_as_they_went(self, build: Build, depth: int) -> None:
        driver = Driver(build(), depth=depth)
        driver.step(admitted=[admitted(0, PROMPT, (1, 2, 3))], chunks=[Chunk(0, 0, 6, True)])
        driver.finish()
        driver.step(stores=[SlotCopy(1, 5)], decoding=[0])
        driver.finish()
        driver.step(
            released=[0],
            admitted=[admitted(2, [90] * 7, (1, 2))],
            loads=[SlotCopy(8, 5)],
            chunks=[Chunk(2, 0, 7, True)],
        )
        driver.step()
        driver.finish()
        assert sorted(step for result in driver.results for step in result.copied) == [2, 3]
        driver.step(
            released=[2],
            admitted=[admitted(1, PROMPT, (8, 7), computed=4)],
            chunks=[Chunk(1, 4, 2, True)],
        )
        driver.step(decoding=[1])
        assert driver.of(1) == alone(build, count=2)
        assert driver.of(2) == alone(build, (90,) * 7, count=1)
