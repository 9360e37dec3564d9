"""vLLM's offline engine on the prompts of a benchmark: a program, see the package.

A shape becomes a folder that holds nothing but its config, loaded with dummy weights and without a tokenizer. Requests
carry no seeds: vLLM samples faster without them.
"""

from __future__ import annotations

import importlib
import tempfile
from typing import Any

from benchmarks.peers.job import Generate, PeerJob, PeerLoad, serve
from benchmarks.peers.shape_config import config_of


def open_model(job: PeerJob) -> Generate:
    """Start the engine, as it sets itself up by default for this device."""
    vllm: Any = importlib.import_module("vllm")
    options = {"load_format": "dummy"} if job.folder is None else {}
    engine = vllm.LLM(
        model=job.folder or _config_folder(job),
        dtype=job.dtype,
        max_model_len=job.max_model_len,
        max_num_seqs=job.max_num_seqs,
        skip_tokenizer_init=True,
        **options,
    )

    def generate(load: PeerLoad) -> int:
        params = [
            vllm.SamplingParams(
                **job.sampling,
                max_tokens=wanted,
                ignore_eos=True,
                detokenize=False,
            )
            for wanted in load.output_lengths
        ]
        prompts = [{"prompt_token_ids": list(prompt)} for prompt in load.prompts]
        outputs = engine.generate(prompts, params, use_tqdm=False)
        return sum(len(answer.token_ids) for output in outputs for answer in output.outputs)

    return generate


def _config_folder(job: PeerJob) -> str:
    folder = tempfile.mkdtemp(prefix="nanoserve-shape-")
    config = config_of(job.shape)
    config.architectures = [f"{config.__class__.__name__.removesuffix('Config')}ForCausalLM"]
    config.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    serve("vllm", open_model)
