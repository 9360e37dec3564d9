"""Thousands of hostile requests beside four ordinary streams, which must not change; afterwards the server is as it was before."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psutil
import pytest

from tests.hostile.attack import Attack
from tests.hostile.bodies import (
    SOUND,
    bound_poisons,
    field_poisons,
    fields_of,
    form_poisons,
    mass_poisons,
)
from tests.hostile.conftest import KEY
from tests.hostile.connections import hostile_connections
from tests.hostile.neighbours import Neighbours, Streamed, alone
from tests.patience import wait_until
from tests.process.server_process import ServerProcess

REST = {
    "nanoserve:num_requests_running": 0.0,
    "nanoserve:num_requests_waiting": 0.0,
    "nanoserve:kv_blocks_leaked": 0.0,
    "nanoserve:kv_cache_usage_perc": 0.0,
    "nanoserve:engine_restarts_total": 0.0,
    "nanoserve:engine_up": 1.0,
}

EVERY = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
"""One value in so many for each field: fields of one kind stand in several bodies, and together they get all."""


def is_at_rest(server: ServerProcess) -> bool:
    return REST.items() <= server.metrics(KEY).items()


def family(server: ServerProcess) -> list[tuple[int, float]]:
    """All but those that fill templates, of which a hostile conversation may end one."""
    everyone = (psutil.Process(server.process.pid), *server.children(recursive=True))
    return [(each.pid, each.create_time()) for each in everyone]


@pytest.fixture(scope="module")
def reference(server: ServerProcess) -> list[Streamed]:
    return alone(server, KEY)


@pytest.fixture
def attack(server: ServerProcess, reference: list[Streamed]) -> Iterator[Attack]:
    """An attack; once it is over neighbours, engine, blocks, books and log must be in order."""
    attack, before = Attack(server.url, KEY), family(server)
    assert len(before) == 2
    wait_until(lambda: is_at_rest(server), lambda: server.metrics(KEY))
    with Neighbours(server, KEY, reference) as neighbours:
        yield attack
    assert neighbours.differences == []
    assert min(neighbours.finished) >= 1
    assert not attack.flaws, "\n".join([f"{len(attack.flaws)} flaws", *attack.flaws[:50]])
    assert not [status for status in attack.answers if status >= 500]
    wait_until(lambda: is_at_rest(server), lambda: server.metrics(KEY))
    assert family(server) == before
    ledger = server.metrics(KEY)
    assert ledger["nanoserve:requests_accepted_total"] == ledger["nanoserve:requests_finished_total"]
    log = server.err.read_text()
    assert "Traceback" not in log
    assert KEY not in log
    lines = [json.loads(line) for line in log.splitlines()]
    assert {each["level"] for each in lines} <= {"info", "warning"}


def fields(server: ServerProcess) -> dict[str, list[str]]:
    with server.client(KEY) as client:
        found = fields_of(client.get("/openapi.json").json())
    assert set(found) == set(SOUND), "a path takes bodies and is not attacked"
    assert sum(map(len, found.values())) > 200
    return found


@EVERY
def test_every_field_of_every_body(server: ServerProcess, attack: Attack, every: int) -> None:
    attack.send_bodies(field_poisons(fields(server), every))
    assert attack.sent > 4000 // every
    assert attack.answers[400] > 2000 // every


@pytest.mark.parametrize("server", ["model"], indirect=True)
def test_values_at_their_bounds_are_accepted_and_those_beyond_refused(attack: Attack) -> None:
    """With a model: a sampler must bear what is taken."""
    attack.send_bodies(bound_poisons())
    assert attack.sent > 200


def test_malformed_bodies(attack: Attack) -> None:
    attack.send_bodies(form_poisons())
    assert attack.sent > 150


@EVERY
def test_huge_bodies(attack: Attack, every: int) -> None:
    attack.send_bodies(mass_poisons(every), workers=1)
    assert attack.sent > 150 // every


def test_hostile_connections(attack: Attack) -> None:
    attack.send_connections(hostile_connections(KEY))
    assert attack.sent > 800
