from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from nanoserve.adapters.engine_process.host import process
from nanoserve.adapters.engine_process.host.process import SocketLink
from nanoserve.adapters.engine_process.wire import codec
from nanoserve.ports.driving import LinkClosedError
from nanoserve.ports.engine_link import Abort, Add, Refused, Report, Turned
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams

BIG = Turned((TokensGenerated("r", 0, (), "x" * 100_000, (), None, None, 1, 0, None),))


@pytest.fixture
def pair() -> Iterator[tuple[SocketLink, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(60)
    with ours, theirs:
        yield SocketLink(ours), theirs


def read_reports(theirs: socket.socket, count: int) -> list[Report]:
    frames = codec.FrameCutter()
    reports: list[Report] = []
    while len(reports) < count:
        reports += [codec.decode_report(body) for body in frames.feed(theirs.recv(65536))]
    return reports


def test_commands_come_in_order_and_waiting_ends(pair: tuple[SocketLink, socket.socket]) -> None:
    link, theirs = pair
    assert list(link.receive(0.0)) == []
    assert list(link.receive(0.01)) == []
    theirs.sendall(codec.encode_command(Abort("a")) + codec.encode_command(Abort("b")))
    assert list(link.receive(5.0)) == [Abort("a"), Abort("b")]


def test_a_reader_that_does_not_read_never_holds_up_a_sender(pair: tuple[SocketLink, socket.socket]) -> None:
    link, theirs = pair
    for _ in range(100):
        link.send(BIG)
        link.receive(0.0)
    reports: list[Report] = []
    frames = codec.FrameCutter()
    while len(reports) < 100:
        link.receive(0.0)
        if select.select([theirs], [], [], 0)[0]:
            reports += [codec.decode_report(body) for body in frames.feed(theirs.recv(1 << 20))]
    assert reports == [BIG] * 100


def test_what_waits_for_a_reader_is_bounded(
    pair: tuple[SocketLink, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound `receive`, and with it the engine, waits until the reader has read, or has gone."""
    link, theirs = pair
    monkeypatch.setattr(process, "MOST_UNSENT", 1_000_000)
    for _ in range(30):
        link.send(BIG)
    waiting = threading.Thread(target=link.receive, args=(0.0,))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    deadline = time.monotonic() + 60
    while waiting.is_alive() and time.monotonic() < deadline:
        if select.select([theirs], [], [], 0.01)[0]:
            theirs.recv(65536)
    assert not waiting.is_alive()
    for _ in range(30):
        link.send(BIG)
    theirs.close()
    with pytest.raises(LinkClosedError):
        link.receive(0.0)


def test_a_lost_connection_is_noticed_by_either_call(pair: tuple[SocketLink, socket.socket]) -> None:
    link, theirs = pair
    theirs.close()
    with pytest.raises(LinkClosedError):
        link.receive(10.0)
    with pytest.raises(LinkClosedError):
        link.send(Turned())


def test_a_request_that_cannot_be_read_costs_no_other(pair: tuple[SocketLink, socket.socket]) -> None:
    link, theirs = pair
    bad = Request(request_id="bad", prompt_token_ids=(1.5,), sampling=SamplingParams())  # type: ignore[arg-type]
    theirs.sendall(codec.encode_command(Add(bad)) + codec.encode_command(Abort("other")))
    assert list(link.receive(5.0)) == [Abort("other")]
    [refused] = read_reports(theirs, 1)
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.error) == ("bad", "BadValueError")
    assert refused.message.startswith("request: ")


def test_a_flood_of_commands_is_taken_in_portions(pair: tuple[SocketLink, socket.socket]) -> None:
    link, theirs = pair
    frame = codec.encode_command(Abort("x" * 1000))
    theirs.setblocking(False)
    sent = theirs.send(frame * 2000)
    assert sent > process.READ_AT_ONCE // 4
    portion = list(link.receive(1.0))
    assert len(portion) * len(frame) <= process.READ_AT_ONCE
