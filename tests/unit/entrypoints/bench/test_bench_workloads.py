"""What the benchmarks run: lengths, seeds, and prompts that share nothing."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from nanoserve.entrypoints.bench.workloads import (
    BenchWorkload,
    check_lengths,
    choose_workload,
    draw_load,
    draw_loads,
)
from nanoserve.entrypoints.compose.config import BenchSettings
from nanoserve.ports.errors import BadValueError
from tests.unit.entrypoints.bench.scripted_bench import SAMPLING

NANO = choose_workload(BenchSettings(workload="nano"))


@pytest.mark.parametrize(
    ("settings", "sizes", "description"),
    [
        ({}, (64, 512, 256), "fixed: 64 x 512 -> 256"),
        ({"workload": "nano"}, (256, 1024, 1024), "nano: 256 x U(100, 1024) -> U(100, 1024)"),
        ({"workload": "prefill", "num_prompts": 2}, (2, 2048, 1), "prefill: 2 x 2048 -> 1"),
        ({"workload": "long", "input_len": 9, "output_len": 8}, (1, 9, 8), "long: 1 x 9 -> 8"),
        (
            {"workload": "nano", "input_len": 120, "output_len": 20},
            (256, 120, 20),
            "nano: 256 x U(100, 120) -> U(20, 20)",
        ),
    ],
)
def test_a_workload_has_its_own_numbers_unless_others_are_given(
    settings: dict[str, Any], sizes: tuple[int, int, int], description: str
) -> None:
    workload = choose_workload(BenchSettings(**settings))
    assert (workload.num_prompts, workload.input_len, workload.output_len) == sizes
    assert workload.description == description
    assert workload.longest == sizes[1] + sizes[2]


def test_fixed_loads_have_equal_lengths_and_ids_of_the_vocabulary() -> None:
    load = draw_load(
        BenchWorkload(name="x", num_prompts=5, input_len=70, output_len=3), vocab_size=11, seed=1
    )
    assert [len(each) for each in load.prompts] == [70] * 5
    assert load.output_lengths == [3] * 5
    assert {token for prompt in load.prompts for token in prompt} == set(range(11))
    assert (load.num_prompt_tokens, load.num_output_tokens) == (350, 15)


def test_nano_lengths_are_uniform_and_differ_between_in_and_out() -> None:
    load = draw_load(NANO, vocab_size=100, seed=3)
    ins = [len(each) for each in load.prompts]
    for lengths in (ins, load.output_lengths):
        assert min(lengths) >= 100
        assert max(lengths) <= 1024
        assert 490 < sum(lengths) / len(lengths) < 634
    assert ins != load.output_lengths


def test_the_same_seed_draws_the_same_and_no_two_runs_share_a_prefix() -> None:
    workload = attrs.evolve(NANO, num_prompts=20)
    assert draw_load(workload, vocab_size=99, seed=4) == draw_load(workload, vocab_size=99, seed=4)
    loads = draw_loads(workload, BenchSettings(seeds=3, warmup=2), vocab_size=2048)
    assert [each.seed for each in loads] == [0, 1, 2, 3, 4]
    beginnings = [prompt[:16] for load in loads for prompt in load.prompts]
    assert len(set(beginnings)) == len(beginnings) == 100


def test_batches_of_several_sizes_share_no_prompt() -> None:
    sizes = [
        BenchWorkload(name="batch", num_prompts=count, input_len=16, output_len=2) for count in (1, 4, 9)
    ]
    prompts = [prompt for each in sizes for prompt in draw_load(each, vocab_size=999, seed=0).prompts]
    assert len(set(prompts)) == 14


def test_every_request_generates_its_length_with_a_seed_of_its_own() -> None:
    loads = [draw_load(attrs.evolve(NANO, num_prompts=9), vocab_size=50, seed=seed) for seed in (0, 1)]
    requests = [each for load in loads for each in load.requests(SAMPLING)]
    assert [each.sampling.max_tokens for each in requests] == [
        *loads[0].output_lengths,
        *loads[1].output_lengths,
    ]
    assert len({each.seed for each in requests}) == len({each.request_id for each in requests}) == 18
    assert all(each.sampling.ignore_eos and not each.eos_token_ids for each in requests)
    assert {each.sampling.temperature for each in requests} == {0.6}


def test_sequences_that_do_not_fit_are_refused() -> None:
    check_lengths(64, 64, 64)
    check_lengths(64, None, 64)
    with pytest.raises(BadValueError, match=r"input_len: .* 65 tokens.* max_model_len is 64"):
        check_lengths(65, 64, 100)
    with pytest.raises(BadValueError, match=r"input_len: .* 65 tokens.* made for 64"):
        check_lengths(65, None, 64)
