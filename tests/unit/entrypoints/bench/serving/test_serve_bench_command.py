"""`nanoserve bench serve` in this process against a server on a socket: sweeps, files, and how mistakes are told."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterator

import pytest

from nanoserve.entrypoints.bench import report as tables
from nanoserve.entrypoints.cli.main import run_command
from tests.unit.entrypoints.timed_server import Behaviour, TimedServer, timed_server

SMALL = ("--input-len", "6", "--output-len", "4", "--warmup-requests", "2")


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(tables, "PIPE_SECONDS", 1e6)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TimedServer]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with timed_server(Behaviour(first=0.005, gap=0.005)) as served:
        yield served


def bench(*arguments: str) -> int:
    try:
        return run_command(["bench", "serve", *arguments])
    except SystemExit as ended:
        return int(ended.code or 0)


def test_one_load_is_shown_in_full(
    server: TimedServer, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "out.json"
    server.behaviour.facts = {"/version": {"version": "1.2"}, "/tokenizer_info": {"vocab_size": 7}}
    arguments = ("--url", f"{server.url}/v1", "--concurrency", "3", "--num-prompts", "9", *SMALL)
    assert bench(*arguments, "--slo", "ttft:60000,e2e:60000", "--json", str(path)) == 0
    shown, errors = capsys.readouterr()
    assert errors == ""
    for text in (
        "timed at http://127.0.0.1",
        "ms at 3 at once",
        "TTFT",
        "TPOT",
        "E2E",
        "9 of 9 answers",
        "goodput",
    ):
        assert text in shown
    asked = server.bodies[-1]
    assert asked["model"] == "timed"
    assert len(asked["prompt"]) == 6
    assert max(token for body in server.bodies for token in body["prompt"]) < 7
    assert asked["max_tokens"] == 4
    assert asked["ignore_eos"] is True
    assert asked["temperature"] == 0.6
    assert len(server.bodies) == 11
    report = json.loads(path.read_text())
    assert report["server"]["version"] == {"version": "1.2"}
    (level,) = report["levels"]
    assert level["results"] == {"ok": 9}
    assert level["good"] == 1.0
    assert len(level["outcomes"]) == 9
    assert all(len(each["arrivals"]) == 4 for each in level["outcomes"])


@pytest.mark.parametrize("count", [5, 9], ids=["as many as there are", "more than there are"])
def test_no_two_prompts_are_equal_while_there_are_others(server: TimedServer, count: int) -> None:
    server.behaviour.facts = {"/tokenizer_info": {"vocab_size": 7}}
    once = ("--num-prompts", str(count), *SMALL, "--input-len", "1")
    assert bench("--url", server.url, *once) == 0
    assert sorted(token for body in server.bodies[:7] for token in body["prompt"]) == [*range(7)]
    assert len(server.bodies) == 2 + count


def test_a_sweep_shows_its_loads_in_order_and_draws_them(
    server: TimedServer, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    picture, path = tmp_path / "out.png", tmp_path / "out.json"
    load = ("--request-rate", "200,16,24", "--num-prompts", "6", "--seed", "3", *SMALL)
    files = ("--plot", str(picture), "--json", str(path))
    assert bench("--url", server.url, *load, "--slo", "e2e:600000", *files) == 0
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if "6/6" in line]
    assert len(rows) == 3
    assert "knee: " in shown
    assert "objectives: 200 req/s is the heaviest load that keeps them" in shown
    assert max(map(len, shown.splitlines())) <= 118
    assert picture.read_bytes().startswith(b"\x89PNG")
    report = json.loads(path.read_text())
    assert [level["rate"] for level in report["levels"]] == [16, 24, 200]
    assert report["knee"]["best_within_slo"] == 2


@pytest.fixture
def trace(tmp_path: pathlib.Path) -> str:
    """Two requests with a common block, 300 ms apart, and one more that is longer than the server's context."""
    lines = [
        {"timestamp": 0, "input_length": 900, "output_length": 7, "hash_ids": [50, 60]},
        {"timestamp": 300, "input_length": 900, "output_length": 4, "hash_ids": [50, 61]},
        {"timestamp": 900, "input_length": 5000, "output_length": 4, "hash_ids": [*range(10)]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_trace_comes_at_its_times_and_shares_what_it_shares(
    server: TimedServer, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, trace: str, endpoint: str
) -> None:
    path = tmp_path / "out.json"
    asked = ("--trace", trace, "--num-prompts", "2", "--trace-scale", "0.5", "--warmup-requests", "1")
    assert bench("--url", server.url, *asked, "--endpoint", endpoint, "--json", str(path)) == 0
    assert f"{endpoint}: {trace}" in capsys.readouterr().out.replace("\n", "")
    _, *bodies = server.bodies
    said = [each["prompt"] if "prompt" in each else each["messages"][0]["content"].split() for each in bodies]
    first, second = said
    assert [len(each) for each in said] == [450, 450]
    assert first[:256] == second[:256]
    assert first[256:] != second[256:]
    assert [each["max_tokens"] for each in bodies] == [4, 2]
    (level,) = json.loads(path.read_text())["levels"]
    assert [each["scheduled"] for each in level["outcomes"]] == [0, 150]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "trace_scale: the trace's longest request has 5004 tokens"),
        ((), "and timed takes 4096: try 0.818"),
        (("--concurrency", "3"), "concurrency: is for drawn requests"),
        (("--output-len", "3"), "output_len: is for drawn requests"),
    ],
)
def test_a_trace_that_does_not_fit_is_refused_before_anything_is_sent(
    server: TimedServer, capsys: pytest.CaptureFixture[str], trace: str, arguments: tuple[str, ...], said: str
) -> None:
    assert bench("--url", server.url, "--trace", trace, *arguments) != 0
    assert said in capsys.readouterr().err
    assert not server.bodies


def test_failures_are_listed_by_kind(server: TimedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.behaviour.refuse = (4, 503)
    assert bench("--url", server.url, "--num-prompts", "14", *SMALL) == 0
    shown = capsys.readouterr().out
    assert "8 at once: 4 x 503: try again later" in shown
    assert "refused requests" in shown
    assert "10 of 14 answers" in shown


def test_a_server_that_takes_no_ids_gets_words(
    server: TimedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.behaviour.takes_ids = False
    once = ("--num-prompts", "3", *SMALL, "--warmup-requests", "1", "--slo", "ttft:600000")
    assert bench("--url", server.url, *once) == 0
    assert "3 of 3 answers" in capsys.readouterr().out
    assert all(len(body["prompt"].split()) == 6 for body in server.bodies[1:])


def test_chats_are_sent_words_and_the_key(
    server: TimedServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    server.behaviour.key = "sesame"
    path = tmp_path / "out.json"
    arguments = ("--url", server.url, "--endpoint", "chat", "--model", "other", "--num-prompts", "3", *SMALL)
    assert bench(*arguments) == 1
    assert "who are you?; give it with --api-key or in OPENAI_API_KEY" in capsys.readouterr().err
    line = ["nanoserve", "bench", "serve", "--api-key", "sesame", "--api-key=sesame", "--url", "x"]
    monkeypatch.setattr(sys, "argv", line)
    assert bench(*arguments, "--api-key", "sesame", "--json", str(path)) == 0
    assert "sesame" not in path.read_text()
    assert (
        json.loads(path.read_text())["command"]
        == "nanoserve bench serve --api-key '***' '--api-key=***' --url x"
    )
    assert server.bodies[-1]["model"] == "other"
    (message,) = server.bodies[-1]["messages"]
    assert message["role"] == "user"
    assert len(message["content"].split()) == 6
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    assert bench(*arguments) == 0


def test_the_defaults_are_shown_with_their_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANOSERVE_REQUEST_RATE", "1,2.5")
    monkeypatch.setenv("NANOSERVE_SLO", "ttft:100")
    assert bench("--print-config", "--no-ignore-eos") == 0
    rows = {each.split()[0]: each.split(maxsplit=2)[1:] for each in capsys.readouterr().out.splitlines()}
    assert rows["request_rate"] == ["1.0,2.5", "NANOSERVE_REQUEST_RATE"]
    assert rows["slo"] == ["ttft:100.0", "NANOSERVE_SLO"]
    assert rows["temperature"] == ["0.6", "nanoserve bench serve"]
    assert rows["ignore_eos"] == ["false", "--ignore-eos"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--request-rate", "0"), 2, "request_rate: takes finite numbers above 0, got [0.0]"),
        (("--request-rate", "1,x"), 2, "request_rate: takes finite numbers above 0, got '1,x'"),
        (("--request-rate", "1", "--concurrency", "2"), 2, "concurrency: an open loop has a --request-rate"),
        (("--slo", "speed:1"), 2, "slo: takes pairs written NAME:MILLISECONDS"),
        (("--slo", "ttft:1,ttft:2"), 2, "slo: takes pairs"),
        (("--slo", "ttft:-1"), 2, "slo: takes pairs"),
        (("--url", "ftp://x"), 2, "url: must look like http://127.0.0.1:8000, got 'ftp://x'"),
        (("--url", "http://x:y"), 2, "url: 'http://x:y' is not a URL"),
        (("--url", "http://127.0.0.1:1"), 1, "nothing answers at http://127.0.0.1:1"),
        (("--api-key", "\u00e9"), 2, "api_key: must consist of printable ASCII characters"),
        (("--json", "/no/such/folder/x.json"), 1, "/no/such/folder/x.json: No such file or directory"),
        (("--plot", "/no/such/folder/x.png"), 1, "/no/such/folder/x.png: No such file or directory"),
        (("--endpoint", "images"), 2, "endpoint: must be one of completions, chat"),
    ],
)
def test_a_mistake_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    assert bench(*arguments) == code
    shown, errors = capsys.readouterr()
    assert shown == ""
    assert errors.startswith(f"nanoserve: {message}")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("answer", "arguments", "message"),
    [
        (None, ["--model", "third"], "model: 'third' is not served at {url}, which has timed, other"),
        (None, ["--input-len", "4000"], "input_len: prompt and answer together have 4128 tokens, and timed takes 4096"),
        ({"data": []}, [], "{url} serves no model"),
        ({"a": 1}, [], "{url}/v1/models answers with no list of models"),
        ([1], [], "{url}/v1/models answers with no list of models"),
    ],
)  # fmt: skip
def test_what_the_server_cannot_do_is_refused_before_anything_is_sent(
    server: TimedServer,
    capsys: pytest.CaptureFixture[str],
    answer: object,
    arguments: list[str],
    message: str,
) -> None:
    server.behaviour.facts = {} if answer is None else {"/v1/models": answer}
    assert bench("--url", server.url, *arguments) == (2 if arguments else 1)
    assert capsys.readouterr().err == f"nanoserve: {message.format(url=server.url)}\n"
    assert not server.bodies


def test_a_server_that_refuses_everything_ends_the_command(
    server: TimedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.behaviour.refuse = (1, 503)
    assert bench("--url", server.url, *SMALL) == 1
    assert capsys.readouterr().err == "nanoserve: the first request failed with 503: try again later\n"


def test_a_missing_plotter_is_reported_before_anything_is_sent(
    server: TimedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert bench("--url", server.url, "--plot", "x.png") == 2
    assert "plot: needs matplotlib: pip install" in capsys.readouterr().err
    assert not server.bodies
