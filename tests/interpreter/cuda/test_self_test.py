"""The self-test passes kernels that are right, and refuses each kernel, by name, that is broken in any of several ways."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any, Final

import attrs
import pytest
import torch
from torch import Tensor

from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.pytorch.cuda.self_test import Bench, check_kernels, checks
from nanoserve.adapters.pytorch.cuda.self_test.checking import limits, measure
from nanoserve.adapters.pytorch.kernel_checks import Check, invariant
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.models import DecoderModel, build_model, build_random_model
from nanoserve.kernels.copies import cases as copies
from nanoserve.kernels.delta_rule import cases as delta_rule
from nanoserve.kernels.draft_head import cases as draft_head
from nanoserve.kernels.experts import cases as experts
from nanoserve.kernels.forms import StoredWeight
from nanoserve.kernels.gates import Activation, gated
from nanoserve.kernels.latent_attention import cases as latent_attention
from nanoserve.kernels.linear import cases as linear
from nanoserve.kernels.linear.low_rank import cases as low_rank
from nanoserve.kernels.logits import cases as logits
from nanoserve.kernels.ngrams import cases as ngrams
from nanoserve.kernels.paged_attention import cases as paged_attention
from nanoserve.kernels.pointwise import cases as pointwise
from nanoserve.kernels.rank_sums import cases as rank_sums
from nanoserve.kernels.rope_and_cache import cases as rope_and_cache
from nanoserve.kernels.sampling import cases as sampling
from nanoserve.kernels.testing import Comparison, Inputs
from nanoserve.ports.errors import ModelLoadError, OutOfMemoryError
from tests.interpreter.kernels.sampling_rows import shrink_tiles
from tests.interpreter.matrix import cases
from tests.process.encoder_models import make_encoder
from tests.unit.adapters.pytorch.eagle_heads import make_head
from tests.unit.adapters.pytorch.tiny_models import GEMMA2, GEMMA3, GPT_OSS, HYBRID, LATENT, make_tiny_model

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy remarks on NaN, which is everywhere

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MODELS: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": {"architecture": "llama"},
    "biases": {"architecture": "llama", "attention_bias": True, "mlp_bias": True},
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3"},
    "mistral": {"architecture": "mistral", "sliding_window": 11},
    "wide window": {"architecture": "mistral", "sliding_window": 40},
    "latents": {"architecture": "deepseek_v3", **LATENT},
    "experts": {"architecture": "qwen3_moe"},
    "vectors": {"architecture": "olmoe", "head_dim": 8},
    "hybrid": {"architecture": "qwen3_next", **HYBRID},
    "gemma2": {"architecture": "gemma2", **GEMMA2},
    "8 bits": {"architecture": "llama", "kept": "fp8"},
    "sinks": {"architecture": "gpt_oss", **GPT_OSS, "layer_types": ["full_attention"]},
    "gemma3": {
        "architecture": "gemma3_text",
        **GEMMA3,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
SMALL: Final = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 40, "vocab_size": 80}
OUTPUTS: Final[Mapping[str, tuple[Any, tuple[str, ...]]]] = {
    "scatter_runs": (copies, ("target",)),
    "embed_tokens, newest": (copies, ("out",)),
    "embed_tokens": (copies, ("out",)),
    "add_rms_norm_into": (pointwise, ("out", "x")),
    "gated_activation_into": (pointwise, ("out",)),
    "row_linear": (linear, ("out",)),
    "skinny_linear": (linear, ("out",)),
    "split_linear": (linear, ("partials",)),
    "invariant_linear": (linear, ("out",)),
    "gated_linear": (linear, ("out",)),
    "fp8_linear": (linear, ("out",)),
    "packed_linear": (linear, ("out",)),
    "add_low_rank": (low_rank, ("out",)),
    "multiply_adapted": (linear, ("out",)),
    "choose_experts": (experts, ("out.experts", "out.weights")),
    "feed_rows": (experts, ("stream",)),
    "feed_lists": (experts, ("partials",)),
    "norm_qkv_into": (pointwise, ("qkv",)),
    "rope_and_cache": (rope_and_cache, ("query", "cache.keys", "cache.values")),
    "rope_and_cache, newest": (rope_and_cache, ("query", "cache.keys", "cache.values")),
    "rope_and_cache, encoder": (rope_and_cache, ("query", "cache.keys", "cache.values")),
    "prefill_attention": (paged_attention, ("out",)),
    "prefill_attention, newest": (paged_attention, ("out",)),
    "prefill_attention, both sides": (paged_attention, ("out",)),
    "decode_attention": (paged_attention, ("out", "cache.keys", "cache.values")),
    "decode_attention, drafts": (paged_attention, ("out", "cache.keys", "cache.values")),
    "write_latents": (rope_and_cache, ("rotated", "cache.entries")),
    "head_linear": (latent_attention, ("out",)),
    "expanded_attention": (latent_attention, ("out", "sums.accs")),
    "latent_prefill": (latent_attention, ("out",)),
    "latent_decode": (latent_attention, ("out",)),
    "latent_decode, drafts": (latent_attention, ("out",)),
    "sigmoid_mul_into": (pointwise, ("x",)),
    "copy_pages_into": (copies, ("pool",)),
    "delta_rule_newest": (delta_rule, ("out", "states.sums", "states.recent")),
    "add_slots_into": (rank_sums, ("out",)),
    "delta_rule_chunks": (delta_rule, ("out", "states.sums", "states.recent")),
    "delta_rule_chunks, drafts": (delta_rule, ("out", "states.sums", "states.recent")),
    "delta_rule_tiles": (delta_rule, ("out", "states.sums", "states.recent")),
    "sample_and_append": (sampling, ("drawn", "tokens", "lengths", "ring_position")),
    "sample_and_append, drafts": (sampling, ("drawn", "tokens", "lengths", "ring_position")),
    "propose_ngrams": (ngrams, ("tokens",)),
    "enter_head": (draft_head, ("out",)),
    "guess_tokens": (draft_head, ("tokens", "ends")),
    "keep_states": (draft_head, ("kept", "ends")),
    "apply_penalties": (logits, ("logits",)),
    "count_tokens": (logits, ("output_counts",)),
    "token_logprobs": (logits, ("logprobs", "ranks", "totals")),
}
"""Where the checks find each kernel, and what it writes."""

FEWER: Final = (
    (linear, "SKINNY_ROWS", (5,)),
    (experts, "PAIRS_PER_EXPERT", (1,)),
    (delta_rule, "CHUNKS", ((0, 5), (3, 2))),
    (paged_attention, "DECODING", (3, 26, 1, 17, 9)),
    (paged_attention, "BATCHES", (64,)),
    (paged_attention, "SPLITS", (2,)),
    (latent_attention, "CHUNKS", ((1, 2), (22, 4), (0, 1))),
    (latent_attention, "EXPANDED_CHUNKS", ((1, 2), (42, 4), (0, 1))),
    (paged_attention, "CHUNKS", ((1, 2), (22, 4), (0, 1), (11, 6), (7, 2))),
)
"""What most tests leave out: the interpreter is slow."""


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_tiles(monkeypatch)


def gated_linear(x: Tensor, weight: Tensor, out: Tensor, *, gate: Activation) -> None:
    """In the place of a kernel in Gluon, which no interpreter has, and which takes no float32."""
    out.copy_(gated(x @ weight.t(), gate))


@pytest.fixture(autouse=True)
def _without_gluon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "fits_gated", lambda *_: True)
    monkeypatch.setattr(linear, "gated_linear", gated_linear)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DecoderModel]:
    built = {}
    for name, config in MODELS.items():
        settings = {**SMALL, **config}
        kept = settings.pop("kept", None)
        made = make_tiny_model(tmp_path_factory.mktemp(name), **settings)
        spec = made.spec if kept is None else made.spec.keeping(kept)
        built[name] = attrs.evolve(made, spec=spec).build(device=DEVICE)
    folder = tmp_path_factory.mktemp("encoder")
    make_encoder(folder, "modernbert")
    spec = read_spec(str(folder))
    half: dict[str, Any] = {"dtype": torch.float16, "device": DEVICE, "seed": 1}
    for name, form in (("stored", "fp8"), ("packed", "int4")):
        built[name] = build_random_model(built["llama"].spec, **half, quantization=form, keep=True)
    for module in built["stored"].modules():
        if isinstance(module, Linear) and isinstance(module.matrix, StoredWeight):
            module.matrix.scales.mul_(50)  # as large as sums of thousands of products are
    drafting = make_tiny_model(tmp_path_factory.mktemp("drafting"), "llama", **SMALL)
    built["drafting"] = make_head(tmp_path_factory.mktemp("head"), drafting.spec, taps=(0, 1)).load(
        drafting, device=DEVICE
    )[0]
    built["encoder"] = build_model(spec, str(folder), dtype=torch.float32, device=DEVICE)
    return built


def only(monkeypatch: pytest.MonkeyPatch, kernel: str) -> bool:
    """Leave one check; says whether deterministic serving is what launches the kernel."""
    (check,) = (each for each in checks.CHECKS if each.kernel == kernel)
    monkeypatch.setattr(checks, "CHECKS", (check,))
    leave_out(monkeypatch)
    return check.when is invariant


def leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, fewer in FEWER:
        monkeypatch.setattr(module, name, fewer)


def run(
    model: DecoderModel,
    *,
    deterministic: bool = False,
    block_size: int = 16,
    **more: Any,
) -> None:
    check_kernels(Bench(model=model, block_size=block_size, deterministic=deterministic, **more))


SPECIAL: Final = {
    "hybrid": (
        "sigmoid_mul_into",
        "delta_rule_newest",
        "delta_rule_chunks",
        "delta_rule_chunks, drafts",
        "delta_rule_tiles",
    ),
    "experts": ("choose_experts", "feed_rows", "feed_lists"),
    "vectors": ("norm_qkv_into", "add_rms_norm_into"),
    "stored": ("fp8_linear",),
    "packed": ("packed_linear",),
    "encoder": ("rope_and_cache, encoder", "prefill_attention, both sides"),
    "drafting": ("enter_head", "guess_tokens", "keep_states"),
    "latents": (
        "write_latents",
        "head_linear",
        "latent_prefill",
        "latent_decode",
        "latent_decode, drafts",
        "expanded_attention",
    ),
}
"""The kernels that a llama does not launch, by the model whose serving does."""


def model_with(kernel: str, models: Mapping[str, DecoderModel]) -> DecoderModel:
    """One whose serving launches it."""
    return models[next((name for name, kernels in SPECIAL.items() if kernel in kernels), "llama")]


def settings_with(kernel: str) -> dict[str, int]:
    """Of a bench whose serving launches it."""
    module = OUTPUTS[kernel][0]
    is_drafted = "drafts" in kernel or module in {ngrams, draft_head}
    return {
        "ranks": 2 if module is rank_sums else 1,
        "lora_rank": 32 if module is low_rank or kernel == "multiply_adapted" else 0,
        "max_width": 2 if is_drafted else 1,
    }


def function_of(kernel: str) -> str:
    """Some functions are checked twice, in two forms."""
    return kernel.partition(",")[0]


def owner_of(kernel: str) -> tuple[Any, str]:
    """The module in which the checks look the function up, and its name: some import functions, some the module of the launches."""
    module, name = OUTPUTS[kernel][0], function_of(kernel)
    return (module if hasattr(module, name) else module.launch), name


def replace(
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    broken: Callable[[Callable[..., None], dict[str, Any]], None],
) -> None:
    """Let `broken` stand for a kernel: it gets the kernel and its arguments by name."""
    module, name = owner_of(kernel)
    original = getattr(module, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def launch(*args: Any, **named: Any) -> None:
        broken(original, dict(signature.bind(*args, **named).arguments))

    monkeypatch.setattr(module, name, launch)


def scale(_before: Tensor, after: Tensor) -> None:
    """A fifth too much, or one too much of what is counted."""
    if after.is_floating_point():
        after.mul_(1.2)
    else:
        after.add_(1)


def forget_an_element(before: Tensor, after: Tensor) -> None:
    """The last element that the kernel has changed, it has not."""
    if (index := _last_change(before, after)) is not None:
        after[index] = before[index]


def spoil_an_element(before: Tensor, after: Tensor) -> None:
    """The last element that the kernel has changed, it has changed to something else."""
    if (index := _last_change(before, after)) is not None:
        after[index] = torch.nan if after.is_floating_point() else 2 + after[index]


def _last_change(before: Tensor, after: Tensor) -> tuple[int, ...] | None:
    changed = ~((before == after) | (before.isnan() & after.isnan()))
    return tuple(changed.nonzero()[-1].tolist()) if changed.any() else None


def do_nothing(before: Tensor, after: Tensor) -> None:
    after.copy_(before)


def test_every_check_has_ways_to_fail() -> None:
    assert {check.kernel for check in checks.CHECKS} == set(OUTPUTS)
    assert all(callable(getattr(*owner_of(kernel))) for kernel in OUTPUTS)


@cases("name", ["llama"], also=["qwen3", "mistral", "gemma2", "gemma3", "experts", "vectors", "latents"])
def test_kernels_that_are_right_pass(
    models: dict[str, DecoderModel], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name != "llama" and not torch.cuda.is_available():
        leave_out(monkeypatch)
    run(models[name])


@pytest.mark.parametrize("name", ["biases", "qwen2"])
def test_kernels_that_are_right_pass_with_biases(
    models: dict[str, DecoderModel], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    concerned = {"row_linear", "skinny_linear", "split_linear", "invariant_linear", "add_rms_norm_into"}
    chosen = tuple(each for each in checks.CHECKS if each.kernel in concerned)
    monkeypatch.setattr(checks, "CHECKS", chosen)
    run(models[name])
    run(models[name], deterministic=True)


@pytest.mark.parametrize("name", ["qwen3", "mistral"])
def test_kernels_of_deterministic_serving_pass(
    models: dict[str, DecoderModel], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tuple(each for each in checks.CHECKS if each.when is invariant)
    assert len(chosen) == 4
    monkeypatch.setattr(checks, "CHECKS", chosen)
    run(models[name], deterministic=True, block_size=128)


WRITTEN = [(kernel, output) for kernel, (_, outputs) in OUTPUTS.items() for output in outputs]
BROKEN = [(*written, forget_an_element) for written in WRITTEN]
"""One element is the least that can be wrong; the other ways to be wrong take turns over the kernels."""
WORSE = [(*written, way) for written, way in zip(WRITTEN, cycle([scale, spoil_an_element, do_nothing]))]


@cases(("kernel", "output", "breaking"), BROKEN, also=WORSE)
def test_a_kernel_that_writes_something_else_is_refused_by_name(
    models: dict[str, DecoderModel],
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    output: str,
    breaking: Callable[[Tensor, Tensor], None],
) -> None:
    def broken(original: Callable[..., None], arguments: dict[str, Any]) -> None:
        name, _, field = output.partition(".")
        written = getattr(arguments[name], field) if field else arguments[name]
        before = written.clone()
        original(**arguments)
        breaking(before, written)

    deterministic = only(monkeypatch, kernel)
    replace(monkeypatch, kernel, broken)
    with pytest.raises(ModelLoadError, match=rf"kernel {kernel} computes something else") as refusal:
        run(model_with(kernel, models), deterministic=deterministic, **settings_with(kernel))
    assert "--device cpu" in str(refusal.value)
    assert ("torch.float16" if kernel in ("fp8_linear", "packed_linear") else "torch.float32") in str(
        refusal.value
    )


@pytest.mark.parametrize(
    "case",
    [
        ("biases", "row_linear", "bias", None),
        ("llama", "row_linear", "norm_weight", None),
        ("llama", "row_linear", "residual", None),
        ("llama", "row_linear", "eps", 0.5),
        ("biases", "skinny_linear", "bias", None),
        ("biases", "invariant_linear", "bias", None),
        ("llama", "invariant_linear", "residual", None),
        ("biases", "add_rms_norm_into", "bias", None),
        ("llama", "add_rms_norm_into", "eps", 0.5),
        ("llama", "decode_attention", "scoring.scale", 0.3),
        ("mistral", "decode_attention", "cache.window", None),
        ("mistral", "decode_attention", "cache.window", 12),
        ("mistral", "decode_attention", "cache.window", 10),
        ("qwen3", "decode_attention", "transform.q_norm", None),
        ("qwen3", "decode_attention", "transform.eps", 0.5),
        ("llama", "prefill_attention", "scoring.scale", 0.3),
        ("mistral", "prefill_attention", "cache.window", None),
        ("mistral", "prefill_attention", "cache.window", 12),
        ("mistral", "prefill_attention", "cache.window", 10),
        ("mistral", "prefill_attention, newest", "cache.window", 12),
        ("wide window", "decode_attention", "cache.window", None),
        ("wide window", "prefill_attention", "cache.window", None),
        ("wide window", "prefill_attention, newest", "cache.window", None),
        ("qwen3", "rope_and_cache", "transform.q_norm", None),
        ("qwen3", "rope_and_cache, newest", "transform.eps", 0.5),
        ("llama", "scatter_runs", "segments", 3),
        ("gemma2", "embed_tokens", "scale", None),
        ("gemma2", "embed_tokens, newest", "scale", 48**0.5),
        ("gemma2", "add_rms_norm_into", "branch_norm", None),
        ("gemma2", "gated_activation_into", "activation", "silu"),
        ("gemma2", "row_linear", "gate", "silu"),
        ("gemma2", "skinny_linear", "gate", "silu"),
        ("gemma2", "decode_attention", "scoring.soft_cap", None),
        ("gemma2", "decode_attention", "scoring.scale", 0.25),
        ("gemma2", "prefill_attention", "scoring.soft_cap", None),
        ("gemma3", "decode_attention", "cache.window", None),
        ("sinks", "decode_attention", "scoring.sinks", None),
        ("sinks", "prefill_attention", "scoring.sinks", None),
        ("latents", "write_latents", "eps", 0.5),
        ("latents", "expanded_attention", "scale", 0.3),
        ("latents", "latent_decode", "scale", 0.3),
        ("latents", "latent_prefill", "scale", 0.3),
        ("experts", "feed_rows", "norm_weight", None),
        ("experts", "feed_rows", "eps", 0.5),
        ("experts", "choose_experts", "routing.normalized", False),
        ("vectors", "norm_qkv_into", "clip", None),
        ("vectors", "norm_qkv_into", "k_norm", None),
    ],
    ids=str,
)
def test_a_kernel_that_ignores_an_argument_is_refused_by_name(
    models: dict[str, DecoderModel], monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, str, object]
) -> None:
    name, kernel, argument, wrong = case

    def broken(original: Callable[..., None], arguments: dict[str, Any]) -> None:
        whole, _, field = argument.partition(".")
        value = arguments[whole]._replace(**{field: wrong}) if field else wrong
        original(**{**arguments, whole: value})

    deterministic = only(monkeypatch, kernel)
    replace(monkeypatch, kernel, broken)
    with pytest.raises(ModelLoadError, match=rf"kernel {kernel} computes something else"):
        run(models[name], deterministic=deterministic)


@pytest.mark.parametrize("argument", ["temperature", "top_k", "top_p", "min_p", "seeds", "num_prompt_tokens"])
def test_a_draw_that_ignores_a_setting_is_refused(
    models: dict[str, DecoderModel], monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    only(monkeypatch, "sample_and_append")
    neutral = {"temperature": 1, "top_p": 1}.get(argument, 0)
    replace(
        monkeypatch,
        "sample_and_append",
        lambda original, arguments: original(
            **{**arguments, argument: torch.full_like(arguments[argument], neutral)}
        ),
    )
    with pytest.raises(ModelLoadError, match=r"kernel sample_and_append .* \(draw"):
        run(models["llama"])


def test_a_product_that_leaves_its_scratch_memory_dirty_is_refused(
    models: dict[str, DecoderModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(original: Callable[..., None], arguments: dict[str, Any]) -> None:
        original(**arguments)
        arguments["workspace"].counters[-1] += 1

    only(monkeypatch, "skinny_linear")
    replace(monkeypatch, "skinny_linear", broken)
    with pytest.raises(ModelLoadError, match=r"kernel skinny_linear .* \(counters behind"):
        run(models["llama"])


@pytest.mark.parametrize("kernel", OUTPUTS)
def test_a_kernel_that_does_not_run_is_refused_by_name(
    models: dict[str, DecoderModel], monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    def broken(_original: Callable[..., None], _arguments: dict[str, Any]) -> None:
        raise RuntimeError("ptxas did not like it")

    deterministic = only(monkeypatch, kernel)
    replace(monkeypatch, kernel, broken)
    message = rf"kernel {kernel} does not compile or run: RuntimeError: ptxas did not like it"
    with pytest.raises(ModelLoadError, match=message) as refusal:
        run(model_with(kernel, models), deterministic=deterministic, **settings_with(kernel))
    assert isinstance(refusal.value.__cause__, RuntimeError)


def test_a_lack_of_memory_is_called_that(
    models: dict[str, DecoderModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_original: Callable[..., None], _arguments: dict[str, Any]) -> None:
        raise torch.OutOfMemoryError("8 GiB wanted")

    only(monkeypatch, "row_linear")
    replace(monkeypatch, "row_linear", broken)
    with pytest.raises(OutOfMemoryError, match="row_linear: 8 GiB wanted"):
        run(models["llama"])


@pytest.mark.parametrize(("case", "kernel"), [(logits, "apply_penalties"), (logits, "token_logprobs")])
def test_logits_lie_as_far_apart_as_serving_lets_them(
    monkeypatch: pytest.MonkeyPatch, case: Any, kernel: str
) -> None:
    """Triton compiles one variant for row strides that 16 divides, and another one for the rest."""
    seen: list[int] = []
    launch = getattr(case, kernel)

    def watch(logits: Tensor, **named: Any) -> None:
        seen.append(logits.stride(0) % 16)
        launch(logits, **named)

    monkeypatch.setattr(case, kernel, watch)
    list(getattr(case, f"check_{kernel}")(Inputs(DEVICE, torch.float32), 64))
    assert set(seen) == {0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rounding_to_a_dtype_passes_and_one_missing_element_does_not(dtype: torch.dtype) -> None:
    wanted = torch.randn(64, 4096, generator=torch.Generator().manual_seed(1))
    comparison = Comparison("", got=wanted.to(dtype), wanted=wanted)
    whole, worst = measure(comparison).tolist()
    assert whole <= limits(comparison, dtype)[0] / 4
    assert worst <= limits(comparison, dtype)[1] / 4
    missing = wanted.clone()
    missing[5, 7] = 0.0
    whole, worst = measure(comparison._replace(got=missing)).tolist()
    assert worst > limits(comparison, dtype)[1]


def test_nothing_but_zeros_is_compared_as_well() -> None:
    zeros = torch.zeros(4)
    assert measure(Comparison("", got=zeros, wanted=zeros)).tolist() == [0, 0]
    assert measure(Comparison("", got=torch.ones(4), wanted=zeros)).min() > 1


def test_a_check_that_compares_different_shapes_is_no_check(
    models: dict[str, DecoderModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = Comparison("", got=torch.zeros(1, 4), wanted=torch.zeros(4))
    monkeypatch.setattr(checks, "CHECKS", (Check("shapely", lambda _: iter([shapes])),))
    with pytest.raises(ModelLoadError, match="shapely does not compile or run: ValueError"):
        run(models["llama"])
