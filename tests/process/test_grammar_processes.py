"""The processes of grammars: what is left of an answer when one is killed, and of them when the engine ends."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import psutil
import pytest

from nanoserve.adapters.llguidance import crew
from nanoserve.adapters.llguidance.answers import Answer
from nanoserve.adapters.llguidance.crew import Worker, start_workers
from nanoserve.adapters.llguidance.grammars import LLGrammars
from nanoserve.adapters.llguidance.serving import Settings
from nanoserve.adapters.llguidance.workers import LOW_PRIORITY
from nanoserve.ports.grammar import Constraint, MaskBlock, new_block
from tests.patience import PATIENCE, wait_until
from tests.unit.adapters.llguidance.vocabularies import END, plain, worker_of

TOKENIZER = plain()
SIZE = TOKENIZER.get_vocab_size()
(STOP,) = TOKENIZER.encode(END, add_special_tokens=False).ids
SCHEMA = {"type": "array", "minItems": 90, "items": {"type": "string", "maxLength": 12}}


def started(workers: int = 2) -> LLGrammars:
    settings = Settings(TOKENIZER.to_str(), (STOP,), SIZE, SIZE)
    grammars = LLGrammars(lambda: start_workers(settings, workers), workers=workers)
    grammars.patience = PATIENCE
    return grammars


def answers_of(grammars: LLGrammars, count: int) -> list[Answer]:
    pending = grammars.compile(Constraint("json_schema", json.dumps(SCHEMA)))
    while not pending.done():
        grammars.rest()
    return [pending.result().matcher() for _ in range(count)]


def filled(grammars: LLGrammars, crowd: Sequence[Answer]) -> MaskBlock:
    """Their masks, as an engine gets them: late ones are asked for again."""
    block = new_block(SIZE, len(crowd))
    while (found := grammars.fill(crowd, block)()).late:
        while not all(map(grammars.is_ready, crowd)):
            grammars.rest()
    assert not found.errors
    return block


def said_by(grammars: LLGrammars, tokens: int, *, kill_at: int | None = None) -> list[list[int]]:
    """What random answers say, one of whose processes may be killed on the way."""
    crowd, draw = answers_of(grammars, 4), random.Random(1)
    for number in range(tokens):
        if number == kill_at:
            os.kill(workers_of(grammars)[-1].pid, signal.SIGKILL)
        block = filled(grammars, crowd)
        for place, each in enumerate(crowd):
            bits = int.from_bytes(block.mask(place), "little")
            grammars.consume([(each, draw.choice([token for token in range(SIZE) if bits >> token & 1]))])
    return [each.said for each in crowd]


def process_of(grammars: LLGrammars) -> psutil.Process:
    return psutil.Process(worker_of(grammars).crew.process.pid)


def workers_of(grammars: LLGrammars) -> list[psutil.Process]:
    wait_until(lambda: len(process_of(grammars).children()) == len(grammars.loads))
    return process_of(grammars).children()


@pytest.fixture(scope="module")
def undisturbed() -> list[list[int]]:
    return said_by(started(), 40)


@pytest.mark.parametrize("kill_at", [1, 20])
def test_answers_go_on_as_if_nothing_had_been_where_a_worker_is_killed(
    undisturbed: list[list[int]], kill_at: int
) -> None:
    assert said_by(started(), 40, kill_at=kill_at) == undisturbed


def test_answers_go_on_where_the_process_that_made_the_workers_is_killed(
    undisturbed: list[list[int]],
) -> None:
    grammars = started()
    crowd = answers_of(grammars, 1)
    filled(grammars, crowd)
    before = [process_of(grammars), *workers_of(grammars)]
    before[0].kill()
    wait_until(lambda: not any(_is_running(each) for each in before))
    assert said_by(grammars, 40) == undisturbed
    assert filled(grammars, crowd).memory == filled(grammars, answers_of(grammars, 1)).memory


def test_an_answer_that_sits_out_beside_free_ones_goes_on_where_its_worker_is_killed() -> None:
    """The engine asks for no other mask meanwhile, and has no time to rest."""
    grammars = started(workers=1)
    (answer,) = answers_of(grammars, 1)
    filled(grammars, [answer])
    (worker,) = workers_of(grammars)
    (letter,) = TOKENIZER.encode("[", add_special_tokens=False).ids
    worker.suspend()
    grammars.consume([(answer, letter)])
    assert not grammars.is_ready(answer)
    worker.kill()
    wait_until(lambda: grammars.is_ready(answer))
    assert not answer.error


def test_who_has_news_for_a_worker_that_stands_still_waits_for_nothing_and_loses_none() -> None:
    grammars = started(workers=1)
    answer, other = answers_of(grammars, 2)
    filled(grammars, [answer, other])
    (worker,) = workers_of(grammars)
    said = TOKENIZER.encode('["ab"' + 400 * ',"ab"', add_special_tokens=False).ids
    worker.suspend()
    for token in said:
        grammars.consume([(answer, token)])
    assert worker_of(grammars)._unsent, "there is no room for all"
    worker.resume()
    grammars.patience = 0.0  # in a step that waits nothing is told
    grammars.consume([(other, token) for token in said])
    both = filled(grammars, [answer, other])
    assert both.mask(0) == both.mask(1)
    assert not worker_of(grammars)._unsent
    assert worker.is_running()


def stood_still(grammars: LLGrammars, answer: Answer | None = None) -> crew.Crew:
    """The crew of a worker that stands still, which is looked at often, until it is lost."""
    worker = worker_of(grammars)
    worker.hear_seconds = 0
    wait_until(lambda: not (answer and grammars.is_ready(answer)) and worker.crew.is_lost)
    return worker.crew


def test_an_answer_goes_on_where_its_worker_stands_still() -> None:
    grammars = started(workers=1)
    answer, other = answers_of(grammars, 2)
    filled(grammars, [answer, other])
    (worker,) = workers_of(grammars)
    (letter,) = TOKENIZER.encode("[", add_special_tokens=False).ids
    worker.suspend()
    grammars.consume([(answer, letter)])
    assert stood_still(grammars, answer).culprit == 0
    wait_until(lambda: grammars.is_ready(answer))
    grammars.consume([(other, letter)])
    both = filled(grammars, [answer, other])
    assert both.mask(0) == both.mask(1)
    assert not _is_running(worker)


def test_a_grammar_that_a_worker_standing_still_was_to_make_is_made_by_the_next() -> None:
    grammars = started(workers=1)
    filled(grammars, answers_of(grammars, 1))
    (worker,) = workers_of(grammars)
    worker.suspend()
    pending = grammars.compile(Constraint("regex", "[ab]{7}"))
    stood_still(grammars)
    wait_until(pending.done)
    assert any(filled(grammars, [pending.result().matcher()]).mask(0))


def test_a_process_that_stands_still_before_its_workers_begin_is_followed_by_another() -> None:
    settings = Settings(TOKENIZER.to_str(), (STOP,), SIZE, SIZE)
    begun: list[Worker] = []

    def start() -> list[Worker]:
        workers = start_workers(settings, 1)
        if not begun:
            psutil.Process(workers[0].crew.process.pid).suspend()
            workers[0].hear_seconds = 0
        begun.extend(workers)
        return workers

    grammars = LLGrammars(start, workers=1)
    grammars.patience = PATIENCE
    assert any(filled(grammars, answers_of(grammars, 1)).mask(0))
    assert [each.crew.is_lost for each in begun] == [True, False]
    assert begun[0].crew.process.returncode == -signal.SIGKILL


def test_a_worker_that_hears_late_is_kept() -> None:
    grammars = started(workers=1)
    filled(grammars, answers_of(grammars, 1))
    told, (process,) = worker_of(grammars), workers_of(grammars)
    told.hear_seconds = 0
    for _ in range(3):
        told.look()
        process.suspend()
        for _ in range(crew.MOST_UNHEARD - 1):
            told.look()
        process.resume()
        wait_until(lambda: told._commands.recv(1, socket.MSG_PEEK))
    assert not told.crew.look()


def _is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_nothing_is_left_of_them_when_the_grammars_are_gone() -> None:
    gc.collect()
    descriptors = psutil.Process().num_fds()
    grammars = started()
    filled(grammars, answers_of(grammars, 3))
    processes = [process_of(grammars), *workers_of(grammars)]
    del grammars
    gc.collect()
    wait_until(lambda: not any(_is_running(each) for each in processes))
    assert psutil.Process().num_fds() <= descriptors


def test_workers_without_work_sleep() -> None:
    grammars = started()
    filled(grammars, answers_of(grammars, 3))
    workers = workers_of(grammars)
    wait_until(lambda: all(each.status() == psutil.STATUS_SLEEPING for each in workers))
    before = [each.cpu_times().user + each.cpu_times().system for each in workers]
    time.sleep(0.3)
    assert [each.cpu_times().user + each.cpu_times().system for each in workers] == before


ENGINE = """
import sys, time
from tests.process.test_grammar_processes import answers_of, filled, process_of, started, workers_of
grammars = started()
filled(grammars, answers_of(grammars, 2))
print(process_of(grammars).pid, *(each.pid for each in workers_of(grammars)), flush=True)
time.sleep(600)
"""


@pytest.fixture
def engine() -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    with subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, [psutil.Process(int(each)) for each in process.stdout.readline().split()]
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_they_end_with_the_engine_however_that_ends(
    engine: tuple[subprocess.Popen[str], list[psutil.Process]], number: signal.Signals
) -> None:
    process, processes = engine
    assert all(map(_is_running, processes))
    for each in processes if number != signal.SIGKILL else ():  # as a terminal or a service manager does
        each.send_signal(number)
    assert len(processes) == 3
    process.send_signal(number)
    process.wait(PATIENCE)
    wait_until(lambda: not any(map(_is_running, processes)))


def refused_by(grammars: LLGrammars) -> str:
    """The error of a constraint that no worker is there for."""
    pending = grammars.compile(Constraint("json_schema", json.dumps(SCHEMA)))
    while not pending.done():
        grammars.rest()
    with pytest.raises(crew.CrewLostError) as caught:
        pending.result()
    return str(caught.value)


def test_where_no_process_can_be_started_constraints_are_refused_until_one_can() -> None:
    with mock.patch.object(subprocess, "Popen", side_effect=OSError(errno.EAGAIN, "no more processes")):
        grammars = started()
        assert "have ended" in refused_by(grammars)
    filled(grammars, answers_of(grammars, 2))


def test_a_constraint_is_not_blamed_for_processes_that_others_end() -> None:
    grammars, asked = started(), list[Worker]()
    ask = Worker.ask

    def interrupted(worker: Worker, number: int, constraint: Constraint, **how: bool) -> Any:
        asked.append(worker)
        if len(asked) <= 3:
            worker.crew.process.kill()
        return ask(worker, number, constraint, **how)

    with mock.patch.object(Worker, "ask", interrupted):
        filled(grammars, answers_of(grammars, 2))
    assert len(asked) > 3


def test_a_constraint_is_not_blamed_for_a_process_that_had_ended_before_it_came() -> None:
    grammars, killed = started(), list[Worker]()
    filled(grammars, answers_of(grammars, 2))
    ask, gone = Worker.ask, worker_of(grammars)
    workers_of(grammars)[1].kill()
    wait_until(gone.crew.look)

    def interrupted(worker: Worker, number: int, constraint: Constraint, **how: bool) -> Any:
        if worker.index == 1 and worker.crew is not gone.crew and not killed:
            killed.append(worker)
            workers_of(grammars)[1].kill()
        return ask(worker, number, constraint, **how)

    with mock.patch.object(Worker, "ask", interrupted):
        for digit in "23":  # one for each worker
            pending = grammars.compile(Constraint("regex", f"[ab]{{{digit}}}"))
            wait_until(pending.done)
            pending.result().matcher()
    assert killed


def test_where_the_process_ends_at_once_constraints_are_refused() -> None:
    with mock.patch.object(crew, "SERVING", "nanoserve.adapters.llguidance.nothing"):
        grammars = started()
        assert "have ended" in refused_by(grammars)
    filled(grammars, answers_of(grammars, 2))


def test_a_child_that_a_user_s_process_forks_leaves_the_workers_alone_as_it_ends() -> None:
    forking = ENGINE.replace("time.sleep(600)", FORKING)
    told = subprocess.run([sys.executable, "-c", forking], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[1:] == ["0", "True"], told.stderr


FORKING = """
import os
if not (child := os.fork()):
    sys.exit(0)
print(os.waitpid(child, 0)[1])
before = process_of(grammars).pid
filled(grammars, answers_of(grammars, 2))
print(process_of(grammars).pid == before)
"""


def test_who_owes_is_compiled_for_with_a_low_priority() -> None:
    grammars = started(workers=1)
    asked, usual = list[int](), os.getpriority(os.PRIO_PROCESS, 0)
    ask = Worker.ask

    def noted(worker: Worker, number: int, constraint: Constraint, **how: bool) -> Any:
        if constraint.text == "a":  # to introduce the worker
            return ask(worker, number, constraint, **how)
        asked.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        if asked[-1] == usual:  # so it owes as long as the others have not come
            wait_until(lambda: len(asked) == 3)
        return ask(worker, number, constraint, **how)

    with mock.patch.object(Worker, "ask", noted):
        pending = [grammars.compile(Constraint("regex", f"[ab]{{{each}}}"), client="x") for each in range(3)]
        wait_until(lambda: all(each.done() for each in pending))
    assert sorted(asked) == [usual, LOW_PRIORITY, LOW_PRIORITY]
    (worker,) = workers_of(grammars)
    nice = sorted(os.getpriority(os.PRIO_PROCESS, each.id) for each in worker.threads())
    assert nice == [usual, usual, LOW_PRIORITY]


def test_lost_workers_leave_no_descriptors_though_their_grammars_are_cached() -> None:
    grammars, letters = started(workers=2), "abcdefgh"

    def compile_all() -> None:
        pending = [grammars.compile(Constraint("regex", f"{each}{number}")) for each in letters]
        wait_until(lambda: all(each.done() for each in pending))
        filled(grammars, [each.result().matcher() for each in pending])

    descriptors = list[int]()
    for number in range(20):
        compile_all()
        descriptors.append(psutil.Process().num_fds())
        lost = worker_of(grammars)
        workers_of(grammars)[number % 2].kill()
        wait_until(lost.crew.look)
    assert max(descriptors) == descriptors[0]
