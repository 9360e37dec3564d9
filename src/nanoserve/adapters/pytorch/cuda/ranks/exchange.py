"""The exchange in a step between GPUs that compute one model together: parts of sums, and columns of logits.

Each rank leaves its part in a block of memory that all read (`PeerMemory`); the kernels of `kernels.rank_sums` wait for the others' and read
them there. Parts are left at two places in turn: a rank that takes part in an exchange has read the parts of the last one. Steps that decode few rows send them instead.
All ranks launch the same kernels in the same order, and each step makes an even number of sums, so that graphs captured apart fit behind one another.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.runner import CudaRunner
from nanoserve.adapters.pytorch.cuda.sums import Pending, Sums
from nanoserve.adapters.pytorch.cuda.tickets import CudaTicket
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.parallel.communicator import MOST_SECONDS, Communicator, patience
from nanoserve.adapters.pytorch.parallel.expert_loads import ExpertLoads
from nanoserve.kernels.rank_sums.launch import (
    HEADER,
    Peers,
    add_ranks_into,
    add_slots_into,
    gather_ranks_into,
    sent_bytes,
)
from nanoserve.ports.engine_facts import RunnerCounts
from nanoserve.ports.errors import ModelLoadError, StepFailedError
from nanoserve.ports.grammar import Masks
from nanoserve.ports.step import StepPlan, StepResult

READY_SECONDS: Final = 600.0
"""Seconds that a kernel of the first rank waits for another one while ranks get ready, and compile each at its pace."""
ALIGNMENT: Final = 4096
MOST_SENT: Final = 8
"""Rows of parts that ranks send each other; more are read where they lie."""
_ABANDONED: Final = -1
_ROWS: Final = 3


class Exchange(Sums):
    """One rank's side. Tensors that it gives out are in the shared block.

    Args:
        ranks: how the ranks meet on the host.
        make_memory: makes this rank's block of this many bytes, a `PeerMemory`.
        max_tokens, hidden: of the largest step.
        max_logits, vocab_size: rows of logits that are computed at once, and their width.
    """

    def __init__(
        self,
        ranks: Communicator,
        make_memory: Any,
        *,
        max_tokens: int,
        hidden: int,
        max_logits: int,
        vocab_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.ranks, self._dtype, self._hidden = ranks, dtype, hidden
        self._vocab_size, self._share = vocab_size, -(-vocab_size // ranks.size)
        part = _aligned(max_tokens * hidden * dtype.itemsize)
        shard = _aligned(max_logits * self._share * dtype.itemsize)
        self._parts = HEADER, HEADER + part
        self._shards = HEADER + 2 * part, HEADER + 2 * part + shard
        sent = _aligned(sent_bytes(ranks.size, MOST_SENT, hidden * dtype.itemsize))
        self._sent = HEADER + 2 * (part + shard), HEADER + 2 * (part + shard) + sent
        self.size = self._sent[1] + sent
        self._memory: Any = make_memory(self.size)
        self._addresses = torch.zeros(ranks.size, dtype=torch.int64, device=device)
        limit = int(1e9 * patience(ranks.rank, READY_SECONDS))
        self._words = torch.tensor([0, limit], pin_memory=device.type == "cuda")
        counts = torch.tensor([1, 0, 1, 0], dtype=torch.int64, device=device)
        self._peers = Peers(ranks.rank, ranks.size, self._addresses, counts, self._words, self._memory.waits)
        self._parity, self._shard_parity, self._sends = 0, 0, False

    def meet(self) -> None:
        """Learn where the other ranks' blocks are; returns when all ranks are here."""
        self._memory.meet(self.ranks)
        self._addresses.copy_(torch.tensor(list(self._memory.addresses), dtype=torch.int64))

    def try_out(self) -> None:
        """Write to all ranks and read from all, at both places. Raises `ModelLoadError` if something else arrives."""
        device, dtype, size = self._addresses.device, self._dtype, self.ranks.size
        for turn in range(4):
            if turn % 2 == 0:
                self.begin(sends=turn > 0)
            parts = [_pattern(rank, self._hidden).to(device, dtype) for rank in range(size)]
            self.part(_ROWS).copy_(parts[self.ranks.rank])
            stream = torch.ones_like(parts[0])
            self.complete(stream, Pending(stream[None]), None, stream)
            self._compare(stream, 1 + torch.stack(parts).sum(0))
            shards = [_pattern(rank, self._share).to(device, dtype) for rank in range(size)]
            width = min(self._share, max(0, self._vocab_size - self.ranks.rank * self._share))
            logits = torch.zeros(_ROWS, self._vocab_size, dtype=dtype, device=device)
            self.columns(logits, width).copy_(shards[self.ranks.rank][:, :width])
            self.gather(logits)
            self._compare(logits, torch.cat(shards, dim=1)[:, : self._vocab_size])

    def _compare(self, found: Tensor, wanted: Tensor) -> None:
        if not torch.equal(found, wanted):
            self.check()
            raise ModelLoadError(
                "the GPUs do not read from each other what they have written; leave tensor_parallel_size at 1"
            )

    def start_serving(self) -> None:
        """From now on, ranks are close behind one another."""
        self._words[1] = int(patience(self.ranks.rank, MOST_SECONDS) * 1e9)

    def begin(self, *, sends: bool = False) -> None:
        """A step begins, in which few rows' parts are sent."""
        assert self._parity == 0, "an odd number of sums was made in a step"
        self._shard_parity, self._sends = 0, sends and self._hidden * self._dtype.itemsize % 8 == 0

    def part(self, rows: int) -> Tensor:
        return self._view(self._parts[self._parity], rows, self._hidden)

    def join(
        self, slices: Tensor, bias: Tensor | None, chosen: Tensor | None = None, *, pdl: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Make one part of slices [S, rows, hidden], those of `chosen` experts that are here, and a bias."""
        part = self.part(slices.shape[1])
        add_slots_into(slices, part, bias=bias, chosen=chosen, pdl=pdl)
        return part[None], None

    def complete(
        self, stream: Tensor, pending: Pending, norm: RMSNorm | None, out: Tensor, *, pdl: bool = False
    ) -> None:
        parity, self._parity = self._parity, 1 - self._parity
        branch_norm = pending.norm
        last = norm or branch_norm
        add_ranks_into(
            stream,
            self._peers,
            self._parts[parity],
            parity=parity,
            sent=self._sent[parity] if self._sends and len(stream) <= MOST_SENT else None,
            eps=0.0 if last is None else last.eps,
            weight=None if norm is None else norm.weight,
            out=None if norm is None else out,
            branch_norm=None if branch_norm is None else branch_norm.weight,
            pdl=pdl,
        )

    def columns(self, logits: Tensor, width: int) -> Tensor:
        return self._view(self._shards[self._shard_parity], len(logits), width)

    def gather(self, logits: Tensor, *, pdl: bool = False) -> None:
        offset = self._shards[self._shard_parity]
        self._shard_parity = 1 - self._shard_parity
        gather_ranks_into(logits, self._peers, offset, share=self._share, pdl=pdl)

    def check(self) -> None:
        """Raise `StepFailedError` if a kernel has missed another rank; the device must be done with the step."""
        if missed := int(self._words[0]):
            what = "the others were given up" if missed == _ABANDONED else f"rank {missed - 1} did not answer"
            raise StepFailedError(f"{what}, so that the ranks are at different places now")

    def abandon(self) -> None:
        """Let all kernels that wait end, within a millisecond; may be called from any thread."""
        self._words[0] = _ABANDONED

    def _view(self, offset: int, rows: int, width: int) -> Tensor:
        size = rows * width * self._dtype.itemsize
        own: Tensor = self._memory.own
        return own[offset : offset + size].view(self._dtype).view(rows, width)


def _pattern(rank: int, width: int) -> Tensor:
    """Small integers [_ROWS, width], whose sums are exact in every dtype."""
    return (torch.arange(_ROWS * width).view(_ROWS, width) + 5 * rank) % 13


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class RankRunner(CudaRunner):
    """`CudaRunner` of one rank; after any error the ranks are at different places, and none can continue."""

    def __init__(self, *, exchange: Exchange, expert_tokens: Tensor | None, **parts: Any) -> None:
        super().__init__(**parts)
        self._exchange, self._expert_loads = exchange, ExpertLoads(expert_tokens)

    def start_serving(self) -> None:
        super().start_serving()
        self._exchange.start_serving()
        self._expert_loads.forget()

    def counts(self) -> RunnerCounts:
        """See `CudaRunner`; and the tokens of experts, padding of steps included."""
        return attrs.evolve(super().counts(), **self._expert_loads.read())

    def submit(self, plan: StepPlan, /) -> CudaTicket:
        """See `CudaRunner`. A rank that follows collects nothing, so that it learns here that it has missed another one."""
        self._exchange.check()
        return super().submit(plan)

    def draw(self, ticket: CudaTicket, masks: Masks, /) -> None:
        self._exchange.check()
        super().draw(ticket, masks)

    def collect(self, ticket: CudaTicket, /) -> StepResult:
        """Wait for a step's tokens. Raises `StepFailedError` if another rank was missed."""
        result = super().collect(ticket)
        self._exchange.check()
        return result
