"""The device's draws equal the CPU's: the same law, the same noise, the same token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.philox import gumbel_rows
from nanoserve.kernels.sampling import launch, reference
from nanoserve.kernels.sampling.cases import SamplingSetting, check_drafted_draws, check_sample_and_append
from nanoserve.kernels.testing import Inputs
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.kernels.sampling_rows import device_rows
from tests.interpreter.matrix import cases
from tests.triton_interpreter import REACHED
from tests.unit.kernels.chi_square import chi_square

# Numbers that overflow to infinity on purpose, on which numpy remarks when Triton's interpreter computes with it.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

VOCABULARIES = [7, *([4_099, 128_256, 151_936] if torch.cuda.is_available() else [])]
FILTERS = [
    SamplingSetting(),
    SamplingSetting(temperature=0.4),
    SamplingSetting(temperature=0.0, top_k=9, top_p=0.5),
    SamplingSetting(temperature=1.7, top_k=1),
    SamplingSetting(top_k=5),
    SamplingSetting(temperature=2.5, top_k=50),
    SamplingSetting(top_p=0.7),
    SamplingSetting(temperature=0.6, top_p=0.95),
    SamplingSetting(temperature=3.0, top_p=0.999),
    SamplingSetting(min_p=0.2),
    SamplingSetting(temperature=1.3, top_k=12, top_p=0.9, min_p=0.05),
    SamplingSetting(temperature=0.6, top_k=20, top_p=0.95),
    SamplingSetting(top_p=1e-6),
    SamplingSetting(temperature=1e-6, top_p=0.9),
    SamplingSetting(top_k=700, top_p=0.99, min_p=1e-4),
]
SEEDED = tuple(
    each._replace(seed=(0x9E3779B97F4A7C15 * (index + 1)) % 2**64, length=3 + index % 5)
    for index, each in enumerate(FILTERS)
)


@pytest.fixture(autouse=True)
def small_tiles(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the interpreter from computing mostly with padding, and gives small vocabularies several blocks."""
    if device.type == "cpu":
        monkeypatch.setattr(launch, "COLUMNS", 512)
        monkeypatch.setattr(launch, "UNROLL", 2)
        monkeypatch.setattr(launch, "CALLS", 128)


def random_logits(rows: int, vocab_size: int, *, scale: float, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


@cases("vocab_size", [1_303], also=VOCABULARIES)
@cases("scale", [2.0], also=[0.05, 12.0])
def test_draws_equal_the_reference(
    scale: float, vocab_size: int, device: torch.device, dtype: torch.dtype
) -> None:
    rows = device_rows(SEEDED, device)
    places = torch.randperm(len(FILTERS), generator=torch.Generator().manual_seed(1)).tolist()
    logits = random_logits(len(places), vocab_size, scale=scale).to(device, dtype)
    before = logits.clone()
    rows.check(logits, places)
    assert torch.equal(logits, before)


@cases("vocab_size", [1_303], also=VOCABULARIES)
def test_draws_are_lawful_and_appended(vocab_size: int, inputs: Inputs) -> None:
    agree(check_sample_and_append(inputs, vocab_size), 0)


@cases(("vocab_size", "width"), [(600, 4)], also=[(1_303, width) for width in (1, 2, 4, 8)])
def test_drafts_are_kept_while_they_are_what_is_drawn(vocab_size: int, width: int, inputs: Inputs) -> None:
    agree(check_drafted_draws(inputs, vocab_size, width), 0)


HIDING = (4, 6, 10, 14)


@cases("scale", [2.0], also=[0.05])
def test_rows_whose_columns_hide_tokens_equal_the_reference(
    scale: float, device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "COLUMNS", 64)
    monkeypatch.setattr(launch, "UNROLL", 2)
    monkeypatch.setattr(launch, "CUTOFF_WARPS", 2)
    logits = random_logits(len(HIDING), 803, scale=scale).to(device, dtype)
    logits[:, 64 * torch.arange(8)] += 2 * scale  # one column holds all the best
    device_rows(SEEDED, device).check(logits, HIDING)


@cases("block", [256], also=[1_024])
def test_any_block_size_draws_the_same(
    block: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "CALLS", block)
    logits = random_logits(4, 2_100, scale=2.0).to(device)
    device_rows(SEEDED, device).check(logits, [0, 4, 2, 10])


def test_half_precision_logits_draw_as_their_float32(device: torch.device) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        logits = random_logits(len(HIDING), 700, scale=3.0).to(device, dtype)
        device_rows(SEEDED, device).check(logits, HIDING)


@cases(
    "setting",
    [],
    also=[SamplingSetting(temperature=0.4), *(FILTERS[each] for each in (0, 4, 6, 10))],
    ids=str,
)
def test_draws_follow_the_exact_distribution(setting: SamplingSetting, device: torch.device) -> None:
    num_draws = 8_000 if device.type == "cuda" else 150
    logits = random_logits(1, 64, scale=1.5, seed=3)
    settings = [setting._replace(seed=11, length=2 + position) for position in range(num_draws)]
    rows = device_rows(settings, device, width=num_draws + 3, columns=num_draws)
    tokens = rows.step(logits.expand(num_draws, -1).contiguous().to(device), range(num_draws))
    chances = reference.probabilities(
        logits,
        temperature=torch.tensor([setting.temperature]),
        top_k=torch.tensor([setting.top_k or 64]),
        top_p=torch.tensor([setting.top_p]),
        min_p=torch.tensor([setting.min_p]),
    )
    assert chi_square(tokens, chances[0]) < 3.5


def test_a_row_draws_the_same_at_any_place_beside_anyone(device: torch.device) -> None:
    alone = device_rows(SEEDED, device)
    rows = [0, 2, 4, 7, 10]
    logits = random_logits(len(rows), 600, scale=2.0).to(device)
    one_by_one = [int(alone.step(logits[i : i + 1], [row])) for i, row in enumerate(rows)]
    together = device_rows(SEEDED, device).step(logits.flip(0), rows[::-1])
    assert together.tolist() == one_by_one[::-1]


def test_logits_may_be_columns_of_a_wider_matrix(device: torch.device, dtype: torch.dtype) -> None:
    wide = torch.full((4, 700), torch.nan, device=device, dtype=dtype)
    wide[:, :600] = random_logits(4, 600, scale=2.0).to(device, dtype)
    device_rows(SEEDED, device).check(wide[:, :600], [10, 4, 6, 0])


def test_ties_go_to_the_lowest_id_or_share_the_fate_of_the_last_kept(device: torch.device) -> None:
    logits = torch.zeros(1, 1_200, device=device)
    logits[0, [1_150, 130, 258, 900]] = 1.0
    assert device_rows([SamplingSetting(temperature=0.0)], device).step(logits, [0]).tolist() == [130]
    seen = {
        int(device_rows([SamplingSetting(top_k=2, seed=seed)], device).step(logits, [0]))
        for seed in range(12)
    }
    assert seen == {130, 258, 900, 1_150}


def test_logits_that_differ_but_scale_to_the_same_number_are_tied(device: torch.device) -> None:
    logits = torch.tensor([[20.0, 1e-7, 2e-7, -1e-7, 3.0, -5.0]], device=device)
    for setting in (SamplingSetting(temperature=9.0, top_k=3), SamplingSetting(temperature=9.0, top_p=0.85)):
        for seed in range(3):
            device_rows([setting._replace(seed=seed)], device).check(logits, [0])


def test_min_p_keeps_a_token_that_meets_it(device: torch.device) -> None:
    logits = torch.tensor([[3.0, 2.999, 3.0, 1.0]], device=device)
    device_rows([SamplingSetting(min_p=1.0)], device).check(logits, [0])


def test_the_noise_is_the_references_to_the_last_digits(device: torch.device) -> None:
    noise = gumbel_rows(torch.tensor([5]), torch.tensor([1]), 1_303)
    for winner in (7, 300, 777, 1_302, int(noise.argmax())):
        logits = -noise
        logits[0, winner] += 1e-5
        rows = device_rows([SamplingSetting(seed=5, length=3, prompt=2)], device)
        assert rows.step(logits.to(device), [0]).tolist() == [winner]


def test_excluded_tokens_are_never_drawn(device: torch.device) -> None:
    logits = torch.zeros(6, 40, device=device)
    logits[:, ::2] = -torch.inf
    settings = [SamplingSetting(seed=seed, top_k=30, top_p=0.999) for seed in range(6)]
    tokens = device_rows(settings, device).step(logits, range(6))
    assert bool((tokens % 2 == 1).all())
    assert len(set(tokens.tolist())) > 3


@cases("setting", [FILTERS[10]], also=[FILTERS[2]], ids=str)
@cases(
    ("bad", "token"),
    [({1_100: torch.nan, 3: torch.inf}, 1_100), ({}, 0)],
    also=[({650: torch.nan}, 650), ({650: torch.inf, 20: torch.inf}, 20), ({300: torch.nan}, 300), ({450: torch.nan, 451: torch.inf}, 450)],
    ids=str,
)  # fmt: skip
def test_a_row_that_is_not_finite_is_recognisable_and_alone(
    bad: dict[int, float], token: int, setting: SamplingSetting, device: torch.device
) -> None:
    logits = random_logits(3, 1_200, scale=1.0).to(device)
    settings = [setting._replace(seed=seed) for seed in range(3)]
    clean = device_rows(settings, device).step(logits, range(3))
    logits[1] = logits[1] if bad else -torch.inf
    for place, value in bad.items():
        logits[1, place] = value
    rows = device_rows(settings, device)
    assert rows.step(logits, range(3)).tolist() == [int(clean[0]), -1 - token, int(clean[2])]
    assert int(rows.state.tokens[1, 3]) == token


def test_the_sink_row_keeps_its_length_and_tokens(device: torch.device) -> None:
    rows = device_rows(SEEDED[:3], device)
    before = rows.state.tokens.clone(), rows.state.lengths.clone()
    rows.step(random_logits(5, 500, scale=1.0).to(device), [1, 3, 3, 0, 3])
    assert torch.equal(rows.state.tokens[3], before[0][3])
    assert (rows.state.lengths - before[1]).tolist() == [1, 1, 0, 0]
    changed = rows.state.tokens != before[0]
    assert changed.sum(1).tolist() == [1, 1, 0, 0]


def test_steps_go_around_the_ring(device: torch.device) -> None:
    rows = device_rows(SEEDED[:2], device, ring=3, columns=4)
    seen: list[list[int]] = []
    for step in range(7):
        before = rows.state.drawn.clone()
        tokens = rows.step(random_logits(2, 300, scale=1.0, seed=step).to(device), [1, 0])
        slot = step % 3
        others = [each for each in range(3) if each != slot]
        assert torch.equal(rows.state.drawn[others], before[others])
        assert rows.state.drawn[slot, 2:].tolist() == [-7, -7]
        assert int(rows.state.ring_position) == (step + 1) % 3
        seen.append(tokens.tolist())
    assert rows.state.tokens[0, 3:10].tolist() == [each[1] for each in seen]
    assert rows.state.tokens[1, 4:11].tolist() == [each[0] for each in seen]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_graph_goes_on_drawing(dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    logits = random_logits(len(FILTERS), 32_000, scale=2.0).to(device, dtype)
    places = list(range(len(FILTERS)))
    eager, graphed = device_rows(SEEDED, device, ring=8), device_rows(SEEDED, device, ring=8)
    for _ in range(4):
        eager.step(logits, places)
    scratch = launch.DrawScratch(max_batch=len(places), vocab_size=32_000, device=device)
    index = torch.tensor(places, dtype=torch.int32, device=device)

    def step() -> None:
        launch.sample_and_append(logits, batch_rows=index, scratch=scratch, **graphed.state._asdict())

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    assert torch.equal(graphed.state.drawn, eager.state.drawn)
    assert torch.equal(graphed.state.tokens, eager.state.tokens)


@cases("vocab_size", [67], also=[31, 32, *VOCABULARIES])
@cases("dtype", [torch.bfloat16], also=[torch.float32, torch.float16])
def test_masks_exclude_what_they_do_not_allow(
    vocab_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    logits = random_logits(5, vocab_size, scale=3.0).to(dtype)
    logits[1, 0] = float("nan")
    allowed = torch.rand(4, vocab_size, generator=torch.Generator().manual_seed(1)) < 0.4
    places = [3, -1, 1, 4]
    words = -(-vocab_size // 32)
    bits = torch.zeros(4, words * 32, dtype=torch.int64)
    bits[:, :vocab_size] = allowed
    masks = (bits.view(4, words, 32) << torch.arange(32)).sum(-1).to(torch.int32)
    expected = logits.clone()
    for place, row in zip(places, allowed, strict=True):
        if place >= 0:
            expected[place][~row] = float("-inf")
    found = logits.to(device)
    numbers = torch.tensor(places, dtype=torch.int32, device=device)
    stored = [each.to(device) for each in masks]
    REACHED.extend(stored)
    addresses = torch.tensor([each.data_ptr() for each in stored], device=device)
    launch.mask_logits(found, numbers, addresses)
    assert torch.equal(found.cpu().nan_to_num(7.5), expected.nan_to_num(7.5))
