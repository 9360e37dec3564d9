"""TRL, unmodified, over a real server: it trains an adapter, and its client asks all that needs no NCCL."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from nanoserve.adapters.embedded import model_folder
from tests.process.clients.trainers.stand_ins import write_vllm
from tests.process.server_process import ServerProcess, server_process

ROOT = pathlib.Path(__file__).parents[4]
STEPS = 30
CLOSE = 1e-4
LORAS = ("--max-loras", "4", "--max-lora-rank", "16", "--lora-dir")


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[ServerProcess]:
    """As docs/rl.md starts it; adapters go through the folder `policies`."""
    (tmp_path / "policies").mkdir()
    options = [
        "--steering",
        "--dtype",
        "float32",
        "--max-logprobs",
        "100",
        *LORAS,
        str(tmp_path / "policies"),
    ]
    with server_process(tmp_path, *options, "--device", "cpu", "--threads", "1") as started:
        started.wait_until_ready()
        yield started
        assert "Traceback" not in started.err.read_text()


def run(program: str, *arguments: str, folder: pathlib.Path) -> Any:
    """What a program with TRL prints last, as JSON."""
    found = {"PYTHONPATH": str(write_vllm(folder / "stand_ins")), "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [sys.executable, "-m", f"tests.process.clients.trainers.{program}", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **found}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def statuses(server: ServerProcess, path: str) -> Counter[int]:
    """How often each status was answered, by the log."""
    lines = [json.loads(line) for line in server.err.read_text().splitlines() if line.startswith("{")]
    return Counter(line["status"] for line in lines if line.get("path") == path)


def test_a_policy_is_trained_by_trl_and_every_sampled_logprob_is_the_trainers_own(
    server: ServerProcess, tmp_path: pathlib.Path
) -> None:
    folder = str(tmp_path / "policies")
    found = run("judged_run", str(model_folder()), server.url, folder, str(CLOSE), folder=tmp_path)
    differences = found["differences"]
    assert len(found["rewards"]) == STEPS
    assert found["learned"] > 0, "what was rewarded has become likelier"
    assert len(differences) >= STEPS * 8
    assert max(each for each, _ in differences) < CLOSE
    assert found["foreign"] > 100 * CLOSE, "the policies differ by much more than that"
    assert found["retries"] == 0
    asked = statuses(server, "/v1/completions")
    assert asked[200] >= len(differences)
    assert asked.keys() <= {200, 499}, "but for those that the trainer left at its end, each was answered"
    assert statuses(server, "/v1/load_lora_adapter") == {200: STEPS + 1}
    assert statuses(server, "/pause") == statuses(server, "/resume") == {200: STEPS + 1}


def test_trls_client_is_answered_in_all_that_needs_no_nccl(
    server: ServerProcess, tmp_path: pathlib.Path
) -> None:
    found = run("client_run", server.url, folder=tmp_path)
    assert found["world_size"] == 1
    assert found["dtype"] == "torch.float32"
    assert found["weight_transfer"] is None or isinstance(found["weight_transfer"], dict)
    assert found["reset"]
    plain, like = found["generated"], found["chatted"]
    assert [len(each) for each in plain["completion_ids"]] == [6, 6, 6, 6]
    assert plain["prompt_ids"] == found["prompts"]
    for made in (plain, like):
        for ids, scores, names in zip(
            made["completion_ids"], made["logprobs"], made["logprob_token_ids"], strict=True
        ):
            assert len(ids) == len(scores) == len(names)
            assert all(token in likely for token, likely in zip(ids, names, strict=True))
            assert all(each == sorted(each, reverse=True) for each in scores)
    assert found["sampled_only"] == [[[token] for token in ids] for ids in found["sampled_ids"]]
    assert found["unscored"] == [None, None]
    assert set(found["chosen"]) <= {"yes", "no"}
    scored = found["scored"]
    assert {len(each) for rows in scored["logprobs"] for each in rows} == {100}
    for actual, told in zip(scored["actual_logprobs"], found["told"], strict=True):
        assert [each for (each,) in actual] == pytest.approx(told, abs=1e-5)
