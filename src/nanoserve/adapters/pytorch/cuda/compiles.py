"""Counts kernels that Triton prepares in the middle of serving, each of which keeps a whole batch waiting.

Triton compiles a kernel anew for each combination of constants, dtypes and divisibility of its arguments. All that
serving meets should be ready before it begins; what was forgotten costs one to several seconds when it first occurs, or,
where an earlier process has left it in Triton's cache on disk, some milliseconds to load. Triton tells a listener of both
and of which it is. It does not tell of kernels that are in memory already, nor when they are interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
from triton import knobs

MICROSECONDS: Final = 1e6


@attrs.frozen(kw_only=True)
class LateCompile:
    """A kernel that was not ready when serving needed it.

    Attributes:
        from_disk: it was loaded from the cache on disk, not compiled.
        seconds: how long that took.
    """

    kernel: str
    from_disk: bool
    seconds: float


class CompileCounter:
    """Listens to Triton from `start` to `stop`, beside whoever listened before.

    Attributes:
        late: kernels prepared since `start`, compiled and loaded together.
        late_from_disk: those of them that were only loaded.
    """

    def __init__(self, report: Callable[[LateCompile], None] | None = None) -> None:
        """`report` is told of each kernel's first late variant, in the thread that waits for it."""
        self.late = 0
        self.late_from_disk = 0
        self._report = report
        self._reported: set[str] = set()
        self._counting = False
        self._installed = False
        self._earlier: Callable[..., None] | None = None
        self._listener = self._listen

    def start(self) -> None:
        """From now on whatever Triton prepares comes late."""
        self._counting = True
        if not self._installed:
            self._earlier = knobs.compilation.listener
            knobs.compilation.listener = self._listener
            self._installed = True

    def stop(self) -> None:
        """Count no more; the listener stays, silent, where someone else has put theirs before it."""
        self._counting = False
        if knobs.compilation.listener is self._listener:
            knobs.compilation.listener = self._earlier
            self._installed = False

    def _listen(self, *, src: Any, times: Any, cache_hit: bool, **named: Any) -> None:
        if self._counting:
            self.late += 1
            self.late_from_disk += cache_hit
            name = str(src.name)
            if self._report is not None and name not in self._reported:
                self._reported.add(name)
                self._report(
                    LateCompile(kernel=name, from_disk=cache_hit, seconds=times.total / MICROSECONDS)
                )
        if self._earlier is not None:
            self._earlier(src=src, times=times, cache_hit=cache_hit, **named)
