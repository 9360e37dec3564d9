"""`nanoserve generate` as a process: what it prints where, in which order, and how it ends."""

from __future__ import annotations

import json
import pathlib
import re
import signal

from nanoserve.entrypoints.offline import LLM, SamplingParams
from tests.patience import PATIENCE
from tests.process.command import run, started


def test_a_streamed_answer_is_the_whole_text_and_nothing_else(llm: LLM) -> None:
    params = SamplingParams(seed=3, temperature=3.0, max_tokens=80, ignore_eos=True)
    (expected,) = llm.generate("Once upon a time", params)
    done = run(
        *("generate", "Once upon a time", "--seed", "3", "--temperature", "3", "--top-p", "1"),
        *("--max-tokens", "80", "--ignore-eos", "--stats"),
    )
    assert done.returncode == 0, done.stderr
    text = expected.outputs[0].text
    assert done.stdout.decode() == text + ("" if text.endswith("\n") else "\n")
    statistics = done.stderr.decode()
    assert statistics.count("\n") == 1
    assert f"prompt tokens {len(expected.prompt_token_ids)}, prefix hits 0, generated tokens 80" in statistics
    assert "time to first token" in statistics
    assert "drafts" not in statistics


def test_statistics_say_how_many_drafts_were_right() -> None:
    flags = ("--temperature", "0", "--max-tokens", "200", "--ignore-eos", "--stats", "--speculate", "ngram")
    done = run("generate", "Once upon a time", *flags)
    assert done.returncode == 0, done.stderr
    found = re.search(r", drafts (\d+), accepted drafts (\d+)\n", done.stderr.decode())
    assert found is not None
    assert 0 < int(found[2]) <= int(found[1])


def test_json_holds_everything_about_every_answer(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    greedy = llm.generate("Once upon a time", params)[0].outputs[0].text
    stop = greedy[len(greedy) // 2 :][:3]
    done = run(
        *("generate", "--json", "--temperature", "0", "--n", "2", "--logprobs", "2", "--max-tokens", "12"),
        *("--ignore-eos", "--stop", stop, "--stop", "never\u00e9", "-"),
        stdin=b"Once upon a time\n",
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["text"] == greedy[: greedy.index(stop)]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop)
    assert [each["text"] for each in answer["choices"]] == [answer["text"]] * 2
    assert len(answer["logprobs"]) == len(answer["token_ids"])
    assert [each[0]["token_id"] for each in answer["logprobs"]] == answer["token_ids"]
    assert all(each[0]["rank"] == 1 and len(each) == 2 for each in answer["logprobs"])
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_file_of_many_prompts_keeps_its_order(llm: LLM, tmp_path: pathlib.Path) -> None:
    lines = [
        {"id": f"n{i}", "prompt": "Once upon " * (i % 5 + 1), "seed": i, "max_tokens": 40 - i}
        for i in range(30)
    ]
    talk = [{"role": "user", "content": "Tell me a story."}]
    path = tmp_path / "prompts.jsonl"
    entries = [*lines, {"id": "talk", "messages": talk, "temperature": 0, "max_tokens": 8}]
    path.write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    done = run("generate", "--file", str(path), "--json", "--max-num-seqs", "7", "--ignore-eos", "--paranoid")
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    answers = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert [each["id"] for each in answers] == [each["id"] for each in entries]
    assert [each["usage"]["completion_tokens"] for each in answers] == [40 - i for i in range(30)] + [8]
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    assert answers[-1]["token_ids"] == llm.chat(talk, greedy)[0].outputs[0].token_ids


def test_ctrl_c_in_mid_stream_keeps_the_text_and_says_so_in_one_line() -> None:
    with started(
        "generate", "Once upon a time", "--max-tokens", "none", "--ignore-eos", "--seed", "1"
    ) as process:
        assert process.stdout is not None
        beginning = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert errors == b"nanoserve: interrupted\n"
        assert (beginning + rest).decode().endswith("\n")


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    with started(
        "generate", "Once upon a time", "--max-tokens", "none", "--ignore-eos", "--seed", "1"
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=PATIENCE) == 141
        process.stderr.close()
