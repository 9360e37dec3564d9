"""Each rank's own GPU is the first that it sees, and it sees the others' behind it."""

from __future__ import annotations

import pytest

from nanoserve.entrypoints.compose import group


@pytest.mark.parametrize(
    ("listed", "rank", "order"),
    [(None, 1, "1,2,3,0"), ("4,6", 1, "6,4"), ("GPU-a,GPU-b,GPU-c", 2, "GPU-c,GPU-a,GPU-b")],
)
def test_the_order_in_which_a_rank_sees_the_gpus(
    monkeypatch: pytest.MonkeyPatch, listed: str | None, rank: int, order: str
) -> None:
    monkeypatch.setattr(group, "count_gpus", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert group.own_gpu(rank) == {"CUDA_VISIBLE_DEVICES": order}
