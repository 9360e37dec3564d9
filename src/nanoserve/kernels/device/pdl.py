"""Programmatic dependent launch (PDL) of CUDA: kernels that overlap.

From compute capability 9.0 on a kernel may be launched so that it starts while the one before it in the
stream still runs. It says `let_next_start` first, so that its own successor may start as well, loads only what no
kernel of the same graph writes, says `wait_for_last`, which returns when the one before is done and its writes are
visible, and only then reads what that wrote. A kernel that was started early and does not wait breaks the chain for
all that follow, so every kernel of a PDL chain waits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """Let the next kernel of a PDL chain begin."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_last(PDL: tl.constexpr):
    """Wait for the last kernel of a PDL chain before this one."""
    if PDL:
        tl.extra.cuda.gdc_wait()
