"""Runs the checks, judges their results, and names a wrong kernel and what to do about it."""

from __future__ import annotations

import collections
import contextlib
import platform
from typing import Final

import torch
import triton
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.self_test import checks
from nanoserve.adapters.pytorch.kernel_checks import Bench, Check
from nanoserve.kernels.testing import Comparison
from nanoserve.ports.errors import ModelLoadError, OutOfMemoryError

TOLERANCES: Final = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""By the model's dtype, the largest norm (Frobenius) of the difference, relative to the norm of the reference."""
SINGLE: Final = 8
"""Times the tolerance that one element may be off, relative to its own size plus the root mean square of all."""


def measure(comparison: Comparison) -> Tensor:
    """Float32 [2] on the device: the error of all elements and that of the worst one; NaN where a result is NaN.

    Raises:
        ValueError: the results have different shapes.
    """
    if comparison.got.shape != comparison.wanted.shape:
        raise ValueError(f"{tuple(comparison.got.shape)} is compared with {tuple(comparison.wanted.shape)}")
    if comparison.exact:
        differing = (comparison.got != comparison.wanted).float()
        return torch.stack((differing.mean(), differing.max()))
    wanted = comparison.wanted.float().flatten()
    difference = (comparison.got.float().flatten() - wanted).abs()
    size = wanted.norm()
    rms = size / len(wanted) ** 0.5
    smallest = torch.finfo(torch.float32).tiny
    whole = difference.norm() / size.clamp(min=smallest)
    return torch.stack((whole, (difference / (rms + wanted.abs()).clamp(min=smallest)).max()))


def limits(comparison: Comparison, dtype: torch.dtype) -> tuple[float, float]:
    """The limits of the two numbers of `measure`, for a model of this dtype."""
    return (0.0, 0.0) if comparison.exact else (TOLERANCES[dtype], SINGLE * TOLERANCES[dtype])


@torch.inference_mode()
def rehearse_checks(bench: Bench) -> None:
    """Launch the checks' kernels without comparing; a failure here fails again, by name, when it is checked."""
    for check in checks.CHECKS:
        if check.when(bench):
            with contextlib.suppress(Exception):
                collections.deque(check.run(bench), maxlen=0)


@torch.inference_mode()
def check_kernels(bench: Bench) -> None:
    """Compare every kernel that serving the bench's model launches with its reference.

    Takes well below a second once the kernels are compiled.

    Raises:
        ModelLoadError: a kernel computes something else, or does not compile or run; named in the message.
        OutOfMemoryError: there is no room for the inputs.
    """
    for check in checks.CHECKS:
        if check.when(bench):
            _run(check, bench)


def _run(check: Check, bench: Bench) -> None:
    try:
        measured = [(each.case, limits(each, bench.inputs.dtype), measure(each)) for each in check.run(bench)]
        if not measured:
            return
        errors = torch.stack([each for _, _, each in measured]).tolist()  # waits for the device
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"no memory is left beside the weights to test the kernel {check.kernel}: {error}"
        ) from error
    except Exception as error:
        problem = f"does not compile or run: {type(error).__name__}: {error}"
        raise ModelLoadError(_message(check, bench, problem)) from error
    for (case, allowed, _), found in zip(measured, errors, strict=True):
        if not all(error <= limit for error, limit in zip(found, allowed, strict=True)):
            problem = (
                f"computes something else than its reference ({case}): the relative error is {found[0]:.2g}, "
                f"{found[1]:.2g} at the worst element; allowed are {allowed[0]:.2g} and {allowed[1]:.2g}"
            )
            raise ModelLoadError(_message(check, bench, problem))


def _message(check: Check, bench: Bench, problem: str) -> str:
    device, dtype = bench.inputs.device, bench.inputs.dtype
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return (
        f"the GPU kernel {check.kernel} {problem}. Serving with it would give wrong text, so nothing is served. "
        f"Please report this message: {where}, {dtype}, torch {torch.__version__}, "
        f"triton {triton.__version__}. What may help is another version of triton or of the GPU's driver; "
        "`--device cpu` serves without these kernels. `--enforce-eager` does not help: it launches the same ones."
    )
