"""Two servers behind SGLang's router or ours: do conversations stay where they began, and what does a killed server cost?

    python -m tools.gateway_check [--router "PYTHON -m sglang_router.launch_router"]
    python -m tools.gateway_check --router "python -m nanoserve route"

The router is best installed in an environment of its own (`pip install sglang-router`), whose Python is named in `--router`. Every
answer is compared with that of a server without a router. The exit code is 0 where all is as `docs/scale.md` says.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import httpx

SESSIONS, TURNS, AT_ONCE = 20, 10, 4
LONG = 400
"""Tokens of the answers during which a server is killed."""
SERVE = (
    "-m",
    "nanoserve",
    "serve",
    "--device",
    "cpu",
    "--deterministic",
    "--no-spare",
    "--log-level",
    "info",
    "--log-json",
)
Messages = list[dict[str, str]]


@attrs.frozen
class Program:
    """A process with a port; its log is what it has written on both of its outputs."""

    process: subprocess.Popen[bytes]
    url: str
    log: pathlib.Path

    def requests(self) -> set[str]:
        """The names of the requests that are in its log."""
        lines = [json.loads(each) for each in self.log.read_text().splitlines() if each.startswith("{")]
        return {line["request_id"] for line in lines if "engine_id" in line}


@attrs.frozen
class Reply:
    """The outcome of one streamed chat; `is_whole` where it came to its end."""

    name: str
    text: str
    is_whole: bool


@contextlib.contextmanager
def started(name: str, command: Sequence[str], folder: pathlib.Path, ready: str) -> Iterator[Program]:
    """A program that listens on a free port, once the path `ready` answers 200."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = folder / f"{name}.log"
    with log.open("wb") as written:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=written, stderr=subprocess.STDOUT)  # noqa: S603 - our own
    program = Program(process, f"http://127.0.0.1:{port}", log)
    try:
        while not _answers(program.url + ready):
            if process.poll() is not None:
                sys.exit(f"{name} has ended:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield program
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _body(messages: Messages, length: int) -> dict[str, Any]:
    return {
        "model": "built-in",
        "messages": messages,
        "max_tokens": length,
        "temperature": 0,
        "ignore_eos": length == LONG,
    }


def chat(url: str, messages: Messages, name: str, length: int = 12) -> Reply:
    """One streamed answer; a stream that breaks off is returned as far as it came."""
    text, is_whole = "", False
    body = _body(messages, length) | {"stream": True}
    with contextlib.suppress(httpx.HTTPError), httpx.Client(trust_env=False, timeout=120) as client:
        headers = {"x-request-id": name}
        with client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            for line in answer.iter_lines():
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    is_whole = answer.status_code == 200
                elif line.startswith("data: ") and (choices := json.loads(data).get("choices")):
                    text += choices[0]["delta"].get("content") or ""
    return Reply(name, text, is_whole)


def true_text(url: str, messages: Messages, length: int = 12) -> str:
    """The answer of a server without a router."""
    answer = httpx.post(
        f"{url}/v1/chat/completions", json=_body(messages, length), trust_env=False, timeout=120
    )
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def converse(router: str, number: int) -> list[tuple[Messages, Reply]]:
    """One conversation, turn after turn; what was asked and what came."""
    messages: Messages = [{"role": "user", "content": f"{(number + 1) * 104729} foxes. Tell me of them."}]
    said = []
    for turn in range(TURNS):
        reply = chat(router, messages, f"s{number}-t{turn}")
        said.append((list(messages), reply))
        messages += [
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": f"And then, {turn}?"},
        ]
    return said


def check_sessions(router: str, servers: Sequence[Program]) -> bool:
    """Conversations side by side: every text is right, and most of each session is served by one server."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        sessions = list(threads.map(lambda number: converse(router, number), range(SESSIONS)))
    said = [each for session in sessions for each in session]
    served = [server.requests() for server in servers]
    kept = sum(
        max(sum(reply.name in names for _, reply in session) for names in served) for session in sessions
    )
    wrong = sum(not reply.is_whole or reply.text != true_text(servers[0].url, asked) for asked, reply in said)
    shares = [sum(reply.name in names for _, reply in said) for names in served]
    print(f"{len(said)} streamed chats in {SESSIONS} sessions; {shares[0]} and {shares[1]} by server")
    print(f"with the server that served most of their session: {kept} ({kept / len(said):.0%})")
    print(f"wrong or broken off: {wrong}")
    return not wrong and kept >= 0.9 * len(said) and min(shares) > 0


def check_kill(router: str, servers: Sequence[Program]) -> bool:
    """One server dies in the middle of long answers: only those that it had begun break off."""
    asked: list[Messages] = [
        [{"role": "user", "content": f"{number * 104729} birds, one story"}] for number in range(8)
    ]
    with ThreadPoolExecutor(16) as threads:
        long = [
            threads.submit(chat, router, each, f"long-{number}", LONG) for number, each in enumerate(asked)
        ]
        while sum(_running(server) for server in servers) < len(asked):
            time.sleep(0.05)
        began = Counter({server.url: _running(server) for server in servers})
        os.kill(servers[1].process.pid, signal.SIGKILL)
        later: list[Messages] = [
            [{"role": "user", "content": f"After all {number * 1299709}"}] for number in range(40)
        ]
        short = list(
            threads.map(lambda number: chat(router, later[number], f"later-{number}"), range(len(later)))
        )
        replies = [each.result() for each in long]
    survivor = servers[0].url
    broken = [each for each in replies if not each.is_whole]
    truths = [true_text(survivor, each, LONG) for each in asked]
    wrong = sum(
        reply.text != truth if reply.is_whole else not truth.startswith(reply.text)
        for reply, truth in zip(replies, truths, strict=True)
    )
    failed = sum(not each.is_whole for each in short)
    wrong += sum(
        each.is_whole and each.text != true_text(survivor, messages)
        for each, messages in zip(short, later, strict=True)
    )
    print(
        f"long answers: {began[survivor]} at the survivor, {began[servers[1].url]} at the server that was killed; {len(broken)} broke off"
    )
    print(f"chats after the kill: {len(short)}, of which failed: {failed}; wrong texts altogether: {wrong}")
    return not wrong and not failed and len(broken) == began[servers[1].url]


def _running(server: Program) -> int:
    page = httpx.get(f"{server.url}/metrics", trust_env=False).text
    line = next(each for each in page.splitlines() if each.startswith("vllm:num_requests_running{"))
    return int(float(line.rpartition(" ")[2]))


def main() -> int:
    """Start everything, check, and say what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--router", default=f"{sys.executable} -m sglang_router.launch_router")
    router = shlex.split(parser.parse_args().router)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [
            stack.enter_context(started(f"server-{number}", (sys.executable, *SERVE), folder, "/readyz"))
            for number in range(2)
        ]
        if router[-1] == "route":
            options = [part for each in servers for part in ("--replica", each.url)]
        else:
            urls = [each.url for each in servers]
            options = ["--policy", "cache_aware", "--host", "127.0.0.1", "--worker-urls", *urls]
        gateway = stack.enter_context(started("router", (*router, *options), folder, "/v1/models"))
        is_fine = check_sessions(gateway.url, servers)
        is_fine = check_kill(gateway.url, servers) and is_fine
        print("as it should be" if is_fine else "NOT as it should be")
        return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
