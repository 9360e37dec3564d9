"""Measures what the worst legal step allocates beside the workspace, so that serving never meets a full device.

Decoding and prefill compute in the workspace. What allocates is the shaping and scoring of logits: the worst step has
every row penalised, biased, restricted and scored, while a prompt is scored as well.
"""

from __future__ import annotations

import torch

from nanoserve.adapters.pytorch.cuda.workspace import Workspace
from nanoserve.adapters.pytorch.prompt_scoring import TOKENS_AT_ONCE
from nanoserve.adapters.pytorch.sampling import score_tensors
from nanoserve.adapters.pytorch.sampling.device_sampler import DeviceSampler
from nanoserve.ports.model_spec import ModelSpec
from nanoserve.ports.sampling import MAX_LOGPROBS
from nanoserve.ports.step import AdmittedRow, RowSampling

EVERYTHING = RowSampling(
    seed=0,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    logit_bias=((0, 1.0),),
    allowed_token_ids=(0, 1),
    bad_token_sequences=((0, 1),),
    min_tokens=1,
    held_back_ids=(1,),
    logprobs=MAX_LOGPROBS,
)


@torch.inference_mode()
def worst_step_bytes(spec: ModelSpec, space: Workspace, *, max_num_seqs: int) -> int:
    """The peak of device memory that such a step takes beyond what is allocated now.

    The counts behind penalties, which stay once they are there, are among it. Kernels allocate nothing, so that it
    makes no difference whether they run, or are only compiled ahead.
    """
    device = space.logits.device
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    shape_and_score(spec, space, max_num_seqs)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return peak


def shape_and_score(spec: ModelSpec, space: Workspace, max_num_seqs: int) -> None:
    """Do with logits what the worst step does."""
    sampler = DeviceSampler(vocab_size=spec.vocab_size, max_rows=max_num_seqs, device=space.logits.device)
    rows = tuple(range(max_num_seqs))
    for row in rows:
        sampler.admit(
            AdmittedRow(
                row=row,
                token_ids=(0,),
                num_prompt_tokens=1,
                num_computed_tokens=0,
                block_tables=(),
                sampling=EVERYTHING,
            )
        )
    prompt = space.logits.new_zeros(TOKENS_AT_ONCE, spec.vocab_size).float()
    predicted = torch.zeros(TOKENS_AT_ONCE, dtype=torch.int64, device=prompt.device)
    logits = space.logits.zero_()
    shaped = sampler.process(logits, rows)
    tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=logits.device)
    sampler.observe(rows, tokens)
    scores = sampler.score(logits, tokens, rows)
    prompt_scores = score_tensors(prompt, predicted, (MAX_LOGPROBS,) * TOKENS_AT_ONCE)
    del shaped, scores, prompt_scores
