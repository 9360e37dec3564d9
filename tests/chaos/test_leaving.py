"""SIGTERM under load: accepted requests get the whole answer, later ones a 503."""

from __future__ import annotations

import asyncio
import pathlib
import signal

import attrs

from tests.chaos.faulty_server import FROZEN
from tests.chaos.losing import TOKENS, bodies
from tests.chaos.subject import BOUNDS, Subject, serving
from tests.chaos.watching import get, until, until_ready
from tests.chaos.wire import Outcome, complete

LATE = {"prompt": "Too late", "max_tokens": 4}


@attrs.define
class Leaving:
    accepted: list[Outcome]
    late: list[Outcome] = attrs.field(factory=list)
    readiness: list[int] = attrs.field(factory=list)


def test_sigterm_loses_no_accepted_request(tmp_path: pathlib.Path) -> None:
    with serving(tmp_path, *BOUNDS) as subject:
        leaving = asyncio.run(_leave(subject))
        assert subject.server.wait() == 0
        errors = subject.server.err.read_text()
        requests = subject.log("request")
    assert len(leaving.accepted) == 60
    assert all(each.is_whole for each in leaving.accepted)
    assert leaving.late
    # Not one of them is refused by a broken connection: the door is there, and closed, until nothing lives any more.
    answered = [each for each in leaving.late if not each.broken]
    assert answered
    assert {each.status for each in answered} == {503}
    assert all(each.headers["retry-after"] for each in answered)
    assert {each.error["code"] for each in answered if each.error} == {"draining"}
    assert "Traceback" not in errors
    assert int(errors.rpartition(FROZEN)[2]) > 50_000, "a full collection would stop the server for 0.2 s"
    assert sum(each.get("generated_tokens") == TOKENS for each in requests) == 60


async def _leave(subject: Subject) -> Leaving:
    """The last ten are accepted while the engine is held, so that it has work for as long as a slow machine needs to see the door close."""
    port = subject.port
    asking = [asyncio.create_task(complete(port, body)) for body in bodies()[:-10]]
    await until(port, lambda seen: seen.generated > 0)
    with subject.server.held_engine():
        asking += [asyncio.create_task(complete(port, body)) for body in bodies()[-10:]]
        await until(port, lambda seen: seen.accepted == len(asking))
        subject.server.signal(signal.SIGTERM)
        leaving = Leaving([])
        await until_ready(port, 503)
        assert (await get(port, "/livez"))[0] == 200
        leaving.late.append(await complete(port, LATE))
    while not all(each.done() for each in asking):
        leaving.late.append(await complete(port, LATE))
        await asyncio.sleep(0.02)
    leaving.accepted = list(await asyncio.gather(*asking))
    return leaving
