"""What ranks send each other arrives as it was; a plan is equal, and its steady rows are the same object."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.adapters.engine_process.wire.codec import FrameCutter, WireError
from nanoserve.adapters.engine_process.wire.plans import (
    Build,
    Draw,
    Drawn,
    Join,
    Loaded,
    Plan,
    RankWire,
    Row,
    Unable,
)
from nanoserve.ports.step import (
    AdmittedRow,
    BlockCopy,
    Chunk,
    RowDrafts,
    RowSampling,
    SlotCopy,
    StepPlan,
    TableUpdate,
)
from tests.plans import SIZES

IDS = st.integers(0, 2**31 - 1)


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=3).map(tuple)


def built(kind: type, **special: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of a class, every field drawn: one that is added to the class is drawn, too."""
    drawn = {each.name: IDS for each in attrs.fields(kind) if str(each.type) == "int"}
    return st.builds(kind, **{**drawn, **special})


ROWS = built(
    AdmittedRow,
    token_ids=some(IDS),
    block_tables=some(some(IDS)),
    sampling=st.builds(
        RowSampling,
        seed=st.integers(0, 2**64 - 1),
        **{each.name: st.floats(0, 2) for each in attrs.fields(RowSampling) if str(each.type) == "float"},
        top_k=IDS,
        min_tokens=IDS,
        held_back_ids=some(IDS),
        logit_bias=some(st.tuples(IDS, st.floats(-100, 100))),
        allowed_token_ids=st.none() | some(IDS),
        bad_token_sequences=some(some(IDS)),
        logprobs=st.none() | IDS,
        prompt_logprobs=st.none() | IDS,
    ),
)
PLANS = built(
    StepPlan,
    released=some(IDS),
    admitted=some(ROWS),
    drafts=some(built(RowDrafts, token_ids=some(IDS))),
    table_updates=some(built(TableUpdate, block_ids=some(IDS))),
    chunks=some(built(Chunk, samples=st.booleans())),
    decoding=some(IDS),
    copies=some(built(BlockCopy)),
    masked=some(IDS),
    stores=some(built(SlotCopy)),
    loads=some(built(SlotCopy)),
    starts_anew=st.booleans(),
)


def sent(wire: RankWire, frame: bytes) -> Any:
    [body] = FrameCutter().feed(frame)
    return wire.decode(body)


@given(st.lists(PLANS, min_size=1, max_size=4))
def test_plans_arrive_as_they_were_and_steady_rows_are_the_same_object(plans: list[StepPlan]) -> None:
    there, here = RankWire(), RankWire()
    for plan in plans:
        first = sent(here, there.encode(plan))
        again = sent(here, there.encode(attrs.evolve(plan, step=plan.step + 1)))
        assert first == plan
        assert again == attrs.evolve(plan, step=plan.step + 1)
        assert again.decoding is first.decoding


def test_no_field_of_a_row_or_a_plan_is_left_out() -> None:
    for sent_as, kind in ((Plan, StepPlan), (Row, AdmittedRow)):
        assert sent_as.__struct_fields__ == tuple(each.name for each in attrs.fields(kind))


@pytest.mark.parametrize(
    "message",
    [
        Join(1, 2, {"model": None, "threads": 1, "kv_memory": 0.5}),
        Build(SIZES, 4711),
        Draw({3: bytearray(b"\x01\xff")}, {3: 2}),
        Loaded(2**40),
        Unable("why"),
        Drawn(7, [1, 2]),
    ],
)
def test_every_other_message_arrives_as_it_was(message: Any) -> None:
    assert sent(RankWire(), RankWire().encode(message)) == message


@pytest.mark.parametrize("body", [b"", b"\x93\x09\x01\x02", msgspec.msgpack.encode([3, "step"])])
def test_noise_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="between ranks"):
        RankWire().decode(body)
