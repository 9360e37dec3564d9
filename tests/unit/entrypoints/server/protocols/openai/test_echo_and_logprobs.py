from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from nanoserve.entrypoints.server.http.logprobs import chosen_tokens
from nanoserve.entrypoints.server.protocols.openai.completions import legacy_logprobs
from nanoserve.ports.step import TokenLogprobs
from tests.unit.entrypoints.scripted_world import alone

PATH = "/v1/completions"
TEXT = "Once upon a time \u2014 there"


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ids_of(client: httpx.Client, text: str) -> list[int]:
    tokens: list[int] = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return tokens


def test_what_a_loglikelihood_asks_for(raw_embedded: httpx.Client) -> None:
    """Shaped as lm-evaluation-harness asks: id lists, echo, one alternative, one token or none, greedy."""
    prompts = [ids_of(raw_embedded, text) for text in (TEXT, "The fox", "Hello")]
    body = {"prompt": prompts, "echo": True, "logprobs": 1, "temperature": 0, "seed": 1234, "model": "m"}
    one, none = ask(raw_embedded, max_tokens=1, **body), ask(raw_embedded, max_tokens=0, **body)
    assert [each["index"] for each in one["choices"]] == [0, 1, 2]
    assert none["usage"]["completion_tokens"] == 0
    assert none["usage"]["prompt_tokens"] == sum(map(len, prompts))
    for prompt, longer, shorter in zip(prompts, one["choices"], none["choices"], strict=True):
        found = shorter["logprobs"]
        assert {len(each) for each in found.values()} == {len(prompt)}
        assert {len(each) for each in longer["logprobs"].values()} == {len(prompt) + 1}
        for key in found:
            assert longer["logprobs"][key][:-1] == found[key]
        assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
        for token, logprob, top in list(zip(*(found[k] for k in KEYS), strict=True))[1:]:
            assert top[token] == logprob <= max(top.values()) < 0
            assert 1 <= len(top) <= 2
        assert any(len(each) == 2 for each in found["top_logprobs"][1:]), "a likelier token is told too"
        assert (shorter["finish_reason"], shorter.get("stop_reason")) == ("length", None)


KEYS = ("tokens", "token_logprobs", "top_logprobs")


def test_echoed_scores_are_those_of_generation(raw_embedded: httpx.Client) -> None:
    """What the model generated greedily and what it thinks of it as a prompt are the same numbers."""
    made = ask(
        raw_embedded, prompt="The little", max_tokens=8, temperature=0, logprobs=2, return_token_ids=True
    )
    choice = made["choices"][0]
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    echoed = ask(raw_embedded, prompt=ids, max_tokens=0, echo=True, logprobs=2)["choices"][0]
    count = len(choice["token_ids"])
    for ours, theirs in zip(
        choice["logprobs"]["token_logprobs"], echoed["logprobs"]["token_logprobs"][-count:], strict=True
    ):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert choice["logprobs"]["tokens"] == echoed["logprobs"]["tokens"][-count:]


def test_offsets_point_at_each_token_in_the_text_that_is_returned(raw_embedded: httpx.Client) -> None:
    for prompt in (TEXT, ids_of(raw_embedded, TEXT)):
        choice = ask(raw_embedded, prompt=prompt, max_tokens=6, temperature=0, echo=True, logprobs=0)[
            "choices"
        ][0]
        assert choice["text"].startswith(TEXT)
        found = choice["logprobs"]
        placed = zip(found["tokens"], found["text_offset"], strict=True)
        whole = [(token, at) for token, at in placed if "\ufffd" not in token and not token.startswith("<|")]
        assert len(whole) > 8
        assert all(choice["text"][at : at + len(token)] == token for token, at in whole)


def test_offsets_of_an_answer_that_completes_the_prompts_last_character(raw_embedded: httpx.Client) -> None:
    ids = ids_of(raw_embedded, "a \u2014")
    body = {
        "prompt": ids[:-1],
        "allowed_token_ids": [ids[-1]],
        "max_tokens": 3,
        "logprobs": 0,
        "ignore_eos": True,
    }
    choice = ask(raw_embedded, **body)["choices"][0]
    assert choice["text"] == "\u2014\ufffd\ufffd"
    # The last two may still become one character, so both stand where the text that is certain ends.
    assert choice["logprobs"]["text_offset"] == [0, 1, 1]


def test_echo_repeats_the_prompt_before_every_choice(raw: httpx.Client) -> None:
    body = {"prompt": ["abc", "hello"], "n": 2, "echo": True, "max_tokens": 4, "seed": 7, "ignore_eos": True}
    choices = ask(raw, **body)["choices"]
    expected = [
        prompt + alone(prompt, index=index, tokens=4) for prompt in ("abc", "hello") for index in (0, 1)
    ]
    assert [each["text"] for each in choices] == expected
    assert [each["index"] for each in choices] == [0, 1, 2, 3]
    assert all(each["logprobs"] is None for each in choices)


def test_echo_repeats_what_is_left_of_a_cut_prompt(raw: httpx.Client) -> None:
    body = {"prompt": "abcdef", "truncate_prompt_tokens": 2, "echo": True, "max_tokens": 3, "seed": 7}
    choice = ask(raw, **body, ignore_eos=True)["choices"][0]
    assert choice["text"] == "ef" + alone("ef", tokens=3)


def test_a_token_that_was_impossible_has_a_logprob_that_json_can_say() -> None:
    score = TokenLogprobs(1, -math.inf, 2, top=((0, 0.0), (2, -math.inf)))
    legacy = legacy_logprobs([1], [score], [0], 2, str)
    assert (legacy.token_logprobs, legacy.top_logprobs) == (
        [-9999.0],
        [{"0": 0.0, "2": -9999.0, "1": -9999.0}],
    )
    position = chosen_tokens([score], 2, lambda token: (str(token), b""))[0]
    assert (position.logprob, position.top_logprobs[1].logprob) == (-9999.0, -9999.0)


def test_no_special_token_is_added_to_ids(raw_embedded: httpx.Client) -> None:
    ids = ids_of(raw_embedded, "The fox")
    body = {"max_tokens": 1, "return_token_ids": True}
    assert ask(raw_embedded, prompt=ids[1:], **body)["choices"][0]["prompt_token_ids"] == ids[1:]
    assert ask(raw_embedded, prompt="The fox", **body)["choices"][0]["prompt_token_ids"] == ids
    bare = ask(raw_embedded, prompt="The fox", add_special_tokens=False, **body)
    assert bare["choices"][0]["prompt_token_ids"] == ids[1:]


def test_prompt_logprobs_by_id(raw_embedded: httpx.Client) -> None:
    choice = ask(raw_embedded, prompt="The fox", max_tokens=1, prompt_logprobs=2, return_token_ids=True)[
        "choices"
    ][0]
    ids, scores = choice["prompt_token_ids"], choice["prompt_logprobs"]
    assert scores[0] is None
    for token, position in zip(ids[1:], scores[1:], strict=True):
        assert str(token) in position
        assert 2 <= len(position) <= 3
        assert {each["rank"] for each in position.values()} >= {1, 2}
        assert all(-math.inf < each["logprob"] < 0 for each in position.values())


def test_excluded_tokens_do_not_break_json(raw_embedded: httpx.Client) -> None:
    """Log-probabilities are of the unmodified logits, and whatever they are, JSON can say it."""
    body = {"prompt": "The", "max_tokens": 3, "allowed_token_ids": [700, 701], "logprobs": 2}
    choice = ask(raw_embedded, **body, return_token_ids=True)["choices"][0]
    assert set(choice["token_ids"]) <= {700, 701}
    assert all(isinstance(each, float) for each in choice["logprobs"]["token_logprobs"])


def test_chat_logprobs(raw_embedded: httpx.Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "logprobs": True,
        "top_logprobs": 4,
        "max_tokens": 12,
        "temperature": 20.0,
        "seed": 1,
    }
    answer = raw_embedded.post("/v1/chat/completions", json=body).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == 12
    for position in content:
        assert len(position["top_logprobs"]) == 4
        ranked = [each["logprob"] for each in position["top_logprobs"]]
        assert ranked == sorted(ranked, reverse=True)
        for each in (position, *position["top_logprobs"]):
            expected = None if "\ufffd" in each["token"] else list(each["token"].encode())
            assert each["bytes"] == expected


def test_half_a_character_has_its_bytes(raw_embedded: httpx.Client) -> None:
    text = "😀"
    ids = ids_of(raw_embedded, text)[1:]
    assert len(ids) > 1
    found: list[int] = []
    for each in ids:
        body = {
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 1,
            "allowed_token_ids": [each],
        }
        answer = raw_embedded.post(
            "/v1/chat/completions", json={**body, "logprobs": True, "top_logprobs": 1}
        ).json()
        (token,) = answer["choices"][0]["logprobs"]["content"]
        assert all(likely["bytes"] for likely in token["top_logprobs"])
        found += token["bytes"]
    assert bytes(found).decode() == text
