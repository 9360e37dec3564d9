"""The report of a server that has started: memory, time, defaults, sockets, and how to call it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.compose.config.serve_settings import ListenSettings
from nanoserve.entrypoints.compose.printable import counted
from nanoserve.entrypoints.server.sockets import describe, is_open_to_all


@attrs.frozen(kw_only=True, eq=False)
class Started:
    """A server that takes requests.

    Attributes:
        phases: seconds that each part of the server's own start took; the engine's run beside them.
    """

    service: TextService
    sockets: Sequence[socket.socket]
    admin: Sequence[socket.socket]
    scraped: Sequence[socket.socket] = ()
    phases: Mapping[str, float]
    num_keys: int
    listen: ListenSettings

    @property
    def warnings(self) -> list[str]:
        """Warnings for the operator."""
        if is_open_to_all(self.sockets) and not self.num_keys:
            return ["all who can reach this machine can use the server: it has no API key (--api-key-file)"]
        return []

    @property
    def addresses(self) -> list[str]:
        """Every listening socket."""
        return [
            *(describe(each) for each in self.sockets),
            *(f"{describe(each)} (admin)" for each in self.admin),
            *(f"{describe(each)}/metrics (without a key)" for each in self.scraped),
        ]

    @property
    def page(self) -> str | None:
        """Where a browser finds the page; None if there is none, or only a Unix socket."""
        url = _reachable(self.sockets[0])
        return f"{url}/" if self.listen.ui and url else None

    @property
    def example(self) -> str:
        """A command that asks for an answer."""
        bound = self.sockets[0]
        target = _reachable(bound) or f"--unix-socket {bound.getsockname()} http://localhost"
        key = ' -H "authorization: Bearer $NANOSERVE_API_KEY"' if self.num_keys else ""
        body = f'{{"model": "{self.service.settings.model_names[0]}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
        return f"curl {target}/v1/chat/completions{key} -H 'content-type: application/json' -d '{body}'"

    def record(self) -> dict[str, Any]:
        """The report as one record of a log."""
        facts = self.service.facts
        return {
            "models": list(self.service.settings.model_names),
            "addresses": self.addresses,
            "page": self.page,
            "device": facts.device,
            "dtype": facts.dtype,
            "memory": self._memory(),
            "products": dict(facts.products),
            "budget": dict(facts.budget),
            "phases": {name: round(seconds, 3) for name, seconds in self._all_phases().items()},
            "defaults": dict(self.service.settings.defaults),
            "defaults_origin": self.service.settings.defaults_origin,
            "api_keys": self.num_keys,
            "http_workers": self.listen.http_workers or 1,
        }

    def lines(self) -> Iterator[str]:
        """For a person, the last line last: `ready` and how to call the server."""
        facts, service = self.service.facts, self.service
        longest = counted(facts.max_model_len, "token")
        yield f"model: {service.settings.model_names[0]} ({facts.dtype} on {facts.device}, {longest} of context)"
        yield "memory:"
        yield from _table({name: f"{size / 2**30:.3f} GiB" for name, size in self._memory().items()})
        yield "products, by numbers of rows in a step:"
        yield from (f"  weights in {form}: {told}" for form, told in facts.products.items())
        held = facts.num_kv_blocks * facts.block_size
        full = counted(held // facts.max_model_len, "request")
        yield f"  the KV cache holds {held} tokens: {full} as long as the context, or more shorter ones"
        yield f"  at most {counted(facts.max_num_seqs, 'request')} computed at once; others wait"
        yield f"start: {sum(self.phases.values()):.1f} s"
        yield from _table({name: f"{seconds:.2f} s" for name, seconds in self._all_phases().items()})
        values = ", ".join(f"{name}={value}" for name, value in service.settings.defaults.items())
        yield (
            f"defaults: {values} (from {service.settings.defaults_origin})"
            if values
            else "defaults: the protocols' own"
        )
        for address in self.addresses:
            yield f"listening on {address}"
        yield f"processes: {self._processes}"
        if self.page:
            yield f"page: {self.page}"
        yield from (f"warning: {each}" for each in self.warnings)
        yield f"ready: {self.example}"

    @property
    def _processes(self) -> str:
        """The purpose of each of the processes."""
        listen = self.listen
        if listen.in_process:
            return "1 for HTTP and the engine, 1 for chat templates"
        workers = listen.http_workers or 1
        parts = [f"{workers} {what}" for what in ("for HTTP", "for chat templates")]
        parts.append(f"{self.service.facts.tensor_parallel_size} for the engine")
        if workers > 1:
            parts.insert(0, "1 that supervises")
        parts += ["1 spare that waits to replace the engine (--no-spare)"] * listen.spare
        return ", ".join(parts)

    def _memory(self) -> dict[str, int]:
        kv = self.service.facts.budget.get("kv_bytes")
        shares = dict(self.service.facts.memory)
        return shares or ({self.service.facts.kv_share: int(kv)} if isinstance(kv, int | float) else {})

    def _all_phases(self) -> dict[str, float]:
        engine = self.service.facts.start_phases
        return {**self.phases, **{f"engine: {name}": seconds for name, seconds in engine.items()}}


def _reachable(bound: socket.socket) -> str | None:
    """The URL that a program on this machine can open; None for a Unix socket."""
    if bound.family == socket.AF_UNIX:
        return None
    return describe(bound).replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _table(rows: Mapping[str, str]) -> Iterator[str]:
    width = max(map(len, rows), default=0)
    return (f"  {name:<{width}}  {value:>12}" for name, value in rows.items())
