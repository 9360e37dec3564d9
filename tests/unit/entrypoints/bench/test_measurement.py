"""The loads that are run, what is computed from a run, and how a run over the scripted engine ends."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from nanoserve.entrypoints.bench import report
from nanoserve.entrypoints.bench.measurement import (
    BenchLoad,
    BenchRun,
    BenchWorkload,
    Mark,
    choose_workload,
    run_load,
    summarize,
)
from nanoserve.entrypoints.bench.report import percentile
from nanoserve.entrypoints.compose.config.command_settings import BenchSettings
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.events import SequenceTimes, TokensGenerated
from nanoserve.ports.request import FinishReason
from tests.patience import wait_until
from tests.unit.entrypoints.bench.scripted_bench import SAMPLING, scripted_parts
from tests.unit.entrypoints.scripted_world import interrupt_in_turn

NANO = choose_workload(BenchSettings(workload="nano"))
FEW = BenchWorkload(name="x", num_prompts=4, input_len=8, output_len=50)


@pytest.mark.parametrize(
    ("settings", "sizes", "description"),
    [
        ({}, (64, 512, 256), "fixed: 64 x 512 -> 256"),
        ({"workload": "nano"}, (256, 1024, 1024), "nano: 256 x U(100, 1024) -> U(100, 1024)"),
        ({"workload": "prefill", "num_prompts": 2}, (2, 2048, 1), "prefill: 2 x 2048 -> 1"),
        ({"workload": "nano", "input_len": 120, "output_len": 20}, (256, 120, 20), "nano: 256 x U(100, 120) -> U(20, 20)"),
    ],
)  # fmt: skip
def test_a_workload_has_its_own_numbers_unless_others_are_given(
    settings: dict[str, Any], sizes: tuple[int, int, int], description: str
) -> None:
    workload = choose_workload(BenchSettings(**settings))
    assert (workload.num_prompts, workload.input_len, workload.output_len) == sizes
    assert (workload.description, workload.longest) == (description, sizes[1] + sizes[2])


def test_loads_have_the_lengths_of_their_workload_and_ids_of_the_vocabulary() -> None:
    fixed = attrs.evolve(FEW, input_len=70).draw(vocab_size=11, seed=1)
    assert ([len(each) for each in fixed.prompts], fixed.output_lengths) == ([70] * 4, [50] * 4)
    assert {token for prompt in fixed.prompts for token in prompt} == set(range(11))
    assert (fixed.num_prompt_tokens, fixed.num_output_tokens) == (280, 200)
    uniform = NANO.draw(vocab_size=100, seed=3)
    ins = [len(each) for each in uniform.prompts]
    assert ins != uniform.output_lengths
    for lengths in (ins, uniform.output_lengths):
        assert 100 <= min(lengths) <= max(lengths) <= 1024
        assert 490 < sum(lengths) / len(lengths) < 634


def test_no_two_requests_are_equal_and_a_seed_draws_the_same_ones_again() -> None:
    workloads = [attrs.evolve(NANO, num_prompts=count) for count in (1, 9, 20)]
    loads = [each.draw(vocab_size=2048, seed=seed) for each in workloads for seed in (4, 5)]
    assert loads[0] == workloads[0].draw(vocab_size=2048, seed=4)
    assert len({prompt[:16] for load in loads for prompt in load.prompts}) == 60
    requests = [each for load in loads[-2:] for each in load.requests(SAMPLING)]
    wanted = [length for load in loads[-2:] for length in load.output_lengths]
    assert [each.sampling.max_tokens for each in requests] == wanted
    assert len({each.seed for each in requests}) == len({each.request_id for each in requests}) == 40
    assert all(each.sampling.ignore_eos and each.sampling.temperature == 0.6 for each in requests)


def ended(first: float, last: float, count: int) -> TokensGenerated:
    times = SequenceTimes(0.0, 0.0, first, last)
    return TokensGenerated("x", 0, (), "", (), FinishReason.LENGTH, None, count, 0, times)


MARKS: list[Mark] = [
    (10.0, 100, 1000, 5.0),
    (11.0, 101, 1004, 5.9),  # the first prompt's token
    (13.0, 103, 1006, 7.7),  # the second prompt's, beside a decode
    (14.0, 105, 1006, 8.5),  # two decodes
    (14.5, 107, 1006, 8.9),  # two decodes
    (15.5, 108, 1006, 9.8),  # one has ended
]
RUN = BenchRun(
    load=BenchLoad(seed=1, prompts=[(1, 2, 3, 4), (5, 6)], output_lengths=[4, 4]),
    began=9.5,
    marks=MARKS,
    ends=[ended(11.0, 14.5, 4), ended(13.0, 15.5, 4)],
    counts_waits=True,
)


def test_figures_of_a_run() -> None:
    assert RUN.figures() == pytest.approx(
        {
            "seconds": 6.0,
            "output_tok_s": 8 / 6,
            "total_tok_s": 14 / 6,
            "prompt_tok_s": 6 / 3.5,
            "decode_tok_s": 5 / 2.5,
            "steps": 5,
            "mean_step_ms": 1200.0,
            "ttft_p50_ms": 1500.0,
            "ttft_max_ms": 3500.0,
            "decode_step_ms": 750.0,
            "host_step_us": 1e6 * (0.1 + 0.1) / 2,
            "itl_p50_ms": 1000.0,  # one of 2 s beside a first token, two of 1 s, two of 0.5 s, one of 1 s
            "itl_p90_ms": 2000.0,
            "itl_p99_ms": 2000.0,
            "e2e_p50_ms": 5000.0,
            "e2e_max_ms": 6000.0,
        }
    )
    short = attrs.evolve(RUN, marks=MARKS[:3], counts_waits=False)
    assert not {"decode_step_ms", "host_step_us", "decode_tok_s"} & short.figures().keys()


def test_percentiles_and_spreads() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, each) for each in (0.0, 0.2, 0.5, 0.9, 1.0)] == [1.0, 1.0, 3.0, 5.0, 5.0]
    assert math.isnan(percentile([], 0.5))
    runs = [{"x": each, "seconds": 1.0} for each in values]
    assert summarize([*runs[:4], {"x": 3.0}]) == {"x": {"median": 3.0, "least": 1.0, "most": 5.0}}


@pytest.fixture
def thawed() -> Iterator[None]:
    """A collector that has frozen nothing, before and after the test."""
    gc.unfreeze()
    yield
    assert gc.get_freeze_count() == 0
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_a_run_over_the_engine_counts_every_token_once() -> None:
    parts = scripted_parts(counts=True)
    workload = attrs.evolve(NANO, num_prompts=12, input_len=30, output_len=20)
    for load in (workload.draw(vocab_size=31, seed=seed) for seed in (0, 1)):
        run = run_load(parts.engine, load, SAMPLING)
        assert sorted(each.num_generated for each in run.ends) == sorted(load.output_lengths)
        grown = [sum(run.turns(column)) for column in (1, 2, 3)]
        assert grown == [load.num_output_tokens, load.num_prompt_tokens, len(run.marks) - 1]
        assert sum(each.num_cached_tokens for each in run.ends) == 0
        assert len(run._gaps()) == load.num_output_tokens - len(load.prompts)


@pytest.mark.usefixtures("thawed")
def test_ctrl_c_ends_a_run_between_two_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted_parts().engine
    turns = interrupt_in_turn(engine, 3, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run_load(engine, FEW.draw(vocab_size=31, seed=0), SAMPLING)
    assert len(turns) == 3


def test_a_run_leaves_frozen_what_was_frozen_before() -> None:
    gc.freeze()
    load = BenchLoad(seed=1, prompts=[(1, 2)], output_lengths=[4])
    run_load(scripted_parts().engine, load, SAMPLING)
    assert gc.get_freeze_count() > 0


def test_a_run_that_loses_a_sequence_is_no_measurement() -> None:
    engine = scripted_parts(fail_at={3: StepFailedError("broken", (0,))}).engine
    with pytest.raises(StepFailedError, match=r"1 of 4 sequences failed: .*broken"):
        run_load(engine, FEW.draw(vocab_size=31, seed=0), SAMPLING)


def test_a_pipe_is_told_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with report.doing("loading"):
        pass
    assert capfd.readouterr() == ("", ""), "what is over soon says nothing"
    monkeypatch.setattr(report, "PIPE_SECONDS", 0.01)
    errors = ""

    def heard() -> bool:
        nonlocal errors
        errors += capfd.readouterr().err
        return errors.count("sending 3 requests: 2 answered\n") >= 2

    with report.doing("sending 3 requests", lambda: "2 answered"):
        wait_until(heard)
