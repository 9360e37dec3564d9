"""`transformers.generate` on the prompts of a benchmark: a program, see the package.

Prompts of equal length make one batch. Others are padded on the left, in batches sorted by the length of their
answers so that little is computed in vain; a batch runs as long as its longest answer, and only the tokens that were
asked for count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final, cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.peers.job import Generate, PeerJob, PeerLoad, serve
from benchmarks.peers.shape_config import config_of
from nanoserve.ports.sampling import PARAMETERS

PADDED_BATCH: Final = 64
"""Prompts of unequal lengths at once."""
PAD: Final = 0
_TRIAL: Final = PeerLoad([[1] * 8], [8])


def open_model(job: PeerJob) -> Generate:
    """Load the model or make one of the shape, on the device."""
    if job.device == "cpu" and job.threads is not None:
        torch.set_num_threads(job.threads)
    model = _model(job).eval()
    model.generation_config.eos_token_id = None
    choices = _choices(job)

    @torch.inference_mode()
    def generate(load: PeerLoad) -> int:
        return sum(_generate(model, batch, choices, job.device) for batch in _batches(load, job.max_num_seqs))

    if job.device == "cpu" and job.tries_threads:
        _choose_threads(generate)
    return generate


def _choose_threads(generate: Generate) -> None:
    """Keep all threads, or one where a small model or a busy machine makes that faster."""
    taken: dict[int, float] = {}
    for count in (torch.get_num_threads(), 1):
        torch.set_num_threads(count)
        generate(_TRIAL)
        began = time.monotonic()
        generate(_TRIAL)
        taken[count] = time.monotonic() - began
    torch.set_num_threads(min(taken, key=lambda count: taken[count]))


def _model(job: PeerJob) -> Any:
    dtype, auto_model = getattr(torch, job.dtype), cast("Any", AutoModelForCausalLM)
    if job.folder is not None:
        return auto_model.from_pretrained(job.folder, dtype=dtype).to(job.device)
    torch.manual_seed(0)
    with torch.device(job.device):
        return auto_model.from_config(config_of(job.shape), dtype=dtype)


def _choices(job: PeerJob) -> dict[str, Any]:
    """The sampling parameters in transformers' words; where ours say nothing, it must not fall back on its own."""
    off = dict.fromkeys(job.sampling)
    temperature = job.sampling["temperature"]
    if temperature == 0:
        return {"do_sample": False, **off}
    on = {name: value for name, value in job.sampling.items() if value != PARAMETERS[name].default}
    return {"do_sample": True, **off, **on, "temperature": temperature}


def _batches(load: PeerLoad, most: int) -> Iterator[PeerLoad]:
    order = list(range(len(load.prompts)))
    if len({*map(len, load.prompts)}) > 1 or len({*load.output_lengths}) > 1:
        order.sort(key=lambda index: load.output_lengths[index])
        most = min(most, PADDED_BATCH)
    for start in range(0, len(order), most):
        part = order[start : start + most]
        yield PeerLoad(
            [load.prompts[index] for index in part], [load.output_lengths[index] for index in part]
        )


def _generate(model: Any, batch: PeerLoad, choices: dict[str, Any], device: str) -> int:
    ids, mask = _padded(batch, device)
    length = max(batch.output_lengths)
    out = model.generate(
        ids,
        attention_mask=mask,
        min_new_tokens=length,
        max_new_tokens=length,
        pad_token_id=PAD,
        **choices,
    )
    generated: list[list[int]] = out[:, ids.shape[1] :].tolist()
    return sum(len(row[:wanted]) for row, wanted in zip(generated, batch.output_lengths, strict=True))


def _padded(batch: PeerLoad, device: str) -> tuple[Tensor, Tensor]:
    """Ids and mask, [rows, longest prompt] each."""
    longest = max(map(len, batch.prompts))
    ids = [[PAD] * (longest - len(prompt)) + list(prompt) for prompt in batch.prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch.prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


if __name__ == "__main__":
    serve("transformers", open_model)
