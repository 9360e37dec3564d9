"""Products in the tiles that a table may give them, and how these are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanoserve.kernels.device.launch import tile_room
from nanoserve.kernels.forms import FP8, MXFP4, PLAIN, Form, Int4, Int4WithMinimum, Int8
from nanoserve.kernels.linear import launch, tuning_tiles
from nanoserve.kernels.linear.cases import (
    check_fp8_linear,
    check_packed_linear,
    check_row_linear,
    check_skinny_linear,
    check_split_linear,
)
from nanoserve.kernels.linear.tuning import SkinnyTile
from nanoserve.kernels.linear.tuning_table import (
    BUCKETS,
    TABLE,
    Key,
    bucket,
    find_form,
    form_name,
    holding,
    neighbours,
    rule_tile,
)
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.kernels.random_weights import random_product, random_stored
from tests.interpreter.matrix import cases

ROOM = 225 * 1024
FORMS = [FP8(), FP8(128), Int4(), Int4WithMinimum(32), Int8(16), MXFP4()]
CHECKS: dict[str, Any] = {
    "row": lambda inputs, product, _: check_row_linear(inputs, product),
    "skinny": check_skinny_linear,
    "split": check_split_linear,
    "fp8": check_fp8_linear,
    "packed": check_packed_linear,
}


@cases(
    ("kind", "form", "rows"),
    [("row", Int4(), 1), ("skinny gated", PLAIN, 32), ("split", FP8(), 8), ("fp8", FP8(128), 64), ("packed", Int4(), 128)],
    also=[
        *(("row gated", form, 1) for form in (PLAIN, *FORMS)),
        *(("packed", form, 128) for form in FORMS if form.per_word > 1),
        *((kind, form, rows) for kind in ("skinny", "split") for form in (PLAIN, *FORMS) for rows in (8, 64)),
    ],
    ids=str,
)  # fmt: skip
def test_every_tile_that_is_tried_computes_the_product(
    kind: str, form: Form, rows: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In slices that do not divide K, too."""
    monkeypatch.setattr(tuning_tiles, "packed_pays", lambda *_: True)
    inputs, (n, k) = Inputs(device, torch.float16), (80, 640)
    product = random_product(inputs, n, k, gate="silu" if kind.endswith("gated") else None)
    if form is not PLAIN:
        product = product._replace(weight=random_stored(inputs, form, n, k))
    key = Key(kind, form_name(form), n, k, rows)
    tried = neighbours(key, ROOM)
    assert len(tried) > 3
    for tile in tried:
        with holding(key, tile):
            agree(CHECKS[kind.split(maxsplit=1)[0]](inputs, product, [max(1, rows - 1)]), 1e-2, 2e-2)


@pytest.mark.parametrize("form", [PLAIN, FP8(), FP8(128), Int4(32), Int4WithMinimum(32)], ids=str)
def test_a_form_is_found_by_its_name(form: Form) -> None:
    assert find_form(form_name(form)) == form
    for wrong in ("", "FP8", "FP8/", "FP8/x", "Plain", "Plain/2", "Int4/0128", "Form/128"):
        with pytest.raises(ValueError, match=r".*"):
            find_form(wrong)


def test_a_bucket_has_one_tile() -> None:
    assert sorted({bucket(rows) for rows in range(1, 257)}) == [*BUCKETS]
    key = Key("skinny", "Plain/1", 64, 512, 16)
    other = next(each for each in neighbours(key, ROOM) if isinstance(each, SkinnyTile) and each.splits > 1)
    cpu, shape = torch.device("cpu"), torch.Size((64, 512))

    def chosen(rows: int) -> SkinnyTile:
        return launch._tile(rows, shape, 2, cpu, PLAIN, gate=False, splits=None)

    with holding(key, other):
        assert [chosen(rows) == other for rows in (8, 9, 16, 17)] == [False, True, True, False]
        space = launch.LinearWorkspace.create(
            [torch.empty(64, 512)], max_m=64, dtype=torch.float16, device=cpu
        )
        assert len(space.partials) >= 64 * 16 * other.splits
    assert not TABLE
    assert chosen(16) == rule_tile(key, tile_room(cpu))


@pytest.mark.parametrize("kind", ["row", "split", "fp8", "packed"])
def test_products_that_there_are_not_have_no_tiles(kind: str) -> None:
    form = {"packed": "Int4/128"}.get(kind, "FP8/128")
    rows = 1 if kind == "row" else 64
    assert neighbours(Key(kind, form, 4096, 4096, rows), ROOM)
    for changed in (
        {"n": 0},
        {"k": -4096},
        {"k": 1 << 40},
        {"rows": 7},
        {"rows": 65 - rows},
        {"form": "none"},
        {"kind": "column"},
    ):
        with pytest.raises(ValueError, match=r".*"):
            neighbours(Key(kind, form, 4096, 4096, rows)._replace(**changed), ROOM)
