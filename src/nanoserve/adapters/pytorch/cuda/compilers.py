"""Processes that compile kernels into Triton's cache on disk: threads of one process take turns, as much of Triton's compiler is Python.

`python -m nanoserve.adapters.pytorch.cuda.compilers SOCKET...` imports the kernels while its parent imports, reads weights and plans memory. At the first order it
copies itself for each socket. To import this file loads neither torch nor Triton.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen(eq=False)
class Compilers:
    """The parent's end: the process that the others are copies of, and the connections to those that are `idle`."""

    process: subprocess.Popen[bytes]
    idle: queue.SimpleQueue[socket.socket] = attrs.field(factory=queue.SimpleQueue)

    def compile(self, order: Mapping[str, Any]) -> None:
        """Have a kernel compiled; returns when it is in the cache, or will not be."""
        connection = self.idle.get()
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps(order).encode() + b"\n")
            connection.recv(1)
        self.idle.put(connection)

    def end(self) -> None:
        """Let them end by themselves; none is at work."""
        while not self.idle.empty():
            self.idle.get().close()
        threading.Thread(target=self.process.wait, daemon=True).start()


_started: list[Compilers] = []


def start_compilers(count: int) -> None:
    """Let a process import what kernels need, to be `count` of them when this one builds a runner; none where the machine refuses."""
    if _started:
        return
    pairs = [socket.socketpair() for _ in range(count)]
    theirs = [their.fileno() for _, their in pairs]
    command = [sys.executable, "-P", "-m", __name__, *map(str, theirs)]
    quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with contextlib.suppress(OSError):
        started = Compilers(subprocess.Popen(command, pass_fds=theirs, **quiet))  # noqa: S603 - our own program
        for ours, their in pairs:
            their.close()
            started.idle.put(ours)
        _started.append(started)
    threading.Thread(target=_hash_triton, daemon=True).start()


@contextlib.contextmanager
def started_compilers() -> Iterator[Compilers | None]:
    """Those of this process, which end with the context, but not where it fails: another try may follow."""
    yield _started[0] if _started else None
    while _started:
        _started.pop().end()


def _hash_triton() -> None:
    """Triton keeps the hash of its own files, which is part of every kernel's key and takes a third of a second."""
    with contextlib.suppress(ImportError):
        from triton.runtime.cache import triton_key  # noqa: PLC0415 - by threads, and in processes that compile

        triton_key()


def main(sockets: Sequence[socket.socket]) -> None:
    """Import, wait for the first order, and be one process for each socket until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's, at a terminal
    from nanoserve.adapters.pytorch.cuda import self_test as _  # noqa: F401, PLC0415 - every kernel there is

    _hash_triton()
    first = select.select(sockets, [], [])[0][0]
    for each in sockets if first.recv(1, socket.MSG_PEEK) else ():
        if os.fork() == 0:
            for other in sockets:
                if other is not each:  # the end of its process would not be seen
                    other.close()
            _obey(each)
            os._exit(0)
    for each in sockets:
        each.close()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _obey(connection: socket.socket) -> None:
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415 - as above
    from triton.backends.nvidia.driver import CudaDriver, CudaLauncher  # noqa: PLC0415
    from triton.runtime import driver  # noqa: PLC0415

    class NoGpu(CudaDriver):  # type: ignore[misc]
        """The driver of a GPU that this process does not touch."""

        launcher_cls = CudaLauncher

        def __init__(self, target: Sequence[Any]) -> None:
            self.get_current_target = lambda: GPUTarget(*target)
            self.get_current_device = lambda: 0

    for line in connection.makefile("rb"):
        order = json.loads(line)
        driver.set_active(NoGpu(order["target"]))
        with contextlib.suppress(Exception):  # whoever launches the kernel will raise it
            function = getattr(importlib.import_module(order["module"]), order["name"])
            function.cache_key  # noqa: B018 - looks at all that the function calls
            function.hash = order["key"]  # it depends on which functions a process has looked at before
            kernel = function.preload(order["specialization"])
            driver.active.launcher_cls(kernel.src, kernel.metadata)
        connection.sendall(b".")


if __name__ == "__main__":
    main([socket.socket(fileno=int(each)) for each in sys.argv[1:]])
