"""Runs the checks, and says which kernel is wrong and what to do about it."""

from __future__ import annotations

import collections
import contextlib
import platform
from typing import Final

import torch
import triton

from nanoserve.adapters.pytorch.cuda.self_test import attention, pointwise, products, sampling
from nanoserve.adapters.pytorch.cuda.self_test.bench import Bench
from nanoserve.adapters.pytorch.cuda.self_test.comparison import Check, limits, measure
from nanoserve.ports.errors import ModelLoadError, OutOfMemoryError


def _fastest(bench: Bench) -> bool:
    return not bench.deterministic


def _deterministic(bench: Bench) -> bool:
    return bench.deterministic


CHECKS: Final = (
    Check(kernel="scatter_runs", run=pointwise.check_scatter_runs),
    Check(kernel="embed_newest", run=pointwise.check_embed_newest),
    Check(kernel="embed_tokens", run=pointwise.check_embed_tokens),
    Check(kernel="add_rms_norm_into", run=pointwise.check_add_rms_norm),
    Check(kernel="silu_mul_into", run=pointwise.check_silu_mul),
    Check(kernel="row_linear", run=products.check_row_linear, when=_fastest),
    Check(kernel="skinny_linear", run=products.check_skinny_linear, when=_fastest),
    Check(kernel="split_linear", run=products.check_split_linear, when=_fastest),
    Check(kernel="invariant_linear", run=products.check_invariant_linear, when=_deterministic),
    Check(kernel="rope_and_cache", run=attention.check_rope_and_cache),
    Check(kernel="prefill_attention", run=attention.check_prefill_attention),
    Check(kernel="decode_attention", run=attention.check_decode_attention, when=_fastest),
    Check(kernel="rope_and_cache_newest", run=attention.check_rope_and_cache_newest, when=_deterministic),
    Check(
        kernel="prefill_attention_newest", run=attention.check_prefill_attention_newest, when=_deterministic
    ),
    Check(kernel="sample_and_append", run=sampling.check_sample_and_append),
    Check(kernel="apply_penalties", run=sampling.check_apply_penalties),
    Check(kernel="count_tokens", run=sampling.check_count_tokens),
    Check(kernel="token_logprobs", run=sampling.check_token_logprobs),
)
"""Every kernel that serving may launch. A new one gets a line here; what shall be tried first comes first."""


@torch.inference_mode()
def rehearse_checks(bench: Bench) -> None:
    """Launch what the checks launch and look at nothing; what fails here fails again, by name, when it is checked."""
    for check in CHECKS:
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
    for check in CHECKS:
        if check.when(bench):
            _run(check, bench)


def _run(check: Check, bench: Bench) -> None:
    try:
        measured = [(each.case, limits(each, bench.dtype), measure(each)) for each in check.run(bench)]
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
    on_gpu = bench.device.type == "cuda"
    where = torch.cuda.get_device_name(bench.device) if on_gpu else platform.machine()
    return (
        f"the GPU kernel {check.kernel} {problem}. Serving with it would give wrong text, so nothing is served. "
        f"Please report this message: {where}, {bench.dtype}, torch {torch.__version__}, "
        f"triton {triton.__version__}. What may help is another version of triton or of the GPU's driver; "
        "`--device cpu` serves without these kernels. `--enforce-eager` does not help: it launches the same ones."
    )
