"""Ranks on one machine without a GPU: processes that meet on its loopback, and tensors exchanged by gloo."""

from __future__ import annotations

import datetime as dt
import socket
import weakref
from typing import Any, Final

import torch
import torch.distributed
from torch import Tensor

from nanoserve.adapters.pytorch.parallel.communicator import MOST_SECONDS, patience
from nanoserve.ports.errors import StepFailedError

_c10d: Final[Any] = torch.distributed  # whose stubs lack what is used here
LOOPBACK: Final = "127.0.0.1"
MEETING_SECONDS: Final = 120.0
"""Seconds that the first rank waits for the others to meet; one that has ended is noticed at once."""


class GlooRanks:
    """Fulfils `Communicator` once `meet` has returned; its calls raise `StepFailedError` if a rank has ended, or is stuck."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._group: list[Any] = []
        # Its threads free tensors, for which they need Python's lock: that ends the process where Python is ending.
        weakref.finalize(self, self._group.clear)

    def meet(self, port: int, listener: socket.socket | None = None) -> None:
        """Return when all ranks are here. The first one has the `listener` that is bound to `port`."""
        limit = dt.timedelta(seconds=patience(self.rank, MEETING_SECONDS))
        store = _c10d.TCPStore(
            LOOPBACK,
            port,
            is_master=listener is not None,
            wait_for_workers=False,
            timeout=limit,
            master_listen_fd=None if listener is None else listener.detach(),
        )
        options = _c10d.ProcessGroupGloo._Options()  # noqa: SLF001 - the only way to name a device
        options._devices = [_c10d.ProcessGroupGloo.create_device(hostname=LOOPBACK)]  # noqa: SLF001
        options._timeout = limit  # noqa: SLF001
        self._group.append(_c10d.ProcessGroupGloo(store, self.rank, self.size, options))

    def all_reduce(self, x: Tensor, /) -> Tensor:
        """See `Communicator`; added in float32 and rounded once."""
        first, *others = self._exchange(x)
        total = first.float()
        for each in others:
            total = total + each
        return total.to(x.dtype)

    def all_gather(self, x: Tensor, /) -> Tensor:
        return torch.cat(self._exchange(x), dim=-1)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        found = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        options = _c10d.distributed_c10d.AllgatherOptions()
        options.timeout = dt.timedelta(seconds=patience(self.rank, MOST_SECONDS))
        try:
            self._group[0].allgather([found], [x.contiguous()], options).wait()
        except RuntimeError as error:
            message = f"another rank has ended, or has not answered for {options.timeout.seconds} seconds"
            raise StepFailedError(message) from error
        return found


def open_listener() -> tuple[socket.socket, int]:
    """A socket that only this machine can connect to, and its port, where the ranks meet."""
    listener = socket.create_server((LOOPBACK, 0))
    return listener, listener.getsockname()[1]
