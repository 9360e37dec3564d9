"""Memory of a process that computes in itself, as the system counts it: given back while it sleeps, and flat over many cycles."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
import transformers

from nanoserve.adapters.embedded import model_folder

PROGRAM = """
import gc, json, pathlib, sys
from nanoserve.entrypoints.offline import LLM
from nanoserve.ports.sampling import SamplingParams

def resident():
    gc.collect()
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

def main():
    llm = LLM(sys.argv[1], device="cpu", dtype="float32", kv_memory="8MiB", max_model_len=512, max_num_seqs=16)
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    prompts = [[(7 * row + place) % 90 + 4 for place in range(500)] for row in range(4)]
    def first():
        found = llm.generate([{"prompt_token_ids": each} for each in prompts], params, use_tqdm=False)
        return [each.outputs[0].token_ids[0] for each in found]
    before = first()
    full = resident()
    llm.sleep(2)
    asleep = resident()
    llm.wake_up()
    again = first()
    engine = llm._open_session.assembly.engine
    kv = sum(pool.untyped_storage().nbytes() for pools in engine._runner.kv.pools for pool in pools)
    weights = sum(each.numel() * 4 for each in engine._runner._model.parameters())
    prompts, levels = [each[:40] for each in prompts[:1]], []
    before, is_equal = first(), before == again
    for cycle in range(int(sys.argv[2])):
        llm.sleep(1 + cycle % 2)
        llm.wake_up()
        assert first() == before
        levels.append(resident())
    print(json.dumps([full, asleep, kv, weights, is_equal, levels]))

main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("cycles", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_memory_of_weights_and_cache_is_given_back_in_every_cycle(
    tmp_path: pathlib.Path, cycles: int
) -> None:
    config = transformers.AutoConfig.from_pretrained(model_folder())
    for name, value in {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6}.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    made: Any = transformers.AutoModelForCausalLM
    made.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    for each in pathlib.Path(model_folder()).iterdir():
        if not (tmp_path / each.name).exists():
            (tmp_path / each.name).write_bytes(each.read_bytes())
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(cycles)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    full, asleep, kv, weights, is_equal, levels = json.loads(done.stdout.splitlines()[-1])
    assert full - asleep >= 0.8 * (kv + weights), (full, asleep, kv, weights)
    assert is_equal
    assert max(levels[cycles // 2 :]) - max(levels[: cycles // 2]) < 8 << 20, levels
