"""What an engine decided once looks the same wherever it is shown: names, order and values."""

from __future__ import annotations

import json
from typing import Any

import attrs
import structlog

from nanoserve.entrypoints.bench.command import BenchSubject
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.entrypoints.compose.config.command_settings import BenchSettings
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.log import log_model
from nanoserve.entrypoints.compose.recording import trace_header
from nanoserve.entrypoints.server.watch.about import shown_facts
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.sampling import SamplingParams
from tests.unit.entrypoints.scripted_world import SPEC, scripted_assembly

FACTS = EngineFacts(
    pid=1,
    model="m",
    device="cuda",
    dtype="bfloat16",
    vocab_size=100,
    max_model_len=64,
    max_num_seqs=3,
    max_num_batched_tokens=30,
    block_size=8,
    num_blocks=(9, 5),
    prefix_caching=False,
    threads=2,
    depth=2,
    kv_bytes=77,
    memory={"weights": 5},
    products={"fp8": "by hand"},
    start_phases={"imports": 1.5},
)
BUDGET = {
    "num_kv_blocks": 9,
    "kv_bytes": 77,
    "kv_cache_dtype": "auto",
    "max_model_len": 64,
    "dtype": "bfloat16",
    "threads": 2,
    "device": "cuda",
    "max_num_seqs": 3,
    "max_num_batched_tokens": 30,
    "depth": 2,
}
FOUND = {**BUDGET, "memory": {"weights": 5}, "products": {"fp8": "by hand"}}
ASSEMBLY = attrs.evolve(scripted_assembly(), facts=attrs.evolve(FACTS, num_blocks=9))


def written(value: Any) -> str:
    return json.dumps(value)


def test_the_server_shows_all_but_the_process() -> None:
    shown = {
        "model": "m",
        "device": "cuda",
        "dtype": "bfloat16",
        "vocab_size": 100,
        "max_model_len": 64,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 30,
        "block_size": 8,
        "num_kv_blocks": 9,
        "kv_cache_dtype": "auto",
        "prefix_caching": False,
        "memory": {"weights": 5},
        "products": {"fp8": "by hand"},
        "start_phases": {"imports": 1.5},
        "budget": BUDGET,
    }
    assert written(shown_facts(FACTS)) == written(shown)


def test_the_log_shows_what_was_left_open() -> None:
    with structlog.testing.capture_logs() as records:
        log_model(ASSEMBLY)
    logged = {"folder": "scripted", **FOUND, "event": "model loaded", "log_level": "info"}
    assert written(records[0]) == written(logged)


def test_a_benchmarks_report_holds_the_budget_with_the_memory() -> None:
    subject = BenchSubject(
        found=Survey(spec=SPEC, folder=None, device="cuda", dtype="bfloat16"),
        engine=EngineSettings(),
        bench=BenchSettings(),
        sampling=SamplingParams(),
    )
    report = subject.describe("throughput", FACTS)
    assert written(report["budget"]) == written(BUDGET | {"memory": {"weights": 5}})


def test_a_traces_header_has_the_sizes() -> None:
    header = trace_header(EngineSettings(), ASSEMBLY, has_words=False)
    assert (header.device, header.dtype, header.block_size, header.num_blocks) == ("cuda", "bfloat16", 8, 9)
    assert (header.max_num_seqs, header.max_num_batched_tokens, header.max_model_len) == (3, 30, 64)
    assert header.prefix_caching is False
