"""The other engines: how prompts are batched and padded, what a job looks like, and how a failure is told."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.peers import lmdeploy_peer
from benchmarks.peers.job import PeerJob, PeerLoad
from benchmarks.peers.running import PeerFailedError, check_peer, run_peer
from benchmarks.peers.transformers_peer import _batches, _choices, _generate, _padded, open_model
from nanoserve.entrypoints.bench.measurement import BenchWorkload
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.shapes import CONFIGS, SHAPES
from nanoserve.ports.errors import BadValueError
from tests.unit.entrypoints.bench.scripted_bench import SAMPLING

FOUND = Survey(spec=SHAPES["tiny"], folder=None, device="cpu", dtype="float32")
LOAD = BenchWorkload(name="x", num_prompts=2, input_len=4, output_len=3).draw(vocab_size=9, seed=0)


def job(temperature: float = 0.6, **others: Any) -> PeerJob:
    sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | others
    return PeerJob(
        folder=None,
        shape={},
        device="cpu",
        dtype="float32",
        max_model_len=64,
        max_num_seqs=8,
        threads=None,
        tries_threads=False,
        sampling=sampling,
        loads=[],
    )


def test_equal_prompts_make_one_batch_and_others_are_sorted_by_their_answers() -> None:
    equal = PeerLoad([[1, 2]] * 70, [5] * 70)
    assert [len(each.prompts) for each in _batches(equal, 256)] == [70]
    assert [len(each.prompts) for each in _batches(equal, 32)] == [32, 32, 6]
    unequal = PeerLoad([[each] for each in range(70)], list(reversed(range(1, 71))))
    first, second = _batches(unequal, 256)
    assert first.output_lengths == list(range(1, 65))
    assert first.prompts[0] == [69]
    assert len(second.prompts) == 6


def test_padding_is_on_the_left_and_masked() -> None:
    ids, mask = _padded(PeerLoad([[7], [8, 9, 10]], [1, 1]), "cpu")
    assert ids.tolist() == [[0, 0, 7], [8, 9, 10]]
    assert mask.tolist() == [[0, 0, 1], [1, 1, 1]]


def test_padded_rows_count_only_what_was_asked_for() -> None:
    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=50
    )
    model: Any = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        for choices in (_choices(job()), _choices(job(temperature=0.0)), _choices(job(top_k=3, top_p=0.5))):
            assert _generate(model, PeerLoad([[1, 2], [3]], [2, 7]), choices, "cpu") == 9


def test_a_peer_opens_a_shape_and_picks_its_threads() -> None:
    before = torch.get_num_threads()
    asked = attrs.evolve(job(), shape=CONFIGS["tiny"], threads=1, tries_threads=True)
    try:
        assert open_model(asked)(PeerLoad([[1, 2, 3]] * 3, [4, 4, 4])) == 12
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


class PiecewiseEngine:
    """Stands in for LMDeploy's engine: an answer comes in pieces of one token, the last of them empty."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[int], dict[str, Any]]] = []

    def create_instance(self) -> PiecewiseEngine:
        return self

    async def async_stream_infer(
        self, session_id: int, input_ids: list[int], gen_config: dict[str, Any]
    ) -> AsyncIterator[SimpleNamespace]:
        self.asked.append((session_id, input_ids, gen_config))
        for left in range(gen_config["max_new_tokens"], -1, -1):
            yield SimpleNamespace(token_ids=[7] if left else [])


@pytest.fixture
def peers_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_lmdeploy_counts_the_tokens_of_all_pieces_and_keeps_its_own_defaults(
    monkeypatch: pytest.MonkeyPatch, peers_loop: asyncio.AbstractEventLoop
) -> None:
    monkeypatch.setattr("asyncio.new_event_loop", lambda: peers_loop)
    engine, opened = PiecewiseEngine(), []

    def from_pretrained(folder: str, engine_config: dict[str, Any]) -> PiecewiseEngine:
        opened.append((folder, engine_config))
        return engine

    package = ModuleType("lmdeploy")
    vars(package).update(PytorchEngineConfig=dict, GenerationConfig=dict)
    part = ModuleType("lmdeploy.pytorch.engine")
    vars(part).update(Engine=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setitem(sys.modules, "lmdeploy", package)
    monkeypatch.setitem(sys.modules, "lmdeploy.pytorch.engine", part)
    generate = lmdeploy_peer.open_model(attrs.evolve(job(top_p=0.5), folder="a-folder", dtype="bfloat16"))
    assert generate(PeerLoad([[1, 2], [3]], [4, 5])) == 9
    assert generate(PeerLoad([[6]], [2])) == 2
    (folder, config), sampling = opened[0], {"temperature": 0.6, "top_p": 0.5, "ignore_eos": True}
    assert (folder, config["session_len"], config["max_batch_size"]) == ("a-folder", 64, 8)
    assert engine.asked == [
        (0, [1, 2], {"max_new_tokens": 4, **sampling}),
        (1, [3], {"max_new_tokens": 5, **sampling}),
        (0, [6], {"max_new_tokens": 2, **sampling}),
    ]


def test_lmdeploy_says_that_it_needs_a_folder() -> None:
    with pytest.raises(SystemExit, match=r"write a folder with benchmarks\.random_model"):
        lmdeploy_peer.open_model(job())


def test_a_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_peer(None)
    check_peer("hf")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(BadValueError, match="vs: vllm is not installed in this environment"):
        check_peer("vllm")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; print('first', file=sys.stderr); sys.exit('no memory')", "exit code 1: no memory"),
        ("pass", "exit code 0: it said nothing"),
    ],
)
def test_an_engine_that_fails_is_quoted(program: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "benchmarks.peers.running.peer_command", lambda _peer, _path: [sys.executable, "-c", program]
    )
    with pytest.raises(PeerFailedError, match=message):
        run_peer("hf", FOUND, EngineSettings(), SAMPLING, [LOAD])


def test_what_an_engine_answers_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import json, sys
job = json.load(sys.stdin)
assert job["max_model_len"] == 7 and job["max_num_seqs"] == 64 and job["folder"] is None
assert job["shape"]["hidden_size"] == 256 and len(job["loads"][0]["prompts"]) == 2
json.dump({"version": "9", "load_seconds": 1.5, "seconds": [0.25]}, open(sys.argv[1], "w"))
print("noise")
"""
    monkeypatch.setattr(
        "benchmarks.peers.running.peer_command",
        lambda _peer, path: [sys.executable, "-c", program, path],
    )
    runs = run_peer("hf", FOUND, EngineSettings(model="shape:tiny"), SAMPLING, [LOAD])
    assert (runs.name, runs.version, runs.seconds) == ("hf", "9", [0.25])
