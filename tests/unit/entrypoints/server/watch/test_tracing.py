"""Traces: one per request, with what the engine did inside; and a clear word where the packages are missing."""

from __future__ import annotations

import sys

import pytest

from nanoserve.entrypoints.server.watch.tracing import start_tracing, tracing_to
from nanoserve.ports.errors import BadValueError
from tests.unit.entrypoints.server.http.app_world import app_world


def test_the_engines_work_lies_inside_the_requests_span() -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    simple = pytest.importorskip("opentelemetry.sdk.trace.export")
    pytest.importorskip("opentelemetry.instrumentation.asgi")
    exporter = export.InMemorySpanExporter()
    with (
        app_world(tracing=tracing_to(simple.SimpleSpanProcessor(exporter))) as world,
        world.client() as client,
    ):
        for stream in (False, True):
            exporter.clear()
            body = {
                "model": "scripted",
                "prompt": "abc",
                "max_tokens": 4,
                "ignore_eos": True,
                "stream": stream,
            }
            assert client.post("/v1/completions", json=body).status_code == 200
            world.settle()
            spans = {each.name: each for each in exporter.get_finished_spans()}
            (request,) = [each for name, each in spans.items() if "/v1/completions" in name]
            parts = [spans[name] for name in ("queue", "prefill", "decode")]
            assert {each.parent.span_id for each in parts} == {request.context.span_id}
            moments = [parts[0].start_time, *(each.end_time for each in parts)]
            assert moments == sorted(moments)
            assert parts[0].attributes["gen_ai.usage.input_tokens"] == 3
            assert len(spans) == 4, "one token is no span"


def test_without_the_packages_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(BadValueError, match=r"otlp_endpoint: needs packages.*pip install"):
        start_tracing("http://localhost:4318")
