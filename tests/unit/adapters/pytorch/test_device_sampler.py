"""What the device's sampler makes of a step equals what the CPU's does, and needs no word to the host."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.sampling import Sampler, score_tensors
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler
from nanoserve.adapters.pytorch.sampling.row_settings import device_settings
from nanoserve.kernels.sampling.cases import SamplingSetting
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.step import AdmittedRow
from tests.interpreter.kernels.sampling_rows import device_rows, shrink_tiles
from tests.plans import admitted
from tests.unit.adapters.pytorch.sampled_rows import VOCAB, logits_at, make_sampler

# Numbers that overflow to infinity on purpose, on which numpy remarks when Triton's interpreter computes with it.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SETTINGS: list[dict[str, Any]] = [
    {"seed": 42, "temperature": 0.9},
    {"seed": 2**64 - 3, "frequency_penalty": 1.5, "presence_penalty": 0.4, "logprobs": 3},
    {"seed": 7, "top_k": 9, "min_tokens": 4, "held_back_ids": tuple(range(30)), "logprobs": 0},
    {"temperature": 0.0, "repetition_penalty": 1.9, "bad_token_sequences": ((3, 4), (11,))},
    {"seed": 5, "logit_bias": ((7, 4.0), (8, -100.0), (7, 1.0)), "top_p": 0.8},
    {"seed": 6, "allowed_token_ids": (2, 9, 20), "bad_token_sequences": ((2,), (9,), (20,))},
    {"temperature": 1.3, "top_k": 1, "logprobs": 5},
]
ROWS = tuple((5 * place) % len(SETTINGS) for place in range(len(SETTINGS)))


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_tiles(monkeypatch)


def make_device_sampler() -> DeviceSampler:
    return DeviceSampler(vocab_size=VOCAB, max_rows=8, device=DEVICE)


def crowd() -> list[AdmittedRow]:
    return [admitted(row, tokens=(1, 2, 3, 11), **settings) for row, settings in enumerate(SETTINGS)]


def both(rows: list[AdmittedRow]) -> tuple[Sampler, DeviceSampler]:
    samplers = make_sampler(), make_device_sampler()
    for row in rows:
        for sampler in samplers:
            sampler.admit(row)
    return samplers


def as_drawn(tokens: Tensor) -> Tensor:
    return tokens.to(DEVICE, torch.int32)


def test_logits_are_shaped_as_on_the_cpu_while_the_output_grows() -> None:
    cpu, device = both(crowd())
    for step in range(7):
        logits = logits_at(step, len(ROWS))
        mine = logits.to(DEVICE)
        assert device.special(ROWS)
        shaped = device.process(mine, ROWS)
        assert torch.equal(mine.cpu(), logits)
        tokens = cpu.sample(logits, ROWS)
        torch.testing.assert_close(shaped.cpu(), logits, rtol=1e-6, atol=1e-6)
        device.observe(ROWS, as_drawn(tokens))


def test_places_behind_drafts_are_shaped_as_if_these_were_drawn() -> None:
    """Rows gain some of what they draw, whichever; a sampler that is given their tokens anew shapes each place alike."""
    dice, width = random.Random(2), 4
    device, texts = make_device_sampler(), {each.row: [*each.token_ids] for each in crowd()}
    for each in crowd():
        device.admit(each)
    owners = tuple(row for row in ROWS for _ in range(width))
    for step in range(6):
        logits = logits_at(step, len(owners)).to(DEVICE)
        drafts = [[dice.choice((3, 4, 11, 2, 9)) for _ in range(dice.randrange(width))] for _ in ROWS]
        padded = [[*ahead, *[-1] * (width - 1 - len(ahead))] for ahead in drafts]
        before = [[*ahead[:count], *[-1] * (width - 1 - count)] for ahead in padded for count in range(width)]
        shaped = device.process(logits, owners, torch.tensor(before, dtype=torch.int32, device=DEVICE))
        for place, row in enumerate(ROWS):
            for ahead in range(len(drafts[place]) + 1):
                alone = make_device_sampler()
                tokens = [*texts[row], *drafts[place][:ahead]]
                alone.admit(admitted(row, tokens=tokens, num_prompt=4, **SETTINGS[row]))
                at = place * width + ahead
                torch.testing.assert_close(shaped[at : at + 1], alone.process(logits[at : at + 1], (row,)))
        gained = [ahead[: dice.randint(1, width)] or [7] for ahead in drafts]
        given = [[*tokens, *[VOCAB] * (width - len(tokens))] for tokens in gained]
        device.observe(owners, as_drawn(torch.tensor(given).flatten()))
        for row, tokens in zip(ROWS, gained, strict=True):
            texts[row] += tokens


def test_rows_draw_as_on_the_cpu() -> None:
    cpu, device = both(crowd())
    settings = [device_settings(row.sampling, VOCAB) for row in crowd()]
    arena = device_rows(
        [
            SamplingSetting(
                temperature=each.temperature, top_k=each.top_k, top_p=each.top_p, min_p=each.min_p, length=4, prompt=4,
                seed=each.seed_low % 2**32 | each.seed_high % 2**32 << 32,
            )
            for each in settings
        ],
        DEVICE,
    )  # fmt: skip
    for step in range(3):
        logits = logits_at(step, len(ROWS))
        tokens = arena.step(device.process(logits.to(DEVICE), ROWS), ROWS)
        assert torch.equal(tokens, cpu.sample(logits, ROWS))
        device.observe(ROWS, as_drawn(tokens))


def test_half_precision_logits_are_shaped_in_float32() -> None:
    device = make_device_sampler()
    device.admit(admitted(0, presence_penalty=0.001))
    logits = logits_at(0).to(DEVICE, torch.bfloat16)
    shaped = device.process(logits, (0,))
    assert shaped.dtype == torch.float32
    assert torch.equal(shaped, logits.float())


def test_settings_are_what_the_kernels_read() -> None:
    greedy = device_settings(admitted(0, temperature=0.0, seed=2**64 - 3).sampling, VOCAB)
    assert (greedy.temperature, greedy.top_k, greedy.seed_low, greedy.seed_high) == (0.0, VOCAB, -3, -1)
    for alone in ({"top_k": 1}, {"top_p": 0.0}):
        assert device_settings(admitted(0, temperature=2.0, **alone).sampling, VOCAB).temperature == 0
    tiny = device_settings(
        admitted(0, temperature=1e-300, top_p=1e-300, top_k=-1, min_p=0.5, seed=2**31).sampling, VOCAB
    )
    assert (tiny.temperature, tiny.top_k, tiny.top_p, tiny.min_p) == (1e-6, VOCAB, 1e-6, 0.5)
    assert (tiny.seed_low, tiny.seed_high) == (-(2**31), 0)
    assert device_settings(admitted(0, top_k=VOCAB + 5).sampling, VOCAB).top_k == VOCAB


def test_only_rows_that_need_more_than_the_draw_are_special() -> None:
    device = make_device_sampler()
    for row in crowd():
        device.admit(row)
    assert not device.special((0,))
    assert all(device.special((0, row)) for row in range(1, 7))
    device.release(1)
    assert not device.special((0, 1))
    device.admit(admitted(0, presence_penalty=1.0))
    assert device.special((0,))
    device.admit(admitted(0, top_p=0.5))
    assert not device.special((0,))


def test_a_row_stops_being_special_when_it_has_its_min_tokens() -> None:
    device = make_device_sampler()
    device.admit(admitted(3, min_tokens=2, held_back_ids=(5,)))
    rows = (3,)
    seen = []
    for step in range(3):
        seen.append(device.special(rows))
        if seen[-1]:
            excluded = device.process(logits_at(step).to(DEVICE), rows)[0] == -torch.inf
            assert excluded.nonzero()[:, 0].tolist() == [5]
            device.observe(rows, as_drawn(torch.tensor([1])))
    assert seen == [True, True, False]


def test_rows_that_ask_get_the_scores_of_the_models_own_logits() -> None:
    _, device = both(crowd())
    logits = logits_at(1, len(ROWS))
    tokens = torch.arange(len(ROWS)) * 5
    drawn = as_drawn(tokens)
    drawn[3] = -1 - drawn[3]
    device.process(logits.to(DEVICE), ROWS)
    device.observe(ROWS, drawn)
    scores = device.score(logits.to(DEVICE), drawn, ROWS)
    assert scores is not None
    read = scores.read(scores.packed.cpu())
    wanted = {1: 3, 2: 0, 6: 5}
    assert set(read) == set(wanted)
    for row, top in wanted.items():
        place = ROWS.index(row)
        (expected,) = score_tensors(logits[place : place + 1], tokens[place : place + 1], (top,)).read()
        (mine,) = read[row]
        assert (mine.token_id, mine.rank) == (expected.token_id, expected.rank)
        assert mine.logprob == pytest.approx(expected.logprob, abs=1e-5)
        assert [each for each, _ in mine.top] == [each for each, _ in expected.top]
        assert [value for _, value in mine.top] == pytest.approx([v for _, v in expected.top], abs=1e-5)


def test_a_step_without_askers_has_no_scores() -> None:
    _, device = both(crowd())
    assert device.score(logits_at(0, 2).to(DEVICE), as_drawn(torch.tensor([1, 2])), (3, 0)) is None


def test_the_next_tenant_of_a_row_starts_empty() -> None:
    device = make_device_sampler()
    device.admit(
        admitted(
            0, tokens=(4, 5), repetition_penalty=5.0, frequency_penalty=2.0, logit_bias=((7, 60.0),), logprobs=1,
            allowed_token_ids=(7, 8), bad_token_sequences=((8,),), min_tokens=9, held_back_ids=(8,),
        )
    )  # fmt: skip
    device.process(logits_at(0).to(DEVICE), (0,))
    device.observe((0,), as_drawn(torch.tensor([7])))
    device.admit(admitted(0, tokens=(9, 10), num_prompt=1, presence_penalty=1.0))
    expected = logits_at(1)
    expected[0, 10] -= 1
    torch.testing.assert_close(device.process(logits_at(1).to(DEVICE), (0,)).cpu(), expected)
    assert device.score(logits_at(1).to(DEVICE), as_drawn(torch.tensor([7])), (0,)) is None


def test_ids_outside_the_vocabulary_name_the_row() -> None:
    with pytest.raises(StepFailedError, match=r"row 6: logit_bias .* 47, got 48"):
        make_device_sampler().admit(admitted(6, logit_bias=((VOCAB, 1.0),)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nothing_waits_for_the_device() -> None:
    device = make_device_sampler()
    logits = logits_at(0, len(ROWS)).to(DEVICE, torch.bfloat16)
    tokens = as_drawn(torch.arange(len(ROWS)))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for row in crowd():
            device.admit(row)
        for _ in range(5):
            device.process(logits, ROWS)
            device.observe(ROWS, tokens)
            assert device.score(logits, tokens, ROWS) is not None
    finally:
        torch.cuda.set_sync_debug_mode("default")
