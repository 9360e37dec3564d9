"""`/metrics`: everything is computed when Prometheus asks, under our own names and under those that vLLM's users know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs
import psutil
from litestar import MediaType, Response, get
from litestar.di import NamedDependency
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from nanoserve.entrypoints.app.measurements import DISCONNECTED, PID, RESTARTS
from nanoserve.entrypoints.server.batches.running import BatchService
from nanoserve.entrypoints.server.watch.live import NOTHING_YET, Live
from nanoserve.ports.driving import EngineStatus
from nanoserve.ports.engine_facts import EngineFacts, EngineState
from nanoserve.ports.request import FinishReason

_OURS: Final = ("nanoserve",)
_SHARED: Final = ("nanoserve", "vllm")
_THEIRS: Final = ("vllm",)


@attrs.frozen
class _Counter:
    """A metric without buckets; where it has labels of its own, its values are by them.

    Attributes:
        prefixes: `_SHARED` for a metric that vLLM has under the same name, `_THEIRS` where it counts something else by it:
            requests, which are several sequences where n is more than 1.
    """

    name: str
    text: str
    values: Mapping[tuple[str, ...], float] | float
    labels: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = _OURS
    family: Any = CounterMetricFamily


@attrs.frozen
class _Gauge(_Counter):
    family: Any = GaugeMetricFamily


@attrs.frozen(kw_only=True, eq=False)
class Metrics(Collector):
    """Keeps nothing: reads counters when asked, of the engine and its viewers (`live`), and of `batches`, if there are any; `phases` are seconds of the start."""

    live: Live
    model_name: str
    phases: Mapping[str, float] = attrs.field(factory=dict)
    batches: BatchService | None = None

    def page(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Every family, as of now."""
        engine, measurements = self.live.engine, self.live.measurements
        measurements.refresh(engine.state)
        common = {"model_name": self.model_name, "engine": "0"}
        state, facts = engine.state or NOTHING_YET, engine.facts
        for each in (*_engine(state), *self._server(facts), *_cache(facts, engine.state)):
            values = each.values if isinstance(each.values, Mapping) else {(): each.values}
            for prefix in each.prefixes:
                family = each.family(f"{prefix}:{each.name}", each.text, labels=(*common, *each.labels))
                for labels, value in values.items():
                    family.add_metric((*common.values(), *labels), float(value))
                yield family
        for name, text, field in _HISTOGRAMS:
            histogram = measurements.timings[field]
            bounds = [*map(repr, histogram.bounds), "+Inf"]
            buckets = list(zip(bounds, map(float, histogram.cumulative()), strict=True))
            for prefix in _SHARED:
                distribution = HistogramMetricFamily(f"{prefix}:{name}", text, labels=tuple(common))
                distribution.add_metric(tuple(common.values()), buckets, histogram.sum)
                yield distribution

    def _server(self, facts: EngineFacts | None) -> Iterator[_Counter]:
        counts, engine = self.live.measurements.tallies, self.live.engine
        accepted, living, rejected = (
            _by(each.read()) for each in (counts.accepted, counts.living, counts.rejected)
        )
        classes, phases = ("request_class",), {**self.phases, **(facts.start_phases if facts else {})}
        yield _Counter("class_requests", "Sequences accepted, by request class.", accepted, classes)
        yield _Gauge("class_requests_living", "Those that have not ended.", living, classes)
        yield _Counter("requests_rejected", "Requests turned away, by reason.", rejected, ("reason",))
        yield _Counter("clients_disconnected", "Clients that hung up early.", counts.exchanges[DISCONNECTED])
        yield _Gauge("engine_up", "Whether the engine takes requests.", engine.status is EngineStatus.READY)
        text = "Seconds that the engine has had work and made no step."
        yield _Gauge("engine_last_step_age_seconds", text, self.live.health.last_step_age())
        yield _Counter("engine_restarts", "Engines started after the first.", engine.restarts)
        yield _Gauge("startup_phase_seconds", "Where the time of the start went.", _by(phases), ("phase",))
        yield _Gauge("viewers", "Streams of /live that are open.", self.live.viewers)
        if self.batches is not None:
            living, lines = _by(self.batches.living), _by(self.batches.answered)
            yield _Gauge("batches", "Batches that have not ended, by status.", living, ("status",))
            yield _Counter("batch_lines", "Lines of batches answered, by result.", lines, ("result",))
            yield _Gauge("batch_lines_running", "Lines of batches in flight.", self.batches.num_asked)
        yield _Counter("http_process_restarts", "Started after one died.", counts.processes[RESTARTS])
        memory = _by(
            _memory(None if facts is None else facts.pid, [each[PID] for each in counts.processes.others])
        )
        yield _Gauge("process_resident_memory_bytes", "Memory of each process.", memory, ("process",))


def _engine(state: EngineState) -> Iterator[_Counter]:
    ended = _by({each.value: 0 for each in FinishReason} | dict(state.finished))
    text = "Sequences accepted: finished + running + waiting."
    yield _Counter("requests_accepted", text, state.accepted)
    yield _Counter("requests_finished", "Sequences that ended.", ended, ("reason",))
    reasons = ("finished_reason",)
    yield _Counter("request_success", "Sequences that ended.", ended, reasons)
    yield _Gauge("num_requests_running", "Sequences being computed.", state.running)
    yield _Gauge("num_requests_waiting", "Sequences that wait.", state.waiting)
    ended = _by({each.value: 0 for each in FinishReason} | dict(state.finished_requests))
    yield _Counter("request_success", "Requests that ended.", ended, reasons, _THEIRS)
    text = "Requests with a running sequence."
    yield _Gauge("num_requests_running", text, state.running_requests, (), _THEIRS)
    yield _Gauge("num_requests_waiting", "Requests that wait.", state.waiting_requests, (), _THEIRS)
    for name, text, field, prefixes in _COUNTERS:
        yield _Counter(name, text, getattr(state, field), (), prefixes)
    text = "Prompt tokens that only cache groups of this kind no longer had."
    yield _Counter("prefix_cache_lost", text, _by(state.prefix_lost), ("group",))
    yield _Counter("lora_requests", "Requests by adapter.", _by(state.lora_requests), ("lora",))
    yield _Counter("cuda_graph_steps", "Steps by how they were launched.", _by(state.graph_steps), ("mode",))
    text = "Tokens of the experts of each rank, a token once for each of its experts."
    yield _Counter("expert_tokens", text, _by(state.expert_tokens), ("rank",))
    text = "Balance of the ranks' experts; 1 if no rank waits for another."
    yield _Gauge("expert_balance", text, state.expert_balance)


def _cache(facts: EngineFacts | None, state: EngineState | None) -> Iterator[_Counter]:
    if facts is None or state is None:
        return
    used = 1 - state.free_blocks / facts.num_kv_blocks if facts.num_kv_blocks else 0.0
    yield _Gauge("kv_cache_usage_perc", "The share of KV blocks in use.", used, (), _SHARED)
    yield _Gauge("kv_blocks_cached", "KV blocks kept for their prefix.", state.cached_blocks)
    yield _Gauge("kv_blocks_leaked", "KV blocks lost; must be 0.", state.leaked_blocks)
    yield _Gauge("num_tokens_waiting", "Prompt tokens that wait.", state.waiting_tokens)
    yield from _tiers(facts, state)
    labels = ("block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching")
    shape = (facts.block_size, facts.num_kv_blocks, facts.dtype, facts.prefix_caching)
    yield _Gauge("cache_config_info", "The KV cache's shape.", {tuple(map(str, shape)): 1}, labels, _SHARED)


def _tiers(facts: EngineFacts, state: EngineState) -> Iterator[_Counter]:
    """The metrics of blocks that are kept beside the device, which are of one cache group."""
    if not state.tiers:
        return
    block_bytes, tier = facts.kv_bytes // (facts.num_kv_blocks + 1), ("tier",)

    def of(field: str, factor: int = 1) -> Mapping[tuple[str, ...], float]:
        return _by({name: getattr(each, field) * factor for name, each in state.tiers.items()})

    yield _Gauge("kv_tier_capacity_bytes", "The most that a tier holds.", of("capacity", block_bytes), tier)
    yield _Gauge("kv_tier_bytes", "What a tier holds.", of("held", block_bytes), tier)
    text = "Prompt tokens that were not computed, because a tier had their blocks."
    yield _Counter("kv_tier_hits", text, of("loaded", facts.block_size), tier)
    yield _Counter("kv_tier_loaded_bytes", "Carried out of a tier.", of("loaded", block_bytes), tier)
    yield _Counter("kv_tier_stored_bytes", "Carried into a tier.", of("stored", block_bytes), tier)
    yield _Counter("kv_tier_evictions", "Blocks displaced by others.", of("evicted"), tier)
    text = "Blocks that a tier could not take, or that a disk had lost or damaged."
    yield _Counter("kv_tier_refusals", text, of("refused"), tier)


_COUNTERS: Final = (
    ("num_preemptions", "Sequences preempted, to be computed again.", "preemptions", _SHARED),
    ("prompt_tokens", "Prompt tokens computed.", "prompt_tokens", _SHARED),
    ("generation_tokens", "Tokens generated.", "generated_tokens", _SHARED),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_queries", _SHARED),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hits", _SHARED),
    ("engine_steps", "Steps computed.", "steps", _OURS),
    ("spec_decode_num_drafts", "Rows that had drafts, in each step again.", "drafted_rows", _SHARED),
    ("spec_decode_num_draft_tokens", "Drafts compared with what was drawn.", "draft_tokens", _SHARED),
    ("spec_decode_num_accepted_tokens", "Those that were right.", "accepted_tokens", _SHARED),
    ("grammar_compiles", "Constraints made ready.", "grammar_compiles", _OURS),
    ("grammar_compile_seconds", "Seconds of workers for those.", "grammar_compile_seconds", _OURS),
    ("mask_seconds", "Seconds that steps waited for masks.", "mask_seconds", _OURS),
    ("late_masks", "Sequences that missed a step, because their mask took too long.", "late_masks", _OURS),
    ("late_compiles", "Kernels that were not ready when a step needed them.", "late_compiles", _OURS),
    ("device_wait_seconds", "Seconds spent waiting for the device.", "device_wait_seconds", _OURS),
)
"""Name, description, field of `EngineState`, and whether vLLM has it too."""
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
"""Name, description, and name among `TIMINGS`."""


def _by(counts: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    """Values by one label."""
    return {(label,): value for label, value in counts.items()}


def _memory(engine: int | None, members: Iterable[int]) -> dict[str, float]:
    """Bytes by the purpose of a process, summed over HTTP processes. A process that has ended has none."""
    own = psutil.Process().pid
    found = {"http": sum(_resident(each) for each in (own, *filter(None, members)))}
    if engine is not None and engine != own and (resident := _resident(engine)):
        found["engine"] = resident
    return found


def _resident(pid: int) -> float:
    try:
        return float(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0.0


@get("/metrics", summary="Metrics for Prometheus", tags=["operation"], media_type=MediaType.TEXT)
async def metrics_route(metrics: NamedDependency[Metrics]) -> Response[bytes]:
    """In Prometheus' text format."""
    return Response(metrics.page(), headers={"content-type": CONTENT_TYPE_LATEST}, media_type="text/plain")


ROUTES: Final = (metrics_route,)
