"""Compiles kernels before serving, and counts those that Triton compiles while serving, each of which delays a batch.

Triton compiles a kernel again for each combination of constants, dtypes and divisibility of its arguments. All combinations that serving uses should be ready
before it begins; what was forgotten costs one to several seconds when it first occurs, or, where an earlier process has left it in Triton's cache on disk, some
milliseconds to load. Triton reports both to a listener, but not kernels that are in memory already, nor when they are interpreted.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from triton import AsyncCompileMode, knobs
from triton.runtime.cache import get_cache_manager
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from nanoserve.adapters.pytorch.cuda.compilers import Compilers, started_compilers
from nanoserve.adapters.pytorch.parallel.communicator import ALONE, Communicator


class _CompileWhole(AsyncCompileMode):  # type: ignore[misc]
    """Compiles the host's half of each kernel as well, the C code that launches it.

    Left to the first launches, a compiler would be called for each list of arguments, one after the other. Ranks have a cache on
    disk in common: each compiles its share first, and then finds most of the other kernels there.
    """

    def __init__(
        self,
        now: ThreadPoolExecutor,
        later: ThreadPoolExecutor,
        ranks: Communicator,
        compilers: Compilers | None = None,
    ) -> None:
        super().__init__(now, ignore_errors=True)
        self._now, self._later, self._ranks, self._has_share = now, later, ranks, threading.Event()
        self._compilers, self._order = compilers, dict[str, Any]()
        self._promised: list[tuple[dict[Any, Any], Any]] = []

    def note(self, *, key: Any, fn: Any, compile: dict[str, Any], **_: Any) -> None:  # noqa: A002 - Triton's name
        """Triton's hook: a kernel that its function has not loaded is about to be submitted."""
        target, function = driver.active.get_current_target(), fn.jit_function
        self._promised.append((function.device_caches[compile["device"]][0], key))
        self._order = {"module": fn.module, "name": fn.name, "key": function.cache_key}
        self._order["target"] = target.backend, target.arch, target.warp_size
        self._order["specialization"] = compile["specialization_data"]

    def submit(self, key: Any, compile_fn: Callable[[], Any], finalize_fn: Callable[[Any], None]) -> Any:
        is_own = zlib.crc32(str(key).encode()) % self._ranks.size == self._ranks.rank
        self.executor = self._now if is_own else self._later
        order = self._order

        def compile_both() -> Any:
            if not is_own:
                self._has_share.wait()
            if self._compilers is not None and not _is_kept(key, order["name"]):
                self._compilers.compile(order)
            kernel = compile_fn()
            with contextlib.suppress(Exception):  # the launch will raise it
                driver.active.launcher_cls(kernel.src, kernel.metadata)
            return kernel

        submitted = super().submit(key, compile_both, finalize_fn)
        for loaded, place in self._promised[-1:]:
            loaded[place] = submitted  # so that the same launch again finds it at once, in Triton 3.6, too
        return submitted

    def __enter__(self) -> Any:
        knobs.runtime.jit_cache_hook = self.note
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        knobs.runtime.jit_cache_hook = None
        for loaded, place in self._promised:
            loaded.pop(place, None)
        self._now.shutdown()
        self._has_share.set()
        super().__exit__(*error)


def _is_kept(key: str, name: str) -> bool:
    """True if Triton's cache on disk has the kernel."""
    kept = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    return bool(kept.has_file(f"__grp__{name}.json"))


@contextlib.contextmanager
def compiling_ahead(num_threads: int, ranks: Communicator = ALONE) -> Iterator[None]:
    """Compile the kernels that are launched inside, by several threads, and run none; returns when all are compiled.

    One kernel after the other takes 0.3 to 0.5 seconds each. Threads alone take turns for much of that: where the process has compilers,
    each has one of them do it, and loads the result. A launch inside only hands its kernel to a thread, so code that is rehearsed anyway, and may compute nonsense meanwhile, says by itself what there is to compile. A kernel that does not compile is left to whoever launches it next, who can say what it was for.
    """
    launch = JITFunction.run

    def compile_only(self: Any, *arguments: Any, warmup: bool, **named: Any) -> Any:
        del warmup
        return launch(self, *arguments, warmup=True, **named)

    JITFunction.run = compile_only
    try:
        now, later = ThreadPoolExecutor(num_threads), ThreadPoolExecutor(num_threads)
        with started_compilers() as compilers, now, later, _CompileWhole(now, later, ranks, compilers):
            yield
    finally:
        JITFunction.run = launch


class CompileCounter:
    """Listens to Triton from `start` on, beside whatever listened before.

    Attributes:
        late: kernels prepared since `start`, compiled or loaded from the cache on disk.
    """

    def __init__(self) -> None:
        self.late = 0
        self._earlier: Callable[..., None] | None = None

    def start(self) -> None:
        """From now on whatever Triton prepares comes late; called once."""
        self._earlier, knobs.compilation.listener = knobs.compilation.listener, self._listen

    def _listen(self, **named: Any) -> None:
        self.late += 1
        if self._earlier is not None:
            self._earlier(**named)
