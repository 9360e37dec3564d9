"""An engine is ready before the vocabulary of its grammars is made, and plain requests never have it made."""

from __future__ import annotations

import gc
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import psutil

from nanoserve.adapters.engine_process.host.process import warm_up
from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams


def serving() -> int:
    """The processes that have begun to serve grammars, their workers left out."""
    return sum(
        "nanoserve.adapters.llguidance.serving" in each.cmdline() for each in psutil.Process().children()
    )


def generate(engine: Any, constraint: Constraint | None, ends: frozenset[int]) -> str:
    sampling = SamplingParams(temperature=0.0, max_tokens=8)
    request = Request(
        request_id="r",
        prompt_token_ids=(5,),
        sampling=sampling,
        eos_token_ids=ends,
        constraint=constraint,
    )
    engine.add(request)
    text = ""
    while engine.has_work:
        text += "".join(each.text for each in engine.turn() if isinstance(each, TokensGenerated))
    return text


def check() -> None:
    """Assert when the process begins."""
    assembly = assemble(EngineSettings())
    warm_up(assembly.engine)
    ends = frozenset(assembly.tokenizer.eos_token_ids)
    assert generate(assembly.engine, None, ends)
    assert not serving()
    assert generate(assembly.engine, Constraint("regex", "[ab]{3}"), ends).strip("ab") == ""
    assembly.finish()
    assert serving() == 1
    del assembly
    gc.collect()
    assert not serving()


def test_it_is_made_by_the_first_constraint_or_when_the_start_is_over() -> None:
    """In a process of its own, where no engine of another test begins to serve grammars meanwhile."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        alone.submit(check).result()
