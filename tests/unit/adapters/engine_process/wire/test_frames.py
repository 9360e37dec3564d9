from __future__ import annotations

import random
import struct

import pytest

from nanoserve.adapters.engine_process.wire import codec
from nanoserve.adapters.engine_process.wire.codec import FrameCutter, MsgpackWire, framed
from nanoserve.ports.engine_link import Abort
from nanoserve.ports.engine_wire import WireError
from nanoserve.ports.errors import BadValueError


def test_bodies_come_out_whole_however_the_bytes_are_cut() -> None:
    dice = random.Random(0)
    bodies = [dice.randbytes(dice.choice([0, 1, 3, 4, 5, 300])) for _ in range(200)]
    stream = b"".join(framed(body) for body in bodies)
    for most in (1, 3, 7, 1000, len(stream)):
        cutter, found, place = FrameCutter(), [], 0
        while place < len(stream):
            size = dice.randint(1, most)
            found += cutter.feed(stream[place : place + size])
            place += size
        assert found == bodies


def test_nothing_comes_out_before_the_last_byte() -> None:
    cutter = FrameCutter()
    assert cutter.feed(framed(b"hello")[:-1]) == []
    assert cutter.feed(b"o") == [b"hello"]


def test_a_frame_beyond_the_bound_is_refused_before_its_body_comes() -> None:
    cutter = FrameCutter(max_body=10)
    assert cutter.feed(framed(b"0123456789")) == [b"0123456789"]
    with pytest.raises(WireError, match="11 bytes"):
        cutter.feed(struct.pack(">I", 11))


def test_a_body_that_nobody_would_accept_is_not_framed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BODY", 10)
    assert len(framed(b"0123456789")) == 14
    with pytest.raises(BadValueError, match="takes 11 bytes"):
        framed(b"0123456789a")
    with pytest.raises(BadValueError, match=r"^request: takes"):
        MsgpackWire().encode_command(Abort("0123456789"))
