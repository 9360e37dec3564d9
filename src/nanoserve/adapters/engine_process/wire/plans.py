"""Messages between the first rank of a group and each other rank, in the frames of `codec`.

A steady plan is a hundred bytes: rows that go on decoding are not named again, and tokens of prompts travel as int32 numbers of the
machine, which both ends share.
"""

from __future__ import annotations

import operator
import struct
from typing import Any, Final

import attrs
import msgspec

from nanoserve.adapters.engine_process.wire.codec import WireError, array_form, framed
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.lora import LoraPart
from nanoserve.ports.steering import SharedTensor
from nanoserve.ports.step import AdmittedRow, StepPlan


class Join(msgspec.Struct, array_like=True, tag=0):
    """Load the part of `rank` among `size` ranks; `settings` are the engine's, by name, and `environment` is added to its own. Answered by `Loaded` or `Unable`."""

    rank: int
    size: int
    settings: dict[str, str | int | float | bool | None]
    environment: dict[str, str] = {}


class Build(msgspec.Struct, array_like=True, tag=1):
    """Make a runner of these sizes, and meet the other ranks at `port` of this machine. Plans follow."""

    sizes: EngineSizes
    port: int


class Draw(msgspec.Struct, array_like=True, tag=2):
    """Draw the oldest step that waits for masks; as in `Masks`."""

    masks: dict[int, bytearray]
    counts: dict[int, int] = {}


Row: Final[Any] = array_form(AdmittedRow, 0, token_ids=bytes)
"""Tokens are int32."""
Plan: Final[Any] = array_form(StepPlan, 3, admitted=tuple[Row, ...], decoding=tuple[int, ...] | None)
"""`decoding` is None if it is that of the plan before."""
_fields_of = operator.attrgetter(*Plan.__struct_fields__)


class Loaded(msgspec.Struct, array_like=True, tag=4):
    """The part is in memory, and so many bytes are free beside it."""

    available: int


class Unable(msgspec.Struct, array_like=True, tag=5):
    """This rank cannot continue; its last message."""

    reason: str


class Drawn(msgspec.Struct, array_like=True, tag=6):
    """The tokens that this rank has drawn in a step; sent where the ranks watch each other."""

    step: int
    token_ids: list[int]


class Loras(msgspec.Struct, array_like=True, tag=7):
    """The adapters that there are from now on, by digest; sent before a plan that loads some."""

    parts: dict[bytes, LoraPart]


class ReadWeights(msgspec.Struct, array_like=True, tag=8):
    """Read a part of the weights in these folders or tensors, and check it; nothing computes with it yet. Answered by `Done`."""

    sources: list[str | tuple[SharedTensor, ...]]
    partial: bool


class Done(msgspec.Struct, array_like=True, tag=9):
    """The reason why a rank refuses; empty if it has done what it was told."""

    refusal: str


class WriteWeights(msgspec.Struct, array_like=True, tag=10):
    """Compute with the weights that were read, from the next plan on."""


class Sleep(msgspec.Struct, array_like=True, tag=11):
    """Free memory, as `WeightStore.sleep`. Answered by `Done`."""

    level: int


class Wake(msgspec.Struct, array_like=True, tag=12):
    """Have a part's memory again, as `WeightStore.wake`. Answered by `Done`."""

    part: str


ToRank = Join | Build | Draw | Loras | ReadWeights | WriteWeights | Sleep | Wake
FromRank = Loaded | Unable | Drawn | Done


class RankWire:
    """Messages to frames and back; a decoder of its own at each end of each connection, since plans follow one another."""

    def __init__(self) -> None:
        self._encoder: Final = msgspec.msgpack.Encoder()
        self._decoder: Final = msgspec.msgpack.Decoder(ToRank | FromRank | Plan)
        self._decoding: tuple[int, ...] = ()

    def encode(self, message: ToRank | FromRank | StepPlan) -> bytes:
        """A whole frame; raises `BadValueError` if it would be too long. Every plan of a connection passes here, in order."""
        if isinstance(message, StepPlan):
            message = self._of_plan(message)
        return framed(self._encoder.encode(message))

    def _of_plan(self, plan: StepPlan) -> Any:
        message = Plan(*_fields_of(plan))
        message.decoding = None if plan.decoding is self._decoding else plan.decoding
        message.admitted = tuple([_packed(each) for each in plan.admitted])
        self._decoding = plan.decoding
        return message

    def decode(self, body: bytes) -> ToRank | StepPlan | FromRank:
        """The message; rows that go on decoding are the same tuple as in the plan before. Raises `WireError`."""
        try:
            message: Any = self._decoder.decode(body)
            return self._unpacked(message) if type(message) is Plan else message
        except (msgspec.MsgspecError, ValueError, struct.error) as error:
            raise WireError(f"a frame between ranks does not follow the schema: {error}") from error

    def _unpacked(self, message: Any) -> StepPlan:
        if message.decoding is not None:
            self._decoding = message.decoding
        changed = {
            "decoding": self._decoding,
            "admitted": tuple([_admitted(each) for each in message.admitted]),
        }
        return StepPlan(**{**msgspec.structs.asdict(message), **changed})


def _packed(admitted: AdmittedRow) -> Any:
    fields = attrs.asdict(admitted, recurse=False)
    return Row(**{**fields, "token_ids": struct.pack(f"{len(admitted.token_ids)}i", *admitted.token_ids)})


def _admitted(row: Any) -> AdmittedRow:
    fields = msgspec.structs.asdict(row)
    return AdmittedRow(**{**fields, "token_ids": struct.unpack(f"{len(row.token_ids) // 4}i", row.token_ids)})
