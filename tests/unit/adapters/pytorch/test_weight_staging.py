"""Weights by way of several threads arrive as they were stored, and a fault in one thread ends all of them."""

from __future__ import annotations

import concurrent.futures
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from nanoserve.adapters.pytorch.weights import staging
from nanoserve.adapters.pytorch.weights.checkpoint import Destinations, load_checkpoint
from nanoserve.adapters.pytorch.weights.noise import NOISE_LENGTH, fill_randomly
from nanoserve.adapters.pytorch.weights.safetensors_file import stored_tensors
from nanoserve.adapters.pytorch.weights.staging import Lane, Piece
from nanoserve.ports.errors import ModelLoadError
from tests.patience import PATIENCE
from tests.unit.adapters.pytorch.host_lane import HostLane

FILE = "model.safetensors"
SHAPES = {"big": (37, 50), "row": (1, 999), "vector": (301,), "one": (1,), "empty": (0, 4), "cube": (3, 5, 7)}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "PIECE_BYTES", 260)


def save(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    stored = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}
    save_file(stored, folder / FILE)
    return stored


def poisoned(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {name: torch.full(shape, torch.nan, dtype=dtype) for name, shape in SHAPES.items()}


class BrokenLane(HostLane):
    """Does something at the piece of number `at`."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        super().__init__()
        self.at = at
        self.act = act

    def send(self, staged: Tensor, destination: Tensor) -> None:
        if self.num_sent == self.at:
            self.act()
        super().send(staged, destination)


class SlowLane(HostLane):
    """Takes its time for each piece."""

    def buffer(self, num_bytes: int) -> Tensor:
        time.sleep(0.05)
        return super().buffer(num_bytes)


def no_worker_is_left() -> bool:
    return not any(thread.name.startswith("weights") for thread in threading.enumerate())


def fail() -> None:
    raise RuntimeError("the device is lost")


@pytest.mark.parametrize("num_lanes", [1, 2, 8])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16])
def test_everything_arrives_converted(
    tmp_path: Path, num_lanes: int, stored: torch.dtype, wanted: torch.dtype
) -> None:
    expected, destinations = save(tmp_path, stored), poisoned(wanted)
    lanes = [HostLane() for _ in range(num_lanes)]
    load_checkpoint(str(tmp_path), Destinations(destinations), lanes=lanes)
    for name, destination in destinations.items():
        assert torch.equal(destination, expected[name].to(wanted)), name
    assert [lane.num_drained for lane in lanes] == [1] * num_lanes


def test_large_tensors_are_cut_and_pieces_cover_each_number_once(tmp_path: Path) -> None:
    save(tmp_path)
    for stored in stored_tensors(tmp_path / FILE, ("none",)):
        counts = torch.zeros(SHAPES[stored.name])
        pieces = list(staging.pieces_of(stored, counts))
        for piece in pieces:
            piece.destination.add_(1)
        assert bool((counts == 1).all())
        assert all(piece.num_bytes <= 260 for piece in pieces)
        assert len(pieces) == -(-counts.numel() // 65)


def test_a_destination_need_not_be_contiguous(tmp_path: Path) -> None:
    expected, destinations = save(tmp_path), poisoned()
    fused = torch.full((37, 2, 50), torch.nan)
    destinations["big"] = fused[:, 1]
    destinations["cube"] = torch.full((7, 5, 3), torch.nan).permute(2, 1, 0)
    load_checkpoint(str(tmp_path), Destinations(destinations), lanes=[HostLane(), HostLane()])
    assert torch.equal(fused[:, 1], expected["big"])
    assert torch.equal(destinations["cube"], expected["cube"])
    assert bool(fused[:, 0].isnan().all())


@pytest.mark.parametrize("at", [0, 5])  # of 53 pieces
@pytest.mark.parametrize("num_lanes", [1, 3])
def test_a_fault_in_one_thread_stops_the_others_and_is_raised(
    tmp_path: Path, at: int, num_lanes: int
) -> None:
    save(tmp_path)
    lanes = [BrokenLane(at, fail), *(SlowLane() for _ in range(num_lanes - 1))]
    with pytest.raises(RuntimeError, match="the device is lost"):
        load_checkpoint(str(tmp_path), Destinations(poisoned()), lanes=lanes)
    assert [lane.num_drained for lane in lanes] == [1] * num_lanes
    assert lanes[0].num_sent == at
    assert sum(lane.num_sent for lane in lanes) < 30
    assert no_worker_is_left()


def test_the_first_fault_is_the_one_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path)
    failed, work = threading.Event(), staging._work

    def work_and_say_so(*arguments: Any) -> None:
        work(*arguments)
        failed.set()

    def second() -> None:
        assert failed.wait(PATIENCE)
        raise RuntimeError("and then another")

    monkeypatch.setattr(staging, "_work", work_and_say_so)

    for lanes in (
        [BrokenLane(0, fail), BrokenLane(0, second)],
        [BrokenLane(0, second), BrokenLane(0, fail)],
    ):
        failed.clear()
        with pytest.raises(RuntimeError, match="the device is lost"):
            load_checkpoint(str(tmp_path), Destinations(poisoned()), lanes=lanes)


def test_an_error_while_a_lane_drains_is_raised(tmp_path: Path) -> None:
    save(tmp_path)

    class Endless(HostLane):
        def drain(self) -> None:
            fail()

    with pytest.raises(RuntimeError, match="the device is lost"):
        load_checkpoint(str(tmp_path), Destinations(poisoned()), lanes=[Endless()])


def test_an_interrupt_waits_for_the_pieces_under_way_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path)
    is_heard, is_waiting = threading.Event(), threading.Event()
    work, wait = staging._work, concurrent.futures.wait
    left: list[Any] = []

    def say_and_wait(futures: Any, **options: Any) -> Any:
        is_waiting.set()
        return wait(futures, **options)

    def work_on(lane: Any, pending: Any, errors: Any) -> None:
        left.append(pending)
        work(lane, pending, errors)

    class HeldLane(SlowLane):
        def buffer(self, num_bytes: int) -> Tensor:
            is_heard.wait()
            return super().buffer(num_bytes)

    def interrupt() -> None:
        """By a signal that does not wake the main thread, as one that comes just before it falls asleep."""
        assert is_waiting.wait(PATIENCE)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        while left[0]:
            time.sleep(0.01)
        is_heard.set()

    monkeypatch.setattr(staging, "_work", work_on)
    monkeypatch.setattr(staging, "wait", say_and_wait)

    lanes = [BrokenLane(0, interrupt), HeldLane()]
    with pytest.raises(KeyboardInterrupt):
        load_checkpoint(str(tmp_path), Destinations(poisoned()), lanes=lanes)
    assert sum(lane.num_sent for lane in lanes) < 4
    assert no_worker_is_left()


@pytest.mark.parametrize("break_file", ["cut", "gone", "pointer"])
def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path, break_file: str) -> None:
    save(tmp_path)
    file = tmp_path / FILE
    text = "version https://git-lfs.github.com/spec/v1"
    acts: dict[str, Callable[[], object]] = {
        "cut": lambda: file.write_bytes(file.read_bytes()[:-900]),
        "gone": file.unlink,
        "pointer": lambda: file.write_text(text),
    }
    message = (
        "git lfs pull" if break_file == "pointer" else r"model\.safetensors: not a readable safetensors file"
    )
    with pytest.raises(ModelLoadError, match=message):
        load_checkpoint(str(tmp_path), Destinations(poisoned()), lanes=[BrokenLane(0, acts[break_file])])


def test_all_tensors_are_checked_before_any_is_read(tmp_path: Path) -> None:
    save(tmp_path)
    destinations = poisoned() | {"another": torch.zeros(3)}
    lane = HostLane()
    with pytest.raises(ModelLoadError, match=r"lacks 1 .*another"):
        load_checkpoint(str(tmp_path), Destinations(destinations), lanes=[lane])
    assert lane.num_sent == 0


def test_tensors_are_brought_as_they_are_stored_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {
        f"{place:02}": torch.arange(place * 1000, dtype=torch.int32).view(-1, 10) for place in range(1, 20)
    }
    save_file(expected, tmp_path / "model.safetensors")
    found, events = list(stored_tensors(tmp_path / "model.safetensors")), list[str]()

    def transfer(pieces: Iterable[Piece], lanes: Sequence[Lane]) -> None:
        events.append("read")
        staging_transfer(pieces, lanes)

    staging_transfer = staging.transfer
    monkeypatch.setattr(staging, "transfer", transfer)
    for each in staging.brought(found, torch.device("cpu")):
        events.append("taken")
        assert (each.in_memory, each.data.dtype) == (True, torch.int32)
        assert torch.equal(each.data, expected[each.name])
    taken = ["taken"] * 8
    assert events == ["read", *taken, "read", *taken, "read", *taken[:3]]


def test_tensors_made_where_no_gradients_are_kept_are_filled_by_other_threads(tmp_path: Path) -> None:
    expected = torch.randn(1000)
    save_file({"numbers": expected}, tmp_path / "model.safetensors")
    (found,), cpu = stored_tensors(tmp_path / "model.safetensors"), torch.device("cpu")
    with torch.inference_mode():
        there = torch.empty(1000, dtype=torch.bfloat16)
        staging.transfer(staging.pieces_of(found, there), staging.lanes_between(cpu, cpu))
        assert torch.equal(there, expected.bfloat16())


def test_packed_numbers_of_a_file_that_was_cut_meanwhile_are_an_error(tmp_path: Path) -> None:
    save_file({"numbers": torch.zeros(1 << 22, dtype=torch.int32)}, tmp_path / "model.safetensors")
    found = list(stored_tensors(tmp_path / "model.safetensors"))
    with (tmp_path / "model.safetensors").open("rb+") as file:
        file.truncate(1 << 22)
    with pytest.raises(ModelLoadError, match="before a tensor does"):
        next(staging.brought(found, torch.device("cpu")))


def test_random_weights_are_noise_that_repeats() -> None:
    size = 2 * NOISE_LENGTH + 17
    tensors = {"a.weight": torch.empty(size), "b.weight": torch.empty(7, 9)}
    fill_randomly(tensors, seed=3)
    noise = torch.randn(NOISE_LENGTH, generator=torch.Generator().manual_seed(3)) * 0.02
    assert torch.equal(tensors["a.weight"], noise.repeat(3)[:size])
    assert torch.equal(tensors["b.weight"].view(-1), noise.roll(7919)[:63])
