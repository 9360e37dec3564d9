"""Offline, over the built-in model: answers are what was asked for, and what cannot be kept is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from nanoserve.adapters.engine_process.wire.codec import decode_command, encode_command
from nanoserve.adapters.llguidance import reading
from nanoserve.adapters.llguidance.crew import Worker
from nanoserve.entrypoints.offline import LLM, SamplingParams
from nanoserve.ports.engine_link import Add
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.request import Request
from tests.patience import wait_until

SCHEMA = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["good", "bad"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["mood", "count"],
    "additionalProperties": False,
}
PROMPT = "What is read while a grammar is made."
PARAMS = SamplingParams(max_tokens=200, temperature=1.0, seed=5)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=512, device="cpu") as opened:
        yield opened


def test_each_prompt_has_its_own(llm: LLM) -> None:
    asked: list[dict[str, Any] | None] = [
        {"json": SCHEMA, "disable_any_whitespace": True},
        {"regex": "[0-9]{3}-[a-z]{2}"},
        None,
        {"choice": ["red", "green"]},
    ]
    found = llm.generate(["A", "B", "C", "D"], PARAMS, structured_outputs=asked, use_tqdm=False)
    texts = [each.outputs[0].text for each in found]
    value = json.loads(texts[0])
    assert set(value) == {"mood", "count"}
    assert re.fullmatch("[0-9]{3}-[a-z]{2}", texts[1])
    assert texts[3] in {"red", "green"}
    assert texts[2] == llm.generate("C", PARAMS, use_tqdm=False)[0].outputs[0].text
    assert [each.outputs[0].finish_reason for each in found[:2]] == ["stop", "stop"]


def test_one_for_all(llm: LLM) -> None:
    found = llm.generate(["A", "B"], PARAMS, structured_outputs={"choice": ["x1", "x2"]}, use_tqdm=False)
    assert {each.outputs[0].text for each in found} <= {"x1", "x2"}


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"json": {"not": {}}}, "not"),
        ({"regex": "(a"}, "unclosed"),
        ({"regex": ".*a.{40}"}, "too many states"),
        ([{"regex": "a"}], "one per prompt"),
        ([{"regex": "a"}, {"xml": 1}], "xml"),
    ],
)
def test_what_cannot_be_kept_is_refused(llm: LLM, asked: object, named: str) -> None:
    with pytest.raises(BadValueError, match=named):
        llm.generate(["A", "B"], PARAMS, structured_outputs=asked, use_tqdm=False)  # type: ignore[arg-type]


def test_many_are_tried_out_by_workers_while_prompts_are_read_and_refused_once_that_is_known(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None in the caller's thread, where it would keep all others waiting; nor does an answer wait for the grammars of others."""
    texts = [f"{number}-[a-z]{{2}}" for number in range(150)]
    engine, ask = llm._open_session.assembly.engine, Worker.ask
    before = engine.state()

    def ask_late(worker: Worker, number: int, constraint: Constraint, **how: bool) -> Any:
        if constraint.text == texts[-1]:
            wait_until(lambda: engine.state().generated_tokens > before.generated_tokens)
        else:
            wait_until(lambda: engine.state().prompt_tokens > before.prompt_tokens)
        return ask(worker, number, constraint, **how)

    monkeypatch.setattr(reading, "_verdict", lambda *_: pytest.fail("was tried out here"))
    asked = [{"regex": each} for each in texts]
    with monkeypatch.context() as patched:
        patched.setattr(Worker, "ask", ask_late)
        found = llm.generate([PROMPT] * len(asked), PARAMS, structured_outputs=asked, use_tqdm=False)
    assert all(map(re.fullmatch, texts, [each.outputs[0].text for each in found]))
    wrong = [*asked[1:], {"regex": ".*b.{41}"}]
    with pytest.raises(BadValueError, match="too many states"):
        llm.generate([PROMPT] * len(wrong), PARAMS, structured_outputs=wrong, use_tqdm=False)
    assert not engine.has_work


def test_the_wire_carries_a_constraint() -> None:
    constraint = Constraint("regex", "é+", whitespace="", after=(3, 4))
    request = Request(request_id="r", prompt_token_ids=(1,), sampling=PARAMS, constraint=constraint)
    found = decode_command(encode_command(Add(request))[4:])
    assert isinstance(found, Add)
    assert found.request.constraint == constraint
