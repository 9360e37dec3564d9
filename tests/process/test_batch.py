"""A batch that is killed and started again answers each line once, over a real server."""

from __future__ import annotations

import json
import pathlib
import signal

from tests.patience import wait_until
from tests.process.command import run, started
from tests.process.server_process import ServerProcess
from tests.process.terminal import terminal


def test_a_killed_run_goes_on_where_it_ended(open_server: ServerProcess, tmp_path: pathlib.Path) -> None:
    requests, output = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    bodies = [{"prompt": f"Once {number}", "max_tokens": 4, "temperature": 0} for number in range(200)]
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        for number, body in enumerate(bodies)
    ]
    requests.write_text("\n".join(map(json.dumps, lines)))
    command = ("run-batch", str(requests), "--output", str(output), "--url", open_server.url)

    def written() -> int:
        return output.read_bytes().count(b"\n") if output.exists() else 0

    with started(*command, "--concurrency", "2") as killed:
        wait_until(lambda: written() > 2)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    before = written()
    assert 2 < before < len(lines)
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode() == f"{len(lines) - before} completed, 0 failed, {before} before\n"
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted(int(each["custom_id"]) for each in answers) == list(range(len(lines)))
    assert all(each["response"]["body"]["usage"]["completion_tokens"] == 4 for each in answers)


def test_a_terminal_shows_how_far_it_is(open_server: ServerProcess, tmp_path: pathlib.Path) -> None:
    requests = tmp_path / "requests.jsonl"
    body = {"prompt": "Once", "max_tokens": 2}
    lines = [{"custom_id": str(number), "url": "/v1/completions", "body": body} for number in range(7)]
    requests.write_text("\n".join(map(json.dumps, lines)))
    with terminal("run-batch", str(requests), "--url", open_server.url, "--concurrency", "1") as shown:
        end = shown.wait_for("7/7")
        shown.wait_for("7 completed, 0 failed, 0 before", after=end)
        assert shown.seen.index("lines") < end
