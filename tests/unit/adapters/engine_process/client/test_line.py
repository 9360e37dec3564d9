from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from nanoserve.adapters.engine_process.client.line import Line
from nanoserve.adapters.engine_process.wire.codec import framed


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_a_peer_said_before_its_end_is_taken_though_a_write_is_the_first_to_fail(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    taken: list[bytes] = []

    async def work() -> None:
        ours, theirs = socket.socketpair()
        line = Line(taken.append, peer="a test")
        await line.open(ours)
        line.send(framed(b"never read"))
        await asyncio.sleep(0.01)
        theirs.sendall(framed(b"last") + framed(b"words"))
        theirs.close()
        line.send(framed(b"too late"))
        await line.gone.wait()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(work(), 60))
    assert taken == [b"last", b"words"]
