"""`LLM(speculate=...)`: the same answers in fewer steps."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.entrypoints.offline import LLM, SamplingParams
from nanoserve.ports.errors import BadValueError
from tests.unit.adapters.pytorch.eagle_heads import make_head

PROMPTS = ["Once upon a time", "one two three four one two three four one two three"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, allowed_token_ids=range(70, 73))
"""Three tokens soon repeat themselves."""
SEEDED = SamplingParams(temperature=0.7, seed=5, max_tokens=40, n=2, logprobs=1)


def answers(speculate: str, params: SamplingParams) -> tuple[list[list[int]], int]:
    """The answers, and in how many steps."""
    with LLM(dtype="float32", threads=1, paranoid=True, speculate=speculate) as llm:
        outputs = llm.generate(PROMPTS, params)
        counts = llm._open_session.assembly.engine.counts()
    return [list(each.token_ids) for output in outputs for each in output.outputs], counts.steps


@pytest.mark.parametrize("params", [GREEDY, SEEDED])
def test_answers_are_the_same_with_drafts_and_take_fewer_steps(params: SamplingParams) -> None:
    without, most = answers("off", params)
    for speculate in ("ngram", "auto"):
        drafted, steps = answers(speculate, params)
        assert drafted == without
        assert steps <= most
    if params is GREEDY:
        assert answers("ngram", params)[1] < most


def test_answers_by_schema_are_the_same_and_have_drafts() -> None:
    record = {
        "type": "object",
        "properties": {"customer_name": {"enum": ["Ada", "Bob"]}, "order_number": {"type": "integer"}},
    }
    schema = record | {"required": ["customer_name", "order_number"], "additionalProperties": False}
    params = [SamplingParams(temperature=0.0, max_tokens=60, logprobs=1), SEEDED]
    found = []
    for speculate in ("off", "ngram", "auto"):
        with LLM(dtype="float32", threads=1, paranoid=True, speculate=speculate) as llm:
            outputs = llm.generate(PROMPTS, params, structured_outputs={"json": schema}, use_tqdm=False)
            accepted = llm._open_session.assembly.engine.state().accepted_tokens
        found.append([list(each.token_ids) for output in outputs for each in output.outputs])
        # How often drafts pay follows from measured times.
        assert speculate == "auto" or (accepted > 0) is (speculate == "ngram")
    assert found[0] == found[1] == found[2]


def test_the_shipped_head_is_often_right() -> None:
    with LLM(dtype="float32", threads=1, paranoid=True, draft="embedded") as llm:
        outputs = llm.generate(PROMPTS, SEEDED, use_tqdm=False)
        before = llm._open_session.assembly.engine.state()
        llm.generate(PROMPTS[:1], attrs.evolve(GREEDY, allowed_token_ids=None), use_tqdm=False)
        state = llm._open_session.assembly.engine.state()
    assert before.draft_tokens
    drafts, right = state.draft_tokens - before.draft_tokens, state.accepted_tokens - before.accepted_tokens
    assert right > 0.3 * drafts > 5
    assert [list(each.token_ids) for output in outputs for each in output.outputs] == answers("off", SEEDED)[
        0
    ]
    with pytest.raises(BadValueError, match="is ngram, and a head drafts"):
        LLM(draft="embedded", speculate="ngram").generate(PROMPTS, SEEDED)


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    with LLM(dtype="float32", threads=1, paranoid=True, draft=str(model_folder())) as llm:
        outputs = llm.generate(PROMPTS, SEEDED, use_tqdm=False)
        state = llm._open_session.assembly.engine.state()
    assert [list(each.token_ids) for output in outputs for each in output.outputs] == answers("off", SEEDED)[
        0
    ]
    assert state.accepted_tokens == state.draft_tokens > 50


def test_weights_are_made_anew_beside_a_head(tmp_path: Path) -> None:
    made = make_head(tmp_path, read_spec(str(model_folder())))
    with LLM(dtype="float32", threads=1, paranoid=True, draft=str(made.folder)) as llm:
        engine, found = llm._open_session.assembly.engine, []
        for _ in range(2):
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            found.append(([list(each.outputs[0].token_ids) for each in outputs], engine.state().draft_tokens))
            llm.sleep(2)
            llm.wake_up()
    (before, drafts), (after, all_drafts) = found
    assert before == after
    assert 0 < drafts < all_drafts
