"""Metrics: what Prometheus reads is valid, complete and balanced, and what goes wrong in it harms nobody."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nanoserve.entrypoints.app.measurements import Histogram
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_facts import EngineState
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

COUNTERS = ("num_preemptions", "prompt_tokens", "generation_tokens", "request_success")
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info")
HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens_total",
)
OURS = (
    "engine_last_step_age_seconds",
    "engine_restarts_total",
    "requests_accepted_total",
    "clients_disconnected_total",
    "kv_blocks_leaked",
    "process_resident_memory_bytes",
)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def world() -> Iterator[AppWorld]:
    with app_world() as opened:
        yield opened


def scrape(world: AppWorld) -> Samples:
    with world.client() as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    samples: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = {
                name: value for name, value in sample.labels.items() if name not in {"engine", "model_name"}
            }
            assert sample.labels.get("model_name") == "scripted"
            assert sample.labels.get("engine") == "0"
            key = (sample.name, tuple(sorted(labels.items())))
            assert key not in samples, f"{key} comes twice"
            samples[key] = sample.value
    return samples


def generate(world: AppWorld, **fields: Any) -> None:
    with world.client() as client:
        body = {
            "model": "scripted",
            "prompt": "abc",
            "max_tokens": 4,
            "ignore_eos": True,
            "seed": 1,
            **fields,
        }
        assert client.post("/v1/completions", json=body).status_code == 200
    world.settle()


def test_every_name_that_dashboards_read_is_there(world: AppWorld) -> None:
    names = {name for name, _ in scrape(world)}
    for name in COUNTERS:
        assert f"vllm:{name}_total" in names
    assert {"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"} <= names
    assert {f"vllm:{name}" for name in GAUGES} <= names
    for name in HISTOGRAMS:
        assert {f"vllm:{name}_bucket", f"vllm:{name}_sum", f"vllm:{name}_count"} <= names
    assert {f"nanoserve:{name}" for name in OURS} <= names
    aliases = {name.removeprefix("vllm:") for name in names if name.startswith("vllm:")}
    assert {f"nanoserve:{name}" for name in aliases} <= names


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_counted_in_every_distribution(world: AppWorld, stream: bool) -> None:
    generate(world, stream=stream, n=2)
    samples = scrape(world)
    for name in HISTOGRAMS[:-1]:
        expected = 6 if name == "inter_token_latency_seconds" else 2
        assert samples[f"vllm:{name}_count", ()] == expected, name
        assert samples[f"vllm:{name}_bucket", (("le", "+Inf"),)] == expected
    assert samples["vllm:request_generation_tokens_sum", ()] == 8
    assert samples["vllm:request_prompt_tokens_sum", ()] == 6
    assert samples["nanoserve:class_requests_total", (("request_class", "default"),)] == 2
    assert samples["nanoserve:class_requests_living", (("request_class", "default"),)] == 0


def test_the_ledger_is_the_engines_own(world: AppWorld) -> None:
    world.engine.state = EngineState(
        at=0,
        last_step=0,
        accepted=10,
        running=2,
        waiting=3,
        running_requests=1,
        waiting_requests=2,
        finished={"stop": 4, "refused": 1},
        finished_requests={"stop": 3},
        free_blocks=250,
    )
    samples = scrape(world)
    finished = sum(
        value for (name, _), value in samples.items() if name == "nanoserve:requests_finished_total"
    )
    accepted = samples["nanoserve:requests_accepted_total", ()]
    running, waiting = (samples[f"nanoserve:num_requests_{each}", ()] for each in ("running", "waiting"))
    assert (accepted, finished, running, waiting) == (10, 5, 2, 3)
    assert accepted == finished + running + waiting
    # Gateways balance by requests, however many sequences they have.
    running, waiting = (samples[f"vllm:num_requests_{each}", ()] for each in ("running", "waiting"))
    stopped = samples["vllm:request_success_total", (("finished_reason", "stop"),)]
    assert (running, waiting, stopped) == (1, 2, 3)
    assert samples["vllm:kv_cache_usage_perc", ()] == 0.75


def test_what_structured_output_costs_is_the_engines_own_count(world: AppWorld) -> None:
    world.engine.state = EngineState(
        at=0,
        last_step=0,
        free_blocks=250,
        grammar_compiles=3,
        grammar_compile_seconds=0.5,
        mask_seconds=0.25,
        late_masks=2,
    )
    samples = scrape(world)
    names = ("grammar_compiles", "grammar_compile_seconds", "mask_seconds", "late_masks")
    assert [samples[f"nanoserve:{name}_total", ()] for name in names] == [3, 0.5, 0.25, 2]


def test_before_the_engine_is_there_everything_is_zero(world: AppWorld) -> None:
    world.engine.status, world.engine.facts, world.engine.state = EngineStatus.STARTING, None, None
    samples = scrape(world)
    assert samples["nanoserve:requests_accepted_total", ()] == 0
    assert samples["nanoserve:engine_up", ()] == 0


def test_refusals_and_disconnects_are_counted(world: AppWorld) -> None:
    with world.client() as client:
        client.get("/nope")
        client.post("/v1/completions", content=b"x")
        world.server.service.reservations.begin_drain()  # type: ignore[union-attr] # it is open
        client.post("/v1/completions", json={"model": "scripted", "prompt": "a"})
    world.settle()
    samples = scrape(world)
    reasons = {
        dict(labels)["reason"]: value
        for (name, labels), value in samples.items()
        if name == "nanoserve:requests_rejected_total"
    }
    assert reasons == {"not_found": 1, "invalid": 1, "unavailable": 1}


def test_a_hang_up_is_counted_and_ends_what_was_living(world: AppWorld) -> None:
    world.call(lambda: world.engine.allow(3))
    body = b'{"model": "scripted", "prompt": "a", "max_tokens": 400, "stream": true, "ignore_eos": true}'
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with world.connect() as connection:
        connection.sendall(head.encode() + body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    world.settle()
    world.call(lambda: world.engine.allow(None))
    samples = scrape(world)
    assert samples["nanoserve:clients_disconnected_total", ()] == 1
    assert samples["nanoserve:class_requests_living", (("request_class", "default"),)] == 0


def test_steps_count_with_their_size(world: AppWorld) -> None:
    world.engine.state = EngineState(at=0, last_step=0, steps=10, prompt_tokens=30, generated_tokens=10)
    scrape(world)
    world.engine.state = EngineState(at=0, last_step=0, steps=12, prompt_tokens=30, generated_tokens=210)
    samples = scrape(world)
    assert samples["vllm:iteration_tokens_total_count", ()] == 12
    assert samples["vllm:iteration_tokens_total_sum", ()] == 240
    assert samples["vllm:iteration_tokens_total_bucket", (("le", "4.0"),)] == 10


def test_books_that_break_do_not_break_answers(world: AppWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Histogram, "observe", break_down)
    generate(world)


def test_labels_hold_nothing_of_clients(world: AppWorld) -> None:
    with world.client("sk-secret") as client:
        client.post(
            "/v1/completions",
            json={"model": "scripted", "prompt": "a", "max_tokens": 1, "user": "bob"},
            headers={"x-request-id": "id-7"},
        )
        text = client.get("/metrics").text
    assert not any(each in text for each in ("sk-secret", "bob", "id-7"))


def test_histograms_are_cumulative_and_bounds_belong_to_their_bucket() -> None:
    histogram = Histogram([1.0, 2.0])
    for value, times in ((0.5, 1), (1.0, 2), (1.5, 1), (9.0, 3)):
        histogram.observe(value, times)
    assert histogram.cumulative() == [3, 4, 7]
    assert histogram.sum == 31.0


def test_an_answer_that_is_never_read_ends_when_it_is_cancelled(world: AppWorld) -> None:
    def submit_and_cancel() -> int:
        reply = world.server.engine.submit(
            Request(request_id="x", prompt_token_ids=[1], sampling=SamplingParams())
        )
        reply.cancel()
        reply.cancel()
        return world.server.measurements.tallies.living["default"]

    assert world.call(submit_and_cancel) == 0


def test_every_metric_is_documented(world: AppWorld) -> None:
    described = pathlib.Path(__file__).parents[5].joinpath("docs", "server.md").read_text()
    described = described.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    with world.client() as client:
        page = client.get("/metrics").text
    found = set(re.findall(r"^# TYPE nanoserve:(\S+)", page, re.MULTILINE))
    assert {each for each in found if f"`{each}`" not in described} == set()
