"""`nanoserve bench serve`, once its settings are read: find the model, warm up, send every load, report."""

from __future__ import annotations

import random
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.entrypoints.bench.serving.bodies import UNKNOWN_VOCABULARY, RequestShape
from nanoserve.entrypoints.bench.serving.connection import Connections
from nanoserve.entrypoints.bench.serving.level import LoadKnee, LoadLevel, find_knee, judge
from nanoserve.entrypoints.bench.serving.results import (
    check_plot,
    draw_plot,
    level_table,
    say_knee,
    say_level,
    say_troubles,
    sweep_table,
)
from nanoserve.entrypoints.bench.serving.running import LoadRun, draw_schedule, run_closed, run_loop, run_open
from nanoserve.entrypoints.bench.subject import check_writable, write_report
from nanoserve.entrypoints.bench.tables import doing, show
from nanoserve.entrypoints.client.address import Address, read_address
from nanoserve.entrypoints.client.openai_server import OpenAIServer, ServedModel, open_server
from nanoserve.entrypoints.client.protocol import ServerRefusedError, UnreachableError
from nanoserve.entrypoints.compose.bootstrap import environment
from nanoserve.entrypoints.compose.config import Configuration
from nanoserve.entrypoints.compose.config.command_settings import ServeBenchSettings
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Door
from nanoserve.ports.sampling import set_by

DEFAULT_URL: Final = "http://127.0.0.1:8000"
DEFAULT_CONCURRENCY: Final = (8,)
INPUT_LEN: Final = 256
OUTPUT_LEN: Final = 128
_SENT: Final = [name for name in set_by(Door.LOAD) if name != "seed"]


@attrs.frozen(kw_only=True)
class OfferedLoad:
    """One rate of an open loop, or one number of clients of a closed one."""

    rate: float | None = None
    concurrency: int | None = None


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
    measured = run_loop(_measure_all(shape, settings, loads, draw))
    levels = [level for level, _ in measured]
    knee = find_knee(levels)
    title = (
        f"{shape.model} at {address.url}, {settings.endpoint}: {shape.input_len} -> {shape.output_len} tokens"
    )
    _show(title, levels, knee)
    if plot_file is not None:
        draw_plot(plot_file, title, levels, knee)
    write_report(
        json_file,
        {
            "benchmark": "serve",
            "command": shlex.join(["nanoserve", *_without_key(sys.argv[1:])]),
            "machine": environment(),
            "server": {"url": address.url, "model": shape.model, **about},
            "load": attrs.asdict(settings)
            | {"input_len": shape.input_len, "output_len": shape.output_len, "fields": shape.fields},
            "knee": knee,
            "levels": [_record(level, run) for level, run in measured],
        },
    )


def _choose_loads(settings: ServeBenchSettings) -> list[OfferedLoad]:
    """Lightest first."""
    if settings.request_rate is not None and settings.concurrency is not None:
        message = "an open loop has a --request-rate and a closed one a --concurrency: give one of them"
        raise BadValueError("concurrency", message)
    if settings.request_rate is not None:
        return [OfferedLoad(rate=each) for each in sorted(set(settings.request_rate))]
    return [
        OfferedLoad(concurrency=each) for each in sorted(set(settings.concurrency or DEFAULT_CONCURRENCY))
    ]


def _choose_shape(configuration: Configuration, server: OpenAIServer) -> RequestShape:
    model = server.find_model(configuration.engine.model)
    settings, bench = configuration.serve_bench, configuration.bench
    shape = RequestShape(
        address=server.address,
        endpoint=settings.endpoint,
        model=model.id,
        input_len=bench.input_len or INPUT_LEN,
        output_len=bench.output_len or OUTPUT_LEN,
        vocab_size=_vocabulary(server),
        fields=_sampling_fields(configuration),
    )
    _check_lengths(shape, model)
    return shape


def _vocabulary(server: OpenAIServer) -> int:
    """How many ids the model knows, where the server says so in one of the usual places."""
    for path in ("/tokenizer_info", "/server_info"):
        facts = server.facts(path)
        for found in (facts.get("vocab_size"), *(each.get("vocab_size") for each in _objects(facts))):
            if isinstance(found, int) and found > 0:
                return found
    return UNKNOWN_VOCABULARY


def _objects(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in facts.values() if isinstance(each, Mapping)]


def _sampling_fields(configuration: Configuration) -> dict[str, Any]:
    """What the user set, and `ignore_eos` wherever it is on, so that answers have the length asked for."""
    known = {name: configuration.values[name] for name in _SENT}
    _ = configuration.sampling  # a value out of range is an error here too
    return {
        name: found.value
        for name, found in known.items()
        if found.origin != "default" and (name != "ignore_eos" or found.value)
    }


def _check_lengths(shape: RequestShape, model: ServedModel) -> None:
    longest = shape.input_len + shape.output_len
    if model.max_model_len is not None and longest > model.max_model_len:
        message = (
            f"prompt and answer together have {longest} tokens, and {model.id} takes {model.max_model_len}"
        )
        raise BadValueError("input_len", message)


async def _measure_all(
    shape: RequestShape, settings: ServeBenchSettings, loads: Sequence[OfferedLoad], draw: random.Random
) -> list[tuple[LoadLevel, LoadRun]]:
    connections = Connections(shape.address)
    try:
        with doing("warming up"):
            shape = await _warm_up(connections, shape, settings, draw)
        return [await _measure(connections, shape, settings, load, draw) for load in loads]
    finally:
        connections.close()


async def _warm_up(
    connections: Connections, shape: RequestShape, settings: ServeBenchSettings, draw: random.Random
) -> RequestShape:
    """Find out whether the server takes token ids, and let it warm up; raises where it refuses everything."""
    outcome = await _try(connections, shape, settings, draw)
    if outcome.results.get("400") and shape.endpoint == "completions":
        shape = attrs.evolve(shape, vocab_size=None)
        outcome = await _try(connections, shape, settings, draw)
    if not outcome.completed:
        raise _why_not(shape.address, outcome)
    requests = [shape.draw(draw) for _ in range(settings.warmup_requests - 1)]
    await run_closed(connections, requests, len(requests), settings.client_timeout)
    return shape


async def _try(
    connections: Connections, shape: RequestShape, settings: ServeBenchSettings, draw: random.Random
) -> LoadLevel:
    return judge(await run_closed(connections, [shape.draw(draw)], 1, settings.client_timeout), {})


def _why_not(address: Address, level: LoadLevel) -> Exception:
    (result,) = level.results
    message = f"the first request failed with {result}: {level.messages.get(result) or 'no reason given'}"
    if result == "connection":
        return UnreachableError(f"{address.url}: {message}")
    return ServerRefusedError(message, int(result) if result.isdigit() else None)


async def _measure(
    connections: Connections,
    shape: RequestShape,
    settings: ServeBenchSettings,
    load: OfferedLoad,
    draw: random.Random,
) -> tuple[LoadLevel, LoadRun]:
    requests = [shape.draw(draw) for _ in range(settings.num_requests)]
    slo, timeout = dict(settings.slo), settings.client_timeout
    if load.rate is not None:
        moments = draw_schedule(load.rate, len(requests), draw)
        with doing(f"sending {load.rate:g} requests per second for {moments[-1]:.0f} s"):
            run = await run_open(connections, requests, moments, timeout)
    else:
        assert load.concurrency is not None
        with doing(f"sending {len(requests)} requests, {load.concurrency} at once"):
            run = await run_closed(connections, requests, load.concurrency, timeout)
    return judge(run, slo, rate=load.rate, concurrency=load.concurrency), run


def _show(title: str, levels: Sequence[LoadLevel], knee: LoadKnee) -> None:
    show(title)
    if len(levels) == 1:
        show(level_table(levels[0]), *say_level(levels[0]))
    else:
        show(sweep_table(levels, knee), *say_knee(levels, knee))
    for level in levels:
        show(*say_troubles(level))


def _record(level: LoadLevel, run: LoadRun) -> dict[str, Any]:
    figures = {**attrs.asdict(level), "client_ceiling": level.client_ceiling, "doubts": level.doubts}
    return {**figures, "outcomes": [each.record(run.began) for each in run.outcomes]}


def _without_key(arguments: Sequence[str]) -> list[str]:
    """The command as it was typed, without the secret."""
    shown, hide = [], False
    for each in arguments:
        name, equals, _ = each.partition("=")
        shown.append("***" if hide else f"{name}=***" if name == "--api-key" and equals else each)
        hide = each == "--api-key"
    return shown
