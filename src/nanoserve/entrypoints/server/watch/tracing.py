"""OpenTelemetry, where it is asked for: a span per HTTP request, and in it the queue, prefill and decode of each answer.

The packages are optional. They are loaded here and nowhere else, once a collector was named.
"""

from __future__ import annotations

import time
from typing import Any, Final

import attrs

from nanoserve.ports.errors import BadValueError
from nanoserve.ports.events import SequenceTimes
from nanoserve.ports.request import Request

PACKAGES: Final = (
    "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http opentelemetry-instrumentation-asgi"
)
_FAREWELL_MS: Final = 3000


@attrs.frozen(kw_only=True, eq=False)
class Tracing:
    """The way of spans to a collector; `plugin` is for Litestar, and makes the span of each request."""

    plugin: Any
    _provider: Any
    _tracer: Any

    def write_spans(self, request: Request, accepted: float, times: SequenceTimes) -> None:
        """The parts of one sequence's life, inside the span of the HTTP request that is being served."""
        moments = (accepted, times.first_scheduled, times.first_token, times.finished)
        attributes = {
            "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
            "nanoserve.request_class": request.request_class,
        }
        for name, begin, end in zip(("queue", "prefill", "decode"), moments, moments[1:], strict=False):
            if begin is not None and end is not None:
                span = self._tracer.start_span(name, start_time=_wall(begin), attributes=attributes)
                span.end(end_time=_wall(end))

    def close(self) -> None:
        """Send the remaining spans; blocks for a few seconds at most."""
        self._provider.force_flush(_FAREWELL_MS)
        self._provider.shutdown()


def start_tracing(endpoint: str) -> Tracing:
    """Traces for a collector. Raises `BadValueError` if the packages are missing."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - optional

        exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces", timeout=2)
        return tracing_to(BatchSpanProcessor(exporter))
    except ImportError as error:
        message = f"needs packages that are not installed ({error}); pip install {PACKAGES}"
        raise BadValueError("otlp_endpoint", message) from None


def tracing_to(processor: Any) -> Tracing:
    """Traces for a span processor. Raises `ImportError` if the packages are missing."""
    from litestar.plugins.opentelemetry import OpenTelemetryConfig, OpenTelemetryPlugin  # noqa: PLC0415 - optional
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - optional
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - optional

    provider = TracerProvider(resource=Resource.create({"service.name": "nanoserve"}))
    provider.add_span_processor(processor)
    config = OpenTelemetryConfig(tracer_provider=provider, exclude_spans=["receive", "send"])
    return Tracing(
        plugin=OpenTelemetryPlugin(config), provider=provider, tracer=provider.get_tracer("nanoserve")
    )


def _wall(monotonic: float) -> int:
    """A reading of the engine's clock as nanoseconds since the epoch."""
    return time.time_ns() + int((monotonic - time.monotonic()) * 1e9)
