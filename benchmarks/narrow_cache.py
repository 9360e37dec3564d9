"""How far keys and values in 8-bit floats, or weights or a head in a form, move a model's next token: the KL divergence from its own logits, on a fixed text.

`python -m benchmarks.narrow_cache --model FOLDER_OR_GGUF`. The text is that of the repository's decisions, which do not change. Everything
is computed in float32 on a CPU, so that one of these alone differs; beside it stands what computing in bfloat16 does. More than 16 rows are rounded before
they are multiplied with 8-bit floats, too. Models are those whose head is their embedding.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import torch
from torch import Tensor

from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.gguf.folder import present_folder
from nanoserve.adapters.huggingface.spec import read_spec
from nanoserve.adapters.huggingface.tokenizer import HFTokenizer
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.linear.packing import replace_linears
from nanoserve.adapters.pytorch.models import build_model
from nanoserve.adapters.pytorch.step_inputs import StepInputs
from nanoserve.kernels.forms import FORMS, Form
from nanoserve.ports.model_spec import ModelSpec

DECISIONS = Path(__file__).parents[1] / "docs" / "adr"
BLOCK_SIZE = 16
CPU = torch.device("cpu")
NARROW = (
    ("int8", FORMS["int8"], False),
    ("fp8, few rows", FORMS["fp8"], False),
    ("fp8, many rows", FORMS["fp8"], True),
    ("int4", FORMS["int4"], False),
    ("mxfp4", FORMS["mxfp4"], False),
)
"""Forms of weights, and whether rows are rounded as well; the first three are those of heads."""


class Rounding(Linear):
    """A plain layer whose weight, and rows if asked, are as close to another one's as a form has them."""

    def __init__(self, linear: Linear, form: Form | None, *, rounds: bool) -> None:
        super().__init__(linear.in_features, linear.out_features)
        weight = linear.matrix.float()
        self.weight.data = weight if form is None else form.widen(*form.quantize(weight))
        self.bias, self.form = linear.bias, form if rounds else None

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return super().__call__(x if self.form is None else self.form.widen(*self.form.quantize(x)))


def main() -> None:
    """Compare over texts of each length."""
    arguments = _arguments()
    folder = str(present_folder(arguments.model) if arguments.model else model_folder())
    text = "\n".join(each.read_text(encoding="utf-8") for each in sorted(DECISIONS.glob("00*.md")))
    ids = HFTokenizer(folder).encode(text)
    spec = read_spec(folder)
    for length in arguments.length:
        exact = log_probabilities(spec, folder, ids[:length], torch.float32)
        for name, other, dtype in (
            ("fp8 keys and values", spec.keeping("fp8"), torch.float32),
            ("bfloat16 arithmetic", spec, torch.bfloat16),
            ("both", spec.keeping("fp8"), torch.bfloat16),
        ):
            print(
                f"{length} tokens, {name}: {described(exact, log_probabilities(other, folder, ids[:length], dtype), ids)}",
                flush=True,
            )
        for name, form, rounds in NARROW[:3]:
            moved = log_probabilities(spec, folder, ids[:length], torch.float32, head=form, rounds=rounds)
            print(f"{length} tokens, {name} head: {described(exact, moved, ids)}", flush=True)
        for name, form, rounds in NARROW:
            moved = log_probabilities(spec, folder, ids[:length], torch.float32, weights=form, rounds=rounds)
            print(f"{length} tokens, {name} weights: {described(exact, moved, ids)}", flush=True)


def log_probabilities(
    spec: ModelSpec,
    folder: str,
    ids: list[int],
    dtype: torch.dtype,
    *,
    head: Form | None = None,
    weights: Form | None = None,
    rounds: bool = False,
) -> Tensor:
    """Of the token behind each, float32 [T, vocab]; with a head or all other weights in a form, of rows that are rounded to it, too, if asked."""
    model = build_model(spec, folder, dtype=dtype, device=CPU, keep=weights is not None)
    if weights is not None:
        for layer in model.layers:
            for part in layer:
                replace_linears(part, functools.partial(Rounding, form=weights, rounds=rounds))
    blocks = -(-len(ids) // BLOCK_SIZE)
    kv = KVStore(spec, num_blocks=blocks, block_size=BLOCK_SIZE, dtype=dtype, device=CPU)
    inputs = StepInputs.of_prompt(ids, block_size=BLOCK_SIZE, num_groups=len(spec.cache_groups))
    with torch.inference_mode():
        hidden = model(inputs, kv)
        if head is not None:
            hidden = head.widen(*head.quantize(hidden)) if rounds else hidden
            matrix = head.widen(*head.quantize(model.embedding.weight.float()))
            return (hidden @ matrix.t() / model.spec.logit_divisor).log_softmax(-1)
        return torch.cat([model.logits(part).log_softmax(-1) for part in torch.split(hidden, 256)])


def described(exact: Tensor, other: Tensor, ids: list[int]) -> str:
    """The divergence in nats, its mean and 99th percentile, how often the likeliest token is the same, and perplexities."""
    divergence = torch.cat(
        [
            (one.double().exp() * (one.double() - two.double())).sum(-1)
            for one, two in zip(torch.split(exact, 256), torch.split(other, 256), strict=True)
        ]
    )
    same = (exact.argmax(-1) == other.argmax(-1)).float().mean()
    following = torch.tensor(ids[1 : len(exact)])[:, None]
    perplexities = [float(each[:-1].gather(1, following).mean().neg().exp()) for each in (exact, other)]
    p99 = float(divergence.quantile(0.99))
    return f"KL mean {divergence.mean():.2e}, p99 {p99:.2e}, same likeliest token {same:.2%}, perplexity {perplexities[0]:.3f} -> {perplexities[1]:.3f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="the embedded model if not given")
    parser.add_argument("--length", type=int, nargs="+", default=[2048])
    return parser.parse_args()


if __name__ == "__main__":
    main()
