"""What surrounds the layer of a head that drafts is what plain operations make."""

from __future__ import annotations

import pytest

from nanoserve.kernels.draft_head import cases as draft_head
from nanoserve.kernels.draft_head import launch
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases


@cases(("size", "width", "scale"), [(40, 4, None)], also=[(64, 2, 3.5), (40, 1, None), (2048, 8, None)])
def test_a_layer_reads_the_norms_of_vectors_and_states(
    inputs: Inputs, size: int, width: int, scale: float | None
) -> None:
    norms = inputs.normal(size), inputs.normal(size)
    tolerance = 1e-5 if inputs.dtype.itemsize == 4 else 2e-2
    agree(draft_head.check_enter_head(inputs, inputs.normal(50, size), width, norms, scale=scale), tolerance)


@cases("size", [150], also=[1, 64, 5000])
def test_the_likeliest_token_is_written(inputs: Inputs, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if size < 1000:
        monkeypatch.setattr(launch, "TILE", 64)
    agree(draft_head.check_guess_tokens(inputs, size), 0)


@cases(("size", "width"), [(40, 4)], also=[(40, 1), (2048, 8)])
def test_the_state_before_the_newest_token_is_kept(inputs: Inputs, size: int, width: int) -> None:
    agree(draft_head.check_keep_states(inputs, size, width), 0)
