"""A block that a fast step has filled gets its name once an invariant step has computed it again."""

from __future__ import annotations

import pytest

from nanoserve.domain.scheduling import verification
from nanoserve.ports.step import Chunk, StepResult
from tests.unit.domain.world import RecordingRunner, World, oracle


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_a_fast_step_has_filled_is_not_shared_before_it_is_verified(deterministic: bool) -> None:
    world = World(depth=1)
    prompt = [50, 51, 52]
    (token,) = oracle(prompt, 1)
    world.add("first", prompt, max_tokens=40, deterministic=deterministic)
    while not any(plan.decoding for plan in world.runner.plans):
        world.turn()
    world.add("second", [*prompt, token, 7, 8, 9], max_tokens=2, deterministic=deterministic)
    world.turn()
    world.turn()
    first, second = (chunk for plan in world.runner.plans for chunk in plan.chunks)
    assert (first.start, first.length) == (0, 3)
    assert second.start == (0 if deterministic else world.limits.block_size)
    world.run()
    assert world.answer("first").token_ids == oracle(prompt, 40)
    assert world.answer("second").token_ids == oracle([*prompt, token, 7, 8, 9], 2)


class Sceptical(RecordingRunner):
    """Finds that only the first of the tokens which a row has decoded is right, though the others would be again."""

    def verify(self, chunk: Chunk, mask: bytes | None, result: StepResult) -> int:
        row = self.rows[chunk.row]
        verified = len(row.token_ids) - chunk.unverified
        if not chunk.unverified:
            return super().verify(chunk, mask, result)
        result.token_ids.append(row.token_ids[verified])
        del row.token_ids[verified + 1 :], row.seen[verified:]
        row.num_computed = verified
        return 1


@pytest.mark.parametrize(
    ("runner", "rows", "windows"),
    [
        (RecordingRunner, 8, [4] * 7),
        (RecordingRunner, 1, [31]),
        (Sceptical, 1, [31, 23, 17, 12, 9, 6, 4, 3, 3]),
    ],
)
def test_few_tokens_are_decoded_at_once_by_many_rows_and_where_many_are_wrong(
    monkeypatch: pytest.MonkeyPatch, runner: type[RecordingRunner], rows: int, windows: list[int]
) -> None:
    monkeypatch.setattr(verification, "MOST_TOKENS", 40)
    world = World(runner=runner, max_num_batched_tokens=64, num_blocks=200)
    for number in range(rows):
        world.add(str(number), [50, number], max_tokens=40, deterministic=True)
    world.run()
    found = [max(each.unverified for each in plan.chunks) for plan in world.runner.plans if plan.invariant]
    assert found[1 : 1 + len(windows)] == windows
    assert all(world.answer(str(number)).token_ids == oracle([50, number], 40) for number in range(rows))
