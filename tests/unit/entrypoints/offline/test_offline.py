"""The `LLM` class over an engine without torch: shapes, order, refusals, seeds, interruptions."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from nanoserve.domain.scheduling.limits import Policy
from nanoserve.entrypoints.app.text_service import encode_bad_words
from nanoserve.entrypoints.offline import LLM, SamplingParams
from nanoserve.ports.errors import BadValueError, NanoserveError, StepFailedError
from nanoserve.ports.sampling import SamplingDefaults
from tests.unit.entrypoints.conftest import OpenLLM
from tests.unit.entrypoints.scripted_world import (
    LETTERS,
    LetterTokenizer,
    alone,
    interrupt_in_turn,
    scripted_assembly,
)

SEEDED = SamplingParams(seed=7, max_tokens=12)


def is_usable(llm: LLM) -> bool:
    return llm.generate("again", SEEDED)[0].outputs[0].text == alone("again")


def test_outputs_come_in_the_order_of_the_prompts_whatever_finishes_first(open_llm: OpenLLM) -> None:
    prompts = [f"prompt {'abc'[i % 3] * i}" for i in range(20)]
    params = [SamplingParams(seed=i, max_tokens=40 - i) for i in range(20)]
    outputs = open_llm().generate(prompts, params)
    assert [each.prompt for each in outputs] == prompts
    assert [each.outputs[0].text for each in outputs] == [
        alone(prompt, seed=i, tokens=40 - i) for i, prompt in enumerate(prompts)
    ]
    assert all(each.finished and each.outputs[0].finish_reason == "length" for each in outputs)


@pytest.mark.parametrize(
    "form",
    [
        "hello",
        ["hello"],
        LetterTokenizer().encode("hello"),
        [LetterTokenizer().encode("hello")],
        {"prompt": "hello"},
        {"prompt_token_ids": LetterTokenizer().encode("hello")},
        [{"prompt_token_ids": tuple(LetterTokenizer().encode("hello"))}],
    ],
)
def test_every_form_of_a_prompt_is_the_same_prompt(open_llm: OpenLLM, form: Any) -> None:
    (output,) = open_llm().generate(form, SEEDED)
    assert output.prompt_token_ids == LetterTokenizer().encode("hello")
    assert output.outputs[0].text == alone("hello")


def test_no_prompts_are_no_outputs(open_llm: OpenLLM) -> None:
    assert open_llm().generate([]) == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("x" * 128, r"prompts\[2\]: the prompt has 128 tokens"),
        ("", r"prompts\[2\]: is empty"),
        ([0, 99], r"prompts\[2\]: token id 99 is outside the vocabulary"),
        ([0, -1], r"prompts\[2\]: token id -1 is outside the vocabulary"),
        ([0, "a"], r"prompts\[2\]: token ids must be integers"),
        ({"text": "a"}, r"prompts\[2\]: a mapping needs `prompt`"),
        (3.5, r"prompts\[2\]: must be text"),
        (b"ab", r"prompts\[2\]: must be text"),
    ],
)
def test_one_refused_prompt_is_named_before_anything_runs(open_llm: OpenLLM, bad: Any, message: str) -> None:
    assembly = scripted_assembly()
    llm = open_llm(assembly)
    with pytest.raises(ValueError, match=message):
        llm.generate(["good", "fine", bad], SEEDED)
    assert not assembly.engine.has_work
    assert vars(assembly.engine)["_runner"].num_steps == 0
    assert is_usable(llm)


def test_one_refused_prompt_alone_has_no_index(open_llm: OpenLLM) -> None:
    with pytest.raises(ValueError, match=r"^prompt: the prompt has 200 tokens"):
        open_llm().generate("x" * 200)


def test_what_is_refused_is_named_and_not_always_the_prompt(open_llm: OpenLLM) -> None:
    params = SamplingParams(stop_token_ids=[99])
    with pytest.raises(BadValueError, match=r"^stop_token_ids: token id 99 is outside") as caught:
        open_llm().generate("fine", params)
    assert caught.value.parameter == "stop_token_ids"
    with pytest.raises(BadValueError, match=r"^prompts\[0\]: stop_token_ids: token id 99 is outside"):
        open_llm().generate(["fine", "too"], params)


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("generate", (5,), "prompts: must be a list, got int"),
        ("generate", (None,), "prompts: must be a list, got NoneType"),
        ("generate", ("a", 5), "sampling_params: must be a list, got int"),
        ("chat", (None,), "messages: must be a list, got NoneType"),
        ("chat", ("hello",), "messages: must be a list of messages, got str"),
        ("chat", ({"role": "user", "content": "a"},), "messages: must be a list of messages, got dict"),
    ],
)
def test_an_argument_of_the_wrong_shape_is_named(
    open_llm: OpenLLM, method: str, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(BadValueError, match=message):
        getattr(open_llm(), method)(*arguments)


def test_n_sequences_differ_and_are_numbered(open_llm: OpenLLM) -> None:
    (output,) = open_llm().generate("many", SamplingParams(seed=7, n=3, max_tokens=12))
    assert [each.index for each in output.outputs] == [0, 1, 2]
    assert [each.text for each in output.outputs] == [alone("many", index=i) for i in range(3)]
    assert len({each.text for each in output.outputs}) == 3


def test_a_stop_text_ends_the_answer_and_is_named(open_llm: OpenLLM) -> None:
    stop = alone("stop here")[4:6]
    (output,) = open_llm().generate("stop here", SamplingParams(seed=7, max_tokens=12, stop=stop))
    whole = alone("stop here")
    assert output.outputs[0].text == whole[: whole.index(stop)]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)


def test_logprobs_are_keyed_by_token_and_summed(open_llm: OpenLLM) -> None:
    params = SamplingParams(seed=7, max_tokens=5, logprobs=0, prompt_logprobs=0)
    (output,) = open_llm().generate("score", params)
    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert [list(each) for each in completion.logprobs] == [[token] for token in completion.token_ids]
    first = completion.logprobs[0][completion.token_ids[0]]
    assert (first.logprob, first.rank) == (-float(completion.token_ids[0]), 1)
    assert first.decoded_token == LETTERS[completion.token_ids[0]]
    assert completion.cumulative_logprob == -float(sum(completion.token_ids))
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [list(each or {}) for each in output.prompt_logprobs[1:]] == [
        [i] for i in output.prompt_token_ids[1:]
    ]


def test_without_logprobs_there_are_none(open_llm: OpenLLM) -> None:
    (output,) = open_llm().generate("score", SEEDED)
    assert output.outputs[0].logprobs is None
    assert output.outputs[0].cumulative_logprob is None
    assert output.prompt_logprobs is None


def test_a_conversation_is_rendered_and_several_are_answered_in_order(open_llm: OpenLLM) -> None:
    talks = [[{"role": "user", "content": word}] for word in ("hi", "hey")]
    llm = open_llm()
    one = llm.chat(talks[0], SEEDED)
    both = llm.chat(talks, SEEDED)
    assert one[0].prompt == "user.hi."
    assert [each.outputs[0].text for each in both] == [alone("user.hi."), alone("user.hey.")]
    with pytest.raises(ValueError, match=r"prompts\[1\]: messages: must hold at least one message"):
        llm.chat([talks[0], []], SEEDED)


def test_a_seeded_llm_repeats_itself_and_an_unseeded_one_does_not(open_llm: OpenLLM) -> None:
    params = SamplingParams(max_tokens=20)

    def texts(seed: int | None) -> list[str]:
        return [each.outputs[0].text for each in open_llm(seed=seed).generate(["same", "same"], params)]

    assert texts(1) == texts(1)
    assert len({*texts(1), *texts(2), *texts(None), *texts(None)}) == 8


def test_the_models_defaults_are_used_where_none_are_given(open_llm: OpenLLM) -> None:
    llm = open_llm(scripted_assembly(defaults=SamplingDefaults(values={"temperature": 0.25}, origin="file")))
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.25)
    (output,) = llm.generate("default")
    assert len(output.outputs[0].token_ids) == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"sampling_params": [SEEDED] * 3},
            r"sampling_params: must be SamplingParams values, one per prompt \(2\)",
        ),
        ({"sampling_params": {"temperature": 1}}, r"sampling_params: must be SamplingParams values"),
        ({"priority": [1]}, r"priority: must be int values, one per prompt \(2\), got 1"),
    ],
)
def test_what_comes_per_prompt_must_fit_the_prompts(
    open_llm: OpenLLM, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadValueError, match=message):
        open_llm().generate(["a", "b"], **arguments)


def test_the_lowest_priority_number_runs_first_under_that_policy(open_llm: OpenLLM) -> None:
    llm = open_llm(scripted_assembly(max_num_seqs=1, policy=Policy.PRIORITY))
    outputs = llm.generate(["a", "b", "c"], SEEDED, priority=[2, 0, 1])
    started = [each.metrics.first_scheduled_time for each in outputs if each.metrics]
    assert sorted(range(3), key=lambda index: started[index] or 0.0) == [1, 2, 0]


def test_end_of_sequence_ends_an_answer_unless_it_is_ignored(open_llm: OpenLLM) -> None:
    whole = alone("end")
    eos = LETTERS.index(whole[5])
    llm = open_llm(scripted_assembly(eos_token_ids=(eos,)))
    (stopped,), (ignored,) = (
        llm.generate("end", SamplingParams(seed=7, max_tokens=12, ignore_eos=ignore))
        for ignore in (False, True)
    )
    first = whole.index(whole[5])
    assert stopped.outputs[0].text == whole[:first]
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", None)
    assert stopped.outputs[0].token_ids[-1] == eos
    assert ignored.outputs[0].text == whole


def test_bad_words_are_encoded_at_the_start_and_behind_a_space() -> None:
    space = LETTERS.index(" ")
    assert encode_bad_words(LetterTokenizer(), ("ab", " ab")) == ((0, 1), (space, 0, 1))


def test_metrics_count_prefix_hits_and_preemptions(open_llm: OpenLLM) -> None:
    llm = open_llm(scripted_assembly(num_blocks=32))
    prompt = "a shared beginning that is long"
    llm.generate(prompt, SEEDED)
    outputs = llm.generate([prompt + letter for letter in "abcdefgh"], SamplingParams(seed=7, max_tokens=60))
    metrics = [each.metrics for each in outputs if each.metrics]
    assert len(metrics) == 8
    assert max(each.num_cached_tokens for each in metrics) == 28
    assert sum(each.num_preemptions for each in metrics) > 0
    assert [each.outputs[0].text for each in outputs] == [alone(prompt + x, tokens=60) for x in "abcdefgh"]
    for each in metrics:
        assert each.time_to_first_token is not None
        assert each.finished_time is not None
        assert each.arrival_time <= each.arrival_time + each.time_to_first_token <= each.finished_time


def test_a_step_that_fails_is_an_error_and_not_an_empty_answer(open_llm: OpenLLM) -> None:
    assembly = scripted_assembly(fail_at={3: StepFailedError("the device is on fire", guilty_rows=(0,))})
    llm = open_llm(assembly)
    with pytest.raises(StepFailedError, match=r"1 of 2 requests failed: .*on fire"):
        llm.generate(["one", "two"], SEEDED)
    assert is_usable(llm)


def test_ctrl_c_aborts_every_request_and_leaves_the_engine_usable(
    open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = scripted_assembly()
    llm = open_llm(assembly)
    turns = interrupt_in_turn(assembly.engine, 5, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["one", "two"] * 20, SamplingParams(max_tokens=100))
    assert len(turns) < 10
    assert not assembly.engine.has_work
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    assert llm.generate("again", SEEDED)[0].outputs[0].text == alone("again")


def test_after_shutdown_it_says_so(open_llm: OpenLLM) -> None:
    with open_llm() as llm:
        assert llm.get_tokenizer().vocab_size == len(LETTERS)
    llm.shutdown()
    with pytest.raises(NanoserveError, match="was shut down"):
        llm.generate("x")
