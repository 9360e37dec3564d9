"""Offload from the settings down: answers are those of an engine without, and a second start finds what the first has written."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from nanoserve.adapters.kv_directory import block_file, directory
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.offload import count_slots
from nanoserve.entrypoints.offline import LLM, SamplingParams
from nanoserve.ports.errors import BadValueError
from tests.patience import PATIENCE, wait_until
from tests.tiny_spec import TINY, tiny_spec

STORY = "Once upon a time there was a little fox who lived near the river and "
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


def tell(llm: LLM) -> list[Any]:
    """The same story twice, and each time others that displace it."""
    said: list[Any] = []
    for number in range(2):
        said += llm.generate([STORY * 8], GREEDY)
        for name in ("A dog", "A cat", "Mum"):
            said += llm.generate([f"{number} {name} {STORY * 12}"], GREEDY)
    return [each.outputs[0].token_ids for each in said]


def test_answers_are_those_of_an_engine_without_and_a_later_start_finds_the_blocks(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"num_kv_blocks": 25, "max_model_len": 384, "kv_offload_min_tokens": 16}
    with LLM(**sizes) as plain:
        wanted = tell(plain)
    tiers: list[Any] = []
    for _ in range(2):
        with LLM(**sizes, kv_offload_memory="16MiB", kv_offload_dir=str(tmp_path), paranoid=True) as llm:
            assert tell(llm) == wanted
            engine = llm._open_session.assembly.engine
            while engine.state().tiers["disk"].held < 73:
                engine.turn()
            tiers.append(engine.state().tiers)
    first, second = tiers
    assert first["host"].loaded == 7
    assert first["disk"].loaded == 0
    assert second["disk"].loaded > 10
    assert second["disk"].held > first["disk"].held // 2


def test_a_folder_that_hangs_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, Any] = {"num_kv_blocks": 25, "max_model_len": 384, "kv_offload_min_tokens": 16}
    offload: dict[str, Any] = {
        "kv_offload_memory": "16MiB",
        "kv_offload_dir": str(tmp_path),
        "paranoid": True,
    }
    with LLM(**sizes, **offload) as llm:
        wanted = tell(llm)

    def hang(*_: object) -> bool:
        hanging.append(answers.wait(PATIENCE))
        return False

    answers, hanging = threading.Event(), list[bool]()
    monkeypatch.setattr(block_file, "read_block", hang)
    with LLM(**sizes, **offload) as llm:
        assert tell(llm) == wanted
        disk = llm._open_session.assembly.engine.state().tiers["disk"]
    assert disk.loaded == 0
    assert disk.refused >= 4
    assert hanging == []
    answers.set()
    wait_until(lambda: len(hanging) == directory.READERS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_offload_memory": None, "kv_offload_dir": "x"}, "kv_offload_dir: needs --kv-offload-memory"),
        ({"kv_offload_memory": 10}, "at least one block of"),
        ({"kv_offload_memory": 2**60}, "free"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"enable_prefix_caching": False}, "prefix caching is off"),
        ({"draft": "head"}, "kv_offload_memory: cannot be combined with tensor_parallel_size or draft yet"),
    ],
)
def test_what_cannot_be_offloaded_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    found = Survey(spec=TINY, folder=None, device="cpu", dtype="float32")
    with pytest.raises(BadValueError, match=message):
        count_slots(EngineSettings(**({"kv_offload_memory": 2**20} | settings)), found)


def test_a_model_with_windows_is_refused_by_name() -> None:
    found = Survey(spec=tiny_spec(windows=(None, 8)), folder=None, device="cpu", dtype="float32")
    with pytest.raises(BadValueError, match=r"kv_offload_memory: .*window"):
        count_slots(EngineSettings(kv_offload_memory=2**20), found)
