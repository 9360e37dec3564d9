"""Ranks on one machine without a GPU: processes that meet on its loopback, and tensors exchanged by gloo."""

from __future__ import annotations

import datetime as dt
import socket
from typing import Any, Final

import torch
import torch.distributed
from torch import Tensor

_c10d: Final[Any] = torch.distributed  # whose stubs lack what is used here
LOOPBACK: Final = "127.0.0.1"
PATIENCE: Final = dt.timedelta(seconds=120)
"""What a rank waits for another one, to meet or in a step; one that has ended is noticed at once."""


class GlooRanks:
    """Fulfils `Communicator` once `meet` has returned; its calls raise `RuntimeError` where a rank has ended."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._group: Any = None

    def meet(self, port: int, listener: socket.socket | None = None) -> None:
        """Return when all ranks are here. The first one has the `listener` that is bound to `port`."""
        store = _c10d.TCPStore(
            LOOPBACK,
            port,
            is_master=listener is not None,
            wait_for_workers=False,
            timeout=PATIENCE,
            master_listen_fd=None if listener is None else listener.detach(),
        )
        options = _c10d.ProcessGroupGloo._Options()  # noqa: SLF001 - the only way to name a device
        options._devices = [_c10d.ProcessGroupGloo.create_device(hostname=LOOPBACK)]  # noqa: SLF001
        options._timeout = PATIENCE  # noqa: SLF001
        self._group = _c10d.ProcessGroupGloo(store, self.rank, self.size, options)

    def all_reduce(self, x: Tensor, /) -> Tensor:
        """See `Communicator`; added in float32 and rounded once."""
        first, *others = self._exchange(x)
        total = first.float()
        for each in others:
            total = total + each
        return total.to(x.dtype)

    def all_gather(self, x: Tensor, /) -> Tensor:
        """See `Communicator`."""
        return torch.cat(self._exchange(x), dim=-1)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        found = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        self._group.allgather([found], [x.contiguous()]).wait()
        return found


def open_listener() -> tuple[socket.socket, int]:
    """A socket that only this machine can connect to, and its port, where the ranks meet."""
    listener = socket.create_server((LOOPBACK, 0))
    return listener, listener.getsockname()[1]
