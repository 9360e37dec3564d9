from __future__ import annotations

import contextlib
import random
import struct
from typing import Any

import attrs
import msgspec
import pytest

from nanoserve.adapters.engine_process.wire import codec
from nanoserve.adapters.engine_process.wire.codec import (
    FrameCutter,
    UnreadableRequestError,
    WireError,
    framed,
)
from nanoserve.ports.engine_facts import EngineFacts, EngineState
from nanoserve.ports.engine_link import (
    Abort,
    Add,
    Began,
    Command,
    Failed,
    ForgetPrefixes,
    Logged,
    Prepare,
    Prepared,
    Ready,
    Refused,
    Report,
    Start,
    Stop,
    Turned,
    Unwatch,
    Watch,
)
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.events import (
    PromptScored,
    SequenceAdmitted,
    SequencePreempted,
    SequenceRouted,
    SequenceTimes,
    TokensGenerated,
)
from nanoserve.ports.grammar import Constraint, ReasoningLimit
from nanoserve.ports.pooling import Pooling, PoolingKind
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.step import TokenLogprobs

PREFIX = 4
FULL_REQUEST = Request(
    request_id="r",
    prompt_token_ids=range(300),
    sampling=SamplingParams(
        temperature=0.5,
        seed=2**64 - 1,
        n=3,
        max_tokens=None,
        stop=("a", "é\0"),
        stop_token_ids=(1,),
        logprobs=20,
        prompt_logprobs=0,
        logit_bias={3: -1.5},
        allowed_token_ids=(1, 2),
        bad_words=("x",),
        detokenize=True,
    ),
    seed=2**64 - 1,
    eos_token_ids=frozenset((1, 2)),
    unsearched_token_ids=frozenset((3,)),
    bad_token_sequences=((1, 2), ()),
    priority=-5,
    request_class="batch",
    cache_salt="ü",
    deadline=1e9,
    queue_timeout=0.25,
    stream=False,
    client="one",
    is_suspect=True,
    begun=(((1, 2), 7), ((), 0), ((3,), 2)),
    constraint=Constraint("regex", "[ab]+", reasoning=ReasoningLimit(9, (7, "so"), ("end",))),
    lora="an adapter",
    routed_experts=True,
    pooling=Pooling(kind=PoolingKind.MEAN, token_ids=(4,)),
)
COMMANDS: list[Command] = [
    Start(
        {"model": None, "depth": 1, "watermark": 0.5, "dtype": "auto", "paranoid": True}, {"log_json": True}
    ),
    Add(FULL_REQUEST),
    Add(Request(request_id="", prompt_token_ids=(0,), sampling=SamplingParams())),
    Abort("r"),
    ForgetPrefixes(),
    Watch(model="a name"),
    Watch(model="a name", began=12.5, with_words=True),
    Prepare(),
    Prepare(Start({"threads": 2}, {"log_json": True}), (7, 9)),
    Unwatch(),
    Stop(),
]
SCORE = TokenLogprobs(5, -0.1, 2, ((5, -0.1), (7, float("-inf"))))
LAST = TokensGenerated(
    "r", 2, (1, 2), "héllo", (SCORE,), FinishReason.STOP, 7, 9, 16, SequenceTimes(1.0, None, 2.0, 3.0), "why"
)
FACTS = EngineFacts(
    pid=1,
    model="built-in",
    device="cpu",
    dtype="float32",
    vocab_size=10,
    max_model_len=20,
    max_num_seqs=2,
    max_num_batched_tokens=20,
    block_size=4,
    num_blocks=(5,),
    memory={"weights": 2**40},
    start_phases={"imports": 1.5},
    depth=2,
    kv_bytes=2**33,
)
REPORTS: list[Report] = [
    Prepared(),
    Began(),
    Ready(FACTS),
    Failed("ModelLoadError", "no such folder; name another one"),
    Refused("r", "BadValueError", "stop: too long"),
    Refused("r", "PromptTooLongError", "the prompt is too long"),
    Turned(),
    Turned(
        (
            SequenceAdmitted("r", 0, 63, 16, resumed=True),
            SequencePreempted("r", 1),
            PromptScored("r", 0, (None, SCORE)),
            SequenceRouted("r", 0, b"\0\1"),
            TokensGenerated("r", 0, (5,), "", (), None, None, 1, 0, None),
            LAST,
        ),
        EngineState(at=2.0, last_step=1.5, finished={"stop": 3}, graph_steps={"graph": 7}),
    ),
    Logged(b'["turn",1]\n["turn",2]'),
    Logged(b'["snapshot"]', header=b"{}", follows=False),
]


def body(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:PREFIX], "big") == len(frame) - PREFIX
    return frame[PREFIX:]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: type(each).__name__)
def test_commands_arrive_as_they_were_sent(command: Command) -> None:
    arrived = codec.decode_command(body(codec.encode_command(command)))
    assert arrived == command
    assert type(arrived) is type(command)


@pytest.mark.parametrize("report", REPORTS, ids=lambda each: type(each).__name__)
def test_reports_arrive_as_they_were_sent(report: Report) -> None:
    arrived = codec.decode_report(body(codec.encode_report(report)))
    assert arrived == report
    assert type(arrived) is type(report)


def test_every_field_of_a_request_and_an_event_travels() -> None:
    """The values above differ from every default, so that a field that stays behind is seen."""
    plain = Request(request_id="", prompt_token_ids=(0,), sampling=SamplingParams())
    same = {
        each.name
        for each in attrs.fields(Request)
        if getattr(plain, each.name) == getattr(FULL_REQUEST, each.name)
    }
    assert same == set()


@pytest.mark.parametrize("change", [{"cache_salt": "\ud800"}, {"priority": 2**70}, {"priority": object()}])
def test_a_request_that_cannot_be_sent_is_a_bad_value(change: dict[str, Any]) -> None:
    with pytest.raises(BadValueError, match="cannot be sent"):
        codec.encode_command(Add(attrs.evolve(FULL_REQUEST, **change)))


@pytest.mark.parametrize(
    "change", [{"priority": 1.5}, {"prompt_token_ids": ("a",)}, {"deadline": "soon"}, {"cache_salt": None}]
)
def test_a_request_of_wrong_types_is_refused_under_its_name(change: dict[str, Any]) -> None:
    frame = codec.encode_command(Add(attrs.evolve(FULL_REQUEST, **change)))
    with pytest.raises(UnreadableRequestError) as caught:
        codec.decode_command(body(frame))
    assert caught.value.request_id == "r"


def test_sampling_parameters_are_checked_again_on_arrival() -> None:
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(FULL_REQUEST))
    raw["sampling"]["temperature"] = -1
    with pytest.raises(UnreadableRequestError, match="temperature"):
        codec.decode_command(msgspec.msgpack.encode(["Add", "r", raw]))


def test_random_bytes_are_a_wire_error_and_nothing_else() -> None:
    dice = random.Random(1)
    honest = [body(codec.encode_report(report)) for report in REPORTS]
    honest += [body(codec.encode_command(command)) for command in COMMANDS]
    for _ in range(5000):
        data = bytearray(dice.choice(honest))
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        for decode in (codec.decode_command, codec.decode_report):
            with contextlib.suppress(WireError, UnreadableRequestError):
                decode(bytes(data))
    deep = b"\x91" * 100_000
    for decode in (codec.decode_command, codec.decode_report):
        with pytest.raises(WireError):
            decode(deep)


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


def test_a_frame_beyond_the_bound_is_refused_before_its_body_comes() -> None:
    cutter = FrameCutter(max_body=10)
    assert cutter.feed(framed(b"0123456789")) == [b"0123456789"]
    with pytest.raises(WireError, match="11 bytes"):
        cutter.feed(struct.pack(">I", 11))


def test_a_body_beyond_the_bound_is_not_framed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BODY", 10)
    assert len(framed(b"0123456789")) == 14
    with pytest.raises(BadValueError, match="takes 11 bytes"):
        framed(b"0123456789a")
    with pytest.raises(BadValueError, match=r"^request: takes"):
        codec.encode_command(Abort("0123456789"))
