"""A real request through the whole engine before it is called ready: what would fail or be slow does so now."""

from __future__ import annotations

import gc
from typing import Final

from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import SamplingParams

_PARAMETERS: Final = (
    SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
    SamplingParams(temperature=1.0, top_p=0.9, max_tokens=2, ignore_eos=True, logprobs=0),
)


def warm_up(engine: EngineHandle) -> None:
    """Generate two tokens, greedily and sampled; nothing of it shows in the counts. Raises `StepFailedError`.

    What lives by now lives for good, so the garbage collector need not look at it again between two steps.
    """
    for number, sampling in enumerate(_PARAMETERS):
        engine.add(Request(request_id=f"warm-up-{number}", prompt_token_ids=(0,), sampling=sampling))
    while engine.has_work:
        for event in engine.turn():
            if isinstance(event, TokensGenerated) and event.finish_reason is FinishReason.ERROR:
                raise StepFailedError(f"the warm-up failed: {event.error}")
    engine.start_counting()
    gc.collect()
    gc.freeze()
