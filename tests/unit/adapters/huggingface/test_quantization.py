"""What a `quantization_config` says is read, or refused by name before any weight is."""

from __future__ import annotations

from typing import Any

import pytest

from nanoserve.adapters.huggingface.quantization import read_quantization
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.model_spec import Packing

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FLOATS = {"type": "float", "num_bits": 8}
FOUR_BITS = {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
MIXED = {"first": {"weights": FOUR_BITS}, "second": {"weights": {**FLOATS, "strategy": "channel"}}}
INTEGERS = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 128}
TWO = {"first": {"weights": INTEGERS}, "second": {"weights": {**INTEGERS, "group_size": 32}}}


def compressed(weights: Any = INTEGERS, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, **more.pop("group", {})}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        **more,
    }


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (None, (None, None)),
        (BLOCKS, ("fp8", None)),
        (
            {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
            ("fp8", None),
        ),
        (AWQ, ("int4", Packing("awq", 4, 128))),
        ({**AWQ, "modules_to_not_convert": ["visual"]}, ("int4", Packing("awq", 4, 128))),
        (GPTQ, ("int4", Packing("gptq", 4, 128))),
        ({**GPTQ, "bits": 8, "group_size": -1}, ("int8", Packing("gptq", 8, None))),
        ({**GPTQ, "checkpoint_format": "gptq_v2"}, ("int4", Packing("gptq_v2", 4, 128))),
        ({**GPTQ, "desc_act": True}, ("int4", Packing("gptq", 4, 128, ("g_idx",)))),
        (compressed(ignore=["lm_head"]), ("int4", Packing("compressed-tensors", 4, 128))),
        (
            compressed({**INTEGERS, "symmetric": False, "actorder": "group"}),
            ("int4", Packing("compressed-tensors", 4, 128, ("weight_zero_point", "weight_g_idx"))),
        ),
        (
            compressed({"type": "int", "num_bits": 8, "strategy": "channel"}),
            ("int8", Packing("compressed-tensors", 8, None)),
        ),
        (compressed(config_groups=TWO), ("int4", None)),
        (compressed({"type": "float", "num_bits": 8, "strategy": "channel"}), ("fp8", None)),
        (compressed({**FLOATS, "strategy": "block", "block_structure": [128, 128]}), ("fp8", None)),
        (compressed(FOUR_BITS, format="nvfp4-pack-quantized"), (None, None)),
        (compressed(FOUR_BITS, format="nvfp4-pack-quantized", config_groups=MIXED), ("fp8", None)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, (None, None)),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, ("fp8", None)),
    ],
)
def test_readable(config: Any, wanted: Any) -> None:
    assert read_quantization({} if config is None else {"quantization_config": config}) == wanted


def test_the_older_name_of_compressed_tensors_config_is_read() -> None:
    assert read_quantization({"compression_config": compressed()}) == read_quantization(
        {"quantization_config": compressed()}
    )
    with pytest.raises(ModelLoadError, match="sparsity_config"):
        read_quantization({"compression_config": compressed(sparsity_config={"format": "dense"})})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "bitsandbytes"}, "method 'bitsandbytes'.*is not supported"),
        ({"quant_method": ["awq"]}, "is not supported"),
        ({"quant_method": "mxfp4"}, "gpt_oss only"),
        ({**BLOCKS, "weight_block_size": [64, 64]}, r"weight_block_size \[64, 64\]"),
        ({**BLOCKS, "activation_scheme": "shifted"}, "activation_scheme 'shifted'"),
        (compressed({**FLOATS, "strategy": "block", "block_structure": [64, 64]}), "block_structure"),
        ({**AWQ, "bits": 3}, "has bits 3"),
        ({**AWQ, "bits": True}, "has bits True"),
        ({**AWQ, "version": "gemv"}, "has version 'gemv'"),
        ({**AWQ, "zero_point": False}, "has zero_point False"),
        ({**AWQ, "group_size": 0}, "has group_size 0"),
        ({**AWQ, "group_size": "128"}, "has group_size '128'"),
        ({**GPTQ, "bits": 2}, "has bits 2"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "has checkpoint_format 'marlin'"),
        ({**GPTQ, "is_marlin_format": True}, "in the order of Marlin's kernels"),
        (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "has a sparsity_config"),
        (compressed(transform_config={"config_groups": {}}), "has a transform_config"),
        (compressed(format="nvfp4-pack-quantized"), "in the format 'nvfp4-pack-quantized'"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "has quant_algo 'W4A8_AWQ'"),
        (compressed(group={"input_activations": {"num_bits": 8}}), "quantizes activations to integers"),
        (compressed({**INTEGERS, "num_bits": 3}), "of type 'int' with 3 bits by 'group' in group_0"),
        (compressed({"type": "float", "num_bits": 4, "strategy": "tensor_group"}), "'float' with 4 bits"),
        (compressed({**INTEGERS, "group_size": 96}), "has group_size 96"),
        (compressed(None), "has no weights in group_0"),
        (compressed(config_groups={}), "has no config_groups"),
        ("awq", "is not supported"),
    ],
)
def test_refused_by_name(config: Any, named: str) -> None:
    with pytest.raises(ModelLoadError, match=named) as caught:
        read_quantization({"quantization_config": config})
    assert "readable are" in str(caught.value)
