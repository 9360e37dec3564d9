"""One server computes prompts, another decodes, and a router sends requests to both: texts are those of one server, whichever is killed."""

from __future__ import annotations

import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.process.test_route import Routed, kept_server, routing
from tests.patience import wait_until
from tests.process.server_process import ServerProcess

STORY = "The {} fox went down to the river, and what it saw there was " + "a boat, a bird, a stone, " * 12


def server(folder: pathlib.Path, role: str) -> list[str]:
    limits = [
        "--kv-offload-memory",
        "16MiB",
        "--kv-offload-min-tokens",
        "16",
        "--dtype",
        "float32",
        "--threads",
        "1",
    ]
    return ["--kv-role", role, "--kv-offload-dir", str(folder), *limits]


def text_of(routed: Routed, prompt: str, at: ServerProcess | None = None) -> str:
    answer = routed.ask(prompt, tokens=24, at=at)
    text: str = answer["choices"][0]["text"]
    return text


@pytest.fixture
def apart(tmp_path: pathlib.Path) -> tuple[pathlib.Path, list[pathlib.Path]]:
    folders = [tmp_path / name for name in ("blocks", "prefill", "decode", "router")]
    for each in folders[1:]:
        each.mkdir()
    return folders[0], folders[1:]


def test_a_prefill_and_a_decode_server(apart: tuple[pathlib.Path, list[pathlib.Path]]) -> None:
    blocks, (first, second, third) = apart
    with (
        kept_server(first, *server(blocks, "prefill")) as prefill,
        kept_server(second, *server(blocks, "decode")) as decode,
    ):
        for each in (prefill, decode):
            each.wait_until_ready()
        named = ("--replica", decode.url, "--prefill-replica", prefill.url, "--prefill-min-tokens", "32")
        with routing(third, [decode, prefill], *named) as routed:
            blocks_are_handed_over_and_texts_are_those_of_one_server(routed)
            a_killed_engine_loses_nothing(routed, killed=1)
            a_killed_engine_loses_nothing(routed, killed=0)
            without_prefill_server_prompts_are_computed_where_they_are_decoded(routed)


def blocks_are_handed_over_and_texts_are_those_of_one_server(routed: Routed) -> None:
    _, prefill = routed.servers
    for number in range(3):
        prompt = STORY.format(number)
        answer = routed.ask(prompt, tokens=24)
        usage = answer["usage"]
        found = usage["prompt_tokens_details"]["cached_tokens"]
        assert usage["prompt_tokens"] - 16 <= found < usage["prompt_tokens"]
        assert answer["choices"][0]["text"] == text_of(routed, prompt, at=prefill)


def a_killed_engine_loses_nothing(routed: Routed, *, killed: int) -> None:
    """It is killed while it has a request of which nothing was sent."""
    victim, other = routed.servers[killed], routed.servers[1 - killed]
    prompts = [STORY.format(f"{killed} killed {number}") for number in range(2)]
    [engine] = victim.children()
    engine.suspend()
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(text_of, routed, each) for each in prompts]
        wait_until(lambda: routed.running(killed) == 2)
        engine.kill()
        texts = [each.result() for each in answers]
    assert texts == [text_of(routed, each, at=other) for each in prompts]


def without_prefill_server_prompts_are_computed_where_they_are_decoded(routed: Routed) -> None:
    decode, prefill = routed.servers
    wait_until(lambda: routed.metric("replica_up{replica", 0) == routed.metric("replica_up{replica", 1) == 1)
    prompt = STORY.format("last")
    [engine] = prefill.children()
    engine.suspend()
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(text_of, routed, prompt)
        wait_until(lambda: routed.running(1) == 1)
        prefill.process.kill()
        assert answer.result() == text_of(routed, prompt, at=decode)
