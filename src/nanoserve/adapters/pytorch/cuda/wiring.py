"""Makes the collaborators of a `CudaRunner`, and the runner of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import Batches
from nanoserve.adapters.pytorch.cuda.decoding import Decoding, Propose
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.adapters.pytorch.cuda.forward_launcher import ForwardLauncher
from nanoserve.adapters.pytorch.cuda.graphs import Graphs
from nanoserve.adapters.pytorch.cuda.masked_draws import MaskedDraws
from nanoserve.adapters.pytorch.cuda.mixed_steps import MixedSteps
from nanoserve.adapters.pytorch.cuda.recovery import Recovery
from nanoserve.adapters.pytorch.cuda.rehearsal import Rehearsal
from nanoserve.adapters.pytorch.cuda.row_updates import RowUpdates
from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.cuda.special_draws import SpecialDraws
from nanoserve.adapters.pytorch.cuda.workspace import Workspace
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.offload import Offload
from nanoserve.adapters.pytorch.pooling import RowPooling
from nanoserve.adapters.pytorch.prompt_scoring import PromptScoring
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler


def make_runner(
    kind: Callable[..., CudaRunner],
    *,
    launcher: ForwardLauncher,
    rehearsal: ForwardLauncher,
    arena: Arena,
    space: Workspace,
    sampler: DeviceSampler,
    kv: KVStore,
    graphs: Graphs | None,
    pdl: bool,
    token_counts: Sequence[int],
    propose: Propose,
    frees: bool,
) -> CudaRunner:
    """A runner of a `kind`; `rehearsal` launches the same kernels as `launcher`, through fewer layers.

    For `graphs`, `pdl` and `propose` see `Decoding`, for `token_counts` see `Rehearsal`, for `frees` see `Recovery`.
    """
    batches, drawing = Batches(arena), Drawing(arena, space.sampling)
    special = SpecialDraws(arena, space.logits, sampler, drawing)
    decoding = Decoding(launcher, rehearsal, arena, drawing, special, graphs=graphs, pdl=pdl, propose=propose)
    scoring, pooling = PromptScoring(), RowPooling(launcher.logits, launcher.pooled_layers)
    reads: dict[str, Any] = {"scoring": scoring, "pooling": pooling, "arrivals": drawing.arrivals}
    return kind(
        launcher=launcher,
        arena=arena,
        logits=space.logits,
        sampler=sampler,
        kv=kv,
        batches=batches,
        row_updates=RowUpdates(arena, batches, sampler, prompt_scoring=scoring, pooling=pooling, kv=kv),
        drawing=drawing,
        special=special,
        masked=MaskedDraws(arena, space.logits, batches, decoding=decoding, drawing=drawing, special=special),
        decoding=decoding,
        mixed_steps=MixedSteps(launcher, arena, space.logits, decoding, graphs, **reads),
        rehearsal=Rehearsal(rehearsal, arena, decoding, drawing, token_counts),
        recovery=Recovery(arena, batches, drawing, graphs, frees=frees, retries=not kv.has_states),
        offload=Offload(kv, arena.sizes.host_slots) if arena.sizes.host_slots else None,
    )
