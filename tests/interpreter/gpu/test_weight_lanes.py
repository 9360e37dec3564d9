"""Weights reach a real GPU whole, converted where their dtype differs, and while other streams are busy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from nanoserve.adapters.pytorch.devices import CPU
from nanoserve.adapters.pytorch.weights import staging
from nanoserve.adapters.pytorch.weights.checkpoint import Destinations, load_checkpoint
from nanoserve.adapters.pytorch.weights.noise import fill_randomly
from nanoserve.adapters.pytorch.weights.safetensors_file import stored_tensors
from nanoserve.adapters.pytorch.weights.staging import lanes_between

pytestmark = pytest.mark.gpu

SHAPES = {"big": (1000, 4099), "vector": (70_001,), "one": (1,)}


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.bfloat16])
def test_everything_arrives_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: torch.dtype, wanted: torch.dtype
) -> None:
    monkeypatch.setattr(staging, "PIECE_BYTES", 100_003)
    expected = {name: torch.randn(shape).to(stored) for name, shape in SHAPES.items()}
    save_file(expected, tmp_path / "model.safetensors")
    destinations = {name: torch.full(shape, torch.nan, dtype=wanted).cuda() for name, shape in SHAPES.items()}
    fused = torch.full((1000, 2, 4099), torch.nan, dtype=wanted).cuda()
    destinations["big"] = fused[:, 1]
    load_checkpoint(str(tmp_path), Destinations(destinations))
    for name, destination in destinations.items():
        assert torch.equal(destination.cpu(), expected[name].to(wanted)), name
    assert bool(fused[:, 0].isnan().all())


def test_a_buffer_is_not_overwritten_before_its_content_has_arrived() -> None:
    (lane, *_) = lanes_between(CPU, torch.device("cuda"))
    destinations = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda") for _ in range(24)]
    for value, destination in enumerate(destinations):
        lane.send(lane.buffer(8 << 20).fill_(value), destination)
    lane.drain()
    assert all(bool((each == value).all()) for value, each in enumerate(destinations))


def test_memory_is_not_written_while_what_was_queued_before_still_reads_it() -> None:
    (lane, *_) = lanes_between(CPU, torch.device("cuda"))
    destination = torch.full((8 << 20,), 1, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(1 << 28)  # type: ignore[no-untyped-call]
    before = destination.clone()
    lane.send(lane.buffer(8 << 20).fill_(2), destination)
    lane.drain()
    assert bool((before == 1).all())
    assert bool((destination == 2).all())


def test_tensors_are_brought_as_they_are_stored(tmp_path: Path) -> None:
    expected = {f"{name}.{place}": torch.randn(shape) for place in range(4) for name, shape in SHAPES.items()}
    expected["integers"] = torch.randint(-(2**31), 2**31 - 1, (3000, 2048), dtype=torch.int32)
    save_file(expected, tmp_path / "model.safetensors")
    found = list(stored_tensors(tmp_path / "model.safetensors"))
    for each in staging.brought(found, torch.device("cuda")):
        assert each.data.is_cuda
        assert torch.equal(each.data.cpu(), expected.pop(each.name))
    assert not expected


def test_random_weights_are_those_of_the_cpu() -> None:
    def weights(device: str) -> dict[str, Tensor]:
        shapes = {"a.weight": (1500, 1500), "norm.weight": (64,), "b.weight": (33, 65)}
        return {
            name: torch.empty(shape, dtype=torch.bfloat16, device=device) for name, shape in shapes.items()
        }

    here, there = weights("cpu"), weights("cuda")
    fill_randomly(here, seed=5)
    fill_randomly(there, seed=5)
    assert all(torch.equal(here[name], there[name].cpu()) for name in here)
