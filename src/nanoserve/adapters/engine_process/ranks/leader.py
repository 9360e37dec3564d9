"""The first rank's side: it starts the other ranks, hands every plan to them, and ends with them."""

from __future__ import annotations

import contextlib
import math
import select
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NoReturn, TypeVar

from nanoserve.adapters.engine_process.launching import own_program, start_program
from nanoserve.adapters.engine_process.wire import plans
from nanoserve.adapters.engine_process.wire.codec import bodies_from
from nanoserve.ports.driven import ModelRunner
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.errors import BadValueError, ModelLoadError, RunnerLostError
from nanoserve.ports.grammar import LateDrawing, MaskBlock, Masks
from nanoserve.ports.steering import PARTS, WEIGHTS, RankSource
from nanoserve.ports.step import StepPlan, StepResult

LAST_WORDS: Final = 2.0
"""Seconds for a rank to say why it ends, or to end by itself."""
_LOOK: Final = 500
"""Milliseconds between looks at whether the ranks are still wanted."""

TicketT = TypeVar("TicketT")


class Rank:
    """Another rank: its process, the connection to it (sockets without a name), and its `complaint`, once it has said why it cannot go on."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.number, self.process, self.connection = number, process, connection
        self._wire, self._bodies = plans.RankWire(), bodies_from(connection)
        self.complaint = ""

    @classmethod
    def launch(cls, number: int, command: Sequence[str]) -> Rank:
        """Start the command with the file descriptor of its connection as the last argument.

        A terminal's Ctrl-C is for the first rank alone: an engine's host ignores it, and what it starts does so, too; elsewhere
        the rank gets a process group of its own. Raises `RunnerLostError`.
        """
        group = None if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else 0
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = start_program(command, [theirs.fileno()], process_group=group)
            except OSError as error:
                ours.close()
                raise RunnerLostError(f"rank {number} could not be started: {error}") from error
        return cls(number, process, ours)

    def receive(self, timeout: float | None = None) -> plans.FromRank | None:
        """Its next message; None if it has hung up, or sends nothing for this many seconds."""
        self.connection.settimeout(timeout)
        try:
            body = next(self._bodies, None)
        except OSError:
            body = None
        finally:
            self.connection.settimeout(None)
        if body is None:
            return None
        message: Any = self._wire.decode(body)
        if isinstance(message, plans.Unable):
            self.complaint = message.reason
        return message  # type: ignore[no-any-return]

    def last_words(self) -> str:
        """Why it cannot continue, or how it ended; empty if neither is the case."""
        while not self.complaint and self.receive(LAST_WORDS) is not None:
            pass
        if self.complaint:
            return self.complaint
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(LAST_WORDS)
            return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with {code}"
        return ""


class Ranks:
    """All ranks but the first. They end when this object is closed or forgotten, and with the thread that launched them."""

    def __init__(self, others: Sequence[Rank]) -> None:
        self._others = others
        self._wire = plans.RankWire()
        self._poll = select.poll()
        for each in self._others:
            self._poll.register(each.connection, 0)  # hang-ups are reported without being asked for
        self._end = weakref.finalize(self, _end, others)

    def join(self, joins: Sequence[plans.Join]) -> None:
        """Let each rank load its part. Raises `RunnerLostError`."""
        for each, join in zip(self._others, joins, strict=True):
            self._send_to(each, self._wire.encode(join))

    def loaded(self) -> list[int]:
        """Wait until every rank has loaded its part; the bytes that each has free. Raises `ModelLoadError`."""
        free = []
        for each in self._others:
            message = each.receive()
            if not isinstance(message, plans.Loaded):
                raise ModelLoadError(f"rank {each.number} could not load its part: {each.last_words()}")
            free.append(message.available)
        return free

    def send(self, message: plans.ToRank | StepPlan) -> None:
        """Send a message or a plan to all. Raises `RunnerLostError`."""
        frame = self._wire.encode(message)
        for each in self._others:
            self._send_to(each, frame)

    def share(self, loras: Any) -> None:
        """Tell every rank where its part of each adapter is. Raises `RunnerLostError`."""
        for each in self._others:
            self._send_to(each, self._wire.encode(plans.Loras(loras.parts(each.number))))

    def read_weights(self, sources: Sequence[RankSource], *, partial: bool) -> None:
        """Have every rank read its part of new weights; no step is in flight. Raises `BadValueError` if one refuses, and `RunnerLostError`."""
        self._have(plans.ReadWeights([*sources], partial), WEIGHTS)

    def sleep(self, level: int) -> None:
        """Have every rank sleep, or none. Raises as `read_weights`."""
        try:
            self._have(plans.Sleep(level), "sleep")
        except BadValueError:
            for part in PARTS:
                self.wake(part)
            raise

    def wake(self, part: str) -> None:
        """Have every rank wake a part; those that have it already do nothing. Raises as `read_weights`."""
        self._have(plans.Wake(part), part)

    def _have(self, message: plans.ToRank, parameter: str) -> None:
        self.send(message)
        refusals = []
        for each in self._others:
            answer = each.receive()
            if not isinstance(answer, plans.Done):
                self.lose()
            refusals += [f"rank {each.number}: {answer.refusal}"] if answer.refusal else []
        if refusals:
            raise BadValueError(parameter, refusals[0])

    def write_weights(self) -> None:
        """Have every rank compute with them from its next plan on. Raises `RunnerLostError`."""
        self.send(plans.WriteWeights())

    def check(self) -> None:
        """Raise `RunnerLostError` if a rank has ended, as far as that is known without waiting."""
        if self._poll.poll(0):
            self.lose()

    def watch(self, on_loss: Callable[[], None]) -> None:
        """Call `on_loss`, a method of an object that this keeps no longer than others do, as soon as a rank has ended; in a thread."""
        handles = [each.connection.fileno() for each in self._others]
        arguments = (handles, weakref.WeakMethod(on_loss), weakref.ref(self))
        threading.Thread(target=_watch, args=arguments, name="ranks", daemon=True).start()

    def compare(self, step: int, token_ids: list[int]) -> None:
        """Raise `RunnerLostError` if another rank has drawn other tokens in a step."""
        for each in self._others:
            message = each.receive()
            if not isinstance(message, plans.Drawn):
                self.lose()
            if (message.step, message.token_ids) != (step, token_ids):
                raise RunnerLostError(f"rank {each.number} drew other tokens than rank 0 in step {step}")

    def lose(self, error: Exception | None = None) -> NoReturn:
        """Raise `RunnerLostError`, with the known reason. Where several ranks have ended, the reason is one that could not say anything: the others miss it."""
        hung_up = {handle for handle, _ in self._poll.poll(int(1000 * LAST_WORDS))}
        ended = [each for each in self._others if each.connection.fileno() in hung_up]
        if not ended:
            raise RunnerLostError(f"a step failed on rank 0: {error!r}") from error
        words = [(each.number, each.last_words()) for each in ended]
        number, reason = next((each for each in words if each[1].startswith("it ")), words[0])
        raise RunnerLostError(f"rank {number} has ended: {reason}") from error

    @property
    def is_open(self) -> bool:
        """True if it has not been closed."""
        return self._end.alive

    def close(self) -> None:
        """End all; may be called twice."""
        self._end()

    def _send_to(self, rank: Rank, frame: bytes) -> None:
        try:
            rank.connection.sendall(frame)
        except OSError as error:
            self.lose(error)


def launch_ranks(module: str, size: int) -> Ranks:
    """Start all ranks but the first, as programs of that module. Raises `RunnerLostError`."""
    return Ranks([Rank.launch(number, own_program(module)) for number in range(1, size)])


def _watch(
    handles: Sequence[int], on_loss: weakref.WeakMethod[Callable[[], None]], ranks: weakref.ref[Ranks]
) -> None:
    poll = select.poll()
    for each in handles:
        poll.register(each, 0)
    has_ended = False
    while (watched := ranks()) is not None and watched.is_open:
        if has_ended:
            if (call := on_loss()) is not None:
                call()
            return
        del watched
        has_ended = bool(poll.poll(_LOOK))


def _end(others: Sequence[Rank]) -> None:
    """A rank ends when its connection does; one that is stuck is killed."""
    for each in others:
        each.connection.close()
    for each in others:
        try:
            each.process.wait(LAST_WORDS)
        except subprocess.TimeoutExpired:
            each.process.kill()
            each.process.wait()


class LeadingRunner(Generic[TicketT]):
    """Fulfils `ModelRunner` and `LateDrawing`: the first rank's own runner, behind the plans that all ranks get.

    Whatever goes wrong in a step leaves ranks at different places, so that no other step can be computed: every error is a
    `RunnerLostError`. With `is_watchful`, ranks tell what they have drawn, and it is compared.

    Attributes:
        own: that runner.
        loras: what this rank reads of adapters for all; None if there are no slots for them.

    Args:
        most_seconds: that this rank may take to launch a step. What others compute is nonsense once they have given up a rank
            that is late, so theirs must be more.
    """

    def __init__(
        self, own: Any, ranks: Ranks, *, is_watchful: bool, loras: Any = None, most_seconds: float = math.inf
    ) -> None:
        self.own: ModelRunner[TicketT] = own
        self.loras = loras
        self._drawer: LateDrawing[TicketT] = own
        self._ranks, self._is_watchful, self._most_seconds = ranks, is_watchful, most_seconds
        self._steps: list[int] = []

    def submit(self, plan: StepPlan, /) -> TicketT:
        """Hand the plan to all ranks, and compute this one's part."""
        began = time.monotonic()
        if plan.lora_loads:
            self._ranks.share(self.loras)
        self._ranks.send(plan)
        if self._is_watchful:
            self._steps.append(plan.step)
        try:
            ticket = self.own.submit(plan)
        except Exception as error:  # noqa: BLE001 - whatever it is, the ranks have parted
            self._ranks.lose(error)
        if (seconds := time.monotonic() - began) > self._most_seconds:
            raise RunnerLostError(f"rank 0 launched step {plan.step} {seconds:.0f} s after it was planned")
        return ticket

    def mask_block(self, count: int, /) -> MaskBlock:
        return self._drawer.mask_block(count)

    def draw(self, ticket: TicketT, masks: Masks, /) -> None:
        copied = {row: bytearray(mask) for row, mask in masks.items()}
        self._ranks.send(plans.Draw(copied, dict(masks.counts)))
        try:
            self._drawer.draw(ticket, masks)
        except Exception as error:  # noqa: BLE001 - as above
            self._ranks.lose(error)

    def collect(self, ticket: TicketT, /) -> StepResult:
        """The tokens that this rank has drawn, which all ranks have drawn."""
        try:
            result = self.own.collect(ticket)
        except Exception as error:  # noqa: BLE001 - as above
            self._ranks.lose(error)
        if self._is_watchful:
            self._ranks.compare(self._steps.pop(0), result.token_ids)
        return result

    def counts(self) -> RunnerCounts:
        """This rank's; raises `RunnerLostError` if another one has ended, so that an idle engine notices."""
        self._ranks.check()
        return self.own.counts()
