"""Records the requests that agents send, as fixtures of `tests/process/clients/test_agents.py`.

    mkdir /tmp/agents && cd /tmp/agents
    python3 -m venv sdks && sdks/bin/pip install openai-agents langchain langchain-openai langchain-anthropic langchain-ollama litellm
    python3 -m venv aider && aider/bin/pip install aider-chat
    npm install @anthropic-ai/claude-code @openai/codex ai @ai-sdk/openai-compatible @ai-sdk/openai @ai-sdk/anthropic zod
    python -m tools.agent_bodies /tmp/agents [NAME ...]        # in a checkout

Each client runs in a folder and a home of its own there, asks one task that takes a tool, and talks to a server that answers it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pathlib
import shutil
import subprocess
from typing import Final

import structlog

from tools.agent_bodies.recorder import recording
from tools.agent_bodies.server import EDIT, SHELL, scripted_server
from tools.agent_bodies.trimming import RECORDED_MODEL, trimmed

HERE: Final = pathlib.Path(__file__).parent
FIXTURES: Final = HERE.parents[1] / "tests" / "process" / "clients" / "agents"
_SDKS: Final = ("openai_agents", "langchain", "litellm")
_LONGEST: Final = 300
_CODEX: Final = """
model = "{model}"
model_provider = "nanoserve"
[model_providers.nanoserve]
name = "nanoserve"
base_url = "{url}/v1"
wire_api = "responses"
"""


def main() -> None:
    """Run the clients and write what they sent."""
    parser = argparse.ArgumentParser(description="Record the requests of agents.")
    parser.add_argument("installed", type=pathlib.Path, help="the folder with the clients")
    parser.add_argument("names", nargs="*", help="the clients; all if left out")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    root = given.installed.resolve()
    with scripted_server() as url, recording(url) as recorder:
        for name in given.names or (*_SDKS, "ai_sdk", "claude_code", "codex", "aider"):
            for command, environment in _commands(name, root, recorder.url):
                _run(name, root, command, environment)
            seen = recorder.pop()
            for each in seen:
                if each["status"] >= 400:
                    print(f"{name}: {each['method']} {each['path']} {each['status']} {each['refused'][:300]}")
            kept = trimmed(seen)
            lines = [json.dumps(each, separators=(",", ":"), ensure_ascii=False) for each in kept]
            (FIXTURES / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
            print(f"{name}: {len(kept)} requests")


def _commands(name: str, root: pathlib.Path, url: str) -> list[tuple[list[str], dict[str, str]]]:
    if name in _SDKS:
        return [([f"{root}/sdks/bin/python", str(HERE / "sdks.py"), name, url], {})]
    if name == "ai_sdk":
        script = shutil.copy(HERE / "ai_sdk.mjs", root)  # node looks for packages beside the script
        return [(["node", str(script), url], {})]
    if name == "claude_code":
        models = dict.fromkeys(("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"), RECORDED_MODEL)
        environment = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "x", **models}
        [binary] = root.glob("node_modules/@anthropic-ai/claude-code-*/claude")
        return [([str(binary), "-p", SHELL, "--allowedTools", "Bash"], environment | {"IS_SANDBOX": "1"})]
    if name == "codex":
        home = root / "home-codex"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(_CODEX.format(model=RECORDED_MODEL, url=url))
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return [([f"{root}/node_modules/.bin/codex", "exec", *options, SHELL], {"CODEX_HOME": str(home)})]
    base = {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "x", "OLLAMA_API_BASE": url}
    options = [
        "--yes-always",
        "--no-check-update",
        "--no-show-model-warnings",
        "--no-git",
        "--analytics-disable",
    ]
    return [
        (
            [
                f"{root}/aider/bin/aider",
                "--model",
                f"{route}/{RECORDED_MODEL}",
                *options,
                *more,
                "--message",
                EDIT,
                "hello.txt",
            ],
            base,
        )
        for route, more in (("openai", ()), ("openai", ("--no-stream",)), ("ollama_chat", ()))
    ]


def _run(name: str, root: pathlib.Path, command: list[str], environment: dict[str, str]) -> None:
    folder = root / f"folder-{name}"
    folder.mkdir(exist_ok=True)
    whole = {**os.environ, "HOME": str(folder), **environment}
    try:
        subprocess.run(  # noqa: S603
            command, cwd=folder, env=whole, stdin=subprocess.DEVNULL, timeout=_LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"{name}: gave up after {_LONGEST} s")


if __name__ == "__main__":
    main()
