"""What is decided where the settings leave it open."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from nanoserve.adapters.huggingface.draft_head import own_draft
from nanoserve.entrypoints.compose import choices, process
from nanoserve.entrypoints.compose.bootstrap import assemble_for_verification
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.process import SPIN_COUNT, prepare_process
from nanoserve.entrypoints.compose.shapes import SHAPES
from nanoserve.ports.engine_facts import EngineFacts, EngineSizes
from nanoserve.ports.errors import BadValueError, OutOfMemoryError
from nanoserve.ports.layer_spec import DeltaSpec
from tests.unit.entrypoints.scripted_world import SPEC

SIZES = EngineSizes(
    max_num_seqs=3,
    max_num_batched_tokens=30,
    max_model_len=64,
    vocab_size=50,
    block_size=8,
    num_blocks=(9,),
)


@pytest.mark.parametrize(
    ("asked", "checkpoint", "hardware", "device", "chosen"),
    [
        ("auto", "bfloat16", True, "cpu", "bfloat16"),
        ("auto", "bfloat16", False, "cpu", "float32"),
        ("auto", "float16", True, "cpu", "float32"),
        ("auto", "float32", True, "cpu", "float32"),
        ("bfloat16", "float32", False, "cpu", "bfloat16"),
        ("auto", "bfloat16", False, "cuda", "bfloat16"),
        ("auto", "float16", False, "cuda", "float16"),
        ("auto", "float32", True, "cuda", "float32"),
        ("auto", "float64", True, "cuda", "float32"),
        ("float32", "bfloat16", True, "cuda", "float32"),
    ],
)
def test_the_dtype_follows_checkpoint_and_device(
    asked: str, checkpoint: str, *, hardware: bool, device: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "has_bfloat16", lambda: hardware)
    spec = attrs.evolve(SPEC, dtype=checkpoint)
    assert choices.choose_dtype(EngineSettings(dtype=asked), spec, device) == chosen


@pytest.mark.parametrize(
    ("settings", "obstacle", "device"),
    [
        (EngineSettings(), None, "cuda"),
        (EngineSettings(), "no GPU", "cpu"),
        (EngineSettings(device="cpu"), None, "cpu"),
        (EngineSettings(device="cuda", deterministic=True), None, "cuda"),
        (EngineSettings(quantization="int8"), "no GPU", "cpu"),
        (EngineSettings(quantization="fp8"), None, "cuda"),
        (EngineSettings(quantization="int4"), None, "cuda"),
        (EngineSettings(quantize_head="int8"), None, "cuda"),
    ],
)
def test_the_gpu_is_taken_where_there_is_one(
    settings: EngineSettings, obstacle: str | None, device: str
) -> None:
    assert choices.choose_device(settings, lambda: obstacle, lambda: 2) == device


@pytest.mark.parametrize(
    ("settings", "obstacle", "message"),
    [
        (EngineSettings(device="cuda"), "no GPU", "device: cuda cannot be used: no GPU"),
        (
            EngineSettings(quantization="int8"),
            None,
            "quantization: int8 is not available on a GPU; leave it out, or take fp8 or int4",
        ),
        (EngineSettings(quantization="fp8"), "no GPU", "quantization: fp8 is not available on a CPU"),
        (EngineSettings(quantize_head="int8"), "no GPU", "quantize_head: is for a GPU; leave it out"),
        (
            EngineSettings(tensor_parallel_size=2),
            None,
            "tensor_parallel_size: 2 needs as many GPUs, and there are 1; ask for fewer, or compute with device cpu",
        ),
    ],
)
def test_what_a_device_cannot_do_is_refused(
    settings: EngineSettings, obstacle: str | None, message: str
) -> None:
    with pytest.raises(BadValueError) as caught:
        choices.choose_device(settings, lambda: obstacle, lambda: 1)
    assert str(caught.value).startswith(message)


def test_a_cpu_that_was_asked_for_is_not_searched_for_gpus() -> None:
    def search() -> str | None:
        raise AssertionError

    assert choices.choose_device(EngineSettings(device="cpu"), search, lambda: 1) == "cpu"


@pytest.mark.parametrize(
    ("settings", "device", "sizes"),
    [
        (EngineSettings(), "cpu", (64, 2048, 1)),
        (EngineSettings(), "cuda", (256, 8192, 2)),
        (EngineSettings(max_num_seqs=3, max_num_batched_tokens=30, depth=4), "cuda", (3, 30, 4)),
        (EngineSettings(max_num_batched_tokens=16), "cpu", (16, 16, 1)),
        (EngineSettings(max_num_seqs=4096), "cpu", (4096, 4096, 1)),
    ],
)
def test_sizes_are_the_users_or_the_devices(
    settings: EngineSettings, device: str, sizes: tuple[int, int, int]
) -> None:
    chosen, depth = choices.choose_sizes(settings, SPEC, device), choices.choose_depth(settings, device)
    assert (chosen.max_num_seqs, chosen.max_num_batched_tokens, depth) == sizes
    assert (chosen.max_model_len, chosen.vocab_size, chosen.num_blocks) == (128, SPEC.vocab_size, ())


def test_a_large_gpu_computes_more_rows_unless_they_have_states() -> None:
    large, delta = (
        80 << 30,
        attrs.evolve(
            SPEC,
            layers=(
                attrs.evolve(
                    SPEC.layers[0],
                    mixer=DeltaSpec(num_key_heads=1, num_value_heads=1, key_dim=8, value_dim=8, taps=2),
                ),
                *SPEC.layers[1:],
            ),
        ),
    )
    assert choices.choose_sizes(EngineSettings(), SPEC, "cuda", large).max_num_seqs == 512
    assert choices.choose_sizes(EngineSettings(), SPEC, "cuda", 24 << 30).max_num_seqs == 256
    assert choices.choose_sizes(EngineSettings(), SPEC, "cpu", large).max_num_seqs == 64
    assert choices.choose_sizes(EngineSettings(), delta, "cuda", large).max_num_seqs == 256


def test_a_step_must_hold_a_token_of_every_sequence() -> None:
    with pytest.raises(BadValueError, match=r"max_num_batched_tokens: must be at least max_num_seqs \(9\)"):
        choices.choose_sizes(EngineSettings(max_num_seqs=9, max_num_batched_tokens=8), SPEC, "cpu")


def test_threads_are_the_users_or_every_usable_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(choices, "usable_cores", lambda: 6)
    assert choices.choose_threads(EngineSettings()) == 6
    assert choices.choose_threads(EngineSettings(threads=2)) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert choices.choose_threads(EngineSettings()) is None
    assert choices.choose_threads(EngineSettings(threads=2)) == 2


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1)])
def test_a_containers_quota_bounds_the_cores(
    quota: str, cores: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(quota + "\n")
    monkeypatch.setattr(process, "CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: 32 if logical else 16)
    assert process.usable_cores() == cores


def fits_up_to(longest: int) -> Callable[[int], str]:
    def fits(length: int) -> str:
        if length > longest:
            raise OutOfMemoryError("too long")
        return f"fits {length}"

    return fits


def test_the_longest_context_that_fits_is_chosen_unless_one_was_asked_for() -> None:
    spec = attrs.evolve(SPEC, max_position=131_072)
    assert choices.choose_model_length(EngineSettings(), spec, fits_up_to(40_000)) == "fits 32768"
    assert choices.choose_model_length(EngineSettings(max_model_len=99), spec, fits_up_to(99)) == "fits 99"
    with pytest.raises(OutOfMemoryError):
        choices.choose_model_length(EngineSettings(max_model_len=50_000), spec, fits_up_to(40_000))
    with pytest.raises(OutOfMemoryError):
        choices.choose_model_length(EngineSettings(), spec, fits_up_to(500))
    with pytest.raises(BadValueError, match=r"max_model_len: must be at most 131072"):
        choices.choose_model_length(EngineSettings(max_model_len=131_073), spec, fits_up_to(10**6))


def test_limits_carry_every_setting() -> None:
    settings = EngineSettings(policy="priority", max_itl_ms=50.0, isolation=True)
    limits = choices.make_limits(settings, SIZES)
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.block_size) == (3, 30, 8)
    assert (limits.policy.value, limits.max_itl, limits.isolated) == ("priority", 0.05, True)
    assert (limits.num_blocks, limits.max_model_len) == ((9,), 64)


@pytest.mark.parametrize("own", [None, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_threads_spin_briefly_unless_the_user_said_how(
    own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(name, "mine")
        if name != own:
            monkeypatch.delenv(name)
    prepare_process()
    assert os.environ.get("GOMP_SPINCOUNT") == {None: SPIN_COUNT, "GOMP_SPINCOUNT": "mine"}.get(own)
    assert os.environ["TRANSFORMERS_VERBOSITY"] == "error"


def test_what_keys_and_values_are_kept_in() -> None:
    fp8 = EngineSettings(kv_cache_dtype="fp8")
    narrow = choices.choose_kept(fp8, SHAPES["gpt-oss-20b"], lambda: None)
    groups = {group.kind.name: group.narrow_bytes for group in narrow.cache_groups}
    assert groups == {"window": None, "full": 1}
    whole = SHAPES["llama-3.2-1b"]
    assert choices.choose_kept(EngineSettings(), whole, lambda: "it is old") == whole
    assert choices.choose_kept(fp8, whole, lambda: None).kv_bytes_per_token(
        2
    ) * 2 == whole.kv_bytes_per_token(2)
    with pytest.raises(
        BadValueError, match=r"kv_cache_dtype: fp8 is for .* deepseek_v2 keeps none \(latent\)"
    ):
        choices.choose_kept(fp8, SHAPES["deepseek-v2-lite"], lambda: None)
    with pytest.raises(BadValueError, match="kv_cache_dtype: fp8 cannot be used: it is old; leave it out"):
        choices.choose_kept(fp8, whole, lambda: "it is old")


def test_experts_are_recorded_where_there_are_some_and_their_blocks_stay() -> None:
    settings = EngineSettings(enable_return_routed_experts=True)
    assert choices.choose_routed(settings, SHAPES["qwen3-30b-a3b"]) == (48, 8, 1)
    assert choices.choose_routed(settings, SHAPES["qwen3-next-80b-a3b"]) == (48, 10, 2)
    assert choices.choose_routed(EngineSettings(), SHAPES["qwen3-30b-a3b"]) == ()
    for shape, more, why in (
        ("llama-3.2-1b", {}, "llama has no experts"),
        ("qwen3-30b-a3b", {"speculate": "ngram"}, "beside speculation"),
        ("qwen3-30b-a3b", {"kv_offload_memory": 1 << 30}, "kv_offload_memory"),
    ):
        with pytest.raises(BadValueError, match=f"enable_return_routed_experts: .*{why}.*; leave"):
            choices.choose_routed(attrs.evolve(settings, **more), SHAPES[shape])


def test_what_is_rounded_is_not_verified() -> None:
    with pytest.raises(BadValueError, match=r"kv_cache_dtype: fp8 rounds keys and values, .* leave it out"):
        assemble_for_verification(EngineSettings(kv_cache_dtype="fp8"))


def test_how_many_tokens_a_row_may_compute_in_a_step() -> None:
    delta = DeltaSpec(num_key_heads=1, num_value_heads=1, key_dim=8, value_dim=8, taps=2)
    states = attrs.evolve(SPEC, layers=(attrs.evolve(SPEC.layers[0], mixer=delta), *SPEC.layers[1:]))
    for speculate, width in {"off": 1, "ngram": 4, "auto": 8}.items():
        settings = EngineSettings(speculate=speculate)
        assert choices.choose_width(settings, SPEC, "cpu") == width
        assert choices.choose_width(settings, states, "cpu") == width
        assert choices.choose_width(settings, states, "cuda") == width
    assert choices.choose_width(EngineSettings(), SPEC, "cuda") == 1
    assert choices.choose_width(EngineSettings(speculate="ngram"), SPEC, "cuda") == 4
    for speculate, width in {"off": 4, "eagle3": 4, "auto": 8}.items():
        settings = EngineSettings(speculate=speculate, draft="head")
        for device in ("cpu", "cuda"):
            assert choices.choose_width(settings, SPEC, device) == width
    with pytest.raises(BadValueError, match="draft: draft heads run in one process"):
        choices.choose_width(EngineSettings(draft="head", tensor_parallel_size=2), SPEC, "cuda")
    with pytest.raises(BadValueError, match="speculate: eagle3 needs a head"):
        choices.choose_width(EngineSettings(speculate="eagle3"), SPEC, "cpu")
    with pytest.raises(BadValueError, match="speculate: is ngram, and a head drafts in its place"):
        choices.choose_width(EngineSettings(speculate="ngram", draft="head"), SPEC, "cpu")
    with pytest.raises(BadValueError, match=r"speculate: mtp needs layers .* and llama has none here"):
        choices.choose_width(EngineSettings(speculate="mtp"), SPEC, "cpu")
    own = attrs.evolve(SPEC, draft=own_draft(attrs.evolve(SPEC, further_layers=1)))
    assert choices.choose_width(EngineSettings(speculate="mtp"), own, "cuda") == 4
    with pytest.raises(BadValueError, match="speculate: mtp drafts in one process only"):
        choices.choose_width(EngineSettings(speculate="mtp", tensor_parallel_size=2), own, "cpu")
    with pytest.raises(BadValueError, match="speculate: ngram is not available over several GPUs yet"):
        choices.choose_width(EngineSettings(speculate="ngram", tensor_parallel_size=2), SPEC, "cuda")
    with pytest.raises(BadValueError, match="speculate: auto measures"):
        choices.choose_width(EngineSettings(speculate="auto", tensor_parallel_size=2), SPEC, "cpu")


def test_what_cannot_be_parked_is_named() -> None:
    def check(device: str = "cpu", *, is_gguf: bool = False, **settings: Any) -> None:
        choices.check_spare(EngineSettings(park_spare=True, **settings), SPEC, device, is_gguf=is_gguf)

    check()
    check("cuda")
    check(speculate="auto", is_gguf=True)
    choices.check_spare(EngineSettings(kv_events_port=1), SPEC, "cuda", is_gguf=True)
    others: dict[str, Any] = {"tensor_parallel_size": 2, "kv_events_port": 0, "kv_offload_dir": "x"}
    for name, value in others.items():
        with pytest.raises(BadValueError, match=f"park_spare: cannot be combined with {name} yet"):
            check(**{name: value})
    with pytest.raises(BadValueError, match="combined with speculate=auto"):
        check("cuda", speculate="auto")
    with pytest.raises(BadValueError, match="not tried with weights that are stored"):
        check("cuda", is_gguf=True)


def test_several_processes_refuse_deterministic_requests_by_name() -> None:
    sizes: dict[str, Any] = dict.fromkeys(
        ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "vocab_size", "block_size"), 8
    )
    one = EngineFacts(**sizes, pid=1, model="", device="cuda", dtype="bfloat16")
    assert not choices.why_not_deterministic(one)
    several = attrs.evolve(one, tensor_parallel_size=2)
    assert "in several processes all requests are, or none is" in choices.why_not_deterministic(several)
