"""LMDeploy's PyTorch engine on the prompts of a benchmark: a program, see the package.

It takes only folders with weights and a tokenizer, which `benchmarks.random_model` writes. Prefixes are cached, as here. What
ours leaves alone in sampling stays LMDeploy's own default: of the vocabulary it draws from the 50 most likely, because all of it
would be sorted in each step.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from benchmarks.peers.job import Generate, PeerJob, PeerLoad, serve
from nanoserve.ports.sampling import PARAMETERS


def open_model(job: PeerJob) -> Generate:
    """Start the engine, as it sets itself up by default for this device, in an event loop of its own."""
    if job.folder is None:
        raise SystemExit("lmdeploy makes no weights of a shape: write a folder with benchmarks.random_model")
    lmdeploy: Any = importlib.import_module("lmdeploy")
    config = lmdeploy.PytorchEngineConfig(
        dtype=job.dtype,
        session_len=job.max_model_len,
        max_batch_size=job.max_num_seqs,
        enable_prefix_caching=True,
    )
    loop = asyncio.new_event_loop()
    engine: Any = importlib.import_module("lmdeploy.pytorch.engine").Engine.from_pretrained(
        job.folder, engine_config=config
    )
    changed = {name: value for name, value in job.sampling.items() if value != PARAMETERS[name].default}
    changed["temperature"] = job.sampling["temperature"]

    async def count_tokens(number: int, prompt: list[int], wanted: int) -> int:
        choices = lmdeploy.GenerationConfig(max_new_tokens=wanted, ignore_eos=True, **changed)
        pieces = engine.create_instance().async_stream_infer(number, prompt, gen_config=choices)
        return sum([len(piece.token_ids) async for piece in pieces])

    async def generate_all(load: PeerLoad) -> int:
        asked = zip(map(list, load.prompts), load.output_lengths, strict=True)
        return sum(await asyncio.gather(*(count_tokens(number, *each) for number, each in enumerate(asked))))

    return lambda load: loop.run_until_complete(generate_all(load))


if __name__ == "__main__":
    serve("lmdeploy", open_model)
