"""A server as a process of its own, with the model in the box."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence

import attrs
import httpx
import psutil

from tests.patience import PATIENCE, wait_until
from tests.process.command import COMMAND, environment

HELPERS = ("huggingface.template_process import", "adapters.llguidance.serving")


def program_of(process: psutil.Process) -> str:
    """Its command; nothing where it has ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


@attrs.define
class ServerProcess:
    """What it has said so far is in `out` and `err`."""

    process: subprocess.Popen[bytes]
    out: pathlib.Path
    err: pathlib.Path

    @property
    def url(self) -> str:
        found = re.search(r"^listening on (http://\S+)$", self.out.read_text(), re.MULTILINE)
        assert found, self.out.read_text() + self.err.read_text()
        return found[1]

    def client(self, key: str | None = None) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False, verify=False
        )

    def wait_until_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.err.read_text()
            return "\nready: " in self.out.read_text()

        wait_until(is_ready, self.err.read_text)

    def wait_for_line(self, text: str) -> None:
        wait_until(lambda: text in self.err.read_text(), self.err.read_text)

    def metrics(self, key: str | None = None) -> dict[str, float]:
        """The samples of nanoserve's own names; those of one name are added up."""
        found: dict[str, float] = {}
        with self.client(key) as client:
            page = client.get("/metrics").text
        for name, value in re.findall(r"^(nanoserve:\w+)(?:{.*})? (\S+)$", page, re.MULTILINE):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    def children(self, *, recursive: bool = False) -> list[psutil.Process]:
        """Its living processes but for those that fill chat templates, of which each HTTP process has one, and an engine's of grammars.

        A process shows the program of its parent until its own has begun.
        """
        server = psutil.Process(self.process.pid)
        programs = {each: program_of(each) for each in server.children(recursive=recursive)}
        others = ("", program_of(server))
        return [
            each
            for each, program in programs.items()
            if program not in others and not any(name in program for name in HELPERS)
        ]

    @contextlib.contextmanager
    def held_engine(self) -> Iterator[None]:
        """The engine computes nothing meanwhile, so that no answer ends before a slow machine has come to the test's next line."""
        [engine] = self.children()
        engine.suspend()
        try:
            yield
        finally:
            engine.resume()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def server_process(
    folder: pathlib.Path,
    *arguments: str,
    command: Sequence[str] = COMMAND,
    extra: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
) -> Iterator[ServerProcess]:
    """Start one, `extra` in its environment; it is killed at the end if it still lives.

    Unless `extra` wants one it has no spare engine, whose imports would take time from the other tests.
    """
    out, err = folder / "out", folder / "err"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = subprocess.Popen(
            [*command, "serve", "--port", "0", "--max-model-len", "1024", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out_file,
            stderr=err_file,
            cwd=cwd,
            env=environment({"NANOSERVE_SPARE": "false"} | dict(extra or {}))
            | {"TMPDIR": os.environ.get("TMPDIR", "/tmp")},
        )
    try:
        yield ServerProcess(process, out, err)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
