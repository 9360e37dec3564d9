"""How kernels are launched: programmatic dependent launch, and what a device has to offer them.

With programmatic dependent launch (PDL, compute capability 9.0 and newer) a kernel starts while the one before it in the
stream still runs. It says `gdc_launch_dependents` first, so that its own successor may start as well, loads only what no
kernel of the same graph writes, says `gdc_wait`, which returns when the one before is done and its writes are
visible, and only then reads what that wrote. A kernel that was started early and does not wait breaks the chain for
all that follow, so every kernel of a PDL chain waits.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


def launch_options(pdl: bool) -> dict[str, Any]:
    """Launch arguments beside a kernel's own: only a GPU's launch knows PDL."""
    return {"launch_pdl": True} if pdl else {}


def supports_pdl(device: torch.device) -> bool:
    """True if the device can start a kernel before the one before it has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may have: 99 KiB to 227 KiB."""
    if device.type != "cuda":
        return 163 * 1024
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 99 * 1024))
