"""What `nanoserve tune` keeps of what it measures, and the tables that engines read; the clock is a list of numbers."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.cuda import tile_tables, tuner
from nanoserve.adapters.pytorch.models import DecoderModel, build_random_model
from nanoserve.entrypoints.compose.shapes import find_shape
from nanoserve.kernels.device.launch import tile_room
from nanoserve.kernels.linear import launch
from nanoserve.kernels.linear.tuning_table import TABLE, VERSION, Key, Tile, neighbours

CPU = torch.device("cpu")
DEVICE = {"device": "Test GPU 1", "capability": "9.0", "kernels": VERSION}
ROOM = tile_room(CPU)


@pytest.fixture(scope="module")
def model() -> DecoderModel:
    spec = find_shape("shape:tiny")
    return build_random_model(spec, dtype=torch.float16, device=CPU, seed=0, keep=True)


@pytest.fixture(autouse=True)
def _one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "COLD_BYTES", 1)


@pytest.fixture
def own(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tile_tables, "describe", lambda _: DEVICE)
    return tile_tables.own_table(str(DEVICE["device"]))


def clock(faster: Callable[[Tile, int], bool]) -> Any:
    """Times by the tile that the table has and the number of its times before; a rule's takes 100."""
    seen: dict[tuple[Key, Tile], int] = {}

    def timed(launches: object) -> float:
        assert launches
        if not TABLE:
            return 100.0
        (held,) = TABLE.items()
        seen[held] = seen.get(held, -1) + 1
        return 90.0 if faster(held[1], seen[held]) else 98.0

    return timed


def test_a_tile_is_kept_that_is_faster_in_every_round_by_a_margin(model: DecoderModel) -> None:
    told: list[str] = []
    key = next(tuner.subjects(model, [1])).key
    tried = neighbours(key, ROOM)
    won, *others = tuner.tune(model, [1], told.append, clock(lambda tile, _: tile == tried[1]))
    assert (won.key, won.tile, won.us, won.rule_us, won.tried) == (key, tried[1], 90.0, 100.0, len(tried))
    assert all(each.tile in {None, tried[1]} for each in others)
    assert told == [f"product {number} of {len(told)}" for number in range(1, len(told) + 1)]
    assert not TABLE


@pytest.mark.parametrize("slow_round", [1, 2, 3])
def test_a_tile_that_loses_a_round_is_not_kept(model: DecoderModel, slow_round: int) -> None:
    found = tuner.tune(model, [1], lambda _: None, clock(lambda _, time: time != slow_round))
    assert [each.tile for each in found] == [None] * len(found)
    assert [each.us for each in found] == [100.0] * len(found)


def test_a_tile_that_computes_something_else_is_not_kept(
    model: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(x: Any, weight: Any, out: torch.Tensor, **_: Any) -> None:
        out.fill_(2.0 if TABLE else 1.0)

    monkeypatch.setattr(launch, "row_linear", wrong)
    found = tuner.tune(model, [1], lambda _: None, clock(lambda *_: True))
    assert {each.tile for each in found} == {None}


def test_a_tile_that_cannot_be_launched_is_passed_over(model: DecoderModel) -> None:
    subject = next(tuner.subjects(model, [1]))
    broken, *rest = neighbours(subject.key, ROOM)

    def timed(launches: object) -> float:
        if broken in TABLE.values():
            raise RuntimeError("out of resource: shared memory")
        return 90.0 if rest[0] in TABLE.values() else 100.0

    assert tuner.Tuner(torch.empty(0, dtype=torch.float16), timed).find(subject).tile == rest[0]


def test_each_product_is_measured_as_steps_of_so_many_rows_multiply_it(model: DecoderModel) -> None:
    keys = [each.key for each in tuner.subjects(model, [1, 5, 8, 64, 65, 256])]
    assert len(keys) == len({*keys})
    assert {(each.kind, each.rows) for each in keys} == {
        *(("row", 1), ("row gated", 1)),
        *((kind, rows) for kind in ("skinny", "skinny gated", "split") for rows in (8, 64)),
    }


def finding(key: Key, tile: Tile | None) -> tuner.Finding:
    return tuner.Finding(key, tile or neighbours(key, ROOM)[0], tile, 1.0, 1.0, 1, 1)


KEYS = [Key("row", "Int4/128", 6144, 4096, 1), Key("split", "Plain/1", 4096, 4096, 64), Key("fp8", "FP8/128", 64, 128, 256)]  # fmt: skip
TILES = {key: neighbours(key, ROOM)[1] for key in KEYS}


def test_a_table_is_read_as_it_was_written_and_keeps_other_products(own: pathlib.Path) -> None:
    tile_tables.update(own, DEVICE, [finding(*each) for each in TILES.items()], CPU)
    assert tile_tables.read(own, DEVICE, ROOM) == TILES
    assert len(own.read_text().splitlines()) == len(KEYS) + 2
    other = neighbours(KEYS[0], ROOM)[2]
    tile_tables.update(own, DEVICE, [finding(KEYS[0], other), finding(KEYS[1], None)], CPU)
    assert tile_tables.read(own, DEVICE, ROOM) == {KEYS[0]: other, KEYS[2]: TILES[KEYS[2]]}
    assert [*own.parent.iterdir()] == [own]


def test_the_old_table_stays_where_the_new_one_is_not_written(
    own: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tile_tables.update(own, DEVICE, [finding(*each) for each in TILES.items()], CPU)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for method in ("write_text", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(pathlib.Path, method, interrupt)
            with pytest.raises(KeyboardInterrupt):
                tile_tables.update(own, DEVICE, [finding(KEYS[0], None)], CPU)
        assert tile_tables.read(own, DEVICE, ROOM) == TILES


def spoiled(**changed: Any) -> Any:
    """The table's text with other values in its head, or in its first tile."""

    def text(table: dict[str, Any]) -> str:
        first = table["tiles"][0]
        for name, value in changed.items():
            part = table if name in table else first if name in first else first["tile"]
            part[name] = value
        return json.dumps(table)

    return text


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda _: "", "no table"),
        (lambda _: "[" * 100_000, "no table"),
        (lambda _: '{"tiles": {}}', "no table"),
        (lambda _: "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "no table"),
        (lambda table: json.dumps(table)[:-20], "no table"),
        (lambda table: json.dumps(table) + " " * (16 << 20), "no table"),
        (spoiled(device="Another GPU"), "device is Another GPU"),
        (spoiled(capability="8.0"), "capability is 8.0"),
        (spoiled(kernels=VERSION + 1), "kernels is"),
        (spoiled(kernels="9" * 10_000), "kernels is"),
        (spoiled(tiles=[[]]), "no kernel takes"),
        (spoiled(n=0), "no kernel takes"),
        (spoiled(n=True), "no kernel takes"),
        (spoiled(k=10**30), "no kernel takes"),
        (spoiled(k=float("nan")), "no kernel takes"),
        (spoiled(form="Int5/128"), "no kernel takes"),
        (spoiled(kind=["row"]), "no kernel takes"),
        (spoiled(rows=3), "no kernel takes"),
        (spoiled(tile=None), "no kernel takes"),
        (spoiled(warps=1 << 20), "no kernel takes"),
        (spoiled(stages="__import__"), "no kernel takes"),
    ],
)
def test_what_is_no_table_of_this_device_is_left_aside_in_one_line(
    own: pathlib.Path, model: DecoderModel, spoil: Callable[[Any], str], said: str
) -> None:
    tile_tables.update(own, DEVICE, [finding(*each) for each in TILES.items()], CPU)
    own.write_text(spoil(json.loads(own.read_text())))
    count, (complaint,) = tile_tables.load(model, deterministic=False)
    assert (count, TABLE) == (0, {})
    assert complaint.startswith(f"{own} is left aside: ")
    assert said in complaint
    assert complaint.isprintable()
    assert len(complaint) < 400


def test_the_users_table_comes_before_the_one_that_ships(
    own: pathlib.Path, model: DecoderModel, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    keys = [each.key for each in tuner.subjects(model, [1])]
    first, second = (neighbours(keys[0], ROOM)[place] for place in (0, 1))
    monkeypatch.setattr(tile_tables, "SHIPPED", tmp_path / "shipped")
    shipped = [finding(keys[0], first), finding(keys[1], neighbours(keys[1], ROOM)[0]), finding(KEYS[0], TILES[KEYS[0]])]  # fmt: skip
    tile_tables.update(tmp_path / "shipped" / own.name, DEVICE, shipped, CPU)
    tile_tables.update(own, DEVICE, [finding(keys[0], second)], CPU)
    try:
        assert tile_tables.load(model, deterministic=False) == (2, [])
        assert (TABLE[keys[0]], len(TABLE)) == (second, 3)
        assert tile_tables.load(model, deterministic=True) == (0, [])
        assert not TABLE
    finally:
        TABLE.clear()


def test_a_user_without_a_home_starts_all_the_same(
    own: pathlib.Path, model: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless(_: pathlib.Path) -> pathlib.Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(pathlib.Path, "expanduser", homeless)
    monkeypatch.chdir(own.parents[2])
    assert tile_tables.load(model, deterministic=False) == (0, [])


def test_tables_that_ship_are_whole() -> None:
    for path in tile_tables.SHIPPED.glob("*.json"):
        head = {name: json.loads(path.read_text())[name] for name in DEVICE}
        assert tile_tables._file(head["device"]) == path.name
        assert head["kernels"] == VERSION, f"measure {path.name} anew: `nanoserve tune`"
        assert tile_tables.read(path, head, 225 * 1024)


def test_a_finding_says_what_it_is_of() -> None:
    found = attrs.evolve(finding(KEYS[1], None), us=10.0)
    assert found.name == "split Plain/1 4096 x 4096, 64 rows"
    assert round(found.tflops) == 215
