"""`/metrics`: everything is computed when Prometheus asks, under our own names and under those that vLLM's users know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import psutil
from litestar import MediaType, Response, get
from litestar.di import NamedDependency
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from nanoserve.entrypoints.app.histogram import Histogram
from nanoserve.entrypoints.app.measurements import Measurements
from nanoserve.entrypoints.server.watch.health import Health
from nanoserve.ports.driving import EngineClient, EngineStatus
from nanoserve.ports.engine_facts import EngineFacts, EngineState
from nanoserve.ports.request import FinishReason

OURS: Final = "nanoserve"
ALIAS: Final = "vllm"
_ENGINE: Final = "0"
_NOTHING_YET: Final = EngineState(at=0.0, last_step=0.0)
_Samples = Iterable[tuple[Mapping[str, str], float]] | float
"""Values by the labels that they have beside the family's own; one number where they have none."""


@attrs.frozen(kw_only=True, eq=False)
class Metrics(Collector):
    """Reads the books; keeps nothing, and can therefore not be wrong for long.

    Attributes:
        phases: seconds that each part of the server's own start took.
        viewers: tells how many watch the engine.
    """

    engine: EngineClient
    measurements: Measurements
    health: Health
    model_name: str
    phases: Mapping[str, float] = attrs.field(factory=dict)
    viewers: Callable[[], int] = lambda: 0

    def page(self) -> bytes:
        """The page that Prometheus reads."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: names are not registered anywhere."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every family, as of now."""
        self.measurements.refresh(self.engine.state)
        yield from self._ledger()
        yield from self._engine_gauges()
        yield from self._engine_counters()
        yield from self._timings()
        yield from self._server()

    def _gauge(self, name: str, text: str, samples: _Samples, *, alias: bool = False) -> Iterator[Metric]:
        yield from self._families(GaugeMetricFamily, name, text, samples, alias=alias)

    def _counter(self, name: str, text: str, samples: _Samples, *, alias: bool = False) -> Iterator[Metric]:
        yield from self._families(CounterMetricFamily, name, text, samples, alias=alias)

    def _families(
        self, family: Any, name: str, text: str, samples: _Samples, *, alias: bool
    ) -> Iterator[Metric]:
        labelled = [({}, samples)] if isinstance(samples, float | int) else samples
        found = [({**self._labels, **labels}, float(value)) for labels, value in labelled]
        names = tuple(found[0][0]) if found else tuple(self._labels)
        for prefix in (OURS, ALIAS) if alias else (OURS,):
            made = family(f"{prefix}:{name}", text, labels=names)
            for labels, value in found:
                made.add_metric(tuple(labels.values()), value)
            yield made

    @property
    def _labels(self) -> dict[str, str]:
        return {"model_name": self.model_name, "engine": _ENGINE}

    def _ledger(self) -> Iterator[Metric]:
        books, state = self.measurements.books, self.engine.state or _NOTHING_YET
        yield from self._counter(
            "requests_accepted", "Sequences accepted: finished + running + waiting.", state.accepted
        )
        ended = {each.value: 0 for each in FinishReason} | dict(state.finished)
        yield from self._counter(
            "requests_finished",
            "Sequences that ended.",
            [({"reason": name}, count) for name, count in ended.items()],
        )
        yield from self._counter(
            "request_success",
            "Sequences that ended.",
            [({"finished_reason": name}, count) for name, count in ended.items()],
            alias=True,
        )
        yield from self._gauge("num_requests_running", "Sequences being computed.", state.running, alias=True)
        yield from self._gauge("num_requests_waiting", "Sequences that wait.", state.waiting, alias=True)
        yield from self._classes()
        rejected = [({"reason": reason}, count) for reason, count in books.rejected.items()]
        yield from self._counter("requests_rejected", "Requests turned away, by reason.", rejected)
        yield from self._counter("clients_disconnected", "Clients that hung up early.", books.disconnected)

    def _classes(self) -> Iterator[Metric]:
        books = self.measurements.books
        for name, text, counts, family in (
            ("class_requests", "Sequences accepted, by request class.", books.accepted, self._counter),
            ("class_requests_living", "Those that have not ended.", books.living, self._gauge),
        ):
            yield from family(
                name, text, [({"request_class": each}, count) for each, count in counts.items()]
            )

    def _engine_gauges(self) -> Iterator[Metric]:
        facts, state = self.engine.facts, self.engine.state
        if facts is not None and state is not None:
            yield from self._cache(facts, state)
        yield from self._gauge(
            "engine_up",
            "Whether the engine takes requests.",
            self.engine.status is EngineStatus.READY,
        )
        yield from self._gauge(
            "engine_last_step_age_seconds",
            "Seconds that the engine has had work and made no step.",
            self.health.last_step_age(),
        )
        yield from self._counter("engine_restarts", "Engines started after the first.", self.engine.restarts)

    def _cache(self, facts: EngineFacts, state: EngineState) -> Iterator[Metric]:
        used = 1 - state.free_blocks / facts.num_kv_blocks if facts.num_kv_blocks else 0.0
        yield from self._gauge("kv_cache_usage_perc", "The share of KV blocks in use.", used, alias=True)
        yield from self._gauge("kv_blocks_cached", "KV blocks kept for their prefix.", state.cached_blocks)
        yield from self._gauge("kv_blocks_leaked", "KV blocks lost; must be 0.", state.leaked_blocks)
        yield from self._gauge("num_tokens_waiting", "Prompt tokens that wait.", state.waiting_tokens)
        config = {
            "block_size": str(facts.block_size),
            "num_gpu_blocks": str(facts.num_kv_blocks),
            "cache_dtype": facts.dtype,
            "enable_prefix_caching": str(facts.prefix_caching),
        }
        yield from self._gauge("cache_config_info", "The KV cache's shape.", [(config, 1)], alias=True)

    def _engine_counters(self) -> Iterator[Metric]:
        state = self.engine.state or _NOTHING_YET
        for name, text, field in _SHARED_COUNTERS:
            yield from self._counter(name, text, getattr(state, field), alias=True)
        for name, text, field in _OWN_COUNTERS:
            yield from self._counter(name, text, getattr(state, field))
        launches = [({"mode": mode}, count) for mode, count in state.graph_steps.items()]
        yield from self._counter("cuda_graph_steps", "Steps by how they were launched.", launches)

    def _timings(self) -> Iterator[Metric]:
        for name, text, field in _HISTOGRAMS:
            histogram: Histogram = getattr(self.measurements.books.timings, field)
            for prefix in (OURS, ALIAS):
                family = HistogramMetricFamily(f"{prefix}:{name}", text, labels=tuple(self._labels))
                family.add_metric(tuple(self._labels.values()), _buckets(histogram), histogram.sum)
                yield family

    def _server(self) -> Iterator[Metric]:
        facts = self.engine.facts
        phases = {**self.phases, **({} if facts is None else facts.start_phases)}
        yield from self._gauge(
            "startup_phase_seconds",
            "Where the time of the start went.",
            [({"phase": name}, seconds) for name, seconds in phases.items()],
        )
        yield from self._gauge("viewers", "Streams of /live that are open.", self.viewers())
        yield from self._gauge(
            "process_resident_memory_bytes",
            "Memory of each process.",
            _memory(None if facts is None else facts.pid),
        )


_SHARED_COUNTERS: Final = (
    ("num_preemptions", "Sequences that gave their blocks back and were computed again.", "preemptions"),
    ("prompt_tokens", "Prompt tokens computed.", "prompt_tokens"),
    ("generation_tokens", "Tokens generated.", "generated_tokens"),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_queries"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hits"),
)
_OWN_COUNTERS: Final = (
    ("engine_steps", "Steps computed.", "steps"),
    ("late_compiles", "Kernels that were not ready when a step needed them.", "late_compiles"),
    ("device_wait_seconds", "Seconds spent waiting for the device.", "device_wait_seconds"),
)
_HISTOGRAMS: Final = (
    ("time_to_first_token_seconds", "From acceptance to the first token.", "first_token"),
    ("inter_token_latency_seconds", "Between two tokens of a sequence.", "inter_token"),
    ("e2e_request_latency_seconds", "From acceptance to the end.", "whole"),
    ("request_queue_time_seconds", "From acceptance to the first step.", "queue"),
    ("request_prefill_time_seconds", "From the first step to the first token.", "prefill"),
    ("request_decode_time_seconds", "From the first token to the end.", "decode"),
    ("request_prompt_tokens", "Prompt tokens of ended sequences.", "prompt_tokens"),
    ("request_generation_tokens", "Generated tokens of ended sequences.", "generated_tokens"),
    ("iteration_tokens_total", "Tokens of one step.", "step_tokens"),
)


def _buckets(histogram: Histogram) -> Sequence[tuple[str, float]]:
    bounds = [*(repr(bound) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, histogram.cumulative()), strict=True))


def _memory(engine_pid: int | None) -> Iterator[tuple[Mapping[str, str], float]]:
    http = psutil.Process()
    yield {"process": "http"}, http.memory_info().rss
    if engine_pid is not None and engine_pid != http.pid:
        try:
            rss = psutil.Process(engine_pid).memory_info().rss
        except psutil.Error:
            return
        yield {"process": "engine"}, rss


@get("/metrics", summary="Metrics for Prometheus", tags=["operation"], media_type=MediaType.TEXT)
async def metrics_route(metrics: NamedDependency[Metrics]) -> Response[bytes]:
    """In Prometheus' text format."""
    return Response(metrics.page(), headers={"content-type": CONTENT_TYPE_LATEST}, media_type="text/plain")


ROUTES: Final = (metrics_route,)
