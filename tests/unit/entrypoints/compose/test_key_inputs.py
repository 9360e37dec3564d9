"""What keys are made of: an engine never reads blocks of one that computes them otherwise, and no input of keys is forgotten."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest

from nanoserve.adapters.pytorch.weights.identity import weights_digest
from nanoserve.domain.kv.key_inputs import (
    ENGINE_INPUTS,
    ENGINE_WITHOUT_EFFECT,
    fingerprint,
)
from nanoserve.domain.kv.names import hash_root
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.offload import key_facts
from nanoserve.ports import layer_spec, model_spec
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams
from tests.patience import wait_until
from tests.tiny_spec import TINY
from tests.unit.adapters.pytorch.tiny_models import make_prompt, make_tiny_model

WRITES = 18
"""Six whole blocks of each prompt."""
PROMPTS = [make_prompt(96, seed=each) for each in range(3)]
SIZES: dict[str, Any] = {
    "device": "cpu", "dtype": "float32", "num_kv_blocks": 40, "max_model_len": 128, "kv_offload_min_tokens": 16, "threads": 1,
}  # fmt: skip

REQUEST_INPUTS = {
    "prompt_token_ids": "hashed block by block behind the root, as are the tokens of the answer",
    "cache_salt": "not of keys, but of who may share them",
    "lora": "an adapter makes other keys; it counts by the digest of its numbers, which its name may lose to another one",
    "request_id": "the root where prompts share nothing, and the sequences of one request do",
}
"""Inputs of a request, beside its engine's."""
_ORDER = "which request comes first"
_CHOICE = "which token is drawn; its keys are those of the token"
_END = "when and how an answer ends and is reported"
REQUEST_WITHOUT_EFFECT = {
    **dict.fromkeys(("sampling", "seed", "bad_token_sequences", "constraint"), _CHOICE),
    **dict.fromkeys(("eos_token_ids", "unsearched_token_ids", "stream", "pooling", "routed_experts"), _END),
    **dict.fromkeys(("priority", "request_class", "deadline", "queue_timeout", "client"), _ORDER),
    "is_suspect": _ORDER,
    "begun": "counts as tokens, as if this engine had drawn them",
}


def tell(folder: Path, *, writes: int = 0, **more: Any) -> tuple[list[list[int]], int]:
    """What an engine says to each prompt, and the blocks that it has read from a folder; returns when it has written some, too."""
    engine = assemble_bench(EngineSettings(model=str(folder), **SIZES, **more)).engine
    answers: dict[str, list[int]] = {}
    for number, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(temperature=0.0, max_tokens=8)
        engine.add(Request(request_id=str(number), prompt_token_ids=tuple(prompt), sampling=sampling))
        while engine.has_work:
            for event in engine.turn():
                if isinstance(event, TokensGenerated):
                    answers.setdefault(event.request_id, []).extend(event.token_ids)
    if writes:
        wait_until(lambda: engine.state().tiers["disk"].stored == writes)
    tiers = engine.state().tiers
    return list(answers.values()), tiers["disk"].loaded if tiers else 0


def stamp(folder: Path) -> None:
    for each in folder.iterdir():
        os.utime(each, (1, 1))


def test_models_of_one_shape_whose_files_have_equal_sizes_and_times_share_no_blocks(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second", "blocks")]
    for seed, each in enumerate(folders[:2]):
        make_tiny_model(each, "llama", seed=seed)
        stamp(each)
    first, second, blocks = folders
    sizes = [sorted((each.name, each.stat().st_size) for each in folder.iterdir()) for folder in folders[:2]]
    assert sizes[0] == sizes[1]
    wanted, _ = tell(second)
    offload: dict[str, Any] = {"kv_offload_memory": 2**20, "kv_offload_dir": str(blocks)}
    tell(first, **offload)
    assert tell(second, writes=WRITES, **offload) == (wanted, 0)
    assert tell(second, **offload) == (wanted, 15)


def test_blocks_in_other_numbers_are_never_read(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    narrow: dict[str, Any] = {"kv_cache_dtype": "fp8"}
    make_tiny_model(folder, "llama")
    stamp(folder)
    wanted, _ = tell(folder, **narrow)
    offload: dict[str, Any] = {"kv_offload_memory": 2**20, "kv_offload_dir": str(tmp_path / "blocks")}
    plain, _ = tell(folder, writes=WRITES, **offload)
    assert plain != wanted
    assert tell(folder, writes=WRITES, **offload, **narrow) == (wanted, 0)
    assert tell(folder, **offload, **narrow) == (wanted, 15)
    assert tell(folder, **offload) == (plain, 15)


def facts(**changes: Any) -> dict[str, Any]:
    settings = {name: change for name, change in changes.items() if hasattr(EngineSettings, name)}
    found = Survey(spec=TINY, folder=None, device="cpu", dtype="float32")
    return key_facts(EngineSettings(**settings), found, threads=1, block_bytes=64) | changes


def test_whatever_an_engine_is_told_is_an_input_of_keys_or_listed_as_none() -> None:
    assert not ENGINE_INPUTS.keys() & ENGINE_WITHOUT_EFFECT.keys()
    assert ENGINE_INPUTS.keys() | ENGINE_WITHOUT_EFFECT.keys() == facts().keys()
    assert {each.name for each in attrs.fields(EngineSettings)} <= facts().keys()


def test_whatever_a_request_says_is_an_input_of_names_or_listed_as_none() -> None:
    assert not REQUEST_INPUTS.keys() & REQUEST_WITHOUT_EFFECT.keys()
    fields = {each.name for each in attrs.fields(Request)}
    assert REQUEST_INPUTS.keys() | REQUEST_WITHOUT_EFFECT.keys() == fields


@pytest.mark.parametrize("name", ENGINE_INPUTS)
def test_another_input_is_another_fingerprint(name: str) -> None:
    other = b"other" if name == "weights" else "other"
    assert fingerprint(facts(**{name: other})) != fingerprint(facts())


def test_what_changes_no_key_changes_no_fingerprint() -> None:
    assert fingerprint(facts() | dict.fromkeys(ENGINE_WITHOUT_EFFECT, "other")) == fingerprint(facts())
    assert fingerprint(facts() | {"a setting of tomorrow": 1}) != fingerprint(facts())


SPECS = [
    each
    for module in (layer_spec, model_spec)
    for each in vars(module).values()
    if attrs.has(each) and each.__module__ == module.__name__
]


@pytest.mark.parametrize("kind", SPECS)
def test_every_field_of_a_model_s_numbers_counts(kind: type) -> None:
    fields = attrs.fields(kind)
    values = {each.name.lstrip("_"): f"value of {each.name}" for each in fields}
    spec = kind(**values)
    for each in fields:
        other = attrs.evolve(spec, **{each.name: "other"})
        assert fingerprint(facts(spec=other)) != fingerprint(facts(spec=spec)), each.name


@pytest.mark.parametrize("isolated", [False, True])
def test_roots_differ_by_salt_alone_or_by_request_where_nothing_is_shared(isolated: bool) -> None:
    def root(*, caching: bool, n: int = 1, lora: bytes = b"", kept: str = "auto", **fields: Any) -> Any:
        asked = Request(prompt_token_ids=(1,), sampling=SamplingParams(n=n), **fields)
        return hash_root(asked, prefix_caching=caching, isolated=isolated, lora=lora, kept=kept)

    plain = root(caching=True, request_id="a")
    assert plain == root(caching=True, request_id="b", n=2, seed=7, priority=3)
    assert plain != root(caching=True, request_id="a", cache_salt="x")
    salts = ("", "x", b"x".hex())
    roots = [
        root(caching=True, request_id="a", cache_salt=salt, lora=lora, kept=kept)
        for salt in salts
        for lora in (b"", b"x", b"y")
        for kept in ("auto", "fp8")
    ]
    assert len(set(roots)) == len(roots)
    assert root(caching=False, request_id="a") is None
    assert root(caching=False, request_id="a", n=2) != root(caching=False, request_id="b", n=2)


def test_a_changed_model_is_another_one_and_a_hub_s_copy_the_same(tmp_path: Path) -> None:
    folder, blob = tmp_path / "model", tmp_path / ("ab" * 32)
    make_tiny_model(folder, "llama")
    file = folder / "model.safetensors"
    first = weights_digest(str(folder))
    assert weights_digest(str(folder)) == first
    os.utime(file, (1, 1))
    assert weights_digest(str(folder)) != first
    file.rename(blob)
    file.symlink_to(blob)
    first = weights_digest(str(folder))
    os.utime(blob, (2, 2))
    assert weights_digest(str(folder)) == first
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    os.utime(blob, (2, 2))
    assert weights_digest(str(folder)) != first
