"""`python -m benchmarks.traffic` against a real server: a full table, turns that extend each other, one line for a mistake."""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import runpy
import sys
from typing import Any

import pytest

import benchmarks.traffic
from benchmarks.traffic import TrafficRow, find_servers, measure
from benchmarks.traffic_classes import CLASSES, CONVERSATIONS, SYSTEM_PROMPT, draw_sessions
from benchmarks.traffic_servers import TrafficServer, TurnAnswer
from nanoserve.entrypoints.bench.serving.client import OK, run_loop
from nanoserve.entrypoints.client import server
from tests.patience import PATIENCE
from tests.process.command import PYTHON, run
from tests.process.server_process import ServerProcess

SCALE, REQUESTS = 0.05, 3


def traffic(*arguments: str) -> tuple[int, str, str]:
    """The code, and what is said on both streams."""
    done = run(*arguments, command=(*PYTHON, "benchmarks.traffic", "--requests", str(REQUESTS)))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def arguments(traffic_class: str, *urls: str) -> argparse.Namespace:
    return argparse.Namespace(
        url=urls,
        api_key=None,
        model=None,
        classes=[traffic_class],
        requests=REQUESTS,
        scale=SCALE,
        seed=7,
        capacity=None,
        ttft_limit=1e6,
        gap_limit=1e6,
        client_timeout=PATIENCE,
        trace=None,
    )


def test_a_server_answers_every_class_and_is_compared_with_another_one(
    open_server: ServerProcess, tmp_path: pathlib.Path
) -> None:
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    code, said, errors = traffic(
        *("--url", open_server.url, "--url", f"{open_server.url}/v1", "--scale", str(SCALE), "--seed", "7"),
        *("--json", str(file), "--plot", str(picture)),
    )
    assert code == 0, errors
    report: dict[str, Any] = json.loads(file.read_text())
    classes = [each.scaled(SCALE) for some in CLASSES.values() for each in some]
    assert [(row["name"], row["server"]) for row in report["rows"]] == [
        (each.name, label) for each in classes for label in "AB"
    ]
    for traffic_class, row in zip((each for each in classes for _ in "AB"), report["rows"], strict=True):
        sent = traffic_class.turns * -(-REQUESTS // traffic_class.turns)
        assert (row["planned"], row["results"], row["errors"]) == (sent, {"ok": sent}, 0)
        assert row["num_short"] == 0
        assert row["output_tok_s"] > 0
        assert row["prompt_tok_s"] > 0
        assert f"\n  {row['name']} {row['server']} " in said
    assert said.count("A/B") == len(classes)
    rows = {(row["name"], row["server"]): row for row in report["rows"]}
    first, again = (rows[SYSTEM_PROMPT.name, label]["cached_tokens"] for label in "AB")
    assert 0 <= first < again, "the second server is the first one, which has read these prompts"
    assert picture.read_bytes().startswith(b"\x89PNG")
    conversations = rows[CONVERSATIONS.name, "A"]["outcomes"]
    own, answer = CONVERSATIONS.scaled(SCALE).input_len, CONVERSATIONS.scaled(SCALE).output_len
    lengths = [own + number * (own + answer) for number in range(CONVERSATIONS.turns)]
    assert [each["prompt_tokens"] for each in conversations] == lengths


def test_conversations_in_words_go_on_with_the_text_of_the_answers(open_server: ServerProcess) -> None:
    load = CONVERSATIONS.scaled(SCALE)
    [found] = find_servers(arguments(load.name, open_server.url))
    found.takes_ids = False

    async def send() -> list[TurnAnswer]:
        run = await found.send(draw_sessions(load, 1, 7))
        found.connections.close()
        return found.turns(run)

    outcomes = run_loop(send())
    assert [each.result for each in outcomes] == [OK] * load.turns
    assert [each.output_tokens for each in outcomes] == [load.output_len] * load.turns
    for before, after in itertools.pairwise(outcomes):
        assert after.prompt_tokens > before.prompt_tokens + load.input_len


def test_all_servers_get_words_where_one_takes_no_ids(
    open_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = SYSTEM_PROMPT.scaled(SCALE)
    asked = arguments(load.name, open_server.url, open_server.url)
    servers, rows = find_servers(asked), list[TrafficRow]()

    async def find_what_it_takes(server: TrafficServer, _scale: float) -> None:
        server.takes_ids = server.label == "A"

    monkeypatch.setattr(TrafficServer, "warm_up", find_what_it_takes)
    run_loop(measure(servers, asked, rows))
    first, second = (each.level.prompt_tokens for each in rows)
    assert first == second
    assert first != load.document_len + load.input_len, "a word is not always one token"


def test_the_requests_of_a_trace_come_at_their_moments_and_share_what_they_share(
    open_server: ServerProcess, tmp_path: pathlib.Path
) -> None:
    trace, file = tmp_path / "trace.jsonl", tmp_path / "out.json"
    lines = [
        {"timestamp": 300 * number, "input_length": 900, "output_length": 7, "hash_ids": [50, 60 + number]}
        for number in range(3)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    asked = ("--url", open_server.url, "--trace", str(trace), "--seconds", "0.5", "--scale", "0.5")
    code, _, errors = traffic(*asked, "--json", str(file))
    assert code == 0, errors
    [row] = json.loads(file.read_text())["rows"]
    assert (row["name"], row["planned"], row["results"]) == ("trace", 2, {"ok": 2})
    assert [(each["prompt_tokens"], each["output_tokens"]) for each in row["outcomes"]] == [(450, 4)] * 2
    first, second = (each["scheduled"] for each in row["outcomes"])
    assert second - first == 150
    assert row["cached_tokens"] > 0


def test_a_mistake_ends_the_process_with_one_line() -> None:
    code, said, errors = traffic("--url", "http://127.0.0.1:9")
    assert (code, said) == (1, "")
    assert errors.startswith("traffic: nothing answers at http://127.0.0.1:9")
    assert errors.count("\n") == 1


def test_every_mistake_is_one_line(
    open_server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for code, said, arguments in (
        (2, "invalid choice: 'chats'", ["--classes", "chats"]),
        (2, "--requests must be above 0", ["--requests", "0"]),
        (1, "try --scale 0.1", ["--url", open_server.url]),
        (1, "cannot be read: No such file", ["--url", open_server.url, "--trace", "/nowhere"]),
    ):
        monkeypatch.setattr(sys, "argv", ["traffic", "--requests", str(REQUESTS), *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(benchmarks.traffic.__file__, run_name="__main__")
        seen = capsys.readouterr()
        status = ended.value.code  # a text is printed by Python as it ends, with status 1
        message = seen.err if isinstance(status, int) else f"{status}\n"
        assert (status if isinstance(status, int) else 1, seen.out) == (code, "")
        assert said in message
        assert message.startswith("traffic: ")
        assert message.count("\n") == 1


def test_ctrl_c_before_the_first_request_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "open_server", interrupted)
    monkeypatch.setattr(sys, "argv", ["traffic"])
    with pytest.raises(SystemExit, match=r"^traffic: interrupted$"):
        runpy.run_path(benchmarks.traffic.__file__, run_name="__main__")
