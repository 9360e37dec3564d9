"""What is computed from a run, and how a run over the scripted engine ends."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator

import pytest

from nanoserve.entrypoints.bench.measurement import (
    BenchRun,
    Mark,
    percentile,
    run_load,
    spread_of,
)
from nanoserve.entrypoints.bench.workloads import BenchLoad, BenchWorkload, draw_load
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.events import SequenceTimes, TokensGenerated
from nanoserve.ports.request import FinishReason
from tests.unit.entrypoints.bench.scripted_bench import SAMPLING, scripted_parts
from tests.unit.entrypoints.scripted_world import interrupt_in_turn


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


@pytest.fixture
def thawed() -> Iterator[None]:
    """A collector that has frozen nothing, before and after the test."""
    gc.unfreeze()
    yield
    assert gc.get_freeze_count() == 0
    gc.freeze()


def test_figures_of_a_run() -> None:
    figures = RUN.figures()
    assert figures["seconds"] == 6.0
    assert figures["output_tok_s"] == pytest.approx(8 / 6)
    assert figures["total_tok_s"] == pytest.approx(14 / 6)
    assert figures["prompt_tok_s"] == pytest.approx(6 / 3.5)
    assert figures["decode_tok_s"] == pytest.approx(5 / 2.5)
    assert (figures["steps"], figures["mean_step_ms"]) == (5, 1200.0)
    assert (figures["ttft_p50_ms"], figures["ttft_max_ms"]) == (1500.0, 3500.0)
    assert figures["decode_step_ms"] == pytest.approx(750.0)
    assert figures["host_step_us"] == pytest.approx(1e6 * (0.1 + 0.1) / 2)


def test_figures_that_a_run_cannot_give_are_left_out() -> None:
    run = BenchRun(load=RUN.load, began=9.5, marks=MARKS[:3], ends=RUN.ends, counts_waits=False)
    assert not {"decode_step_ms", "host_step_us", "decode_tok_s"} & run.figures().keys()


def test_latencies_count_every_gap_and_no_first_token() -> None:
    figures = RUN.latency_figures()
    # gaps: one of 2 s beside a first token, two of 1 s, two of 0.5 s, one of 1 s
    assert figures["itl_p50_ms"] == 1000.0
    assert figures["itl_p90_ms"] == 2000.0
    assert figures["e2e_p50_ms"] == 5000.0
    assert figures["e2e_max_ms"] == 6000.0


@pytest.mark.usefixtures("thawed")
def test_a_run_over_the_engine() -> None:
    parts = scripted_parts(counts=True)
    workload = BenchWorkload(name="nano", num_prompts=12, input_len=30, output_len=20, uniform=True)
    loads = [draw_load(workload, vocab_size=31, seed=seed) for seed in (0, 1)]
    for load in loads:
        run = run_load(parts, load, SAMPLING)
        assert sorted(each.num_generated for each in run.ends) == sorted(load.output_lengths)
        assert run.marks[-1][1] - run.marks[0][1] == load.num_output_tokens
        assert run.marks[-1][2] - run.marks[0][2] == load.num_prompt_tokens
        assert run.marks[-1][3] - run.marks[0][3] == len(run.marks) - 1
        assert sum(each.num_cached_tokens for each in run.ends) == 0
        assert run.figures()["steps"] == len(run.marks) - 1
        assert len(run._gaps()) == load.num_output_tokens - len(load.prompts)


@pytest.mark.usefixtures("thawed")
def test_ctrl_c_ends_a_run_between_two_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = scripted_parts()
    turns = interrupt_in_turn(parts.engine, 3, monkeypatch)
    load = draw_load(
        BenchWorkload(name="x", num_prompts=4, input_len=8, output_len=50), vocab_size=31, seed=0
    )
    with pytest.raises(KeyboardInterrupt):
        run_load(parts, load, SAMPLING)
    assert len(turns) == 3


def test_a_run_leaves_frozen_what_was_frozen_before() -> None:
    gc.freeze()
    run_load(scripted_parts(), BenchLoad(seed=1, prompts=[(1, 2)], output_lengths=[4]), SAMPLING)
    assert gc.get_freeze_count() > 0


def test_a_run_that_loses_a_sequence_is_no_measurement() -> None:
    parts = scripted_parts(fail_at={3: StepFailedError("broken", (0,))})
    load = draw_load(
        BenchWorkload(name="x", num_prompts=4, input_len=8, output_len=50), vocab_size=31, seed=0
    )
    with pytest.raises(StepFailedError, match=r"1 of 4 sequences failed: .*broken"):
        run_load(parts, load, SAMPLING)


def test_percentiles_and_spreads() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, each) for each in (0.0, 0.2, 0.5, 0.9, 1.0)] == [1.0, 1.0, 3.0, 5.0, 5.0]
    assert math.isnan(percentile([], 0.5))
    spread = spread_of(iter(values))
    assert (spread.median, spread.least, spread.most) == (3.0, 1.0, 5.0)
