"""`nanoserve run-batch`: sends the lines of a file to a server, and writes each answer once.

The file of answers is the only state: a run that was ended, even by a kill, continues where that file ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import httpx
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from nanoserve.entrypoints.app.batch_lines import AnswersFile, BatchLine, LineReply, answer_lines, answers_in
from nanoserve.entrypoints.app.batch_lines import read_lines as read_file
from nanoserve.entrypoints.client.server import CONNECT_SECONDS, QUIET_SECONDS, Address
from nanoserve.entrypoints.compose.interrupts import cancelling_interrupts
from nanoserve.ports.errors import BadValueError

_JSON: Final = {"content-type": "application/json"}


@attrs.define
class Tally:
    """Lines that were answered in this run, successfully or with an error, and those answered before."""

    completed: int = 0
    failed: int = 0
    before: int = 0


def read_lines(path: pathlib.Path, priority: int | None = None) -> list[BatchLine]:
    """The requests in a file, with a priority if they have none; raises `BadValueError` with the place of the error."""
    found = []
    try:
        with path.open("rb") as file:
            for line in read_file(file):
                if not isinstance(line, BatchLine):
                    raise BadValueError("file", str(line).replace("file:", str(path), 1))
                has_own = priority is None or "priority" in msgspec.json.decode(line.body)
                found.append(line if has_own else line.with_field("priority", priority))
    except OSError as error:
        raise BadValueError("file", f"cannot read {path}: {error.strerror}") from None
    return found


async def send(
    address: Address,
    lines: Sequence[BatchLine],
    answers: AnswersFile,
    *,
    concurrency: int,
    note: Callable[[bool], None],
) -> None:
    """Have lines answered; `note` is called for each with its success."""
    timeout = httpx.Timeout(QUIET_SECONDS, connect=CONNECT_SECONDS)
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(
        base_url=address.url, headers=address.headers, timeout=timeout, limits=limits, trust_env=False
    ) as client:

        async def ask(line: BatchLine) -> LineReply | None:
            try:
                answer = await client.post(line.url, content=line.body, headers=_JSON)
            except httpx.TransportError:
                return None
            reply = _read_reply(answer)
            return None if reply.status < 300 and _is_cut(reply.body) else reply

        async def write(line: BatchLine, reply: LineReply) -> None:
            await answers.write(reply.entry(line))
            note(reply.status < 300)

        await answer_lines(iter(lines), ask, write, asyncio.Semaphore(concurrency))


def _read_reply(answer: httpx.Response) -> LineReply:
    try:
        body = answer.json()
    except ValueError:
        body = answer.text
    asked = answer.headers.get("retry-after", "")
    wait = float(asked) if asked.isdecimal() else None
    return LineReply(answer.status_code, body, answer.headers.get("x-request-id", ""), wait)


def _is_cut(body: object) -> bool:
    """True if a pause has ended the answer under way, as each protocol says it."""
    said = body if isinstance(body, dict) else {}
    choices = said.get("choices")
    choices = [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
    if any(each.get("finish_reason") == "abort" for each in choices):
        return True
    return said.get("status") == "cancelled" or said.get("stop_reason") == "pause_turn"


def run_batch(file: str, output: str, address: Address, *, concurrency: int, priority: int | None) -> Tally:
    """Send a file's lines to a server until each is answered in `output`, with a bar in a terminal; raises `BadValueError`, or `OSError` if the disk fails."""
    lines = read_lines(pathlib.Path(file), priority)
    if os.path.realpath(file) == os.path.realpath(output):
        raise BadValueError("output", "must be another file than that of the requests")
    was_there = pathlib.Path(output).exists()
    console = Console(stderr=True)
    columns = (TextColumn("lines"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    with contextlib.ExitStack() as stack:
        try:
            answers = stack.enter_context(answers_in(pathlib.Path(output)))
        except OSError as error:
            raise BadValueError("output", f"cannot write {output}: {error.strerror}") from None
        if not was_there:  # it is removed while it is ours, unless there is an answer in it
            stack.callback(lambda: None if answers.done else pathlib.Path(output).unlink())
        stack.enter_context(bar)
        left = [each for each in lines if each.custom_id not in answers.done]
        tally = Tally(before=len(lines) - len(left))
        task = bar.add_task("lines", total=len(lines), completed=tally.before)

        def note(is_good: bool) -> None:
            tally.completed += is_good
            tally.failed += not is_good
            bar.advance(task)

        try:
            with cancelling_interrupts():
                asyncio.run(send(address, left, answers, concurrency=concurrency, note=note))
        except ExceptionGroup as failures:  # the first one has ended the others
            if isinstance(first := failures.exceptions[0], OSError):
                raise OSError(first.errno, first.strerror, output) from None
            raise first from None
    return tally
