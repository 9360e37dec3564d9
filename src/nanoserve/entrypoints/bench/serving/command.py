"""`nanoserve bench serve`, once its settings are read: find the model, warm up, send every load, report."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.bench.report import check_plot, check_writable, doing, head, write_report
from nanoserve.entrypoints.bench.serving import client, level
from nanoserve.entrypoints.bench.serving.request_files import prompt_ids, read_requests
from nanoserve.entrypoints.client import server
from nanoserve.entrypoints.compose.config.command_settings import ServeBenchSettings
from nanoserve.entrypoints.compose.config.configuration import Configuration
from nanoserve.entrypoints.compose.printable import counted
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import Door, set_by
from nanoserve.ports.traffic import TracedRequest

DEFAULT_URL: Final = "http://127.0.0.1:8000"
NUM_PROMPTS: Final = 100
INPUT_LEN: Final = 256
OUTPUT_LEN: Final = 128
UNKNOWN_VOCABULARY: Final = 1000
"""Ids below this are in every vocabulary; used where the server does not say how large its own is."""
_TRIES: Final = 1000
_SENT: Final = [name for name in set_by(Door.LOAD) if name != "seed"]


def run_serving(
    configuration: Configuration,
    *,
    key: str | None,
    trace_file: str | None,
    json_file: str | None,
    plot_file: str | None,
) -> None:
    """Measure, print, and write the files; raises whatever goes wrong."""
    settings = configuration.serve_bench
    trace = [] if trace_file is None else _read_trace(trace_file, configuration)
    loads = [client.OfferedLoad()] if trace else _choose_loads(settings)
    check_writable(json_file)
    check_plot(plot_file)
    address = server.read_address(configuration.client.url or DEFAULT_URL, key)
    with server.open_server(address) as remote:
        shape = _choose_shape(configuration, remote, trace)
        about = {name: remote.facts(f"/{name}") for name in ("version", "server_info")}
    num_prompts = len(trace) or configuration.bench.num_prompts or NUM_PROMPTS
    draw = random.Random(configuration.sampling.seed)  # noqa: S311 - without a seed no two runs share prefixes
    sender = LoadClient(shape, settings, draw, client.Connections(address), trace)
    levels = client.run_loop(sender.measure_all(loads, num_prompts))
    drawn = f"{shape.input_len} -> {shape.output_len} tokens"
    title = f"{shape.model} at {address.url}, {settings.endpoint}: {trace_file or drawn}"
    level.show_levels(title, levels)
    if plot_file is not None:
        level.draw_plot(plot_file, title, levels)
    lengths = {"input_len": shape.input_len, "output_len": shape.output_len}
    report = {
        **head("serve"),
        "server": {"url": address.url, "model": shape.model, **about},
        "load": {
            **attrs.asdict(settings),
            "trace": trace_file,
            "num_prompts": num_prompts,
            **({} if trace else lengths),
            "fields": shape.fields,
        },
        "knee": {"at": level.find_knee(levels), "best_within_slo": level.heaviest_good(levels)},
        "levels": [each.record() for each in levels],
    }
    write_report(json_file, report)


def _read_trace(path: str, configuration: Configuration) -> list[TracedRequest]:
    """The first requests of a file, at their scale; raises where the load is described otherwise, too."""
    settings, bench = configuration.serve_bench, configuration.bench
    asked = {"request_rate": settings.request_rate, "concurrency": settings.concurrency}
    for name, value in {**asked, "input_len": bench.input_len, "output_len": bench.output_len}.items():
        if value is not None:
            raise BadValueError(
                name, "is for drawn requests; those of a --trace have times and lengths of their own"
            )
    return [each.scaled(settings.trace_scale) for each in read_requests(path)[: bench.num_prompts]]


def _choose_loads(settings: ServeBenchSettings) -> list[client.OfferedLoad]:
    """Lightest first."""
    if settings.request_rate is None:
        return [client.OfferedLoad(concurrency=each) for each in sorted({*(settings.concurrency or (8,))})]
    if settings.concurrency is not None:
        message = "an open loop has a --request-rate and a closed one a --concurrency: give one of them"
        raise BadValueError("concurrency", message)
    return [client.OfferedLoad(rate=each) for each in sorted({*settings.request_rate})]


def _choose_shape(
    configuration: Configuration, remote: server.OpenAIServer, trace: Sequence[TracedRequest]
) -> client.RequestShape:
    """With the sampling that the user set, and `ignore_eos` where it is on, so that answers have the length asked for."""
    model = remote.find_model(configuration.engine.model)
    bench, given = configuration.bench, configuration.given(_SENT)
    input_len, output_len = bench.input_len or INPUT_LEN, bench.output_len or OUTPUT_LEN
    if model.max_model_len is not None and input_len + output_len > model.max_model_len:
        longest = f"prompt and answer together have {input_len + output_len} tokens"
        raise BadValueError("input_len", f"{longest}, and {model.id} takes {model.max_model_len}")
    needed = max((each.num_tokens + each.output_tokens for each in trace), default=0)
    if model.max_model_len is not None and needed > model.max_model_len:
        fits = math.floor(1000 * configuration.serve_bench.trace_scale * model.max_model_len / needed) / 1000
        longest = (
            f"the trace's longest request has {needed} tokens, prompt and answer together, and {model.id}"
        )
        raise BadValueError("trace_scale", f"{longest} takes {model.max_model_len}: try {fits:g}")
    facts = [remote.facts(path) for path in ("/tokenizer_info", "/server_info")]
    places = [place for each in facts for place in (each, *each.values()) if isinstance(place, Mapping)]
    sizes = [place["vocab_size"] for place in places if isinstance(place.get("vocab_size"), int)]
    return client.RequestShape(
        address=remote.address,
        endpoint=configuration.serve_bench.endpoint,
        model=model.id,
        input_len=input_len,
        output_len=output_len,
        vocab_size=next((size for size in sizes if size > 0), UNKNOWN_VOCABULARY),
        fields={name: value for name, value in given.items() if name != "ignore_eos" or value},
    )


@attrs.define
class LoadClient:
    """Draws requests, or has those of a trace, and sends them over its connections, on the event loop."""

    shape: client.RequestShape
    settings: ServeBenchSettings
    draw: random.Random
    connections: client.Connections
    trace: Sequence[TracedRequest] = ()
    _drawn: set[int] = attrs.field(factory=set, init=False)

    async def measure_all(self, loads: Sequence[client.OfferedLoad], count: int) -> list[level.LoadLevel]:
        """Warm up, then send so many requests at each load, or the trace; raises where the server refuses everything."""
        try:
            with doing("warming up"):
                await self._warm_up()
            return [await self._measure(load, count) for load in loads]
        finally:
            self.connections.close()

    async def _warm_up(self) -> None:
        """Find out whether the server takes token ids, and let it warm up."""
        first = await self._send(client.OfferedLoad(concurrency=1), 1)
        if first.results.get("400") and self.shape.endpoint == "completions":
            self.shape = attrs.evolve(self.shape, vocab_size=None)
            first = await self._send(client.OfferedLoad(concurrency=1), 1)
        if not first.completed:
            (result,) = first.results
            reason = first.messages.get(result) or "no reason given"
            message = f"the first request failed with {result}: {reason}"
            if result == "connection":
                raise server.UnreachableError(f"{self.shape.address.url}: {message}")
            raise server.ServerRefusedError(message, int(result) if result.isdigit() else None)
        if rest := self.settings.warmup_requests - 1:
            await self._send(client.OfferedLoad(concurrency=rest), rest)

    async def _measure(self, load: client.OfferedLoad, count: int) -> level.LoadLevel:
        before = self.connections.num_answers
        doings = f"sending {counted(count, 'request')}, {load}"
        with doing(doings, lambda: f"{self.connections.num_answers - before} answered"):
            return await self._send(load, count)

    async def _send(self, load: client.OfferedLoad, count: int) -> level.LoadLevel:
        requests, moments = self._choose_requests(load, count)
        limit, at_once = self.settings.client_timeout, load.concurrency or 0
        run = await client.send_load(self.connections, requests, limit, moments=moments, at_once=at_once)
        return level.judge(load, run, dict(self.settings.slo))

    def _choose_requests(self, load: client.OfferedLoad, count: int) -> tuple[list[bytes], Sequence[float]]:
        """Their bytes and, in an open loop, their moments; a load without a rate or a concurrency is the trace."""
        if load.rate is None and load.concurrency is None:
            shapes = [attrs.evolve(self.shape, output_len=each.output_tokens) for each in self.trace]
            requests = [shape.ask(prompt_ids(each)) for shape, each in zip(shapes, self.trace, strict=True)]
            return requests, [each.at for each in self.trace]
        requests = [self._draw() for _ in range(count)]
        return requests, () if load.rate is None else client.draw_schedule(load.rate, count, self.draw)

    def _draw(self) -> bytes:
        """A request that equals none before it, unless so many tries find none."""
        for _ in range(_TRIES):
            request = self.shape.draw(self.draw)
            if hash(request) not in self._drawn:
                break
        self._drawn.add(hash(request))
        return request
