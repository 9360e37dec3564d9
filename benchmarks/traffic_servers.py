"""The servers of `benchmarks.traffic` under load: what each takes, and its sessions sent turn by turn."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec

from benchmarks.traffic_classes import CHAT, Session, Turn, draw_sessions
from nanoserve.entrypoints.bench.serving.client import (
    HEAD_START,
    OK,
    WORDS,
    Connections,
    LoadRun,
    Outcome,
    RequestShape,
    observe,
)
from nanoserve.entrypoints.client.server import DONE, EventReader, ServerRefusedError

WARMUP: Final = 16
Prompt = list[int] | str


@attrs.define(kw_only=True)
class TurnAnswer(Outcome):
    """The answer of one turn, which keeps its events to be read when the clock no longer matters."""

    turn: Turn
    _body: bytearray = attrs.field(factory=bytearray, init=False)

    def feed(self, piece: bytes, now: float) -> None:
        """Read a piece as it comes."""
        self._body += piece
        super().feed(piece, now)

    def read(self) -> tuple[str, list[int], int | None]:
        """A complete answer's text, its ids and its prompt's cached tokens, as far as the server tells them."""
        events = [msgspec.json.decode(data) for data in EventReader().feed(bytes(self._body)) if data != DONE]
        choices = [each for event in events for each in event.get("choices") or ()]
        usages = [event["usage"].get("prompt_tokens_details") or {} for event in events if event.get("usage")]
        text = "".join(each.get("text") or "" for each in choices)
        token_ids = [token for each in choices for token in each.get("token_ids") or ()]
        return text, token_ids, usages[-1].get("cached_tokens") if usages else None


@attrs.define
class TrafficServer:
    """One server under load; `label` stands for it in the table, `shape` has no prompt and no lengths.

    Attributes:
        takes_ids: prompts are ids and not words.
        is_exact: the server knows `ignore_eos`, so that answers have the length asked for.
    """

    label: str
    shape: RequestShape
    version: Mapping[str, Any]
    connections: Connections
    limit: float
    takes_ids: bool = True
    is_exact: bool = True

    @property
    def description(self) -> str:
        """Where it is, and how it is asked."""
        prompts = "ids" if self.takes_ids else "words"
        ends = "exact lengths" if self.is_exact else "answers may end early"
        return f"{self.label}: {self.shape.model} at {self.shape.address.url}, prompts of {prompts}, {ends}"

    async def warm_up(self, scale: float) -> None:
        """Find out what the server takes, and let it warm up; raises where it answers nothing."""
        probe = Session(0.0, (Turn(tuple(range(20, 52)), 4, 0.0),) * 2)
        for self.is_exact, self.takes_ids in itertools.product((True, False), repeat=2):
            answers = self.turns(await self.send([probe]))
            if answers[-1].result not in {"400", "422"}:
                break
        raise_unanswered(f"the first request to {self.label}", answers)
        traffic = attrs.evolve(CHAT, name="warm-up").scaled(scale)
        await self.send(draw_sessions(traffic, WARMUP, random.randrange(2**32)))

    async def send(self, sessions: Sequence[Session]) -> LoadRun:
        """Let every session come at its moment; the answers of the run are `TurnAnswer`s of all turns that were sent."""
        answers: list[TurnAnswer] = []
        firsts = [self._extend([] if self.takes_ids else "", each, 0) for each in sessions]

        async def send_all(began: float) -> Sequence[Outcome]:
            async with asyncio.TaskGroup() as group:
                for session, first in zip(sessions, firsts, strict=True):
                    group.create_task(self._hold(session, first, began, answers))
            return answers

        return await observe(send_all, HEAD_START)

    @staticmethod
    def turns(run: LoadRun) -> list[TurnAnswer]:
        """The answers of a run, in the order in which they were asked for."""
        return [each for each in run.answers if isinstance(each, TurnAnswer)]

    async def _hold(
        self, session: Session, first: tuple[Prompt, bytes], began: float, answers: list[TurnAnswer]
    ) -> None:
        """Send the turns of a session one after the other, up to one that fails."""
        (prompt, request), due = first, began + session.start
        for place, turn in enumerate(session.turns, start=1):
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            answer = TurnAnswer(scheduled=due, turn=turn)
            answers.append(answer)
            await self.connections.ask(request, answer, self.limit)
            if answer.result != OK or place == len(session.turns):
                return
            due = answer.ended + session.turns[place].pause
            text, token_ids, _ = answer.read()
            drawn = itertools.islice(itertools.cycle(turn.tokens), turn.output_len)
            answered = prompt + text if isinstance(prompt, str) else [*prompt, *(token_ids or drawn)]
            prompt, request = self._extend(answered, session, place)

    def _extend(self, prompt: Prompt, session: Session, place: int) -> tuple[Prompt, bytes]:
        """The prompt with what is new in a turn behind it, and its request."""
        turn = session.turns[place]
        if isinstance(prompt, str):
            prompt = " ".join([prompt, *(WORDS[token % len(WORDS)] for token in turn.tokens)])
        else:
            prompt = [*prompt, *turn.tokens]
        fields: dict[str, Any] = {"temperature": 0.6}
        if self.is_exact:
            fields |= {"ignore_eos": True}
        if self.takes_ids and turn is not session.turns[-1]:
            fields |= {"return_token_ids": True}
        shape = attrs.evolve(self.shape, output_len=turn.output_len, fields=fields)
        return prompt, shape.request({"prompt": prompt})


def raise_unanswered(what: str, answers: Sequence[Outcome]) -> None:
    """Raise `ServerRefusedError` where nothing was answered, with what became of the last request."""
    last = answers[-1]
    if not any(each.result == OK for each in answers):
        raise ServerRefusedError(f"{what}: no answer, {last.result}: {last.message or 'no reason given'}")
