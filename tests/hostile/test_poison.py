"""Thousands of hostile requests beside four neighbours, who must not notice; afterwards the server is as it was before."""

from __future__ import annotations

import json
import re
import time
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
from tests.hostile.neighbours import Neighbours, Told, alone
from tests.patience import PATIENCE
from tests.process.server_process import ServerProcess

REST = {
    "nanoserve:num_requests_running": 0.0,
    "nanoserve:num_requests_waiting": 0.0,
    "nanoserve:kv_blocks_leaked": 0.0,
    "nanoserve:kv_cache_usage_perc": 0.0,
    "nanoserve:engine_restarts_total": 0.0,
    "nanoserve:engine_up": 1.0,
}


def metrics(server: ServerProcess) -> dict[str, float]:
    """Samples by name; those of one name are added up."""
    found: dict[str, float] = {}
    with server.client(KEY) as client:
        for name, value in re.findall(
            r"^(nanoserve:\w+)(?:{.*})? (\S+)$", client.get("/metrics").text, re.MULTILINE
        ):
            found[name] = found.get(name, 0.0) + float(value)
    return found


def at_rest(server: ServerProcess) -> dict[str, float | None]:
    """The metrics of `REST`, once they are what they should be or the deadline has passed."""
    end = time.monotonic() + PATIENCE
    while (now := {name: metrics(server).get(name) for name in REST}) != REST and time.monotonic() < end:
        time.sleep(0.05)
    return now


def family(server: ServerProcess) -> list[tuple[int, float]]:
    parent = psutil.Process(server.process.pid)
    return [(each.pid, each.create_time()) for each in (parent, *parent.children(recursive=True))]


@pytest.fixture(scope="module")
def reference(server: ServerProcess) -> list[Told]:
    return alone(server, KEY)


@pytest.fixture
def attack(server: ServerProcess, reference: list[Told]) -> Iterator[Attack]:
    """An attack; once it is over neighbours, engine, blocks, books and log must be in order."""
    attack, before = Attack(server.url, KEY), family(server)
    assert len(before) == 2
    assert at_rest(server) == REST
    with Neighbours(server, KEY, reference) as neighbours:
        yield attack
    assert neighbours.differences == []
    assert min(neighbours.finished) >= 1
    assert not attack.flaws, "\n".join([f"{len(attack.flaws)} flaws", *attack.flaws[:50]])
    assert not [status for status in attack.answers if status >= 500]
    assert at_rest(server) == REST
    assert family(server) == before
    ledger = metrics(server)
    assert ledger["nanoserve:requests_accepted_total"] == ledger["nanoserve:requests_finished_total"]
    log = server.err.read_text()
    assert "Traceback" not in log
    assert KEY not in log
    lines = [json.loads(line) for line in log.splitlines()]
    assert {each["level"] for each in lines} <= {"info", "warning"}


def fields(server: ServerProcess) -> dict[str, list[str]]:
    with server.client(KEY) as client:
        found = fields_of(client.get("/openapi.json").json())
    assert set(found) == set(SOUND), "a path takes bodies and no attacker knows it"
    assert sum(map(len, found.values())) > 200
    return found


def test_every_field_of_every_body(server: ServerProcess, attack: Attack) -> None:
    attack.send_bodies(field_poisons(fields(server)))
    assert attack.sent > 4000
    assert attack.answers[400] > 2000


@pytest.mark.parametrize("server", ["model"], indirect=True)
def test_values_at_their_bounds_are_taken_and_those_beyond_are_not(attack: Attack) -> None:
    """With a model: a sampler must bear what is taken."""
    attack.send_bodies(bound_poisons())
    assert attack.sent > 200


def test_bodies_that_are_wrong_as_a_whole(attack: Attack) -> None:
    attack.send_bodies(form_poisons())
    assert attack.sent > 150


def test_a_million_of_everything(attack: Attack) -> None:
    attack.send_bodies(mass_poisons(), workers=1)
    assert attack.sent > 150


def test_connections_that_mean_harm(attack: Attack) -> None:
    attack.send_connections(hostile_connections(KEY))
    assert attack.sent > 800
