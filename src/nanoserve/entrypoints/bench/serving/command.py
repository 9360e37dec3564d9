"""`nanoserve bench serve`, once its settings are read: find the model, warm up, send every load, report."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nanoserve.entrypoints.bench.report import check_plot, check_writable, doing, head, write_report
from nanoserve.entrypoints.bench.serving.connection import Connections
from nanoserve.entrypoints.bench.serving.level import LoadLevel, find_knee, judge
from nanoserve.entrypoints.bench.serving.requests import UNKNOWN_VOCABULARY, RequestShape
from nanoserve.entrypoints.bench.serving.results import draw_plot, show_levels
from nanoserve.entrypoints.bench.serving.running import (
    OfferedLoad,
    draw_schedule,
    run_closed,
    run_loop,
    run_open,
)
from nanoserve.entrypoints.client.server import (
    OpenAIServer,
    ServerRefusedError,
    UnreachableError,
    open_server,
    read_address,
)
from nanoserve.entrypoints.compose.config import Configuration
from nanoserve.entrypoints.compose.config.command_settings import ServeBenchSettings
from nanoserve.entrypoints.compose.printable import counted
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Door
from nanoserve.ports.sampling import set_by

DEFAULT_URL: Final = "http://127.0.0.1:8000"
DEFAULT_CONCURRENCY: Final = (8,)
NUM_PROMPTS: Final = 100
INPUT_LEN: Final = 256
OUTPUT_LEN: Final = 128
_SENT: Final = [name for name in set_by(Door.LOAD) if name != "seed"]


def run_serving(
    configuration: Configuration, *, key: str | None, json_file: str | None, plot_file: str | None
) -> None:
    """Measure, print, and write the files; raises whatever goes wrong."""
    settings = configuration.serve_bench
    loads = _choose_loads(settings)
    check_writable(json_file)
    check_plot(plot_file)
    address = read_address(configuration.client.url or DEFAULT_URL, key)
    with open_server(address) as server:
        shape = _choose_shape(configuration, server)
        about = {name: server.facts(f"/{name}") for name in ("version", "server_info")}
    seed = configuration.sampling.seed
    draw = random.Random(seed)  # noqa: S311 - prompts are no secrets; without a seed no two runs share prefixes
    num_prompts = configuration.bench.num_prompts or NUM_PROMPTS
    client = LoadClient(shape, num_prompts, settings, draw, Connections(address))
    levels = run_loop(client.measure_all(loads))
    knee = find_knee(levels)
    title = (
        f"{shape.model} at {address.url}, {settings.endpoint}: {shape.input_len} -> {shape.output_len} tokens"
    )
    show_levels(title, levels, knee)
    if plot_file is not None:
        draw_plot(plot_file, title, levels, knee)
    write_report(
        json_file,
        {
            **head("serve"),
            "server": {"url": address.url, "model": shape.model, **about},
            "load": attrs.asdict(settings)
            | {
                "num_prompts": num_prompts,
                "input_len": shape.input_len,
                "output_len": shape.output_len,
                "fields": shape.fields,
            },
            "knee": knee,
            "levels": [level.record() for level in levels],
        },
    )


def _choose_loads(settings: ServeBenchSettings) -> list[OfferedLoad]:
    """Lightest first."""
    if settings.request_rate is not None and settings.concurrency is not None:
        message = "an open loop has a --request-rate and a closed one a --concurrency: give one of them"
        raise BadValueError("concurrency", message)
    if settings.request_rate is not None:
        return [OfferedLoad(rate=each) for each in sorted(set(settings.request_rate))]
    clients = settings.concurrency or DEFAULT_CONCURRENCY
    return [OfferedLoad(concurrency=each) for each in sorted(set(clients))]


def _choose_shape(configuration: Configuration, server: OpenAIServer) -> RequestShape:
    """With the sampling that the user set, and `ignore_eos` where it is on, so that answers have the length asked for."""
    model = server.find_model(configuration.engine.model)
    settings, bench, given = configuration.serve_bench, configuration.bench, configuration.given(_SENT)
    input_len, output_len = bench.input_len or INPUT_LEN, bench.output_len or OUTPUT_LEN
    if model.max_model_len is not None and input_len + output_len > model.max_model_len:
        longest = f"prompt and answer together have {input_len + output_len} tokens"
        raise BadValueError("input_len", f"{longest}, and {model.id} takes {model.max_model_len}")
    return RequestShape(
        address=server.address,
        endpoint=settings.endpoint,
        model=model.id,
        input_len=input_len,
        output_len=output_len,
        vocab_size=_vocabulary(server),
        fields={name: value for name, value in given.items() if name != "ignore_eos" or value},
    )


def _vocabulary(server: OpenAIServer) -> int:
    """How many ids the model knows, where the server says so in one of the usual places."""
    for path in ("/tokenizer_info", "/server_info"):
        facts = server.facts(path)
        for each in (facts, *facts.values()):
            found = each.get("vocab_size") if isinstance(each, Mapping) else None
            if isinstance(found, int) and found > 0:
                return found
    return UNKNOWN_VOCABULARY


@attrs.define
class LoadClient:
    """Draws requests and sends them over its connections, on the event loop."""

    shape: RequestShape
    num_prompts: int
    settings: ServeBenchSettings
    draw: random.Random
    connections: Connections

    async def measure_all(self, loads: Sequence[OfferedLoad]) -> list[LoadLevel]:
        """Warm up, then send one load after the other; raises where the server refuses everything."""
        try:
            with doing("warming up"):
                await self._warm_up()
            return [await self._measure(load) for load in loads]
        finally:
            self.connections.close()

    async def _warm_up(self) -> None:
        """Find out whether the server takes token ids, and let it warm up."""
        first = await self._send_closed(1, 1)
        if first.results.get("400") and self.shape.endpoint == "completions":
            self.shape = attrs.evolve(self.shape, vocab_size=None)
            first = await self._send_closed(1, 1)
        if not first.completed:
            (result,) = first.results
            reason = first.messages.get(result) or "no reason given"
            message = f"the first request failed with {result}: {reason}"
            if result == "connection":
                raise UnreachableError(f"{self.shape.address.url}: {message}")
            raise ServerRefusedError(message, int(result) if result.isdigit() else None)
        rest = self.settings.warmup_requests - 1
        await self._send_closed(rest, rest)

    async def _measure(self, load: OfferedLoad) -> LoadLevel:
        count, before = self.num_prompts, self.connections.num_answers
        with doing(
            f"sending {counted(count, 'request')}, {load}",
            lambda: f"{self.connections.num_answers - before} answered",
        ):
            if load.concurrency is not None:
                return await self._send_closed(count, load.concurrency)
            assert load.rate is not None
            requests = self._requests(count)
            moments = draw_schedule(load.rate, count, self.draw)
            run = await run_open(self.connections, requests, moments, self.settings.client_timeout)
            return judge(load, run, dict(self.settings.slo))

    async def _send_closed(self, count: int, clients: int) -> LoadLevel:
        requests = self._requests(count)
        run = await run_closed(self.connections, requests, clients, self.settings.client_timeout)
        return judge(OfferedLoad(concurrency=clients), run, dict(self.settings.slo))

    def _requests(self, count: int) -> list[bytes]:
        return [self.shape.draw(self.draw) for _ in range(count)]
