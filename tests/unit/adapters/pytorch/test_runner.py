"""Hand-made plans through the runner equal transformers' `generate` token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nanoserve.adapters.pytorch.runner import TorchRunner
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.step import SINK_BLOCK, RowSampling, TableUpdate
from tests.unit.adapters.pytorch.plans import BLOCK_SIZE, Planner, greedy_text, poison, sizes_for, tiny_runner
from tests.unit.adapters.pytorch.tiny_models import TinyModel, make_prompt, make_tiny_model

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    architecture, config = ARCHITECTURES[request.param]
    return make_tiny_model(tmp_path_factory.mktemp("model"), architecture, **config)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("llama"))


def test_chunks_mixed_with_decodes_equal_generate(tiny: TinyModel) -> None:
    prompts = {3: make_prompt(9, seed=1), 0: make_prompt(17, seed=2), 2: make_prompt(4, seed=3)}
    planner = Planner(tiny_runner(tiny))
    planner.admit(3, prompts[3])
    planner.step(chunks=[(3, 9)])
    planner.admit(0, prompts[0])
    planner.step(chunks=[(0, 6)], decoding=(3,))
    planner.admit(2, prompts[2])
    planner.step(chunks=[(0, 7), (2, 3)], decoding=(3,))
    planner.step(chunks=[(2, 1), (0, 4)], decoding=(3,))
    for _ in range(8):
        planner.step(decoding=(0, 2, 3))
    for row, prompt in prompts.items():
        tokens = planner.generated[row]
        assert tokens == greedy_text(tiny, prompt, len(tokens))
    assert [len(planner.generated[row]) for row in (0, 2, 3)] == [9, 9, 12]


@pytest.mark.parametrize("depth", [1, 2])
def test_rows_come_and_go_at_any_depth(tiny: TinyModel, depth: int) -> None:
    prompts = [make_prompt(length, seed=length) for length in (11, 5, 8, 14)]
    planner = Planner(tiny_runner(tiny), depth=depth)
    for row in (0, 1, 2):
        planner.admit(row, prompts[row])
    planner.step(chunks=[(0, 11), (1, 5), (2, 8)])
    planner.step(decoding=(0, 1, 2))
    planner.step(decoding=(0, 1, 2))
    first_tenant = planner.release(1)
    planner.admit(1, prompts[3])
    planner.step(chunks=[(1, 14)], decoding=(0, 2))
    planner.step(decoding=(2, 1, 0))
    gone = planner.release(0)
    for _ in range(5):
        planner.step(decoding=(2, 1))
    planner.drain()
    assert first_tenant == greedy_text(tiny, prompts[1], 3)
    assert gone == greedy_text(tiny, prompts[0], 5)
    assert planner.generated[1] == greedy_text(tiny, prompts[3], 7)
    assert planner.generated[2] == greedy_text(tiny, prompts[2], 10)


def test_a_preempted_row_goes_on_elsewhere_with_the_same_text(tiny: TinyModel) -> None:
    prompt = make_prompt(10, seed=5)
    planner = Planner(tiny_runner(tiny))
    planner.admit(0, prompt)
    planner.step(chunks=[(0, 10)])
    planner.step(decoding=(0,))
    planner.step(decoding=(0,))
    before = planner.release(0)
    planner.admit(2, prompt + before, num_prompt_tokens=10)
    planner.step(chunks=[(2, 6)])
    planner.step(chunks=[(2, 7)])
    planner.step(decoding=(2,))
    assert before + planner.generated[2] == greedy_text(tiny, prompt, 5)


def test_a_prefix_hit_computes_only_the_rest(llama: TinyModel) -> None:
    prompt = make_prompt(11, seed=6)
    planner = Planner(tiny_runner(llama))
    planner.admit(0, prompt)
    planner.step(chunks=[(0, 11)])
    shared = planner.tables[0][0][:2]
    planner.admit(1, prompt, num_computed_tokens=2 * BLOCK_SIZE, shared=shared)
    planner.step(chunks=[(1, 3)], decoding=(0,))
    planner.step(decoding=(0, 1))
    assert planner.generated[1] == greedy_text(llama, prompt, 2)
    assert planner.generated[0] == greedy_text(llama, prompt, 3)


def test_a_table_update_remaps_a_block(llama: TinyModel) -> None:
    prompt = make_prompt(12, seed=7)
    runner = tiny_runner(llama)
    planner = Planner(runner)
    planner.admit(0, prompt)
    planner.step(chunks=[(0, 12)])
    old, new = planner.tables[0][0][1], planner.free[0].pop()
    for tensor in (*runner.kv.keys, *runner.kv.values):
        tensor[new] = tensor[old]
        tensor[old] = torch.nan
    planner.updates.append(TableUpdate(0, 0, 1, (new,)))
    planner.step(decoding=(0,))
    planner.step(decoding=(0,))
    assert planner.generated[0] == greedy_text(llama, prompt, 3)


def test_blocks_that_leave_the_window_may_be_given_away(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path, "mistral", sliding_window=7)
    prompt = make_prompt(13, seed=4)
    runner = tiny_runner(tiny)
    planner = Planner(runner)
    planner.admit(0, prompt)
    planner.step(chunks=[(0, 13)])
    for gone, steps in enumerate((1, 4, 4)):
        block = planner.tables[0][0][gone]
        for tensor in (*runner.kv.keys, *runner.kv.values):
            tensor[block] = torch.nan
        planner.updates.append(TableUpdate(0, 0, gone, (SINK_BLOCK,)))
        for _ in range(steps):
            planner.step(decoding=(0,))
    assert planner.generated[0] == greedy_text(tiny, prompt, 10)


def test_seeded_rows_draw_the_same_alone_in_a_crowd_and_after_preemption(llama: TinyModel) -> None:
    prompt, sampling = make_prompt(9, seed=8), RowSampling(seed=77, temperature=0.9, top_p=0.95)
    alone = Planner(tiny_runner(llama))
    alone.admit(0, prompt, sampling=sampling)
    alone.step(chunks=[(0, 9)])
    for _ in range(7):
        alone.step(decoding=(0,))
    crowd = Planner(tiny_runner(llama), depth=2)
    for row, length in ((0, 6), (1, 13)):
        crowd.admit(row, make_prompt(length, seed=row), sampling=RowSampling(seed=row, temperature=2.0))
    crowd.admit(3, prompt, sampling=sampling)
    crowd.step(chunks=[(1, 13), (3, 4), (0, 6)])
    crowd.step(chunks=[(3, 5)], decoding=(0, 1))
    crowd.step(decoding=(1, 3))
    crowd.step(decoding=(3, 0))
    crowd.drain()
    before = crowd.release(3)
    crowd.admit(2, prompt + before, num_prompt_tokens=9, sampling=sampling)
    crowd.step(chunks=[(2, 12)], decoding=(0, 1))
    for _ in range(4):
        crowd.step(decoding=(2, 1))
    crowd.drain()
    assert before + crowd.generated[2] == alone.generated[0]


def test_the_next_tenant_of_a_row_is_scored_only_if_it_asks(llama: TinyModel) -> None:
    planner = Planner(tiny_runner(llama))
    planner.admit(0, make_prompt(5), sampling=RowSampling(seed=0, logprobs=2, prompt_logprobs=2))
    planner.step(chunks=[(0, 5)])
    planner.admit(0, make_prompt(6))
    planner.step(chunks=[(0, 6)])
    assert [bool(each.logprobs) for each in planner.results] == [True, False]
    assert [bool(each.prompt_logprobs) for each in planner.results] == [True, False]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_broken_logits_is_named_and_its_neighbours_are_right_again(
    tmp_path_factory: pytest.TempPathFactory, depth: int, temperature: float
) -> None:
    tiny = make_tiny_model(tmp_path_factory.mktemp("broken"), tie_word_embeddings=False)
    model = tiny.build()
    with torch.no_grad():
        model.checkpoint_tensors()["model.embed_tokens.weight"][127] = torch.nan
    runner = TorchRunner(model, sizes_for(tiny, 40))
    poison(runner)
    prompts = {0: [5, 6, 7], 1: [9, 127, 3], 2: [8, 8]}
    planner = Planner(runner, depth=depth)
    for row, prompt in prompts.items():
        planner.admit(
            row, prompt, sampling=RowSampling(seed=row, temperature=temperature if row == 1 else 0.0)
        )
    for _ in range(depth - 1):
        planner.step(chunks=[(0, 3), (1, 3), (2, 2)])
    last: dict[str, Any] = {"decoding": (0, 1, 2)} if depth > 1 else {"chunks": [(0, 3), (1, 3), (2, 2)]}
    with pytest.raises(StepFailedError, match=r"rows \(1,\)") as raised:
        planner.step(**last)
    assert raised.value.guilty_rows == (1,)
    planner.abandon()
    for row in (0, 2):
        planner.admit(row, prompts[row])
    planner.step(chunks=[(0, 3), (2, 2)])
    for _ in range(4):
        planner.step(decoding=(0, 2))
    planner.drain()
    for row in (0, 2):
        expected = greedy_text(tiny, prompts[row], 5)
        assert 127 not in expected
        assert planner.generated[row] == expected


def test_logprobs_are_those_of_the_model_not_of_the_sampler(llama: TinyModel) -> None:
    prompt = make_prompt(6, seed=9)
    planner = Planner(tiny_runner(llama))
    sampling = RowSampling(
        seed=1, temperature=0.7, top_k=4, logit_bias=((5, 50.0),), repetition_penalty=1.7, logprobs=3
    )
    planner.admit(1, make_prompt(4))
    planner.admit(0, prompt, sampling=sampling)
    planner.step(chunks=[(1, 4), (0, 6)])
    planner.step(decoding=(1, 0))
    tokens = planner.generated[0]
    assert [result.logprobs.keys() for result in planner.results] == [{0}, {0}]
    expected = llama.expected(prompt + tokens)["logits"].log_softmax(-1)
    for index, result in enumerate(planner.results):
        at, entry = expected[5 + index], result.logprobs[0]
        assert entry.token_id == tokens[index] == 5
        assert entry.logprob == pytest.approx(float(at[5]), abs=1e-4)
        assert entry.rank == int((at > at[5]).sum()) + 1
        assert [token for token, _ in entry.top] == at.topk(3).indices.tolist()


@pytest.mark.parametrize("chunks", [(23,), (1,) * 23, (4, 4, 4, 4, 4, 3), (20, 3), (22, 1)])
@pytest.mark.parametrize("generated", [0, 4])
def test_prompt_logprobs_equal_transformers_over_chunk_borders(
    llama: TinyModel, chunks: tuple[int, ...], generated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanoserve.adapters.pytorch.prompt_scoring.TOKENS_AT_ONCE", 5)
    tokens = make_prompt(23, seed=11)
    num_prompt_tokens = 23 - generated
    planner = Planner(tiny_runner(llama))
    sampling = RowSampling(seed=0, temperature=0.0, prompt_logprobs=2)
    planner.admit(1, make_prompt(3))
    planner.admit(2, tokens, num_prompt_tokens=num_prompt_tokens, sampling=sampling)
    planner.step(chunks=[(1, 3), (2, chunks[0])])
    for length in chunks[1:]:
        planner.step(chunks=[(2, length)], decoding=(1,))
    found = {}
    for result in planner.results:
        assert result.prompt_logprobs.keys() <= {2}
        found.update(result.prompt_logprobs.get(2, {}))
    assert sorted(found) == list(range(1, num_prompt_tokens))
    expected = llama.expected(tokens)["logits"].log_softmax(-1)
    for position, entry in found.items():
        at = expected[position - 1]
        assert entry.token_id == tokens[position]
        assert entry.logprob == pytest.approx(float(at[entry.token_id]), abs=1e-4)
        assert entry.rank == int((at > at[entry.token_id]).sum()) + 1
        assert [token for token, _ in entry.top] == at.topk(2).indices.tolist()


@pytest.mark.parametrize("options", [{"dtype": torch.bfloat16}, {"quantization": "int8"}], ids=str)
def test_the_cache_takes_the_dtype_the_model_computes_in(llama: TinyModel, options: dict[str, Any]) -> None:
    model = llama.build(**options)
    runner = TorchRunner(model, sizes_for(llama, 20, max_num_seqs=2))
    planner = Planner(runner)
    planner.admit(0, make_prompt(5))
    planner.step(chunks=[(0, 5)])
    planner.step(decoding=(0,))
    assert len(planner.generated[0]) == 2
    assert runner.kv.keys[0].dtype == options.get("dtype", torch.float32)
